"""A receiving link whose credit follows the calls that wait, with a cache for prefetched messages.

1. Without prefetching the broker gets credit for the messages that calls wait for. When a call ends with fewer messages than
   it requested, the rest of its credit is drained before the call returns. So no message is locked that no call has got.
2. With prefetching, a call that finds the cache half empty fetches more. A fetch requests as many messages as the cache has
   room for, and at most about FETCH_BYTES of them, by the average size of the last messages. So one link with large messages
   does not hold up the others on its connection for long.
3. A call gets the messages in the cache, the oldest first. Their locks run while they are there. When no call has come for
   IDLE_SECONDS, the rest of the credit is drained. So messages do not come again and again to a program that has stopped.
4. Without prefetching, a message that comes when no call waits (a call was cancelled) is released at once. If the broker has
   deleted it already, it stays for the next call.
5. If the broker does not answer a drain in time, the connection is closed.
"""

from __future__ import annotations

import asyncio

from busbar.amqp.events import Delivery
from busbar.client.connection import ClientConnection
from busbar.client.errors import BusbarClientError, ConnectionLost
from busbar.client.receiver_link import ReceiverLink, WaitingReceive

FETCH_BYTES = 256 * 1024
FIRST_GUESS = 4 * 1024
"""The size of a message while none has come."""


IDLE_SECONDS = 5.0


class FetchLink(ReceiverLink):
    """The link of a MessageReceiver."""

    def __init__(self, connection: ClientConnection, prefetch: int, delete: bool, timeout: float) -> None:
        super().__init__(connection, prefetch, delete, timeout)
        self._average = float(FIRST_GUESS)
        self._draining = False
        self._drain_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last_fetch = 0.0

    @property
    def cached(self) -> int:
        """The number of messages in the cache."""
        return len(self._buffer)

    async def attach(self, address: str, timeout: float) -> None:
        """Attach the link. Nothing is fetched before the first call."""
        await self.connection.attach_receiver(self, address, timeout, settled=self.delete)

    # ---- credit ----------------------------------------------------------------------------------

    def request(self) -> None:
        if self._draining or self.error is not None or not self.link.is_attached:
            return
        if self._credit:
            self._fetch(self.demand)
        elif self.demand - len(self._buffer) > self.link.credit:
            self.link.grant(self.demand - len(self._buffer))
            self.connection.touch()

    def _fetch(self, wanted: int) -> None:
        """Fetch messages if less than half of the cache is filled or on its way."""
        self._last_fetch = self._loop.time()
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(IDLE_SECONDS, self._check_idle)
        cache = max(self._credit, wanted)
        if len(self._buffer) + self.link.credit <= cache // 2:
            fits = max(1, int(FETCH_BYTES / self._average))
            self.link.grant(min(cache - len(self._buffer), fits))
            self.connection.touch()

    def _check_idle(self) -> None:
        """Take back the credit of a link that no call has used for long."""
        self._idle_timer = None
        left = self._last_fetch + IDLE_SECONDS - self._loop.time()
        if self._waiting or left > 0:
            self._idle_timer = self._loop.call_later(max(left, 0.1), self._check_idle)
        elif self.link.credit > 0:
            self._drain()

    def can_serve(self, call: WaitingReceive) -> bool:
        if self._credit:
            return bool(self._buffer)
        buffered = len(self._buffer)
        return buffered >= call.most or (buffered > 0 and not self._draining and self.link.credit == 0)

    def _drain(self) -> None:
        """Take back the credit that was not used. The broker answers when it has sent what is there."""
        if self._draining or self.error is not None:
            return
        self._draining = True
        self._drain_timer = self._loop.call_later(self._timeout, self._drain_unanswered)
        self.link.grant(self.link.credit, True)
        self.connection.touch()

    def _drain_unanswered(self) -> None:
        lost = ConnectionLost(f"No answer to a drain for {self._timeout:g} s: the connection is given up.")
        self.connection.abort(lost)

    def credit_changed(self) -> None:
        """The broker has answered a drain. (The connection also calls this when it is writable again.)"""
        if not self._draining or self.link.drain:
            return
        self._draining = False
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        self.serve()
        for call in [call for call in self._waiting if call.has_expired]:
            self._end(call)
        self._release_unclaimed()
        if self._waiting:
            self.request()

    # ---- messages --------------------------------------------------------------------------------

    def arrived(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self._average += (len(delivery.payload) - self._average) / 8
        self.keep(deliveries)
        self.serve()
        if self._waiting:
            self.request()
        if not self._credit:
            if self._waiting and self._buffer and self.link.credit > 0:
                self._drain()  # the first call has some of its messages: it takes those that are there, and waits no longer
            self._release_unclaimed()

    def expire(self, call: WaitingReceive) -> None:
        self.demand -= call.most
        call.has_expired = True
        if self._credit or (self.link.credit == 0 and not self._draining):
            self._end(call)
        else:
            self._drain()

    def cancelled(self) -> None:
        if self._credit or self.error is not None:
            return
        if self.link.credit > self.demand:
            self._drain()
        self._release_unclaimed()

    def stop_fetching(self) -> None:
        """Fetch nothing any more, and release what is in the cache. Messages that calls have got can be settled."""
        self._credit = 0
        self.cancelled()

    def _release_unclaimed(self) -> None:
        if self._buffer and not self._waiting and not self.delete and not self._credit:
            messages = list(self._buffer)
            self._buffer.clear()
            self.release(messages)

    def ended(self, error: BusbarClientError) -> None:
        for timer in (self._drain_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        super().ended(error)
