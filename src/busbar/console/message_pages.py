"""The messages of an entity: lists by lane, one message with all that it has, and the form that sends one."""

from __future__ import annotations

from collections.abc import Mapping

from busbar.console.form_parts import form, labelled, line, lines
from busbar.console.html import Markup, tag
from busbar.console.layout import (
    address_in,
    badge,
    count,
    kind_line,
    nothing,
    notice,
    page,
    path_of,
    properties,
    section,
    table,
    tabs,
    trail_below,
    trail_to,
)
from busbar.console.messages import Lane, MessageDetail, MessageRange, MessageSummary, TypedMessage
from busbar.console.namespace import Address, Entity

LANES = {
    Lane.ACTIVE: "Active",
    Lane.DEFERRED: "Deferred",
    Lane.SCHEDULED: "Scheduled",
    Lane.DEAD_LETTER: "Dead-lettered",
    Lane.TRANSFER_DEAD_LETTER: "Transfer dead-lettered",
}
NUMBERS = frozenset(("Deliveries",))
FIELDS = (
    ("message_id", "Message id", "Empty: a new one."),
    ("session_id", "Session id", "The message session it belongs to."),
    ("partition_key", "Partition key", "Messages with one key stay in order."),
    ("subject", "Subject", ""),
    ("content_type", "Content type", ""),
    ("correlation_id", "Correlation id", ""),
    ("to", "To", ""),
    ("reply_to", "Reply to", ""),
)
"""The texts of a message that a form has."""
TIMES = ("time_to_live", "schedule")


def messages_page(
    entity: Entity, lane: Lane, found: MessageRange, *, start: int, session: str | None, place: str
) -> str:
    address = entity.address
    kept = {"lane": str(lane)} | ({"session": session} if session is not None else {})
    links = []
    if start > 1:
        links.append(tag("a", "← first", href=path_of(address, "messages", **kept)))
    if found.next is not None:
        links.append(tag("a", "after →", href=path_of(address, "messages", **kept, start=found.next)))
    rows = [_row(address, lane, message) for message in found.messages]
    return page(
        address.name,
        kind_line(entity),
        tabs(entity, "messages"),
        _lane_tabs(entity, lane, session),
        _look_form(address, lane, start, session),
        table(_COLUMNS, rows, NUMBERS)
        if rows
        else nothing(f"There are no {LANES[lane].lower()} messages here."),
        tag("nav", links, class_="pages", aria_label="More messages") if links else None,
        tag("p", tag("a", "Purge …", href=path_of(address, "purge"), class_="danger")),
        place=place,
        trail=trail_to(address),
    )


_COLUMNS = ("Number", "Message id", "State", "Enqueued", "Deliveries", "Body")


def message_path(address: Address, lane: Lane, number: int) -> str:
    return path_of(address, "message", lane=str(lane), number=number)


def _row(address: Address, lane: Lane, message: MessageSummary) -> tuple[str | Markup, ...]:
    about = [
        text
        for text in (
            message.subject,
            f"session {message.session_id}" if message.session_id else "",
            message.reason,
        )
        if text
    ]
    return (
        tag("a", str(message.number), href=message_path(address, lane, message.number)),
        tag("div", message.message_id, [tag("small", text) for text in about], class_="stack"),
        state_badge(message.state),
        message.enqueued,
        count(message.deliveries),
        tag("code", message.preview, class_="preview"),
    )


def state_badge(state: str) -> Markup:
    return badge(state, {"Active": "good", "Locked": "warn"}.get(state, ""))


def _lane_tabs(entity: Entity, current: Lane, session: str | None) -> Markup:
    numbers = {
        Lane.SCHEDULED: entity.scheduled,
        Lane.DEAD_LETTER: entity.dead_letters,
        Lane.TRANSFER_DEAD_LETTER: entity.failed_transfers,
    }
    more = {"session": session} if session is not None else {}
    links = [
        tag(
            "a",
            label,
            tag("b", f" {count(numbers[lane])}") if numbers.get(lane) else None,
            href=path_of(entity.address, "messages", lane=str(lane), **more),
            aria_current="page" if lane is current else None,
        )
        for lane, label in LANES.items()
    ]
    return tag("nav", links, class_="lanes", aria_label="Which messages")


def _look_form(address: Address, lane: Lane, start: int, session: str | None) -> Markup:
    """The number and the session from which messages are shown; a GET, which changes nothing."""
    kept = {"name": address.name, "lane": str(lane)} | ({"topic": address.topic} if address.topic else {})
    return tag(
        "form",
        [tag("input", type="hidden", name=name, value=value) for name, value in kept.items()],
        tag("label", "From number ", _small("start", str(start) if start > 1 else "", "1")),
        tag("label", "Session ", _small("session", session or "", "any")),
        tag("button", "Show", type="submit", class_="quiet"),
        action=f"/{address.kind}/messages",
        class_="look",
        autocomplete="off",
    )


def _small(name: str, value: str, placeholder: str) -> Markup:
    return tag("input", type="text", name=name, value=value, placeholder=placeholder, spellcheck="false")


def message_page(entity: Entity, lane: Lane, message: MessageDetail, *, as_hex: bool, place: str) -> str:
    address = entity.address
    here = message_path(address, lane, message.number)
    views = [
        tag("a", "Text", href=here, aria_current=None if as_hex else "page"),
        tag("a", "Hex", href=f"{here}&view=hex", aria_current="page" if as_hex else None),
    ]
    actions = []
    if lane in (Lane.DEAD_LETTER, Lane.TRANSFER_DEAD_LETTER):
        chosen: dict[str, str | int] = {"lane": str(lane), "number": message.number}
        actions = [
            tag("a", "Edit and resubmit …", href=path_of(address, "mend", **chosen), class_="button"),
            tag("a", "Delete …", href=path_of(address, "dead-letters/delete", **chosen), class_="danger"),
        ]
    return page(
        f"Message {message.number}",
        tag("p", tag("span", LANES[lane], class_="badge kind")),
        tag("p", actions, class_="actions") if actions else None,
        section(
            "Body",
            tag("pre", message.body_hex if as_hex else message.body, tabindex="0", aria_label="Body")
            if message.size
            else nothing("The body is empty."),
            action=tag("nav", views, class_="lanes", aria_label="How the body is shown"),
        ),
        tag(
            "div",
            properties("Fields", message.fields),
            tag(
                "div",
                _values("Application properties", message.properties),
                _values("Annotations", message.annotations),
            ),
            class_="columns",
        ),
        place=place,
        trail=[*trail_below(address), messages_link(address, lane)],
    )


def messages_link(address: Address, lane: Lane = Lane.ACTIVE) -> Markup:
    return tag("a", "Messages", href=path_of(address, "messages", lane=str(lane)))


def _values(title: str, values: Mapping[str, str]) -> Markup:
    return properties(title, values) if values else section(title, nothing("There are none."))


def send_page(
    shown: Address | Entity,
    message: TypedMessage,
    *,
    csrf: str,
    place: str,
    refusal: str = "",
    done: bool = False,
) -> str:
    address = address_in(shown)
    return page(
        address.name,
        kind_line(shown),
        tabs(shown, "send"),
        notice(refusal, bad=True) if refusal else None,
        notice("The message was sent.") if done else None,
        form(
            path_of(address, "send"),
            csrf,
            message_inputs(message),
            labelled(
                "file",
                "Body from a file",
                "If one is chosen, it is sent instead of the text.",
                tag("input", type="file", id="file", name="file", aria_describedby="file-hint"),
            ),
            tag(
                "div",
                line(
                    "time_to_live",
                    "Time to live",
                    "90s, 1h30m, 14d; empty: that of the entity.",
                    message.time_to_live,
                ),
                line(
                    "schedule",
                    "Enqueue at",
                    "2026-01-31T12:00:00Z, or +60 for seconds from now.",
                    message.schedule,
                ),
                class_="pairs",
            ),
            submit="Send message",
            enctype="multipart/form-data",
        ),
        place=place,
        trail=trail_to(address),
    )


def message_inputs(message: TypedMessage, *, focus: bool = True) -> list[Markup]:
    """The inputs of a message: body, fields, properties."""
    return [
        lines("body", "Body", "", message.body, rows=8, focus=focus),
        tag(
            "div",
            [line(name, label, hint, getattr(message, name)) for name, label, hint in FIELDS],
            class_="pairs",
        ),
        lines(
            "properties",
            "Application properties",
            'A line for each: region=eu. Numbers, true and false are such values; "5" in quotes is a text.',
            message.properties,
            rows=3,
        ),
    ]


def read_message(sent: Mapping[str, str], content: bytes | None) -> TypedMessage:
    """The message of a submitted form. A browser sends line breaks as CR LF."""
    texts = {name: sent.get(name, "").strip() for name in (*(name for name, _, _ in FIELDS), *TIMES)}
    return TypedMessage(
        body=sent.get("body", "").replace("\r\n", "\n"),
        content=content,
        properties=sent.get("properties", "").replace("\r\n", "\n"),
        **texts,
    )
