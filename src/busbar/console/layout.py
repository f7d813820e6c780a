"""What all pages share: the frame, links, tabs, badges, tables, notices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlencode

from busbar.console.html import Content, Markup, document, tag
from busbar.console.namespace import Address, Entity, EntityType

STYLE = "/console.css"
SCRIPT = "/console.js"
REFRESH_SECONDS = 10
"""The refresh interval of a page without scripts; with scripts, its live part is updated in place."""

SECTIONS = (
    ("/", "Entities"),
    ("/stores", "Stores"),
    ("/taps", "Taps"),
    ("/connections", "Connections"),
    ("/history", "History"),
    ("/access", "Access"),
)
"""The pages of the whole namespace."""


def page(
    title: str,
    *content: Content,
    place: str = "",
    live: bool | int = False,
    trail: Sequence[Markup] = (),
    onward: str = "",
    section: str = "",
    search: str = "",
    bare: bool = False,
) -> str:
    """The frame of a page. `trail` leads back; `onward` is the address to which the browser goes at once. A `bare` page has
    no links, for browsers that are not signed in. A `live` page is renewed; a number is the interval in milliseconds."""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · Busbar"),
        tag("link", rel="stylesheet", href=STYLE),
    ]
    if onward:
        head.append(tag("meta", http_equiv="refresh", content=f"0;url={onward}"))
    if not bare:
        head.append(tag("script", src=SCRIPT, defer=True))
    if live:
        head.append(tag("noscript", tag("meta", http_equiv="refresh", content=str(REFRESH_SECONDS))))
    crumbs = tag(
        "nav", [part for link in trail for part in (link, " / ")], class_="trail", aria_label="Where you are"
    )
    body = [
        tag("a", "Skip to content", href="#content", class_="skip"),
        tag(
            "header",
            tag("a", "Busbar", href="/", class_="brand"),
            None if bare else _sections(section),
            None if bare else _search_form(search),
            tag("span", place, class_="place") if place else None,
        ),
        tag(
            "main",
            crumbs if trail else None,
            tag("h1", title),
            content,
            id="content",
            data_live=live,
        ),
    ]
    return document(tag("html", tag("head", head), tag("body", body), lang="en"))


def _sections(current: str) -> Markup:
    links = [
        tag("a", name, href=path, aria_current="page" if path == current else None) for path, name in SECTIONS
    ]
    return tag("nav", links, class_="sections", aria_label="Namespace")


def _search_form(search: str) -> Markup:
    return tag(
        "form",
        tag(
            "input",
            type="search",
            name="search",
            id="search",
            value=search,
            placeholder="Search entities  ( / )",
            aria_label="Search entities",
            spellcheck="false",
        ),
        action="/",
        role="search",
        autocomplete="off",
    )


def path_of(address: Address, action: str = "", **more: str | int) -> str:
    """The address of a page. Names have slashes, so they are in the query, where they cannot be confused with a path."""
    query: dict[str, str | int] = {"name": address.name}
    if address.topic:
        query = {"topic": address.topic, **query}
    return f"/{address.kind}{'/' + action if action else ''}?{urlencode(query | more)}"


def link_to(address: Address) -> Markup:
    return tag("a", address.name, href=path_of(address))


HOME = tag("a", "Namespace", href="/")


def trail_to(address: Address) -> list[Markup]:
    if address.topic:
        return [HOME, link_to(Address(EntityType.TOPIC, address.topic))]
    return [HOME]


def trail_below(address: Address) -> list[Markup]:
    """The way to a page of an entity."""
    return [*trail_to(address), link_to(address)]


_ALL = frozenset(EntityType)
_RECEIVED = frozenset((EntityType.QUEUE, EntityType.SUBSCRIPTION))
_SENT = frozenset((EntityType.QUEUE, EntityType.TOPIC))
TABS: tuple[tuple[str, str, frozenset[EntityType]], ...] = (
    ("", "Overview", _ALL),
    ("messages", "Messages", _RECEIVED),
    ("dead-letters", "Dead letters", _RECEIVED),
    ("sessions", "Sessions", _RECEIVED),
    ("send", "Send", _SENT),
    ("rules", "Rules", frozenset((EntityType.SUBSCRIPTION,))),
    ("test", "Test rules", frozenset((EntityType.TOPIC,))),
    ("edit", "Settings", _ALL),
    ("access", "Access keys", _SENT),
)
"""The pages of an entity: path, label, and the kinds that have it."""


def address_in(shown: Address | Entity) -> Address:
    return shown.address if isinstance(shown, Entity) else shown


def kind_line(shown: Address | Entity) -> Markup:
    """The line below the name of an entity: its kind, and its badges as far as they are known."""
    kind = tag("span", address_in(shown).kind, class_="badge kind")
    return tag("p", kind, " ", badges(shown) if isinstance(shown, Entity) else None)


def tabs(shown: Address | Entity, current: str) -> Markup:
    """Links to the pages of an entity. Sessions are among them if it is known that the entity requires them."""
    address = address_in(shown)
    has_sessions = isinstance(shown, Entity) and shown.requires_session
    links = [
        tag("a", label, href=path_of(address, path), aria_current="page" if path == current else None)
        for path, label, kinds in TABS
        if address.kind in kinds and (path != "sessions" or has_sessions)
    ]
    return tag("nav", links, class_="tabs", aria_label=f"This {address.kind}")


def badges(entity: Entity) -> Markup:
    usual = entity.status == "Active"
    found = [tag("span", entity.status, class_="badge good" if usual else "badge warn")]
    if not entity.available:
        found.append(tag("span", "limited: a store is unavailable", class_="badge bad"))
    named = (
        (entity.partitioned, "partitioned"),
        (entity.requires_session, "sessions"),
        (entity.detects_duplicates, "duplicate detection"),
    )
    found += [tag("span", text, class_="badge") for there, text in named if there]
    return tag("span", found, class_="badges")


def badge(text: str, style: str = "") -> Markup:
    return tag("span", text, class_=f"badge {style}".strip())


def notice(text: str, *, bad: bool = False) -> Markup:
    return tag("p", text, class_="notice bad" if bad else "notice", role="alert" if bad else "status")


def section(title: str, *content: Content, action: Markup | None = None) -> Markup:
    """A part of a page under a heading, with what can be done beside it."""
    heading = tag("div", tag("h2", title), action, class_="heading") if action else tag("h2", title)
    return tag("section", heading, content)


def button_to(text: str, path: str) -> Markup:
    return tag("a", text, href=path, class_="button")


def nothing(text: str) -> Markup:
    return tag("p", text, class_="soft")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Markup]],
    numbers: frozenset[str] = frozenset(),
) -> Markup:
    """A table; `numbers` are the columns that are aligned right."""
    classes = ["number" if column in numbers else None for column in columns]
    head = [
        tag("th", column, scope="col", class_=style) for column, style in zip(columns, classes, strict=True)
    ]
    # On a narrow screen a row is a card, where each cell needs its label.
    body = [
        tag(
            "tr",
            [
                tag("td", cell, class_=style, data_label=column)
                for cell, style, column in zip(row, classes, columns, strict=True)
            ],
        )
        for row in rows
    ]
    return tag("table", tag("thead", tag("tr", head)), tag("tbody", body))


def tiles(values: Sequence[tuple[str, str]]) -> Markup:
    """Numbers that are seen first, each with what it counts."""
    return tag(
        "div", [tag("div", tag("b", value), tag("span", what)) for value, what in values], class_="tiles"
    )


def properties(title: str, values: Mapping[str, str]) -> Markup:
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in values.items()]
    return tag("section", tag("h2", title), tag("dl", rows))


def pager(beside: Sequence[tuple[str, str]], described: str) -> Markup | None:
    """Links to the pages before and after this one: label and address."""
    links = [tag("a", name, href=path) for name, path in beside]
    return tag("nav", links, class_="pages", aria_label=described) if links else None


def beside(start: int, limit: int, more: bool) -> list[tuple[str, int]]:
    before = [("← before", max(0, start - limit))] if start else []
    return before + ([("after →", start + limit)] if more else [])


def count(number: int) -> str:
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """A number of things: "1 message", "2 messages"."""
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")


def number(value: int, style: str | None = None) -> Markup:
    """A number. Zeros are pale, so that others are visible at a glance."""
    return tag("b", count(value), class_=style) if value else tag("span", "0", class_="soft")
