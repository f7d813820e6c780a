"""The events that the engine reports. `Connection.receive_data` and `tick` return these in the order of the input.

Within one call the deliveries of a link come as one Arrived, at the position of the first of them. Its dispositions with
the same plain outcome, and its flows, are merged likewise. Deliveries to a coordinator are not merged: each is reported at
its own position. Treat events as immutable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from busbar.amqp.errors import AmqpError
from busbar.amqp.outcomes import Outcome

if TYPE_CHECKING:
    from busbar.amqp.link import Link
    from busbar.amqp.session import Session


class Event:
    """Any event; the concrete classes below are the whole list."""


@final
class SaslInit(Event):
    """Server: the client chose a mechanism. Answer with `connection.sasl_outcome(code)`, now or later."""

    def __init__(self, mechanism: str, response: bytes, hostname: str | None) -> None:
        self.mechanism = mechanism
        self.response = response
        self.hostname = hostname


@final
class SaslOutcome(Event):
    """Client: the result of the server; 0 is ok. After any other code, Closed follows."""

    def __init__(self, code: i64) -> None:
        self.code = code


@final
class Opened(Event):
    """The remote open arrived; a server has already answered it."""

    def __init__(self, container_id: str, hostname: str | None, properties: dict[object, object]) -> None:
        self.container_id = container_id
        self.hostname = hostname
        self.properties = properties


@final
class SessionBegun(Event):
    """The remote began a session (already answered), or answered ours."""

    def __init__(self, session: Session) -> None:
        self.session = session


@final
class SessionEnded(Event):
    """The session has ended with all its links (still in `session.links`); no event per link follows."""

    def __init__(self, session: Session, error: AmqpError | None) -> None:
        self.session = session
        self.error = error


@final
class LinkAttaching(Event):
    """The remote attached a link. Answer with `link.accept(...)` or `link.refuse(...)`, now or later."""

    def __init__(self, link: Link) -> None:
        self.link = link


@final
class LinkAttached(Event):
    """Our attach was answered. A refusal has no source or target, and LinkDetached follows it."""

    def __init__(self, link: Link) -> None:
        self.link = link


@final
class LinkDetached(Event):
    """The remote detached the link; the answer is already written.

    A server gets none for a link that it refused or detached itself; a client gets it as the answer to its detach.
    """

    def __init__(self, link: Link, error: AmqpError | None, closed: bool) -> None:
        self.link = link
        self.error = error
        self.closed = closed


@final
class Delivery:
    """One complete incoming delivery.

    `txn` is the transaction in which it was sent. An `oversized` one exceeded the link's max-message-size: its bytes were
    dropped and the payload is empty.
    """

    def __init__(
        self,
        id: i64,
        tag: bytes,
        format: i64,
        payload: bytes,
        settled: bool,
        txn: bytes | None,
        oversized: bool,
    ) -> None:
        self.id = id
        self.tag = tag
        self.format = format
        self.payload = payload
        self.settled = settled
        self.txn = txn
        self.oversized = oversized


@final
class Arrived(Event):
    """Complete deliveries of one receiving link, in order."""

    def __init__(self, link: Link, deliveries: list[Delivery]) -> None:
        self.link = link
        self.deliveries = deliveries


@final
class CreditChanged(Event):
    """A flow for a sending link: `link.credit` is up to date. With `drain`, answer with `link.drained()`.

    If a client requested a drain, it gets this event, with `drain`, for its receiving link when the sender has answered.
    """

    def __init__(self, link: Link, drain: bool) -> None:
        self.link = link
        self.drain = drain


@final
class Disposed(Event):
    """The peer's disposition about deliveries of one link that were unsettled.

    On a sending link: the receiver's decision, with the tags of the deliveries. With `settled` they are forgotten; without,
    confirm or deny them. On a receiving link: the sender's confirmation of a disposition without settlement; `tags` is empty
    then.
    """

    def __init__(
        self, link: Link, ids: list[int], tags: list[bytes], settled: bool, outcome: Outcome | None
    ) -> None:
        self.link = link
        self.ids = ids
        self.tags = tags
        self.settled = settled
        self.outcome = outcome


@final
class SettledDisposed(Event):
    """Server: a receiver's disposition in a transaction about deliveries that are settled already, all of them.

    The receiver waits for an answer: `session.deny_settled`. Outside of transactions such a disposition is ignored.
    """

    def __init__(self, session: Session, first: i64, last: i64, txn: bytes) -> None:
        self.session = session
        self.first = first
        self.last = last
        self.txn = txn


@final
class Closed(Event):
    """The connection has ended: the remote closed it (its error), or broke the protocol (the engine's error). Comes once."""

    def __init__(self, error: AmqpError | None) -> None:
        self.error = error
