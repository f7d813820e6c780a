"""What operators see of the AMQP connections of clients, and which of them a report has.

1. A report has a page of the connections, in the order that was asked for: the largest first, and `since` the oldest first.
2. `entity` leaves out connections that have no link to that entity, or to a part of it. Figures are then those of its links.
3. A page ends at MAX_SHOWN. Connections behind it are found with another order, or by their entity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from busbar.model.errors import ArgumentError, ArgumentOutOfRange

MAX_SHOWN = 1_000
"""So many connections can be paged through."""
MAX_LINKS = 20
"""So many links of one connection are shown, the busiest first."""


@dataclass(frozen=True, slots=True)
class LinkShown:
    """A link of a client."""

    name: str
    entity: str
    """The path that it is attached to, with the sub-queue; `$cbs` and management nodes as they are addressed."""
    role: str
    """What the client does on it: `sender`, `receiver`, `requests`, `replies` or `transactions`."""
    messages: int = 0
    """Deliveries since it was attached. A batch is one delivery."""
    rate: float = 0.0
    """Deliveries a second, now."""
    unsettled: int = 0
    """Messages that the client has got and has not settled."""
    credit: int = 0
    """Of a receiver: messages that it asks for. Of a sender: messages that it may send."""


@dataclass(frozen=True, slots=True)
class ConnectionView:
    """A connection of a client. Times in ms since 1970. The counts are the sums of its links to messages."""

    id: str
    address: str
    """Host and port of the client."""
    since: int
    broker: str = ""
    """The broker process that serves it (empty: there is only one process)."""
    container: str = ""
    """The container id that the client chose."""
    product: str = ""
    """The client library, as the client named it."""
    key_names: Sequence[str] = ()
    """The rules whose keys the client has proved to have."""
    tls: bool = False
    websocket: bool = False
    slow: bool = False
    """Whether the client reads slower than messages come."""
    messages: int = 0
    rate: float = 0.0
    unsettled: int = 0
    credit: int = 0
    link_count: int = 0
    links: Sequence[LinkShown] = ()
    """MAX_LINKS of them at most."""


SORTS = ("rate", "messages", "unsettled", "credit", "links", "since")


@dataclass(frozen=True, slots=True)
class ConnectionQuery:
    """Which connections are asked for, and in which order."""

    entity: str = ""
    sort: str = "rate"
    skip: int = 0
    top: int = 100

    def check(self) -> None:
        """Check the query. Raises ArgumentError, ArgumentOutOfRange."""
        if self.sort not in SORTS:
            raise ArgumentError(
                f"Connections cannot be sorted by '{self.sort}'; there are {', '.join(SORTS)}."
            )
        if self.skip < 0 or self.top < 1 or self.skip + self.top > MAX_SHOWN:
            raise ArgumentOutOfRange(
                f"Connections {self.skip} to {self.skip + self.top} were asked for; {MAX_SHOWN} can be shown. Ask for those "
                "of an entity, or sort them by something else."
            )


@dataclass(frozen=True, slots=True)
class ConnectionReport:
    connections: Sequence[ConnectionView]
    total: int
    """Connections that the query is about, on all pages."""
    silent: int = 0
    """Broker processes that did not answer; their connections are missing."""


def sort_key(query: ConnectionQuery, view: ConnectionView) -> tuple[float, int, str]:
    """The place of a connection in a report: smaller keys come first."""
    by = {
        "rate": view.rate,
        "messages": view.messages,
        "unsettled": view.unsettled,
        "credit": view.credit,
        "links": view.link_count,
        "since": 0,
    }
    return -by[query.sort], view.since, view.id


def merged(reports: Sequence[ConnectionReport], query: ConnectionQuery, silent: int = 0) -> ConnectionReport:
    """One page of the reports of several processes, each of which has all connections up to the end of that page."""
    found = sorted(
        (view for report in reports for view in report.connections), key=lambda view: sort_key(query, view)
    )
    page = found[query.skip : query.skip + query.top]
    return ConnectionReport(page, sum(report.total for report in reports), silent)
