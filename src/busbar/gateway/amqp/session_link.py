"""A link on which a client receives the messages of the one session that it holds.

It is a receiver like any other, of the one fragment that the session lies in. The consumer that accepted the session is the
one that asks for its messages. When the link closes, in whatever way, the consumer leaves and the session is free. When the
session lock ends by time, the link is detached with that reason.

The fragment ends a lock. While its store is unavailable it cannot. Then the gateway ends the link, a little after the end
of the lock. So the client does not wait for messages of a session that it does not hold any more. The fragment gets the
Leave of the consumer when its store is available again.
"""

from __future__ import annotations

from dataclasses import replace

from busbar.amqp.link import Link
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.amqp.outgoing import OutgoingLink
from busbar.message.delivery import CONTENT_HEAD, encode_deliveries
from busbar.model.api import EntityView
from busbar.model.commands import Command
from busbar.model.effects import Effect, SessionAccepted
from busbar.model.errors import SessionLockLost
from busbar.model.message import ACTIVE, Record
from busbar.partitions.credit_allocation import FragmentCredit
from busbar.partitions.origin import DeliveryHandler, EffectHandler, Wakeable

GRACE = 1_000
"""Milliseconds after the end of the lock in which the fragment may report it."""

SESSION_LOCK_LOST = (
    "The session lock has expired on the message session. Accept the message session again to go on with it."
)


class SessionConsumer:
    """The consumer that accepts a session, and later takes its messages.

    It has its number before there is a link; the link's receiver gets that number as if it were new.
    """

    def __init__(self, peer: LinkConnection) -> None:
        self._peer = peer
        self.origin = peer.origin
        self.number = peer.consumer(self)
        self.link: Link | None = None
        self.lost = False
        self._taker: DeliveryHandler | None = None

    def leave(self) -> None:
        """Drop what comes for this consumer: its link is gone."""
        self.link = None
        self._taker = None

    def give_up(self) -> None:
        """Leave without a session: none was accepted."""
        self._peer.forget_consumer(self.number)

    def session_lost(self) -> None:
        """End the link, with the reason for the client: the session lock has ended by time."""
        self.lost = True
        if self.link is not None:
            text = f"{SESSION_LOCK_LOST} {self._peer.service.tracking}"
            self._peer.end_link(self.link, SessionLockLost.condition, text)

    # Of a consumer

    def delivered(self, effect: Effect, now: int) -> None:
        if self._taker is not None:
            self._taker.delivered(effect, now)

    def drained(self, now: int) -> None:
        if self._taker is not None:
            self._taker.drained(now)

    def replenish(self, now: int) -> None:
        if self._taker is not None:
            self._taker.replenish(now)

    # Of an asker

    def command(self, command: Command) -> None:
        self._peer.command(command)

    def expect(self, who: EffectHandler) -> int:
        return self._peer.expect(who)

    def consumer(self, who: DeliveryHandler) -> int:
        self._taker = who
        return self.number

    def forget_consumer(self, number: int) -> None:
        self._peer.forget_consumer(number)

    def wake_at(self, who: Wakeable, at: int) -> None:
        self._peer.wake_at(who, at)

    def flush(self) -> None:
        self._peer.flush()


class SessionLink(OutgoingLink):
    """Session to client."""

    lost_error = SessionLockLost
    lost_text = SESSION_LOCK_LOST

    def __init__(
        self,
        peer: LinkConnection,
        link: Link,
        entity: EntityView,
        seat: SessionConsumer,
        index: int,
        accepted: SessionAccepted,
        delete: bool,
        resource: str,
    ) -> None:
        self.path = entity.path
        self.session = accepted.session
        self.index = index
        self.fragment = entity.fragments[index]
        self.consumer = seat.number
        self._partition = index if len(entity.fragments) > 1 else -1
        self._seat = seat
        seat.link = link
        only = replace(entity, fragments=(self.fragment,))
        super().__init__(peer, link, only, ACTIVE, delete, resource, seat, entity)
        self._until = accepted.until
        peer.wake_at(self, self._until + GRACE)

    def closed(self) -> None:
        self._peer.wake_at(self, 0)
        super().closed()
        self._seat.leave()

    def vanished(self) -> None:
        self._peer.wake_at(self, 0)
        super().vanished()
        self._seat.leave()

    def renewed(self, until: int) -> None:
        """Note the new end of the lock. (`wake` compares it when it is called.)"""
        self._until = until

    def wake(self, now: int) -> int:
        """End the link if the lock has ended by time. Otherwise returns when to check again."""
        if now >= self._until + GRACE:
            self._seat.session_lost()
            return 0
        return self._until + GRACE

    def deliver(self, demand: FragmentCredit, records: list[Record], nonce: int, until: int) -> None:
        now = self._measure(records)
        tags, heads, contents = encode_deliveries(
            records, self.fragment, self.index, nonce, until, self._partition
        )
        if self.spans is not None:
            self.spans.delivered(tags, records, now)
        self._link.deliver(tags, heads, self._delete, contents=contents, skip=CONTENT_HEAD)
