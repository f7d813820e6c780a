"""The message sessions of an entity: who holds them, what waits in them, and their states."""

from __future__ import annotations

from busbar.console.access import CSRF_FIELD
from busbar.console.form_parts import form, hidden, lines
from busbar.console.html import Markup, tag
from busbar.console.layout import (
    badge,
    beside,
    count,
    counted,
    kind_line,
    nothing,
    notice,
    number,
    page,
    pager,
    path_of,
    properties,
    table,
    tabs,
    trail_below,
    trail_to,
)
from busbar.console.messages import SessionRow, SessionsRange
from busbar.console.namespace import Address, Entity

NUMBERS = frozenset(("Messages", "Deferred"))
DONE = {
    "accepted": "The console holds the session now: no other client receives from it.",
    "released": "The session was released.",
    "changed": "The state was changed.",
}


def sessions_page(entity: Entity, found: SessionsRange, *, skip: int, limit: int, place: str) -> str:
    address = entity.address
    links = [
        (name, path_of(address, "sessions", skip=to))
        for name, to in beside(skip, limit, skip + limit < found.total)
    ]
    rows = [
        (
            tag("a", each.id or "(the empty id)", href=path_of(address, "session", id=each.id)),
            each.messages,
            number(each.deferred),
            each.oldest,
            _holder(each),
            badge("has a state") if each.has_state else "",
        )
        for each in found.sessions
    ]
    return page(
        address.name,
        kind_line(entity),
        tabs(entity, "sessions"),
        nothing(
            f"{counted(found.total, 'session')} with messages or a state. A session has one receiver at a time, its holder."
            if rows
            else "No session has messages or a state."
        ),
        table(("Session", "Messages", "Deferred", "Oldest", "Holder", "State"), rows, NUMBERS)
        if rows
        else None,
        pager(links, "More sessions"),
        place=place,
        trail=trail_to(address),
    )


def session_page(
    address: Address, session: SessionRow, *, done: str = "", csrf: str, place: str, refusal: str = ""
) -> str:
    here = {"id": session.id}
    about = {
        "Messages": session.messages,
        "Deferred": count(session.deferred),
        "Oldest": session.oldest,
        "Holder": session.holder or ("this console" if session.is_held_here else "no client"),
        "Held until": session.locked_until,
    }
    return page(
        f"Session {session.id}",
        notice(refusal, bad=True) if refusal else None,
        notice(DONE[done]) if done in DONE else None,
        tag("div", _hold_form(address, session, csrf), _holding(session), class_="actions"),
        tag("div", properties("Now", {name: text for name, text in about.items() if text}), class_="columns"),
        tag("p", tag("a", "Its messages", href=path_of(address, "messages", session=session.id))),
        form(
            path_of(address, "session/state", **here),
            csrf,
            lines(
                "state",
                "State",
                "Empty: none. To set it, the session is accepted for a moment.",
                session.state,
            ),
            submit="Set state",
        ),
        place=place,
        trail=[*trail_below(address), tag("a", "Sessions", href=path_of(address, "sessions"))],
    )


def _hold_form(address: Address, session: SessionRow, csrf: str) -> Markup:
    """Accept or release, whichever is possible."""
    action, text = ("release", "Release") if session.is_held_here else ("accept", "Accept and hold")
    return tag(
        "form",
        hidden(CSRF_FIELD, csrf),
        tag("button", text, type="submit", class_="quiet"),
        method="post",
        action=path_of(address, f"session/{action}", id=session.id),
        class_="inline",
    )


def _holding(session: SessionRow) -> Markup:
    text = (
        "Until you release it, no other client receives from this session."
        if session.is_held_here
        else "The console then holds the session, and no other client receives from it."
    )
    return tag("span", text, class_="soft")


def _holder(session: SessionRow) -> Markup | str:
    if session.is_held_here:
        return badge("this console", "warn")
    if not session.locked_until:
        return tag("span", "no client", class_="soft")
    return tag(
        "div", session.holder or "a client", tag("small", f"until {session.locked_until}"), class_="stack"
    )
