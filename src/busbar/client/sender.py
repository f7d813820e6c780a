"""Sends messages in batches, many under way at a time, and reports the outcome of each message.

1. Messages go in batches as large as the link accepts (at most BATCH_BYTES), in their order. At most `in_flight` messages
   and IN_FLIGHT_BYTES are unanswered. If a broker does not offer mixed batches, it gets one message at a time.
2. `send` returns when all are durable. Otherwise it raises SendFailed, which names the messages that were not stored and
   those with an unknown outcome; all others are durable. A send is not atomic.
3. If a batch is refused because of one of its messages, it is halved and sent again until that message is alone. Its other
   messages then come later than those after the batch.
4. With a Writer the broker drops repetitions in this batch of the writer. So unanswered messages are sent again, on a new
   connection if necessary, by the rules of Retry. Without a Writer nothing is sent twice.
5. In a transaction nothing is stored before the commit. `send` returns when the broker has added all messages to the
   transaction. A message that it refuses is no part of it.
6. The broker reports how many messages it dropped, because it had them. `Sender.duplicates` counts them.
7. If nothing at all is answered for as long as the factory's timeout, the connection is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from busbar.amqp.outcomes import ACCEPTED, REJECTED, Outcome
from busbar.client.answer_watch import AnswerWatch, WatchedCall
from busbar.client.connection import ClientConnection, LinkEnd
from busbar.client.errors import (
    RETRYABLE,
    BusbarClientError,
    ConnectionLost,
    MessageTooLarge,
    SendFailed,
    error_of,
)
from busbar.message.compose import BATCH_FORMAT, pack_batch

if TYPE_CHECKING:
    from busbar.client.factory import MessagingFactory
    from busbar.client.transactions import ClientTransaction

BATCH_BYTES = 1024 * 1024
IN_FLIGHT_BYTES = 16 * 1024 * 1024
BATCHES_IN_FLIGHT = 4
"""The minimum number of batches for `in_flight` messages, so that the connection is not idle while an answer is
under way."""

DESTINATION = "com.microsoft:transfer-destination-address"
MIXED_BATCHES = "busbar:mixed-batches"
FAILED = "busbar:failed"
UNKNOWN = "busbar:unknown"
NOT_STORED = "busbar:not-stored"
DUPLICATES = "busbar:duplicates"

OF_ONE_MESSAGE = frozenset(
    {
        "amqp:decode-error",
        "amqp:link:message-size-exceeded",
        "amqp:not-allowed",
        "com.microsoft:argument-error",
        "com.microsoft:argument-out-of-range",
    }
)
"""Conditions that a single message of a batch may cause."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A sender that repeats a numbered batch until it is committed; the broker drops repetitions."""

    name: str
    batch: int


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """The result of a send: all messages are durable."""

    count: int
    repeated: int
    """The number of messages that were sent more than once (by a Writer)."""


Failure = tuple[str, str, bool]
"""Condition, text, and whether the message was certainly not stored."""


class _WriterCall(WatchedCall):
    """The messages of one `send` that are under way together."""

    __slots__ = ("done", "failures", "messages", "state", "unanswered")

    def __init__(self, messages: list[bytes], state: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self.messages = messages
        self.state = state  # of their deliveries: names a transaction, or is empty
        self.unanswered = len(messages)
        self.failures: dict[int, Failure] = {}
        self.done: asyncio.Future[None] = loop.create_future()

    def answered(self, count: int) -> None:
        self.unanswered -= count
        if not self.unanswered and not self.done.done():
            self.done.set_result(None)

    def fail(self, places: Sequence[int], condition: str, text: str, certain: bool) -> None:
        for place in places:
            self.failures[place] = (condition, text, certain)

    def expire(self) -> None:
        if not self.done.done():
            self.done.set_exception(TimeoutError())


class _Slice:
    """Consecutive messages of a call."""

    __slots__ = ("call", "start", "stop")

    def __init__(self, call: _WriterCall, start: int, stop: int) -> None:
        self.call = call
        self.start = start
        self.stop = stop


class SenderLink(LinkEnd):
    """A sender on one connection, with which it ends."""

    def __init__(self, connection: ClientConnection, in_flight: int, timeout: float) -> None:
        self.connection = connection
        self.error: BusbarClientError | None = None
        self.counts_duplicates = False  # the broker does
        self.duplicates = 0
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._watch = AnswerWatch(timeout, self._on_silence)
        self._in_flight = in_flight
        self._batch_messages = max(1, in_flight // BATCHES_IN_FLIGHT)
        self._batch_bytes = BATCH_BYTES
        self._largest = 0  # 0: no limit
        self._queue: deque[_Slice] = deque()
        self._under_way: dict[bytes, tuple[_Slice, int]] = {}
        self._messages = 0
        self._bytes = 0
        self._sent = 0

    async def attach(
        self, address: str, timeout: float, writer: Writer | None, destination: str | None = None
    ) -> None:
        """With a `destination`, the entity at `address` moves the messages on to it."""
        properties: dict[object, object] | None = None
        if writer is not None:
            properties = {"busbar:writer": writer.name, "busbar:batch": writer.batch}
        elif destination is not None:
            properties = {DESTINATION: destination}
        await self.connection.attach_sender(
            self, address, timeout, properties=properties, capabilities=[MIXED_BATCHES, DUPLICATES]
        )
        offered = self.link.offered_capabilities or ()
        self.counts_duplicates = DUPLICATES in offered
        self._largest = self.link.remote_max_message_size
        if self._largest:
            self._batch_bytes = min(BATCH_BYTES, self._largest)
        if MIXED_BATCHES not in offered:
            self._batch_messages = 1

    @property
    def batch_bytes(self) -> int:
        """The maximum size of a batch."""
        return self._batch_bytes

    async def send(self, messages: list[bytes], state: bytes, expires: bool) -> dict[int, Failure]:
        """Send each message once, and wait for all answers. Returns those that failed.

        A call that expires raises TimeoutError when the link's timeout is over.
        """
        call = _WriterCall(messages, state, self._loop)
        self._queue.append(_Slice(call, 0, len(messages)))
        self._watch.begin(call, expires=expires)
        self._pump()
        try:
            await call.done
        except (asyncio.CancelledError, TimeoutError):
            self._queue = deque([part for part in self._queue if part.call is not call])
            raise
        finally:
            self._watch.end(call)
        return call.failures

    def _on_silence(self) -> None:
        text = f"No answer for {self._timeout:g} s: the connection is given up."
        self.connection.abort(ConnectionLost(text))

    def credit_changed(self) -> None:
        self._pump()

    def _pump(self) -> None:
        link = self.link
        queue = self._queue
        while (
            queue
            and link.credit > 0
            and self._messages < self._in_flight
            and self._bytes < IN_FLIGHT_BYTES
            and self.connection.writable
        ):
            part = queue[0]
            messages, start = part.call.messages, part.start
            stop = min(part.stop, start + self._batch_messages)
            if self._largest and len(messages[start]) > self._largest:
                self._too_large(part)
                continue
            payload = messages[start]
            if stop > start + 1:
                packed, stop = pack_batch(messages, start, stop, self._batch_bytes)
                if stop > start + 1:
                    payload = packed
            alone = stop == start + 1
            if stop == part.stop:
                queue.popleft()
            else:
                part.start = stop
            tag = self._sent.to_bytes(8, "big")
            self._sent += 1
            self._messages += stop - start
            self._bytes += len(payload)
            self._under_way[tag] = (_Slice(part.call, start, stop), len(payload))
            link.deliver([tag], [payload], False, 0 if alone else BATCH_FORMAT, part.call.state)
        self.connection.touch()

    def _too_large(self, part: _Slice) -> None:
        """Fail the first message of a slice without sending it, because the broker would refuse its size."""
        size = len(part.call.messages[part.start])
        text = f"The message has {size} bytes; the link takes {self._largest}."
        part.call.fail([part.start], MessageTooLarge.default_condition, text, True)
        part.start += 1
        if part.start == part.stop:
            self._queue.popleft()
        part.call.answered(1)

    # ---- answers ---------------------------------------------------------------------------------

    def disposed(self, ids: list[int], tags: list[bytes], outcome: Outcome | None) -> None:
        accepted = outcome is not None and outcome.code == ACCEPTED
        self._watch.answered()
        if accepted and outcome is not None and outcome.annotations is not None:
            self._count_duplicates(outcome.annotations, len(tags))
        for tag in tags:
            found = self._under_way.pop(tag, None)
            if found is None:
                continue
            part, size = found
            count = part.stop - part.start
            self._messages -= count
            self._bytes -= size
            if accepted:
                part.call.answered(count)
            else:
                self._handle_rejection(part, outcome)
        self._pump()

    def _count_duplicates(self, noted: dict[object, object], deliveries: int = 1) -> None:
        """Add the number in an answer, which is that of each of its deliveries."""
        count = noted.get(DUPLICATES)
        if isinstance(count, int) and count > 0:
            self.duplicates += deliveries * int(count)

    def _handle_rejection(self, part: _Slice, outcome: Outcome | None) -> None:
        call, count = part.call, part.stop - part.start
        error = outcome.error if outcome is not None and outcome.code == REJECTED else None
        if error is None:
            call.fail(range(part.start, part.stop), "amqp:internal-error", "The broker let it go.", False)
            call.answered(count)
            return
        info = error.info or {}
        self._count_duplicates(info)
        failed, unknown = _places(info, FAILED, part), _places(info, UNKNOWN, part)
        if failed or unknown:
            call.fail(failed, error.condition, error.description, True)
            call.fail(unknown, error.condition, error.description, False)
        elif count > 1 and error.condition in OF_ONE_MESSAGE:
            middle = part.start + count // 2
            self._queue.appendleft(_Slice(call, middle, part.stop))
            self._queue.appendleft(_Slice(call, part.start, middle))
            return
        else:
            # If a broker fails while it stores them, it cannot report whether they are stored.
            certain = error.condition not in RETRYABLE or info.get(NOT_STORED) is True
            call.fail(range(part.start, part.stop), error.condition, error.description, certain)
        call.answered(count)

    def ended(self, error: BusbarClientError) -> None:
        self.error = error
        self._watch.stop()
        under_way, self._under_way = self._under_way, {}
        queue, self._queue = self._queue, deque()
        for part, _size in under_way.values():
            part.call.fail(range(part.start, part.stop), error.condition, error.text, False)
            part.call.answered(part.stop - part.start)
        for part in queue:
            part.call.fail(range(part.start, part.stop), error.condition, error.text, True)
            part.call.answered(part.stop - part.start)


class Sender:
    """Sends to one entity. MessagingFactory.sender creates it. Several sends may be under way at once."""

    def __init__(
        self,
        factory: MessagingFactory,
        entity: str,
        writer: Writer | None,
        in_flight: int,
        via: str | None = None,
    ) -> None:
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}; at least one message has to be on its way")
        if writer is not None and via is not None:
            raise ValueError("a writer's messages cannot go via another entity")
        self.entity = entity
        self.writer = writer
        self.via = via
        self._factory = factory
        self._in_flight = in_flight
        self.doubtful = 0
        """Messages that were sent once without an answer. The broker may have stored them, and counts them as duplicates
        when they are sent again."""
        self._link: SenderLink | None = None
        self._duplicates = 0  # of earlier links
        self._lock = asyncio.Lock()

    @property
    def batch_bytes(self) -> int:
        """The maximum size of a batch; 0 while there is no link."""
        return 0 if self._link is None else self._link.batch_bytes

    @property
    def duplicates(self) -> int | None:
        """How many messages the broker has dropped, because it had them. None: it does not report that, or there is no
        link yet."""
        link = self._link
        return None if link is None or not link.counts_duplicates else self._duplicates + link.duplicates

    async def attached(self) -> SenderLink:
        """The attached link, or a new one."""
        async with self._lock:
            link = self._link
            if link is None or link.error is not None:
                connection = await self._factory.connection_for(self.entity)
                link = SenderLink(connection, self._in_flight, self._factory.operation_timeout)
                if self.via is None:
                    await link.attach(self.entity, self._factory.operation_timeout, self.writer)
                else:
                    await self._factory.connection_for(self.via)
                    await link.attach(self.via, self._factory.operation_timeout, None, self.entity)
                if self._link is not None:
                    self._duplicates += self._link.duplicates
                self._link = link
            return link

    async def send(
        self, messages: Sequence[bytes], *, transaction: ClientTransaction | None = None
    ) -> SendOutcome:
        """Send encoded messages. Raises SendFailed, or, if none of them was sent, the error of the link.

        In a `transaction` they are stored when it is committed.
        """
        if transaction is not None and self.writer is not None:
            raise ValueError("a writer cannot send in a transaction")
        is_repeatable = is_never_repeated if self.writer is None else _is_worth_repeating
        failed, doubtful, repeated = await self.transmit(list(messages), transaction, is_repeatable, None)
        self.doubtful += len(doubtful)
        if failed:
            raise failure_of_send(len(messages), failed, doubtful)
        return SendOutcome(len(messages), repeated)

    async def transmit(
        self,
        payloads: list[bytes],
        transaction: ClientTransaction | None,
        is_repeatable: Callable[[Failure], bool],
        timeout: float | None,
    ) -> tuple[dict[int, Failure], set[int], int]:
        """Send messages, and again those whose failures are repeatable, by the factory's Retry.

        Returns what failed, which of these may have been stored, and how many were repeated. If none was sent, raises the
        error of the link. With a `timeout`, which is the factory's, raises TimeoutError after so many seconds.
        """
        link = self._link
        first: dict[int, Failure] | None = None
        if timeout is None:
            return await self._transmit(payloads, transaction, is_repeatable, first)
        deadline = asyncio.get_running_loop().time() + timeout
        if link is not None and link.error is None:
            # Nearly all calls end here. The watch of the link has their timeout, so they need no timer.
            state = b"" if transaction is None else transaction.state(link.connection)
            first = await link.send(payloads, state, True)
            if not first:
                return first, set(), 0
        async with asyncio.timeout_at(deadline):
            return await self._transmit(payloads, transaction, is_repeatable, first)

    async def _transmit(
        self,
        payloads: list[bytes],
        transaction: ClientTransaction | None,
        is_repeatable: Callable[[Failure], bool],
        first: dict[int, Failure] | None,
    ) -> tuple[dict[int, Failure], set[int], int]:
        """Send and repeat as `transmit` does. `first` has the failures of the first attempt, if it was made."""
        places = list(range(len(payloads)))
        failed: dict[int, Failure] = {}
        doubtful: set[int] = set()  # sent once without an answer: a later answer does not make them certain
        repeated = 0
        attempts = self._factory.retry.start()
        none_sent = first is None
        while payloads:
            try:
                failures = await self._once(payloads, transaction) if first is None else first
                none_sent = False
            except BusbarClientError as error:
                failure = (error.condition, error.text, True)
                if none_sent:
                    if not error.retryable or not is_repeatable(failure) or not await attempts.again():
                        raise
                    continue
                failures = dict.fromkeys(range(len(payloads)), failure)
            first = None
            if not failures and not failed:
                return failed, doubtful, repeated
            failed |= {places[index]: failure for index, failure in failures.items()}
            doubtful.update(places[index] for index, failure in failures.items() if not failure[2])
            if len(failures) < len(payloads):
                attempts.progressed()
            again = [index for index in sorted(failures) if is_repeatable(failures[index])]
            if not again or not await attempts.again():
                break
            repeated += len(again)
            payloads = [payloads[index] for index in again]
            places = [places[index] for index in again]
            for place in places:
                del failed[place]
        return failed, doubtful, repeated

    async def _once(self, payloads: list[bytes], transaction: ClientTransaction | None) -> dict[int, Failure]:
        """Send each of them; returns those that failed. Raises if there is no link."""
        link = self._link
        if link is None or link.error is not None:
            link = await self.attached()
        state = b"" if transaction is None else transaction.state(link.connection)
        return await link.send(payloads, state, False)

    async def close(self) -> None:
        """Close the link. Sends under way get no answer any more."""
        link, self._link = self._link, None
        if link is not None and link.error is None:
            link.ended(ConnectionLost("The sender was closed by its owner."))
            if not link.connection.is_over:
                link.connection.detach(link.link)

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


def _places(info: dict[object, object], key: str, part: _Slice) -> list[int]:
    """The messages of a call that a list of indexes in a batch names."""
    listed = info.get(key)
    if not isinstance(listed, list):
        return []
    count = part.stop - part.start
    return [part.start + int(item) for item in listed if isinstance(item, int) and 0 <= item < count]


def is_never_repeated(failure: Failure) -> bool:
    """For senders that leave all repetitions to the program."""
    return False


def _is_worth_repeating(failure: Failure) -> bool:
    condition, _text, certain = failure
    return not certain or error_of(condition, "").retryable or condition == ConnectionLost.default_condition


def failure_of_send(count: int, failures: dict[int, Failure], doubtful: set[int]) -> SendFailed:
    """The error for the failures of a send of `count` messages, some of which may have been stored."""
    unknown = sorted(doubtful.intersection(failures))
    failed = {
        place: (condition, text)
        for place, (condition, text, _certain) in sorted(failures.items())
        if place not in doubtful
    }
    condition, said, _certain = failures[min(failures)]
    text = f"Of {count} messages {len(failed)} were not stored"
    if unknown:
        text += f" and of {len(unknown)} it is not known"
    return SendFailed(f"{text}. {said}", condition, failed, unknown)
