"""Sends messages to a queue or topic: one at a time or many, scheduled, and in transactions.

1. A message without an id gets one.
2. Single messages of concurrent calls are sent in batches (batching.py), if the factory has a `batch_flush_interval`. A list
   of messages and a message in a transaction are sent at once, after those that wait.
3. A call returns when the broker has made its messages durable. It ends within the factory's `operation_timeout`.
4. Messages that were certainly not sent are sent again, by the factory's Retry. With `resend_unanswered`, also messages
   whose answers were lost are sent again. That is for entities that detect duplicates: the repetition has the same id.
   In a transaction nothing is sent again: it ends with its connection, and the program repeats it as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from busbar.client.batching import Batching, Results
from busbar.client.errors import BusbarClientError, ConnectionLost, OperationTimeout, SendFailed, error_of
from busbar.client.management import EntityManagement
from busbar.client.message import OutgoingMessage, encode
from busbar.client.sender import BATCHES_IN_FLIGHT, Failure, Sender, failure_of_send, is_never_repeated
from busbar.message.compose import BATCH_OVERHEAD

if TYPE_CHECKING:
    from datetime import datetime

    from busbar.client.factory import MessagingFactory
    from busbar.client.transactions import ClientTransaction

Message = OutgoingMessage | bytes
"""Bytes are an encoded message, and are sent as they are."""

SMALLEST_LIMIT = 256 * 1024
"""The size of a batch before the limit of the link is there."""


class MessageSender:
    """Sends to one entity. MessagingFactory.message_sender creates it. Safe for concurrent use."""

    def __init__(
        self,
        factory: MessagingFactory,
        entity: str,
        *,
        via: str | None = None,
        in_flight: int = 2_000,
        resend_unanswered: bool = False,
    ) -> None:
        self.entity = entity
        self._factory = factory
        self._sender = Sender(factory, entity, None, in_flight, via)
        self._resends = resend_unanswered
        self._batch_messages = max(1, in_flight // BATCHES_IN_FLIGHT)
        self._batching: Batching[bytes] | None = None
        self._management = EntityManagement(factory, entity, entity)
        self._is_closed = False

    async def send_messages(
        self, messages: Message | Sequence[Message], *, transaction: ClientTransaction | None = None
    ) -> None:
        """Send a message, or several. Raises SendFailed, or for a single message the broker's refusal of it."""
        batches = transaction is None and self._factory.batch_flush_interval > 0
        if batches and isinstance(messages, (OutgoingMessage, bytes)):
            payload = messages if isinstance(messages, bytes) else encode(messages)
            batching = self._batching or self._batch()
            await batching.add(payload, len(payload) + BATCH_OVERHEAD)
            return
        await self.send_at_once(messages, transaction=transaction)

    async def send_at_once(
        self, messages: Message | Sequence[Message], *, transaction: ClientTransaction | None = None
    ) -> None:
        """Send without waiting for other messages. Those that wait go first."""
        if self._batching is not None:
            self._batching.flush()
            await asyncio.sleep(0)  # a batch that goes begins in the next turn
        if isinstance(messages, (OutgoingMessage, bytes)):
            (error,) = await self._results([_encoded(messages)], transaction)
            if error is not None:
                raise error
            return
        payloads = [_encoded(message) for message in messages]
        failed, doubtful = await self._transmit(payloads, transaction)
        if failed:
            raise failure_of_send(len(payloads), failed, doubtful)

    def _batch(self) -> Batching[bytes]:
        if self._batching is None:
            self._check()
            self._batching = Batching(
                self._factory.batch_flush_interval, self._batch_bytes, self._batch_messages, self._results
            )
        return self._batching

    def _batch_bytes(self) -> int:
        return self._sender.batch_bytes or SMALLEST_LIMIT

    async def _results(self, payloads: list[bytes], transaction: ClientTransaction | None = None) -> Results:
        """Send messages. Returns the error of each."""
        failed, doubtful = await self._transmit(payloads, transaction)
        if not failed:
            return [None] * len(payloads)
        return [_error_of_one(place, failed, doubtful) for place in range(len(payloads))]

    async def _transmit(
        self, payloads: list[bytes], transaction: ClientTransaction | None
    ) -> tuple[dict[int, Failure], set[int]]:
        self._check()
        seconds = self._factory.operation_timeout
        try:
            is_repeatable = self._is_repeatable if transaction is None else is_never_repeated
            failed, doubtful, _ = await self._sender.transmit(payloads, transaction, is_repeatable, seconds)
        except TimeoutError:
            raise OperationTimeout(
                f"'{self.entity}' has not answered within {seconds:g} s: it is not known what was stored."
            ) from None
        return failed, doubtful

    def _is_repeatable(self, failure: Failure) -> bool:
        condition, _text, certain = failure
        is_temporary = condition == ConnectionLost.default_condition or error_of(condition, "").retryable
        return is_temporary and (certain or self._resends)

    def _check(self) -> None:
        if self._is_closed:
            raise ValueError(f"the sender to '{self.entity}' is closed")

    # ---- scheduled messages ----------------------------------------------------------------------

    async def schedule_messages(
        self,
        messages: OutgoingMessage | Sequence[OutgoingMessage],
        schedule_time_utc: datetime,
        *,
        transaction: ClientTransaction | None = None,
    ) -> list[int]:
        """Send messages that become active at a time. Returns their sequence numbers, for a cancellation."""
        self._check()
        listed = [messages] if isinstance(messages, OutgoingMessage) else list(messages)
        return await self._management.schedule(listed, schedule_time_utc, transaction)

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | Sequence[int], *, transaction: ClientTransaction | None = None
    ) -> None:
        """Cancel scheduled messages. Raises NotFound if one of them is not scheduled (any more)."""
        self._check()
        numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else list(sequence_numbers)
        await self._management.cancel(numbers, transaction)

    # ---- the end ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Send what waits, wait for the answers, and close the link."""
        if self._is_closed:
            return
        if self._batching is not None:
            await self._batching.finish()
        self._is_closed = True
        await self._sender.close()

    async def __aenter__(self) -> MessageSender:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


def _encoded(message: Message) -> bytes:
    return message if isinstance(message, bytes) else encode(message)


def _error_of_one(place: int, failed: dict[int, Failure], doubtful: set[int]) -> BusbarClientError | None:
    """The error of one message: the broker's refusal, or SendFailed if its outcome is unknown."""
    failure = failed.get(place)
    if failure is None:
        return None
    condition, text, _certain = failure
    if place in doubtful:
        return SendFailed(f"It is not known whether the message was stored. {text}", condition, {}, (0,))
    return error_of(condition, text)
