"""Sending messages of a source again: under ids that follow from it, in order, at a pace.

1. A message is known by where it came from: its entity, its sequence number (which has the fragment's index in it) and
   the time when it was enqueued there, which tells a queue from one of the same name that was made later. That is its
   message id at the target, unless it is to keep its own. A writer (docs/taps.md) sends each of them once, however often
   a run is repeated.
2. Messages go out chunk by chunk; each chunk is one delivery, and the next one waits for its answer. So what a store
   refuses for a while is sent again before anything that stands behind it: the order of every session and key holds.
3. A message that the target does not take because of what it is (too large, no session id) is told, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from busbar.client import SendFailed
from busbar.client.blocking import BlockingFactory
from busbar.client.sender import OF_ONE_MESSAGE, Writer
from busbar.spark.sink_ids import hashed_id

CHUNK_MESSAGES: Final = 1_000
CHUNK_BYTES: Final = 1024 * 1024 - 64 * 1024
"""Below what a sender puts into one delivery, with room for what stands around the messages."""
LONGEST_ID: Final = 128
MOST_EXAMPLES: Final = 10
LONGEST_PAUSE: Final = 1.0


def source_id(entity: str, sequence_number: int, enqueued: int) -> str:
    """The id of a message at the target, made of where it came from; `enqueued` in ms."""
    readable = f"{entity}:{sequence_number}:{enqueued}"
    return readable if len(readable) <= LONGEST_ID else hashed_id((entity, sequence_number, enqueued))


def writer_name(job: str, *parts: str) -> str:
    """A writer that follows from what a job does: doing the same again makes the same writer."""
    return f"{job}-{hashed_id(parts)}"


@dataclass(slots=True)
class ResendMessage:
    """An encoded message, and what to call it if it is refused."""

    message: bytes
    name: str


@dataclass(slots=True)
class ResendResult:
    """What became of messages. `examples` has some of the refused ones, with the reason."""

    sent: int = 0
    refused: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, other: ResendResult) -> None:
        self.sent += other.sent
        self.refused += other.refused
        self.examples = (self.examples + other.examples)[:MOST_EXAMPLES]


class Pace:
    """At most `rate` messages a second; 0: as fast as it goes."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._next = 0.0

    @property
    def chunk(self) -> int:
        """As many as may go at once: a fifth of a second's, so that a slow pace is an even one."""
        return max(1, min(CHUNK_MESSAGES, int(self.rate / 5))) if self.rate else CHUNK_MESSAGES

    def wait(self, messages: int) -> None:
        """Until so many may go."""
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
        # In flight are four deliveries; of a chunk there is one.
        self._sender = factory.sender(target, writer=writer, in_flight=4 * CHUNK_MESSAGES)

    def send(self, outgoing: Sequence[ResendMessage], sent: Callable[[int], None] | None = None) -> set[int]:
        """Returns when all are durable; the indexes of those that the target does not take are in `refused`.
        Raises BusbarClientError if the target does not take anything."""
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
