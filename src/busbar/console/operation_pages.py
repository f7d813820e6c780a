"""Pages for operators: the messaging stores and processes of the namespace, and its taps."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.console.html import Markup, tag
from busbar.console.layout import (
    badge,
    beside,
    count,
    counted,
    link_to,
    nothing,
    notice,
    number,
    page,
    pager,
    section,
    table,
)
from busbar.console.namespace import (
    Address,
    EntityType,
    ProcessSummary,
    StoreSummary,
    TapsPage,
    TapSummary,
)

STORE_NUMBERS = frozenset(("Fragments", "Size", "Usual commit", "Slow commit", "Messages per commit"))
PROCESS_NUMBERS = frozenset(("Process", "Clients", "Catalogue", "Reaches"))
TAP_NUMBERS = frozenset(("Behind", "Kept", "Size"))
STATES = {"up": "good", "starting": "warn", "open": "good"}
DEAD_LETTERS = "/$DeadLetterQueue"


def stores_page(stores: Sequence[StoreSummary], processes: Sequence[ProcessSummary], *, place: str) -> str:
    out = [store for store in stores if not store.open]
    down = [process for process in processes if process.state != "up"]
    healthy = not out and not down
    return page(
        "Stores and brokers",
        notice("Every messaging store is open, and every process is up.")
        if healthy and stores
        else tag("div", [notice(f"{store.name}: {store.reason}", bad=True) for store in out]),
        _stores(stores),
        _processes(processes),
        place=place,
        live=True,
        section="/stores",
    )


def taps_page(found: TapsPage, *, skip: int, limit: int, place: str) -> str:
    links = [(name, f"/taps?skip={to}") for name, to in beside(skip, limit, skip + limit < found.total)]
    rows = [
        (
            tap.name,
            entity_link(tap.entity),
            tap.reader or tag("span", "no reader", class_="soft"),
            tap.records,
            _tap_state(tap),
            number(tap.lag),
            count(tap.kept),
            tap.size,
        )
        for tap in found.taps
    ]
    return page(
        "Taps",
        nothing(
            "A tap is a position in an entity behind which messages are kept. A capture job or a Spark stream reads from "
            "one, and owns it."
        ),
        table(("Name", "Entity", "Reader", "Records", "State", "Behind", "Kept", "Size"), rows, TAP_NUMBERS)
        if rows
        else nothing("There are no taps." if not found.total else "There are no more taps."),
        pager(links, "More taps"),
        nothing(
            f"{counted(found.total, 'tap')} by name: there are too many to compare how far they are behind."
        )
        if not found.by_lag
        else None,
        place=place,
        live=True,
        section="/taps",
    )


def entity_link(path: str) -> Markup:
    """A link to the page of the entity with this path."""
    name = path.removesuffix(DEAD_LETTERS)
    topic, found, subscription = name.rpartition("/Subscriptions/")
    address = (
        Address(EntityType.SUBSCRIPTION, subscription, topic) if found else Address(EntityType.QUEUE, name)
    )
    suffix = " (dead letters)" if path.endswith(DEAD_LETTERS) else ""
    within = [tag("span", f"{topic} / ", class_="soft")] if found else []
    return tag("span", within, link_to(address), suffix)


def _tap_state(tap: TapSummary) -> Markup:
    if tap.truncated:
        return badge("truncated: a limit was reached", "bad")
    return badge("limited", "warn") if tap.limited else badge("in order", "good")


def _stores(stores: Sequence[StoreSummary]) -> Markup:
    several = any(store.broker for store in stores)
    columns = ("Name", "State", "Fragments", "Size", "Usual commit", "Slow commit", "Messages per commit")
    rows = [
        (
            store.name,
            badge(store.state, STATES.get(store.state, "bad")),
            count(store.fragments),
            store.size,
            store.usual_commit or "–",
            store.slow_commit or "–",
            count(store.group) if store.group else "–",
            *((store.broker,) if several else ()),
        )
        for store in stores
    ]
    return section(
        "Messaging stores",
        table((*columns, *(("Broker",) if several else ())), rows, STORE_NUMBERS)
        if rows
        else nothing("The key of the console does not allow to list them."),
        [nothing(f"{store.name}: {store.note}") for store in stores if store.note],
    )


def _processes(processes: Sequence[ProcessSummary]) -> Markup:
    several = len(processes) > 1
    columns = (
        "Name",
        "State",
        "Address",
        "Process",
        "Version",
        "Since",
        "Clients",
        *(("Catalogue", "Reaches") if several else ()),
        "Stores",
    )
    rows = [
        (
            process.name,
            badge(process.state, STATES.get(process.state, "bad")),
            process.address,
            str(process.process or ""),
            process.version,
            process.since,
            count(process.connections),
            *((count(process.change), count(process.reaches)) if several else ()),
            ", ".join(process.stores),
        )
        for process in processes
    ]
    return section(
        "Brokers and nodes",
        table(columns, rows, PROCESS_NUMBERS)
        if rows
        else nothing("The key of the console does not allow to list them."),
        nothing(
            "Catalogue: the last change of entities that the process has. Reaches: how many others it is connected to."
        )
        if several
        else None,
    )
