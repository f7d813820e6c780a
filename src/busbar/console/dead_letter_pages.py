"""Triage of dead letters: groups by reason and source, a list to select from, and pages that ask before anything happens."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.console.form_parts import choice, confirmation_page, form, hidden, line
from busbar.console.forms import SHOWN
from busbar.console.html import Markup, tag
from busbar.console.layout import (
    count,
    kind_line,
    nothing,
    notice,
    number,
    page,
    path_of,
    section,
    table,
    tabs,
    trail_below,
    trail_to,
)
from busbar.console.message_pages import FIELDS, message_inputs, message_path
from busbar.console.messages import (
    GROUPED,
    DeadLetterSummary,
    Lane,
    MessageDetail,
    MessageRange,
    Selected,
    TriageResult,
    TypedMessage,
)
from busbar.console.namespace import Address, Entity, EntityType
from busbar.console.operation_pages import entity_link

IDS = (("new", "A new one (the old one is in original-message-id)"), ("keep", "The same"))
COPY_IDS = (*IDS, ("own", "The one above"))
NUMBERS = frozenset(("Messages", "Deliveries"))


def dead_letters_page(
    entity: Entity,
    lane: Lane,
    groups: Sequence[DeadLetterSummary],
    found: MessageRange,
    *,
    start: int,
    result: str = "",
    place: str,
) -> str:
    address = entity.address
    links = []
    if start > 1:
        links.append(tag("a", "← first", href=path_of(address, "dead-letters", lane=str(lane))))
    if found.next is not None:
        links.append(
            tag("a", "after →", href=path_of(address, "dead-letters", lane=str(lane), start=found.next))
        )
    return page(
        address.name,
        kind_line(entity),
        tabs(entity, "dead-letters"),
        notice(result) if result else None,
        _which(entity, lane),
        section(
            "By reason and source",
            nothing(f"These are the oldest {count(GROUPED)}; there are more.")
            if sum(group.count for group in groups) >= GROUPED
            else None,
            _groups(address, lane, groups),
        )
        if groups
        else nothing("There are no dead letters."),
        section("Messages", _choose(address, lane, found)) if found.messages else None,
        tag("nav", links, class_="pages", aria_label="More dead letters") if links else None,
        place=place,
        trail=trail_to(address),
    )


def _which(entity: Entity, current: Lane) -> Markup | None:
    """Links to both kinds of dead letters, if there are transfers that have failed."""
    if not entity.failed_transfers and current is Lane.DEAD_LETTER:
        return None
    kinds = ((Lane.DEAD_LETTER, "Dead letters"), (Lane.TRANSFER_DEAD_LETTER, "Failed transfers"))
    links = [
        tag(
            "a",
            label,
            href=path_of(entity.address, "dead-letters", lane=str(lane)),
            aria_current="page" if lane is current else None,
        )
        for lane, label in kinds
    ]
    return tag("nav", links, class_="lanes", aria_label="Which dead letters")


def _groups(address: Address, lane: Lane, groups: Sequence[DeadLetterSummary]) -> Markup:
    rows = [
        (
            tag(
                "div",
                tag("b", group.reason or "without a reason"),
                tag("small", group.description) if group.description else None,
                class_="stack",
            ),
            entity_link(group.source),
            number(group.count, "bad"),
            tag("div", group.newest, tag("small", f"since {group.oldest}"), class_="stack"),
            tag(
                "span",
                tag("a", "Resubmit …", href=_act(address, lane, "resubmit", group.reason)),
                " ",
                tag("a", "Delete …", href=_act(address, lane, "delete", group.reason), class_="danger"),
            ),
        )
        for group in groups
    ]
    return table(("Reason", "Source", "Messages", "Newest", "All of this reason"), rows, NUMBERS)


def _act(address: Address, lane: Lane, action: str, reason: str) -> str:
    return path_of(address, f"dead-letters/{action}", lane=str(lane), reason=reason)


def _choose(address: Address, lane: Lane, found: MessageRange) -> Markup:
    """The list as a form: a GET that leads to the page of the chosen action."""
    kept = {"name": address.name, "lane": str(lane)} | ({"topic": address.topic} if address.topic else {})
    rows = [
        (
            tag(
                "span",
                tag(
                    "input",
                    type="checkbox",
                    name="number",
                    value=message.number,
                    aria_label=f"Select message {message.number}",
                ),
                " ",
                tag("a", str(message.number), href=message_path(address, lane, message.number)),
            ),
            tag(
                "div",
                message.message_id,
                tag("small", message.subject) if message.subject else None,
                class_="stack",
            ),
            message.reason,
            message.enqueued,
            count(message.deliveries),
            tag("code", message.preview, class_="preview"),
            tag(
                "a",
                "Edit …",
                href=path_of(address, "mend", lane=str(lane), number=message.number),
                aria_label=f"Edit and resubmit message {message.number}",
            ),
        )
        for message in found.messages
    ]
    base = f"/{address.kind}/dead-letters"
    return tag(
        "form",
        [hidden(name, value) for name, value in kept.items()],
        table(("Number", "Message id", "Reason", "Enqueued", "Deliveries", "Body", "Edit"), rows, NUMBERS),
        tag(
            "p",
            tag("button", "Resubmit selected …", type="submit", formaction=f"{base}/resubmit"),
            tag("button", "Delete selected …", type="submit", formaction=f"{base}/delete", class_="danger"),
        ),
        class_="whole",
    )


def chosen_text(selected: Selected, groups: Sequence[DeadLetterSummary]) -> str:
    """Which dead letters are meant, for people."""
    if selected.reasons:
        many = sum(group.count for group in groups if group.reason in selected.reasons)
        named = ", ".join(f"“{reason}”" if reason else "no reason" for reason in sorted(selected.reasons))
        return f"{count(many)} dead letters with {named}"
    many = len(selected.numbers)
    return f"{count(many)} dead letter{'' if many == 1 else 's'}"


def resubmit_page(
    address: Address, lane: Lane, selected: Selected, what: str, *, csrf: str, place: str, refusal: str = ""
) -> str:
    return page(
        f"Resubmit {what}?",
        notice(refusal, bad=True) if refusal else None,
        tag("p", "Copies are sent, and then the dead letters are deleted."),
        form(
            path_of(address, "dead-letters/resubmit", lane=str(lane)),
            csrf,
            _selection(selected),
            target_input(address, lane, ""),
            choice("id", "Message id of a copy", "", "new", IDS),
            submit="Resubmit",
            cancel=("Cancel", path_of(address, "dead-letters", lane=str(lane))),
        ),
        place=place,
        trail=[*trail_below(address), dead_letters_link(address, lane)],
    )


def delete_letters_page(
    address: Address, lane: Lane, selected: Selected, what: str, *, csrf: str, place: str
) -> str:
    return confirmation_page(
        f"Delete {what}?",
        f"They are deleted from the dead-letter queue of {address.name}. This cannot be undone.",
        _selection(selected),
        action=path_of(address, "dead-letters/delete", lane=str(lane)),
        csrf=csrf,
        submit="Delete",
        keep=("Keep them", path_of(address, "dead-letters", lane=str(lane))),
        place=place,
        trail=[*trail_below(address), dead_letters_link(address, lane)],
    )


def mend_page(
    address: Address,
    lane: Lane,
    message: MessageDetail,
    typed: TypedMessage,
    *,
    target: str = "",
    id: str = "new",
    csrf: str,
    place: str,
    refusal: str = "",
) -> str:
    """The form for a copy of a dead letter."""
    shown = [hidden(f"{SHOWN}{name}", value) for name, value in fields_of(message.copy).items()]
    return page(
        f"Edit and resubmit {message.number}",
        notice(refusal, bad=True) if refusal else None,
        tag("p", "A copy with these values is sent, and then the dead letter is deleted."),
        nothing("The body is not text: it stays as it is, unless another one is written.")
        if not message.is_text and message.size
        else None,
        form(
            path_of(address, "mend", lane=str(lane), number=message.number),
            csrf,
            shown,
            message_inputs(typed),
            target_input(address, lane, target),
            choice("id", "Message id of the copy", "", id, COPY_IDS),
            submit="Send the copy",
            cancel=("Cancel", path_of(address, "dead-letters", lane=str(lane))),
        ),
        place=place,
        trail=[*trail_below(address), dead_letters_link(address, lane)],
    )


def fields_of(message: TypedMessage) -> dict[str, str]:
    """The values of a message that a form shows, by their names."""
    texts = {name: getattr(message, name) for name, _, _ in FIELDS}
    return {**texts, "body": message.body, "properties": message.properties}


def target_input(address: Address, lane: Lane, value: str) -> Markup:
    needed = address.kind is EntityType.SUBSCRIPTION or lane is Lane.TRANSFER_DEAD_LETTER
    hint = (
        "A queue or a topic. All subscriptions of a topic get the copies."
        if needed
        else "Empty: the queue they came from."
    )
    return line("target", "Send to", hint, value, required=needed, placeholder="" if needed else address.name)


def result_text(result: TriageResult, done: str) -> str:
    """What became of the selected dead letters."""
    parts = [f"{count(result.done)} of {count(result.found)} dead letters {done}."]
    if result.refused:
        parts.append(f"{count(result.refused)} were refused: {'; '.join(result.reasons)}.")
    left = result.found - result.done - result.refused
    if left:
        parts.append(f"{count(left)} are locked by others, or gone.")
    return " ".join(parts)


def dead_letters_link(address: Address, lane: Lane) -> Markup:
    return tag("a", "Dead letters", href=path_of(address, "dead-letters", lane=str(lane)))


def _selection(selected: Selected) -> list[Markup]:
    return [
        *(hidden("number", str(each)) for each in sorted(selected.numbers)),
        *(hidden("reason", reason) for reason in sorted(selected.reasons)),
    ]
