"""Receives messages from a queue, a subscription or a dead-letter queue, and settles them one at a time.

1. A call gets the messages that are there, at most as many as it requested, and waits for the first one. Calls at the same
   time are served in their order.
2. `prefetch_count` messages are fetched ahead, into a cache of this receiver (fetch_link.py). With 0, which is the default,
   none is.
3. Completions of concurrent calls go in batches (batching.py), if the factory has a `batch_flush_interval`. All else goes at
   once.
4. If the connection is lost, a call that waits for messages goes on with the next one. Locks stay: the receiver settles
   messages of a lost link by their lock tokens, until the locks expire.
5. With ReceiveAndDelete the broker deletes messages as soon as it sends them. They have no locks, so all settlements,
   renewals and transactions are refused here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from busbar.client.batching import Batching, Results
from busbar.client.errors import BusbarClientError, LockLost, OperationTimeout, SettleFailed, error_of
from busbar.client.fetch_link import FetchLink
from busbar.client.management import EntityManagement
from busbar.client.received import PeekedMessage, Received
from busbar.client.settling import (
    COMPLETION,
    SettlementForm,
    Settlements,
    abandonment,
    dead_lettering,
    deferral,
)

if TYPE_CHECKING:
    from busbar.client.factory import MessagingFactory
    from busbar.client.receiver_link import ReceiverLink
    from busbar.client.transactions import ClientTransaction

MOST_COMPLETIONS = 1_000
DELETED_AT_A_TIME = 4_000


class ReceiveMode(StrEnum):
    """The receive modes: lock and settle later, or remove on delivery."""

    PEEK_LOCK = "peeklock"
    RECEIVE_AND_DELETE = "receiveanddelete"


class MessageReceiver:
    """Receives from one entity. MessagingFactory.message_receiver creates it. Safe for concurrent use."""

    survives_links = True

    def __init__(
        self,
        factory: MessagingFactory,
        entity: str,
        address: str,
        *,
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
        session_id: str | None = None,
    ) -> None:
        if prefetch_count < 0:
            raise ValueError(f"prefetch_count is {prefetch_count}; 0 switches prefetching off")
        self.entity = entity
        self.address = address
        self.receive_mode = ReceiveMode(receive_mode)
        self.prefetch_count = prefetch_count
        self._delete = self.receive_mode is ReceiveMode.RECEIVE_AND_DELETE
        self._factory = factory
        self._link: FetchLink | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False
        self._completions: Batching[Received] | None = None
        self._settlements = Settlements(
            factory,
            entity,
            address,
            delete=self._delete,
            survives_links=self.survives_links,
            session_id=session_id,
        )
        self._management = EntityManagement(factory, entity, address, session_id)
        self._last_peeked = 0

    # ---- receiving -------------------------------------------------------------------------------

    async def receive_messages(
        self, max_message_count: int = 1, max_wait_time: float | None = None
    ) -> list[Received]:
        """Return the messages that are there, at most `max_message_count`.

        Waits for the first one up to `max_wait_time` seconds (the factory's `operation_timeout` without it), and returns an
        empty list after that. If the connection is lost and cannot be opened again, raises ConnectionLost.
        """
        if max_message_count < 1:
            raise ValueError(f"max_message_count is {max_message_count}; at least 1 is needed")
        loop = asyncio.get_running_loop()
        wait = self._factory.operation_timeout if max_wait_time is None else max_wait_time
        deadline = loop.time() + wait
        attempts = self._factory.retry.start()
        while True:
            link = self._link
            try:
                if link is None or link.error is not None:
                    link = await self._attached()
                received = await link.receive(max_message_count, max(0.0, deadline - loop.time()))
                if received or link.error is None:
                    return received
                problem = link.error
            except BusbarClientError as error:
                problem = error
            if not self._goes_on(problem) or loop.time() >= deadline or not await attempts.again():
                raise problem

    def _goes_on(self, problem: BusbarClientError) -> bool:
        """Whether a call that waits for messages attaches another link."""
        return problem.retryable and not self._is_closed

    async def _attached(self) -> FetchLink:
        """The attached link, or a new one."""
        seconds = self._factory.operation_timeout
        try:
            async with asyncio.timeout(seconds), self._lock:
                self._check()
                link = self._link
                if link is None or link.error is not None:
                    connection = await self._factory.connection_for(self.entity)
                    link = FetchLink(connection, self.prefetch_count, self._delete, seconds)
                    await link.attach(self.address, seconds)
                    self._link = link
                return link
        except TimeoutError:
            raise OperationTimeout(f"No link to '{self.address}' within {seconds:g} s.") from None

    def _check(self) -> None:
        if self._is_closed:
            raise ValueError(f"the receiver of '{self.address}' is closed")

    # ---- settlement ------------------------------------------------------------------------------

    async def complete_message(
        self, message: Received, *, transaction: ClientTransaction | None = None
    ) -> None:
        """Complete a message: the broker deletes it. Raises LockLost if its lock has expired."""
        if transaction is None and self._factory.batch_flush_interval > 0:
            self._settlements.check("completed")
            await self._batch().add(message)
        else:
            await self._settle(message, COMPLETION, "completed", transaction)

    async def complete_at_once(
        self, message: Received, *, transaction: ClientTransaction | None = None
    ) -> None:
        """Complete a message without waiting for other completions."""
        await self._settle(message, COMPLETION, "completed", transaction)

    async def abandon_message(
        self,
        message: Received,
        properties: dict[str, object] | None = None,
        *,
        transaction: ClientTransaction | None = None,
    ) -> None:
        """Abandon a message: the broker delivers it again. `properties` are set on it."""
        await self._settle(message, abandonment(properties), "abandoned", transaction)

    async def defer_message(
        self,
        message: Received,
        properties: dict[str, object] | None = None,
        *,
        transaction: ClientTransaction | None = None,
    ) -> None:
        """Defer a message: it can be received only by its sequence number."""
        await self._settle(message, deferral(properties), "deferred", transaction)

    async def dead_letter_message(
        self,
        message: Received,
        *,
        reason: str = "",
        error_description: str = "",
        transaction: ClientTransaction | None = None,
    ) -> None:
        """Move a message to the dead-letter queue."""
        await self._settle(message, dead_lettering(reason, error_description), "dead-lettered", transaction)

    async def _settle(
        self, message: Received, form: SettlementForm, what: str, transaction: ClientTransaction | None
    ) -> None:
        try:
            await self._settlements.settle([message], form, what, transaction)
        except SettleFailed as refused:
            raise _unsettled(message, what, *refused.failed[0]) from None

    def _batch(self) -> Batching[Received]:
        if self._completions is None:
            self._completions = Batching(
                self._factory.batch_flush_interval, lambda: 1, MOST_COMPLETIONS, self._complete
            )
        return self._completions

    async def _complete(self, messages: list[Received]) -> Results:
        """Complete messages, those of each link together."""
        results: Results = [None] * len(messages)
        by_link: dict[ReceiverLink | None, list[int]] = {}
        for place, message in enumerate(messages):
            by_link.setdefault(message.link, []).append(place)
        for places in by_link.values():
            errors = await self._complete_together([messages[place] for place in places])
            for place, error in zip(places, errors, strict=True):
                results[place] = error
        return results

    async def _complete_together(self, messages: list[Received]) -> Results:
        """Complete messages of one link. By lock tokens it is all or none, so they are then tried one by one."""
        results: Results = [None] * len(messages)
        try:
            await self._settlements.settle(messages, COMPLETION, "completed")
        except SettleFailed as refused:
            for place, (condition, text) in refused.failed.items():
                results[place] = _unsettled(messages[place], "completed", condition, text)
        except LockLost as lost:
            if len(messages) > 1:
                return [(await self._complete_together([message]))[0] for message in messages]
            results[0] = _unsettled(messages[0], "completed", lost.condition, lost.text)
        except BusbarClientError as error:
            return [error] * len(messages)
        return results

    async def renew_message_lock(self, message: Received) -> int:
        """Renew the lock of a message. Returns its end in ms since 1970. Raises LockLost."""
        await self.renew_message_locks([message])
        return message.locked_until

    async def renew_message_locks(self, messages: Sequence[Received]) -> None:
        """Renew the locks of messages, all or none."""
        self._settlements.check("renewed")
        ends = await self._management.renew([message.lock_token for message in messages])
        for message, until in zip(messages, ends, strict=True):
            message.renewed(until)

    # ---- browsing and deferred messages ----------------------------------------------------------

    async def peek_messages(
        self,
        max_message_count: int = 1,
        *,
        sequence_number: int | None = None,
        session_id: str | None = None,
        state: str = "",
        body: bool = True,
    ) -> list[PeekedMessage]:
        """Read messages without locking them, from a sequence number on, or behind the last one that was peeked.

        There may be fewer than requested; an empty list means that there are no more. With `session_id` these are messages
        of that session; its lock is not needed. `state` is deferred or scheduled, and shows only those. Without `body` the
        messages have an empty one.
        """
        first = self._last_peeked + 1 if sequence_number is None else sequence_number
        messages = await self._management.peek(
            first, max_message_count, session_id=session_id, state=state, body=body
        )
        if messages:
            self._last_peeked = messages[-1].sequence_number
        return messages

    async def receive_deferred_messages(self, sequence_numbers: int | Sequence[int]) -> list[Received]:
        """Receive deferred messages. Raises NotFound if one of them is not deferred."""
        numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else list(sequence_numbers)
        return await self._management.receive_deferred(numbers, self._delete)

    async def delete_messages(
        self, max_message_count: int = DELETED_AT_A_TIME, *, before: datetime | None = None
    ) -> int:
        """Delete active messages that are not locked and were enqueued before a time, or before now. Returns how many."""
        return await self._management.delete(max_message_count, _ms(before))

    async def purge_messages(self, *, before: datetime | None = None) -> int:
        """Delete all active messages that are not locked and were enqueued before a time, or before now."""
        limit, deleted = _ms(before), 0
        while gone := await self._management.delete(DELETED_AT_A_TIME, limit):
            deleted += gone
        return deleted

    # ---- the end ---------------------------------------------------------------------------------

    def stop_prefetching(self) -> None:
        """Release prefetched messages now. Those that calls have got can still be settled."""
        self.prefetch_count = 0
        if self._link is not None and not self._delete:
            self._link.stop_fetching()

    async def close(self) -> None:
        """Complete what waits, close the link, and release prefetched messages."""
        if self._is_closed:
            return
        if self._completions is not None:
            await self._completions.finish()
        self._is_closed = True
        link, self._link = self._link, None
        if link is not None:
            link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


def _ms(time_utc: datetime | None) -> int:
    return time.time_ns() // 1_000_000 if time_utc is None else round(time_utc.timestamp() * 1000)


def _unsettled(message: Received, what: str, condition: str, text: str) -> BusbarClientError:
    error = error_of(condition, text)
    if not isinstance(error, LockLost):
        return error
    until = datetime.fromtimestamp(message.locked_until / 1000, UTC)
    return type(error)(
        f"Message {message.sequence_number} was not {what}, since its lock is lost. It was locked until "
        f"{until:%Y-%m-%d %H:%M:%S} UTC. {text}",
        condition,
    )
