"""Request-response nodes: `$cbs` and `<entity>/$management`.

A client attaches a pair of links to the node in one AMQP session: requests come on one, replies go out on the other.
The reply's correlation-id is the request's message-id with its AMQP type. Otherwise clients drop the reply silently.

Large replies of one connection are made one after the other, so that a client makes the broker hold a few pages at most:
1. At most PAGES replies of this kind are being made at a time, whatever the number of requests and links.
2. None is begun while the client does not take what it has asked for. That is so while its socket is full, a reply waits for
   credit, or the window of an AMQP session is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import cache
from typing import TypeVar

from busbar.amqp.codec import MAX_ELEMENTS, DecodeError
from busbar.amqp.events import Delivery
from busbar.amqp.link import Link
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.message.decoded import DecodedMessage, decode_message, encode_message
from busbar.model.effects import Effect
from busbar.model.errors import BusbarError, MessageSizeExceeded, ServerBusy, error_of
from busbar.partitions.transaction import Transaction

CREDIT = 100
MAX_PENDING = 100
"""Requests of one link under way at a time, and replies waiting for credit on another."""
PAGES = 2
LARGE_BLOCK = 8 * 1024 * 1024

T = TypeVar("T")


class ReplyLink:
    """The client's receiving half of a pair."""

    def __init__(self, peer: LinkConnection, link: Link) -> None:
        self._peer = peer
        self._link = link
        self._waiting: deque[bytes] = deque()
        self._sent = 0
        self._watching = False

    @property
    def address(self) -> str | None:
        """Where replies are to be sent: the target that the client gave its own end."""
        target = self._link.target
        return None if target is None else target.address

    @property
    def waiting(self) -> bool:
        """Whether the client does not take its replies: there is no credit, or its AMQP session is full."""
        return bool(self._waiting) or bool(self._link.session.backlog)

    def opened(self, now: int) -> None:
        """Send nothing yet: replies follow requests."""

    def closed(self) -> None:
        while self._waiting:
            self._peer.release_reply(len(self._waiting.popleft()))

    def send(self, payload: bytes) -> None:
        if not self._waiting and self._can_take():
            self._deliver(payload)
        elif len(self._waiting) < MAX_PENDING:
            self._waiting.append(payload)
            self._watch_window()
            self._peer.hold_reply(len(payload))  # may end the connection, and with it this link

    def credit_changed(self, drain: bool, now: int) -> None:
        self.replenish(now)
        if drain:
            self._link.drained()

    def replenish(self, now: int) -> None:
        """Send what waits, as far as the client takes it now."""
        self._watching = False
        while self._waiting and self._can_take():
            payload = self._waiting.popleft()
            self._peer.release_reply(len(payload))
            self._deliver(payload)
        if self._waiting:
            self._watch_window()

    def _watch_window(self) -> None:
        """Try again after the client's next bytes, if there is credit and so the window of the session is closed.

        The window may open without a flow of this link."""
        if self._link.credit > 0 and not self._watching:
            self._watching = True
            self._peer.retry(self)

    def _can_take(self) -> bool:
        return self._link.credit > 0 and not self._link.queued

    def _deliver(self, payload: bytes) -> None:
        self._sent += 1
        # Settled at once: no client settles replies reliably, and none needs to.
        self._link.deliver([self._sent.to_bytes(4, "big")], [payload], True)


Perform = Callable[[DecodedMessage, bytes | None], Awaitable[tuple[DecodedMessage, BusbarError | None]]]
"""What a node does with a request and the id of the transaction that it names: the reply, and the error if it is one."""


class RequestLink:
    """The client's sending half of a pair."""

    def __init__(
        self, peer: LinkConnection, link: Link, replies: list[ReplyLink], perform: Perform, max_size: int
    ) -> None:
        self._peer = peer
        self._link = link
        self._replies = (
            replies  # of the same node in the same AMQP session; the session keeps the list up to date
        )
        self._perform = perform
        self._max_size = max_size
        self._under_way = 0

    def opened(self, now: int) -> None:
        self._link.grant(CREDIT)

    def closed(self) -> None:
        """Let requests under way finish. Their replies go out if the other half is still there."""

    def arrived(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            try:
                if delivery.oversized:
                    raise MessageSizeExceeded(f"The request is larger than {self._max_size} bytes.")
                if self._under_way >= MAX_PENDING:
                    raise ServerBusy(f"{MAX_PENDING} requests of this link are under way; wait for replies.")
                request = decode_message(delivery.payload, MAX_ELEMENTS)
                if delivery.txn is not None and not delivery.settled:
                    self._peer.transactions.find(delivery.txn)  # else the answer is that there is none
            except (BusbarError, DecodeError) as error:
                condition = error.condition if isinstance(error, BusbarError) else "amqp:decode-error"
                self._peer.service.refusals.add(condition)
                if not delivery.settled:
                    self._link.reject_delivery(delivery.id, condition, str(error))
                elif delivery.txn is not None:
                    self._peer.transactions.fail(delivery.txn, error_of(condition, str(error)))
                continue
            if not delivery.settled and delivery.txn is None:
                self._link.accept_deliveries([delivery.id])
            elif not delivery.settled and delivery.txn is not None:
                self._link.accept_in_txn([delivery.id], delivery.txn)
            self._under_way += 1
            self._peer.request_begun(len(delivery.payload))
            transaction = (
                None if delivery.txn is None else self._peer.transactions.request_begun(delivery.txn)
            )
            self._peer.spawn(self._answer(request, delivery.txn, transaction, len(delivery.payload)))
        if self._link.credit <= CREDIT // 2:
            self._link.grant(CREDIT)

    async def _answer(
        self, request: DecodedMessage, txn: bytes | None, transaction: Transaction | None, size: int
    ) -> None:
        error: BusbarError | None = None
        try:
            reply, error = await self._perform(request, txn)
        finally:
            self._under_way -= 1
            self._peer.request_answered(size)
            if transaction is not None:
                self._peer.transactions.request_finished(transaction, error)
        reply.correlation_id = request.message_id
        link = self._reply_link(request.reply_to)
        if link is not None:
            link.send(encode_message(reply))
        self._peer.flush()

    def _reply_link(self, reply_to: object) -> ReplyLink | None:
        for link in self._replies:
            if reply_to is not None and link.address == reply_to:
                return link
        return self._replies[-1] if self._replies else None


class LargeReplyLimiter:
    """Makes the large replies of one connection one after the other, when its client takes them."""

    def __init__(self, peer: LinkConnection) -> None:
        self._peer = peer
        self._turns = asyncio.Semaphore(PAGES)
        self._waiting: list[asyncio.Future[None]] = []

    async def take(self, read: Callable[[], Awaitable[T]]) -> T:
        _prime_allocator()
        async with self._turns:
            while not self._peer.writable or self._peer.replies_wait():
                await self._change()
            return await read()

    async def _change(self) -> None:
        """Wait until the client has sent something, or read something."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._peer.retry(self)
        number = self._peer.consumer(self)
        try:
            await future
        finally:
            self._peer.forget_consumer(number)

    # A consumer that asks for nothing but to be called when there is room

    def replenish(self, now: int) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def delivered(self, effect: Effect, now: int) -> None:
        raise AssertionError("nobody delivers to this one")

    def drained(self, now: int) -> None:
        raise AssertionError("nobody drains this one")


@cache
def _prime_allocator() -> None:
    """Allocate a large block of memory once, so that the C library keeps freed memory for its next use.

    It keeps up to twice the size of the largest block that was allocated. With less it would return the pages of every reply
    to the system, which would clear them again for the next one. That costs more than to make the reply."""
    bytes(LARGE_BLOCK)  # never touched, so it is memory by name alone
