"""The pages. Each is a function of the namespace's answers; text is escaped by its type (html.py)."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from busbar.console.access import CSRF_FIELD, SIGN_IN
from busbar.console.forms import NAME, CheckBox, Field, Form, FormValues
from busbar.console.fragment_chart import fragment_picture
from busbar.console.html import Markup, tag
from busbar.console.layout import (
    HOME,
    badges,
    count,
    link_to,
    notice,
    page,
    path_of,
    properties,
    table,
    trail_to,
)
from busbar.console.namespace import (
    Address,
    Entity,
    EntityPage,
    EntityType,
    FragmentSummary,
    Overview,
    StoreSummary,
)

NUMBERS = frozenset(("Messages", "Dead letters", "Scheduled", "Size", "Subscriptions"))
_SEGMENTED = "Letters, digits, '-', '.' and '_'; '/' makes a path of it."
_NAMES = {
    EntityType.QUEUE: _SEGMENTED,
    EntityType.TOPIC: _SEGMENTED,
    EntityType.SUBSCRIPTION: "Letters, digits, '-', '.' and '_'.",
}


def overview_page(found: Overview, queues_from: int, topics_from: int, limit: int, place: str) -> str:
    def beside(part: str, shown: EntityPage, start: int) -> list[tuple[str, str]]:
        at = {"queues": queues_from, "topics": topics_from}
        return [(name, "/?" + urlencode(at | {part: to})) for name, to in _beside(shown, start, limit)]

    return page(
        "Namespace",
        _list("Queues", EntityType.QUEUE, found.queues, beside("queues", found.queues, queues_from)),
        _list("Topics", EntityType.TOPIC, found.topics, beside("topics", found.topics, topics_from)),
        _stores(found.stores) if found.stores else None,
        place=place,
        live=True,
    )


def entity_page(
    entity: Entity,
    *,
    fragments: Sequence[FragmentSummary] = (),
    subscriptions: EntityPage | None = None,
    skip: int = 0,
    limit: int = 0,
    created: bool = False,
    place: str,
) -> str:
    address = entity.address
    tiles = [(count(entity.messages), "messages"), (count(entity.dead_letters), "dead letters")]
    tiles.append((count(entity.scheduled), "scheduled"))
    if address.kind is EntityType.TOPIC:
        tiles = [(count(entity.subscriptions), "subscriptions"), (count(entity.scheduled), "scheduled")]
    if entity.transfers:
        tiles.append((count(entity.transfers), "being forwarded"))
    if entity.failed_transfers:
        tiles.append((count(entity.failed_transfers), "failed transfers"))
    if address.kind is not EntityType.SUBSCRIPTION:
        tiles.append((entity.size, "held"))
    below = None
    if subscriptions is not None:
        links = [
            (each, f"{path_of(address)}&{urlencode({'skip': to})}")
            for each, to in _beside(subscriptions, skip, limit)
        ]
        below = _list("Subscriptions", EntityType.SUBSCRIPTION, subscriptions, links, topic=address.name)
    return page(
        address.name,
        notice(f"The {address.kind} was created.") if created else None,
        tag("p", tag("span", address.kind, class_="badge kind"), " ", badges(entity)),
        tag("div", [tag("div", tag("b", value), tag("span", what)) for value, what in tiles], class_="tiles"),
        fragment_picture(fragments) if fragments else None,
        below,
        tag(
            "div",
            properties("Settings", entity.settings),
            properties("Now", entity.runtime),
            class_="columns",
        ),
        tag("p", tag("a", f"Delete this {address.kind} …", href=path_of(address, "delete"), class_="danger")),
        place=place,
        live=True,
        trail=trail_to(address),
    )


def create_page(
    form: Form, filled: FormValues, *, topic: str, csrf: str, place: str, refusal: str = ""
) -> str:
    where = Address(form.kind, "", topic)
    inputs = [
        _line(NAME, "Name", _NAMES[form.kind], filled.name, required=True),
        *(_field(field, filled.texts.get(field.element, "")) for field in form.fields),
        tag(
            "fieldset",
            tag("legend", "Features"),
            [_box(box, box.element in filled.ticked) for box in form.boxes],
        ),
    ]
    return page(
        f"New {form.kind}",
        notice(refusal, bad=True) if refusal else None,
        tag(
            "form",
            tag("input", type="hidden", name=CSRF_FIELD, value=csrf),
            tag("input", type="hidden", name="topic", value=topic) if topic else None,
            inputs,
            tag(
                "p",
                tag("button", f"Create {form.kind}", type="submit"),
                " ",
                tag("a", "Cancel", href=path_of(Address(EntityType.TOPIC, topic)) if topic else "/"),
            ),
            method="post",
            action=f"/{form.kind}/new",
            autocomplete="off",
        ),
        place=place,
        trail=trail_to(where),
    )


def delete_page(entity: Entity, *, csrf: str, place: str, refusal: str = "") -> str:
    address = entity.address
    # The messages of unavailable fragments cannot be counted now.
    least = "" if entity.available else "at least "
    held = f"{least}{count(entity.messages + entity.dead_letters + entity.scheduled)} messages"
    if address.kind is EntityType.TOPIC:
        held = f"{count(entity.subscriptions)} subscriptions and their messages"
    return page(
        f"Delete {address.name}?",
        notice(refusal, bad=True) if refusal else None,
        tag("p", f"The {address.kind} is deleted with {held}. This cannot be undone."),
        tag(
            "form",
            tag("input", type="hidden", name=CSRF_FIELD, value=csrf),
            tag(
                "p",
                tag("button", f"Delete {address.kind}", type="submit", class_="danger"),
                " ",
                tag("a", "Keep it", href=path_of(address)),
            ),
            method="post",
            action=path_of(address, "delete"),
        ),
        place=place,
        trail=[*trail_to(address), link_to(address)],
    )


def failure_page(title: str, text: str, *, place: str = "", live: bool = False) -> str:
    """The page of a failure; with `live` it tries again automatically."""
    return page(title, notice(text, bad=True), place=place, live=live, trail=[HOME])


def signed_in_page() -> str:
    return page("Signed in", tag("p", tag("a", "Go to the console", href="/")), onward="/")


def signed_out_page(text: str) -> str:
    hint = (
        f"Open the address with {SIGN_IN}?token=… that `busbar console` printed. It works once; start the console anew "
        "for another."
    )
    return page("Not signed in", notice(text, bad=True), tag("p", hint))


def _list(
    title: str, kind: EntityType, found: EntityPage, beside: Sequence[tuple[str, str]], topic: str = ""
) -> Markup:
    """A page of a list; `beside` are the pages before and after this one: label and address."""
    query = f"?{urlencode({'topic': topic})}" if topic else ""
    new = tag("a", f"New {kind}", href=f"/{kind}/new{query}", class_="button")
    links = [tag("a", name, href=path) for name, path in beside]
    return tag(
        "section",
        tag("div", tag("h2", title), new, class_="heading"),
        table(_COLUMNS[kind], [_row(entity) for entity in found.entities], NUMBERS)
        if found.entities
        else tag("p", f"There are no {kind}s.", class_="soft"),
        tag("nav", links, class_="pages", aria_label=f"More {kind}s") if links else None,
    )


def _beside(found: EntityPage, start: int, limit: int) -> list[tuple[str, int]]:
    before = [("← before", max(0, start - limit))] if start else []
    return before + ([("after →", start + limit)] if found.more else [])


_COLUMNS = {
    EntityType.QUEUE: ("Name", "State", "Messages", "Dead letters", "Scheduled", "Size"),
    EntityType.TOPIC: ("Name", "State", "Subscriptions", "Scheduled", "Size"),
    EntityType.SUBSCRIPTION: ("Name", "State", "Messages", "Dead letters"),
}


def _row(entity: Entity) -> tuple[str | Markup, ...]:
    cells: dict[str, str | Markup] = {
        "Name": link_to(entity.address),
        "State": badges(entity),
        "Messages": _number(entity.messages),
        "Dead letters": _number(entity.dead_letters, "bad"),
        "Scheduled": _number(entity.scheduled),
        "Size": entity.size,
        "Subscriptions": _number(entity.subscriptions),
    }
    return tuple(cells[column] for column in _COLUMNS[entity.address.kind])


def _number(number: int, style: str | None = None) -> Markup:
    """A number. Zeros are pale, so that others are visible at a glance."""
    return tag("b", count(number), class_=style) if number else tag("span", "0", class_="soft")


def _stores(stores: Sequence[StoreSummary]) -> Markup:
    rows = [
        (
            store.name,
            tag("span", store.state, class_="badge good" if store.open else "badge bad"),
            count(store.fragments),
            store.size,
        )
        for store in stores
    ]
    reasons = [notice(f"{store.name}: {store.reason}", bad=True) for store in stores if store.reason]
    columns = ("Name", "State", "Fragments", "Size")
    return tag(
        "section",
        tag("h2", "Messaging stores"),
        table(columns, rows, NUMBERS | {"Fragments"}),
        reasons,
    )


def _field(field: Field, value: str) -> Markup:
    if not field.choices:
        return _line(field.element, field.label, field.hint, value, placeholder=field.placeholder)
    options = [tag("option", shown, value=each, selected=each == value) for each, shown in field.choices]
    box = tag(
        "select", options, id=field.element, name=field.element, aria_describedby=f"{field.element}-hint"
    )
    return _add_label(field.element, field.label, field.hint, box)


def _line(
    name: str, label: str, hint: str, value: str, *, required: bool = False, placeholder: str = ""
) -> Markup:
    box = tag(
        "input",
        type="text",
        id=name,
        name=name,
        value=value,
        required=required,
        autofocus=required,
        placeholder=placeholder or None,
        spellcheck="false",
        aria_describedby=f"{name}-hint",
    )
    return _add_label(name, label, hint, box)


def _add_label(name: str, label: str, hint: str, box: Markup) -> Markup:
    return tag(
        "div",
        tag("label", label, for_=name),
        box,
        tag("small", hint, id=f"{name}-hint"),
        class_="field",
    )


def _box(box: CheckBox, ticked: bool) -> Markup:
    return tag(
        "div",
        tag(
            "input",
            type="checkbox",
            id=box.element,
            name=box.element,
            value="true",
            checked=ticked,
            aria_describedby=f"{box.element}-hint",
        ),
        tag("label", box.label, for_=box.element),
        tag("small", box.hint, id=f"{box.element}-hint"),
        class_="box",
    )
