"""The pages of one entity: what it holds, its creation, its settings, and the question before it is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from busbar.console.form_parts import check_box, choice, confirmation_page, form, group, hidden, line
from busbar.console.forms import NAME, Field, Form, FormValues, shown_values
from busbar.console.fragment_chart import fragment_picture
from busbar.console.history import CountHistory
from busbar.console.html import Markup, tag
from busbar.console.layout import (
    address_in,
    beside,
    counted,
    kind_line,
    notice,
    page,
    path_of,
    properties,
    tabs,
    tiles,
    trail_below,
    trail_to,
)
from busbar.console.namespace import Address, Entity, EntityPage, EntityType, FragmentSummary
from busbar.console.overview_page import entity_list, entity_tiles, hour_plots

_SEGMENTED = "Letters, digits, '-', '.' and '_'; '/' makes a path of it."
_NAMES = {
    EntityType.QUEUE: _SEGMENTED,
    EntityType.TOPIC: _SEGMENTED,
    EntityType.SUBSCRIPTION: "Letters, digits, '-', '.' and '_'.",
}
DONE = {"created": "The {} was created.", "changed": "The {} was changed."}
"""What a page reports after a change, by what is in its address."""


def entity_page(
    entity: Entity,
    history: CountHistory,
    now: float,
    *,
    fragments: Sequence[FragmentSummary] = (),
    subscriptions: EntityPage | None = None,
    skip: int = 0,
    limit: int = 0,
    done: str = "",
    place: str,
) -> str:
    address = entity.address
    below = None
    if subscriptions is not None:
        links = [(name, path_of(address, skip=to)) for name, to in beside(skip, limit, subscriptions.more)]
        below = entity_list(
            "Subscriptions",
            EntityType.SUBSCRIPTION,
            subscriptions,
            links,
            history,
            now,
            topic=address.name,
        )
    return page(
        address.name,
        kind_line(entity),
        tabs(entity, ""),
        notice(DONE[done].format(address.kind)) if done in DONE else None,
        tiles(entity_tiles(entity)),
        hour_plots(history, address.path, now) if address.kind is not EntityType.TOPIC else None,
        below,
        fragment_picture(fragments) if len(fragments) > 1 else None,
        tag(
            "div",
            properties("Settings", entity.settings),
            properties("Now", {**entity.runtime, **_store(fragments)}),
            class_="columns",
        ),
        tag(
            "p",
            tag("a", "Its connections", href=f"/connections?{urlencode({'entity': address.path})}"),
            " · ",
            tag("a", f"Delete this {address.kind} …", href=path_of(address, "delete"), class_="danger"),
        ),
        place=place,
        live=True,
        trail=trail_to(address),
    )


def _store(fragments: Sequence[FragmentSummary]) -> dict[str, str]:
    """The store of an entity that has one fragment."""
    if len(fragments) != 1:
        return {}
    return {"Messaging store": fragments[0].store + ("" if fragments[0].open else ", unavailable")}


def create_page(
    blank: Form, filled: FormValues, *, topic: str, csrf: str, place: str, refusal: str = ""
) -> str:
    where = Address(blank.kind, "", topic)
    back = path_of(Address(EntityType.TOPIC, topic)) if topic else "/"
    return page(
        f"New {blank.kind}",
        notice(refusal, bad=True) if refusal else None,
        form(
            f"/{blank.kind}/new",
            csrf,
            hidden("topic", topic) if topic else None,
            line(NAME, "Name", _NAMES[blank.kind], filled.name, required=True, focus=True),
            _inputs(blank, filled, "Features"),
            submit=f"Create {blank.kind}",
            cancel=("Cancel", back),
        ),
        place=place,
        trail=trail_to(where),
    )


def edit_page(
    blank: Form,
    entity: Address | Entity,
    filled: FormValues,
    shown: dict[str, str] | None = None,
    *,
    csrf: str,
    place: str,
    refusal: str = "",
) -> str:
    """The settings of an entity that can be changed; `shown` are the values that the form had at first."""
    kept = shown_values(blank, filled) if shown is None else shown
    address = address_in(entity)
    return page(
        address.name,
        kind_line(entity),
        tabs(entity, "edit"),
        notice(refusal, bad=True) if refusal else None,
        form(
            path_of(address, "edit"),
            csrf,
            [hidden(name, value) for name, value in kept.items()],
            _inputs(blank, filled, "Switches"),
            submit=f"Change {address.kind}",
            cancel=("Cancel", path_of(address)),
        ),
        place=place,
        trail=trail_to(address),
    )


def delete_page(entity: Entity, *, csrf: str, place: str) -> str:
    address = entity.address
    # The messages of unavailable fragments cannot be counted now.
    least = "" if entity.available else "at least "
    held = least + counted(entity.messages + entity.dead_letters + entity.scheduled, "message")
    if address.kind is EntityType.TOPIC:
        held = f"{counted(entity.subscriptions, 'subscription')} and all messages in them"
    return confirmation_page(
        f"Delete {address.name}?",
        f"The {address.kind} is deleted with {held}. This cannot be undone.",
        action=path_of(address, "delete"),
        csrf=csrf,
        submit=f"Delete {address.kind}",
        keep=("Keep it", path_of(address)),
        place=place,
        trail=trail_below(address),
    )


def _inputs(blank: Form, filled: FormValues, legend: str) -> list[Markup]:
    boxes = [check_box(box.element, box.label, box.hint, box.element in filled.ticked) for box in blank.boxes]
    return [
        *(_field(field, filled.texts.get(field.element, "")) for field in blank.fields),
        group(legend, boxes),
    ]


def _field(field: Field, value: str) -> Markup:
    if field.choices:
        return choice(field.element, field.label, field.hint, value, field.choices)
    return line(field.element, field.label, field.hint, value, placeholder=field.placeholder)
