"""The first page: how much the namespace holds, how that changed in the last hour, and lists of its entities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from busbar.console.history import WHOLE, CountHistory, MessageRates
from busbar.console.html import Markup, tag
from busbar.console.layout import (
    badges,
    beside,
    button_to,
    count,
    link_to,
    nothing,
    notice,
    number,
    page,
    pager,
    section,
    table,
)
from busbar.console.namespace import Entity, EntityPage, EntityType, StoreSummary
from busbar.console.plots import HourLine, hour_plot, number_text, sparkline

NUMBERS = frozenset(("Messages", "Dead letters", "Scheduled", "Size", "Subscriptions", "In, out"))


@dataclass(frozen=True, slots=True)
class Overview:
    queues: EntityPage
    topics: EntityPage
    stores: Sequence[StoreSummary]


@dataclass(frozen=True, slots=True)
class Shown:
    """Which part of the namespace the page shows."""

    queues_from: int
    topics_from: int
    limit: int
    search: str

    def at(self, **moved: int) -> str:
        """The address of the page with another part."""
        query = {"queues": self.queues_from, "topics": self.topics_from} | moved
        return "/?" + urlencode({"search": self.search, **query} if self.search else query)


def overview_page(found: Overview, shown: Shown, history: CountHistory, now: float, place: str) -> str:
    def beside_list(part: str, listed: EntityPage, start: int) -> list[tuple[str, str]]:
        return [(name, shown.at(**{part: to})) for name, to in beside(start, shown.limit, listed.more)]

    out = [store for store in found.stores if not store.open]
    heading = f"Entities with “{shown.search}”" if shown.search else "Namespace"
    unavailable = [
        notice(f"The store {store.name} is unavailable: {store.reason}", bad=True) for store in out
    ]
    return page(
        heading,
        tag("div", unavailable) if out else None,
        tag("p", tag("a", "Show all", href="/")) if shown.search else hour_plots(history, WHOLE, now),
        entity_list(
            "Queues",
            EntityType.QUEUE,
            found.queues,
            beside_list("queues", found.queues, shown.queues_from),
            history,
            now,
            is_search=bool(shown.search),
        ),
        entity_list(
            "Topics",
            EntityType.TOPIC,
            found.topics,
            beside_list("topics", found.topics, shown.topics_from),
            history,
            now,
            is_search=bool(shown.search),
        ),
        place=place,
        live=True,
        section="/",
        search=shown.search,
    )


def hour_plots(history: CountHistory, path: str, now: float) -> Markup:
    """The plots of an entity, or of the whole namespace."""
    backlog = (
        HourLine("messages", "messages", history.messages(path, now)),
        HourLine("dead letters", "dead", history.dead_letters(path, now)),
    )
    traffic = (
        HourLine("in", "in", history.incoming(path, now)),
        HourLine("out", "out", history.outgoing(path, now)),
    )
    none = "nothing in the last hour" if history.messages(WHOLE, now) else "no samples yet"
    return tag(
        "div", hour_plot("Backlog", backlog, "", none), hour_plot("Rate", traffic, "/s", none), class_="plots"
    )


def entity_list(
    title: str,
    kind: EntityType,
    found: EntityPage,
    links: Sequence[tuple[str, str]],
    history: CountHistory,
    now: float,
    *,
    topic: str = "",
    is_search: bool = False,
) -> Markup:
    """A page of a list of entities."""
    query = f"?{urlencode({'topic': topic})}" if topic else ""
    none = f"No {kind} has such a name." if is_search else f"There are no {kind}s."
    rows = [_row(entity, history, now) for entity in found.entities]
    return section(
        title,
        table(_COLUMNS[kind], rows, NUMBERS) if rows else nothing(none),
        pager(links, f"More {kind}s"),
        action=button_to(f"New {kind}", f"/{kind}/new{query}"),
    )


_COLUMNS = {
    EntityType.QUEUE: (
        "Name",
        "State",
        "Messages",
        "Dead letters",
        "Scheduled",
        "Size",
        "In, out",
        "Last hour",
    ),
    EntityType.TOPIC: ("Name", "State", "Subscriptions", "Scheduled", "Size"),
    EntityType.SUBSCRIPTION: ("Name", "State", "Messages", "Dead letters", "In, out", "Last hour"),
}


def _row(entity: Entity, history: CountHistory, now: float) -> tuple[str | Markup, ...]:
    path = entity.address.path
    cells: dict[str, Callable[[], str | Markup]] = {
        "Name": lambda: link_to(entity.address),
        "State": lambda: badges(entity),
        "Messages": lambda: number(entity.messages),
        "Dead letters": lambda: number(entity.dead_letters, "bad"),
        "Scheduled": lambda: number(entity.scheduled),
        "Size": lambda: entity.size,
        "Subscriptions": lambda: number(entity.subscriptions),
        "In, out": lambda: rates_text(history.rates(path, now)),
        "Last hour": lambda: sparkline(
            history.messages(path, now), "messages", f"Messages of {entity.address.name} in the last hour"
        ),
    }
    return tuple(cells[column]() for column in _COLUMNS[entity.address.kind])


def rates_text(rates: MessageRates) -> str | Markup:
    if not rates.incoming and not rates.outgoing:
        return tag("span", "–", class_="soft")
    return f"{number_text(rates.incoming or 0)} / {number_text(rates.outgoing or 0)} /s"


def entity_tiles(entity: Entity) -> list[tuple[str, str]]:
    """What an entity holds."""
    if entity.address.kind is EntityType.TOPIC:
        found = [(count(entity.subscriptions), "subscriptions"), (count(entity.scheduled), "scheduled")]
    else:
        found = [(count(entity.messages), "messages"), (count(entity.dead_letters), "dead letters")]
        found.append((count(entity.scheduled), "scheduled"))
    if entity.transfers:
        found.append((count(entity.transfers), "being forwarded"))
    if entity.failed_transfers:
        found.append((count(entity.failed_transfers), "failed transfers"))
    if entity.address.kind is not EntityType.SUBSCRIPTION:
        found.append((entity.size, "held"))
    return found
