"""Which connections operators see, in which order, and how rates come about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from busbar.gateway.connection_registry import MIN_INTERVAL, ConnectionRegistry
from busbar.model.connection_views import (
    MAX_LINKS,
    MAX_SHOWN,
    ConnectionQuery,
    ConnectionReport,
    ConnectionView,
    LinkShown,
    merged,
)
from busbar.model.errors import ArgumentError, ArgumentOutOfRange


class Client:
    def __init__(self, since: int, *links: LinkShown) -> None:
        self.since = since
        self.links = list(links)
        self.ended: list[tuple[str, str]] = []

    def shown(self) -> ConnectionView:
        return ConnectionView("", "127.0.0.1:1", self.since)

    def shown_links(self) -> list[LinkShown]:
        return self.links

    def end(self, condition: str, text: str) -> None:
        self.ended.append((condition, text))


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def receiver(entity: str, messages: int = 0, unsettled: int = 0) -> LinkShown:
    return LinkShown("l", entity, "receiver", messages, unsettled=unsettled)


async def registry(*clients: Client) -> tuple[ConnectionRegistry, Time]:
    """A registry that has a sample which is old enough."""
    time = Time()
    found = ConnectionRegistry("gw", time, time.sleep)
    for client in clients:
        found.add(client)
    await found.report(ConnectionQuery())
    time.now += 2 - MIN_INTERVAL
    return found, time


async def test_the_rate_is_that_since_the_last_report() -> None:
    client = Client(1, receiver("q", 100), LinkShown("m", "q/$management", "requests", 5))
    found, time = await registry(client)
    client.links[0] = receiver("q", 160)
    (view,) = (await found.report(ConnectionQuery())).connections
    assert (view.rate, view.messages, view.link_count) == (30.0, 160, 2)
    time.now += 11  # the samples are too old
    client.links[0] = receiver("q", 1_000)
    (view,) = (await found.report(ConnectionQuery())).connections
    assert view.rate == 0.0, f"nothing has come within {MIN_INTERVAL} s"


async def test_a_link_that_was_attached_again_counts_from_zero() -> None:
    client = Client(1, receiver("q", 100))
    found, _ = await registry(client)
    client.links[0] = receiver("q", 10)
    (view,) = (await found.report(ConnectionQuery())).connections
    assert view.rate == 5.0


async def test_the_order_is_that_which_was_asked_for() -> None:
    old, holder = Client(1, receiver("q", 5)), Client(2, receiver("q", 3, unsettled=9))
    found, _ = await registry(holder, old)

    async def ids(sort: str, top: int = 100) -> list[str]:
        report = await found.report(ConnectionQuery(sort=sort, top=top))
        return [view.id for view in report.connections]

    assert await ids("unsettled") == ["gw-1", "gw-2"]
    assert await ids("messages") == ["gw-2", "gw-1"]
    assert await ids("since") == ["gw-2", "gw-1"]
    assert await ids("since", top=1) == ["gw-2"]


async def test_only_links_of_the_entity_count() -> None:
    parts = receiver("T/Subscriptions/s", 1, 1), receiver("t2", 1, 10), receiver("t/$DeadLetterQueue", 1, 2)
    found, _ = await registry(Client(1, *parts), Client(2, receiver("t2")))
    report = await found.report(ConnectionQuery("t"))
    assert report.total == 1 and (report.connections[0].unsettled, report.connections[0].link_count) == (3, 2)


async def test_links_are_bounded() -> None:
    links = [replace(receiver("q", unsettled=number), name=f"l{number}") for number in range(MAX_LINKS + 5)]
    found, _ = await registry(Client(1, *links))
    (view,) = (await found.report(ConnectionQuery())).connections
    assert view.link_count == MAX_LINKS + 5 and len(view.links) == MAX_LINKS
    assert view.links[0].unsettled == MAX_LINKS + 4


async def test_only_the_named_connection_is_closed() -> None:
    one, two = Client(1), Client(2)
    found, _ = await registry(one, two)
    assert not found.close("gw-3") and not found.close("other-1")
    assert found.close("gw-2")
    assert not one.ended and [condition for condition, _ in two.ended] == ["amqp:connection:forced"]
    found.remove(two)
    assert not found.close("gw-2")


def test_reports_of_several_brokers_become_one_page() -> None:
    def report(*rates: float) -> ConnectionReport:
        return ConnectionReport([ConnectionView(f"{r}", "", 0, rate=r) for r in rates], len(rates))

    page = merged([report(9, 2), report(5, 1)], ConnectionQuery(skip=1, top=2), silent=1)
    assert [view.rate for view in page.connections] == [5, 2]
    assert (page.total, page.silent) == (4, 1)


def test_queries_are_checked() -> None:
    with pytest.raises(ArgumentError, match="sorted by 'size'"):
        ConnectionQuery(sort="size").check()
    with pytest.raises(ArgumentOutOfRange):
        ConnectionQuery(skip=MAX_SHOWN).check()
    ConnectionQuery(skip=MAX_SHOWN - 1, top=1).check()
