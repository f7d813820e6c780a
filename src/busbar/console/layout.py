"""What all pages share: the frame, links, badges, tables, notices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlencode

from busbar.console.html import Markup, document, tag
from busbar.console.namespace import Address, Entity, EntityType

STYLE = "/console.css"
SCRIPT = "/console.js"
REFRESH_SECONDS = 10
"""The refresh interval of a page without scripts; with scripts, its live part is updated in place."""


def page(
    title: str,
    *content: Markup | None,
    place: str = "",
    live: bool = False,
    trail: Sequence[Markup] = (),
    onward: str = "",
) -> str:
    """The frame of a page. `trail` leads back; `onward` is the address to which the browser goes at once."""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · Busbar"),
        tag("link", rel="stylesheet", href=STYLE),
    ]
    if onward:
        head.append(tag("meta", http_equiv="refresh", content=f"0;url={onward}"))
    if live:
        head.append(tag("script", src=SCRIPT, defer=True))
        head.append(tag("noscript", tag("meta", http_equiv="refresh", content=str(REFRESH_SECONDS))))
    crumbs = tag(
        "nav", [part for link in trail for part in (link, " / ")], class_="trail", aria_label="Where you are"
    )
    body = [
        tag("a", "Skip to content", href="#content", class_="skip"),
        tag("header", tag("a", "Busbar", href="/", class_="brand"), tag("span", place, class_="place")),
        tag(
            "main",
            crumbs if trail else None,
            tag("h1", title),
            [part for part in content if part is not None],
            id="content",
            data_live=live,
        ),
    ]
    return document(tag("html", tag("head", head), tag("body", body), lang="en"))


def path_of(address: Address, action: str = "") -> str:
    """The address of a page. Names have slashes, so they are in the query, where they cannot be confused with a path."""
    query = {"name": address.name}
    if address.topic:
        query = {"topic": address.topic, **query}
    return f"/{address.kind}{'/' + action if action else ''}?{urlencode(query)}"


def link_to(address: Address) -> Markup:
    return tag("a", address.name, href=path_of(address))


HOME = tag("a", "Namespace", href="/")


def trail_to(address: Address) -> list[Markup]:
    if address.topic:
        return [HOME, link_to(Address(EntityType.TOPIC, address.topic))]
    return [HOME]


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


def notice(text: str, *, bad: bool = False) -> Markup:
    return tag("p", text, class_="notice bad" if bad else "notice", role="alert" if bad else "status")


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Markup]], numbers: frozenset[str]) -> Markup:
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


def properties(title: str, values: Mapping[str, str]) -> Markup:
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in values.items()]
    return tag("section", tag("h2", title), tag("dl", rows))


def count(number: int) -> str:
    return f"{number:,}"
