"""The connections of clients: which one takes most, what its links do, and the question before one is closed."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from busbar.console.form_parts import confirmation_page
from busbar.console.html import Markup, tag
from busbar.console.layout import badge, beside, count, counted, nothing, notice, number, page, pager, table
from busbar.console.namespace import ConnectionsPage, ConnectionSummary, LinkSummary
from busbar.console.operation_pages import entity_link
from busbar.console.plots import number_text

SORTS = (
    ("rate", "rate"),
    ("unsettled", "unsettled"),
    ("credit", "credit"),
    ("messages", "messages"),
    ("links", "links"),
    ("since", "oldest"),
)
NUMBERS = frozenset(("Rate", "Unsettled", "Credit"))
CONNECTIONS = tag("a", "Connections", href="/connections")


def connections_page(
    found: ConnectionsPage, *, entity: str, sort: str, skip: int, limit: int, closed: str, place: str
) -> str:
    sorts = [
        tag("a", label, href=_path(entity, name, 0), aria_current="true" if name == sort else None)
        for name, label in SORTS
    ]
    links = [(name, _path(entity, sort, to)) for name, to in beside(skip, limit, skip + limit < found.total)]
    columns = ("Client", "Entities and links", "Rate", "Unsettled", "Credit", "Since", "Close")
    return page(
        "Connections",
        notice("The connection was closed.") if closed else None,
        notice(
            f"The list has no connections of {counted(found.silent, 'broker')} without an answer: see the page Stores.",
            bad=True,
        )
        if found.silent
        else None,
        tag("p", "With links to ", entity_link(entity), " · ", tag("a", "Show all", href="/connections"))
        if entity
        else None,
        tag(
            "nav",
            tag("span", f"{counted(found.total, 'AMQP connection')}, sorted by"),
            sorts,
            class_="sorts",
            aria_label="Sort",
        )
        if found.connections
        else None,
        table(columns, [_row(each) for each in found.connections], NUMBERS)
        if found.connections
        else nothing("No client is connected over AMQP." if not entity else "No client has a link to it."),
        pager(links, "More connections"),
        place=place,
        live=True,
        section="/connections",
    )


def close_page(connection: ConnectionSummary, *, csrf: str, place: str) -> str:
    return confirmation_page(
        f"Close the connection of {connection.client or connection.address}?",
        f"The client at {connection.address} is disconnected; most clients connect again. What it had not settled "
        f"({counted(connection.unsettled, 'message')}) is delivered again when its locks have expired.",
        _links(connection.links),
        action=f"/connection/close?{urlencode({'id': connection.id})}",
        csrf=csrf,
        submit="Close connection",
        keep=("Keep it", "/connections"),
        place=place,
        trail=[CONNECTIONS],
    )


def _path(entity: str, sort: str, skip: int) -> str:
    query: dict[str, str | int] = {"sort": sort}
    if entity:
        query["entity"] = entity
    if skip:
        query["skip"] = skip
    return f"/connections?{urlencode(query)}"


def _row(each: ConnectionSummary) -> tuple[str | Markup, ...]:
    marks = [
        (each.tls, "TLS", ""),
        (each.websocket, "WebSocket", ""),
        (each.slow, "slow reader", "warn"),
    ]
    name, _, library = each.client.partition(" ")
    client = tag(
        "div",
        tag("b", name or "unnamed client"),
        [" ", tag("small", library)] if library else None,
        tag("small", f"{each.address}, key {', '.join(each.keys) or 'none'}"),
        tag("small", f"on {each.broker}") if each.broker else None,
        tag("span", [badge(text, style) for there, text, style in marks if there], class_="badges"),
        class_="stack",
    )
    return (
        client,
        _link_details(each),
        f"{number_text(each.rate)}/s",
        number(each.unsettled),
        number(each.credit),
        each.since,
        tag(
            "a",
            "Close …",
            href=f"/connection/close?{urlencode({'id': each.id})}",
            class_="danger",
            aria_label=f"Close the connection {each.id}",
        ),
    )


def _link_details(each: ConnectionSummary) -> Markup:
    entities = sorted({link.entity for link in each.links if link.role in ("sender", "receiver")})
    shown = ", ".join(entities[:3]) + (" …" if len(entities) > 3 else "")
    return tag(
        "details",
        tag("summary", shown or "no entity", f" · {counted(each.link_count, 'link')}"),
        _links(each.links),
        id=f"links-{each.id}",
    )


def _links(links: Sequence[LinkSummary]) -> Markup:
    rows = [
        tag(
            "li",
            tag("b", link.role),
            f" {link.entity}: {number_text(link.rate)}/s, {count(link.messages)} deliveries, "
            f"{count(link.unsettled)} unsettled, credit {count(link.credit)}",
        )
        for link in links
    ]
    return tag("ul", rows, class_="links")
