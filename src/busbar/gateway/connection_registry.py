"""The AMQP connections of a gateway, for operators.

1. Connections and links have what is shown anyway, for the protocol. Nothing is counted for this report alone.
2. A rate needs two counts. When a report is asked for, the counts are kept as a sample. The rate of a link is that since the
   oldest sample of the last SAMPLE_AGE seconds. If none is old enough, the report waits for MIN_INTERVAL.
3. With many connections, other work gets its turn after each PART of them.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from typing import NamedTuple, Protocol

from busbar.gateway.authority import is_part_of
from busbar.model.connection_views import (
    MAX_LINKS,
    ConnectionQuery,
    ConnectionReport,
    ConnectionView,
    LinkShown,
    sort_key,
)
from busbar.model.names import key_of

SAMPLE_AGE = 10.0
MIN_INTERVAL = 0.5
SAMPLE_DISTANCE = 2.0
PART = 200
FORCED = "amqp:connection:forced"
CLOSED_BY_OPERATOR = "An operator has closed this connection."

LinkKey = tuple[int, str, str]
"""The number of the connection, the name of the link, and its role."""


class ShownConnection(Protocol):
    """An AMQP connection, as far as operators see and end it."""

    def shown(self) -> ConnectionView:
        """The connection itself, without figures of its links."""

    def shown_links(self) -> Iterable[LinkShown]:
        """The links of the connection, without rates."""

    def end(self, condition: str, text: str) -> None: ...


class _Sample(NamedTuple):
    time: float
    counts: dict[LinkKey, int]


class ConnectionRegistry:
    """`identity` is that of the gateway: the ids of connections begin with it, and so are never used again."""

    def __init__(
        self,
        identity: str = "",
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._identity = identity
        self._now = now
        self._sleep = sleep
        self._connections: dict[ShownConnection, int] = {}
        self._last = 0
        self._samples: deque[_Sample] = deque()

    def add(self, connection: ShownConnection) -> None:
        self._last += 1
        self._connections[connection] = self._last

    def remove(self, connection: ShownConnection) -> None:
        self._connections.pop(connection, None)

    def close(self, id: str) -> bool:
        """Close the connection with that id; whether there is one."""
        for connection, number in self._connections.items():
            if self._id(number) == id:
                connection.end(FORCED, CLOSED_BY_OPERATOR)
                return True
        return False

    async def report(self, query: ConnectionQuery) -> ConnectionReport:
        """The connections up to the end of the page that is asked for."""
        before = await self._earlier_sample()
        now = self._now()
        counts: dict[LinkKey, int] = {}
        found: list[ConnectionView] = []
        async for number, connection in self._each():
            links = []
            for link in connection.shown_links():
                key = number, link.name, link.role
                counts[key] = link.messages
                rate = _rate(link.messages, before.counts.get(key, 0), now - before.time)
                links.append(replace(link, rate=rate))
            if query.entity:
                links = [link for link in links if is_part_of(key_of(link.entity), key_of(query.entity))]
                if not links:
                    continue
            found.append(_summed(connection.shown(), self._id(number), links))
        if now - self._samples[-1].time >= SAMPLE_DISTANCE:
            self._samples.append(_Sample(now, counts))
        end = query.skip + query.top
        first = heapq.nsmallest(end, found, key=lambda view: sort_key(query, view))
        return ConnectionReport(first, len(found))

    async def _each(self) -> AsyncIterator[tuple[int, ShownConnection]]:
        """The connections that are there, in turns (rule 3)."""
        for place, (connection, number) in enumerate(list(self._connections.items())):
            if place % PART == PART - 1:
                await asyncio.sleep(0)
            if connection in self._connections:
                yield number, connection

    async def _earlier_sample(self) -> _Sample:
        """A sample that is old enough to find a rate (rule 2)."""
        while self._samples and self._now() - self._samples[0].time > SAMPLE_AGE:
            self._samples.popleft()
        if not self._samples:
            counts: dict[LinkKey, int] = {}
            async for number, connection in self._each():
                for link in connection.shown_links():
                    counts[number, link.name, link.role] = link.messages
            self._samples.append(_Sample(self._now(), counts))
        before = self._samples[0]
        wait = MIN_INTERVAL - (self._now() - before.time)
        if wait > 0:
            await self._sleep(wait)
        return before

    def _id(self, number: int) -> str:
        return f"{self._identity}-{number}"


def _rate(count: int, before: int, seconds: float) -> float:
    # A link that was attached again under its name has a smaller count than before.
    return (count - before if count >= before else count) / seconds


def _summed(view: ConnectionView, id: str, links: list[LinkShown]) -> ConnectionView:
    """The connection with the sums of its links. Requests and replies are not messages."""
    of_messages = [link for link in links if link.role in ("sender", "receiver")]
    return replace(
        view,
        id=id,
        messages=sum(link.messages for link in of_messages),
        rate=round(sum(link.rate for link in of_messages), 1),
        unsettled=sum(link.unsettled for link in of_messages),
        credit=sum(link.credit for link in of_messages),
        link_count=len(links),
        links=[
            replace(link, rate=round(link.rate, 1))
            for link in heapq.nlargest(MAX_LINKS, links, key=lambda link: (link.rate, link.unsettled))
        ],
    )
