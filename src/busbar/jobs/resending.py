"""Sends messages of a source again: under ids that follow from it, in order, at a limited rate.

1. A message is identified by its source: its entity, its sequence number (which contains the fragment's index) and its
   enqueued time. The time distinguishes a queue from a later one of the same name. That is its message id at the target,
   unless it keeps its own. A writer (docs/taps.md) sends each of them once, however often a run is repeated.
2. Messages are sent chunk by chunk. Each chunk is one delivery, and the next one waits for its answer. So if a store refuses
   a message for a while, it is sent again before later ones, and every session and key keeps its order.
3. If the target refuses a message because of its content (too large, no session id), it is reported, and the others
   continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from busbar.client import NotFound, SendFailed, Unauthorized
from busbar.client.blocking import BlockingFactory
from busbar.client.sender import OF_ONE_MESSAGE, Writer
from busbar.jobs.failure_text import JobError, JobFailureKind
from busbar.jobs.reaching import Notice
from busbar.spark.sink_ids import hashed_id

CHUNK_MESSAGES: Final = 1_000
CHUNK_BYTES: Final = 1024 * 1024 - 64 * 1024
"""Less than a sender puts into one delivery, with room for the framing of the messages."""
LONGEST_ID: Final = 128
MOST_EXAMPLES: Final = 10
LONGEST_PAUSE: Final = 1.0


def source_id(entity: str, sequence_number: int, enqueued: int) -> str:
    """The id of a message at the target, from its source; `enqueued` in ms."""
    readable = f"{entity}:{sequence_number}:{enqueued}"
    return readable if len(readable) <= LONGEST_ID else hashed_id((entity, sequence_number, enqueued))


def writer_name(job: str, *parts: str) -> str:
    """The name of a writer that follows from what a job does: the same job has the same writer."""
    return f"{job}-{hashed_id(parts)}"


@dataclass(slots=True)
class ResendMessage:
    """An encoded message, and its label if it is refused."""

    message: bytes
    name: str


@dataclass(slots=True)
class ResendResult:
    """The outcome of messages. `examples` has some of the refused ones, with the reason.

    The target dropped `known` of the sent ones, because it had them before. It also dropped `unsure`, which were sent again
    after a failure: it got them before or in this run. `is_counted`: the broker reports what it drops.
    """

    sent: int = 0
    refused: int = 0
    examples: list[str] = field(default_factory=list)
    known: int = 0
    unsure: int = 0
    is_counted: bool = True

    def add(self, other: ResendResult) -> None:
        self.sent += other.sent
        self.refused += other.refused
        self.examples = (self.examples + other.examples)[:MOST_EXAMPLES]
        self.known += other.known
        self.unsure += other.unsure
        self.is_counted = self.is_counted and other.is_counted

    @property
    def added(self) -> int | None:
        """How many the target has got now; None if the broker does not report that."""
        return self.sent - self.known - self.unsure if self.is_counted else None


class TargetRefused(JobError):
    """Nothing can be sent to the target."""


def check_target(factory: BlockingFactory, target: str, dry_run: bool, on_notice: Notice) -> None:
    """Raise TargetRefused unless the target exists and the connection string gives the right to send to it. A dry run only
    reports that it is missing."""
    try:
        factory.sender(target).close()
    except NotFound as error:
        if not dry_run:
            raise TargetRefused(
                f"the target {target!r} is not there: {error.text}", JobFailureKind.NOT_FOUND
            ) from None
        on_notice(f"the target {target!r} is not there yet")
    except Unauthorized as error:
        raise TargetRefused(
            f"the connection string does not give the right to send to {target!r} (Send): {error.text}",
            JobFailureKind.REFUSED,
        ) from None


class Pace:
    """Limits the rate to `rate` messages a second; 0: no limit."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._next = 0.0

    @property
    def chunk(self) -> int:
        """The number of messages that may be sent at once: a fifth of a second's, so that a low rate is even."""
        return max(1, min(CHUNK_MESSAGES, int(self.rate / 5))) if self.rate else CHUNK_MESSAGES

    def wait(self, messages: int) -> None:
        """Wait until so many may be sent."""
        if not self.rate:
            return
        now = time.monotonic()
        while now < self._next:
            time.sleep(min(LONGEST_PAUSE, self._next - now))
            now = time.monotonic()
        self._next = max(self._next, now) + messages / self.rate


class Resender:
    """Sends chunks to one target as one writer."""

    def __init__(self, factory: BlockingFactory, target: str, writer: Writer, pace: Pace) -> None:
        self._pace = pace
        # Four deliveries can be in flight; a chunk is one.
        self._sender = factory.sender(target, writer=writer, in_flight=4 * CHUNK_MESSAGES)

    def send(self, outgoing: Sequence[ResendMessage], sent: Callable[[int], None] | None = None) -> set[int]:
        """Send messages and return when all are durable; `refused` has the indexes of those that the target refuses. Raises
        BusbarClientError if the target accepts nothing."""
        self.told: list[str] = []
        refused: set[int] = set()
        for start, stop in _chunks(outgoing, self._pace.chunk):
            self._pace.wait(stop - start)
            for index, text in self._send_chunk([each.message for each in outgoing[start:stop]]).items():
                refused.add(start + index)
                self.told.append(f"{outgoing[start + index].name}: {text}")
            if sent is not None:
                sent(stop - start)
        return refused

    def _send_chunk(self, messages: list[bytes]) -> dict[int, str]:
        try:
            self._sender.send(messages)
        except SendFailed as error:
            refused = {
                index: text
                for index, (condition, text) in error.failed.items()
                if condition in OF_ONE_MESSAGE
            }
            if len(refused) < len(error.failed) or error.unknown:
                raise
            return refused
        return {}

    def dropped(self, *, repeats: bool) -> ResendResult:
        """What the target has dropped of all that was sent. `repeats`: an earlier attempt may have sent all of it."""
        duplicates = self._sender.duplicates
        if duplicates is None:
            return ResendResult(is_counted=False)
        unsure = duplicates if repeats else min(duplicates, self._sender.doubtful)
        return ResendResult(known=duplicates - unsure, unsure=unsure)

    def close(self) -> None:
        self._sender.close()

    def __enter__(self) -> Resender:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _chunks(outgoing: Sequence[ResendMessage], most: int) -> Iterator[tuple[int, int]]:
    """Chunks for one delivery each: neighbours that fit into one delivery."""
    start = size = 0
    for index, each in enumerate(outgoing):
        length = len(each.message) + 8
        if index > start and (index - start == most or size + length > CHUNK_BYTES):
            yield start, index
            start, size = index, 0
        size += length
    if start < len(outgoing):
        yield start, len(outgoing)
