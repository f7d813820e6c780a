"""Continuous load on a partitioned queue and on regular ones, and a book of what became of each message.

A send has three outcomes: acknowledged, refused (it certainly did not take place), unknown. Only an unknown one may appear
or not. What was completed, and that was confirmed, must not come again.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from dataclasses import dataclass, field

from busbar.amqp.codec import encode_value
from busbar.amqp.events import Delivery
from busbar.amqp.outcomes import ACCEPTED, Outcome
from busbar.amqp.types import Described, Symbol, ULong
from busbar.model.errors import ServerBusy
from busbar.model.partitioning import index_of_key
from harness.amqp_driver import LoadConnection, Receiver, Sender

MARK = re.compile(rb"<([\w-]+):(\d+)>")
FRAGMENTS = 16
LONGEST_ANSWER = 15.0

Mark = tuple[str, int]


def keys_by_fragment() -> list[str]:
    """A key for each fragment, by its index."""
    keys: dict[int, str] = {}
    number = 0
    while len(keys) < FRAGMENTS:
        keys.setdefault(index_of_key(f"k{number}", FRAGMENTS), f"k{number}")
        number += 1
    return [keys[index] for index in range(FRAGMENTS)]


@dataclass
class Book:
    acknowledged: set[Mark] = field(default_factory=set)
    refused: dict[Mark, str] = field(default_factory=dict)
    unknown: set[Mark] = field(default_factory=set)
    seen: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    completed: set[Mark] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def received(self, mark: Mark) -> None:
        if mark in self.completed:
            self.faults.append(f"{mark} came again after it was completed")
        if mark in self.refused:
            self.faults.append(f"{mark} came although it was refused: {self.refused[mark]}")
        numbers = self.seen[mark[0]]
        if mark[1] not in numbers[-2000:]:
            numbers.append(mark[1])

    def lost(self) -> set[Mark]:
        there = {(name, number) for name, numbers in self.seen.items() for number in numbers}
        return self.acknowledged - there

    def check_order(self, names: list[str]) -> None:
        for name in names:
            if self.seen[name] != sorted(self.seen[name]):
                self.faults.append(f"{name}: the order of a key was not kept")


class _AskingSender(Sender):
    """Knows the text of a refusal: it says whether the outcome is certain."""

    last: tuple[bool, str, str] = (True, "", "")

    def disposed(self, ids: list[int], tags: list[bytes], outcome: Outcome | None) -> None:
        error = None if outcome is None else outcome.error
        accepted = outcome is not None and outcome.code == ACCEPTED
        self.last = (
            accepted,
            "" if error is None else error.condition,
            "" if error is None else error.description,
        )
        super().disposed(ids, tags, outcome)


class Client:
    """Sends one message at a time to a queue, again and again; with a key, always to the same fragment."""

    def __init__(self, book: Book, name: str, queue: str, key: str = "") -> None:
        self.name = name
        self.key = key
        self.at: list[float] = []
        """When sends were acknowledged."""
        self.failed_at: list[float] = []
        self.under_way: Mark = (name, 0)
        self._queue = queue
        self._book = book

    def _payload(self, number: int) -> bytes:
        head = (
            encode_value(Described(ULong(0x72), {Symbol("x-opt-partition-key"): self.key}))
            if self.key
            else b""
        )
        return head + encode_value(Described(ULong(0x75), b"<%s:%d>" % (self.name.encode(), number)))

    async def run(self, connection: LoadConnection, stop: asyncio.Event) -> None:
        sender = _AskingSender(connection, self._payload, 1, 1)
        sender.link = await connection._attach(sender, self._queue, sending=True)
        book = self._book
        while not stop.is_set():
            mark = self.under_way = (self.name, sender.next)
            began = time.monotonic()
            await asyncio.wait_for(sender.send(1), LONGEST_ANSWER)
            now = time.monotonic()
            book.slowest = max(book.slowest, now - began)
            accepted, condition, text = sender.last
            if accepted:
                book.acknowledged.add(mark)
                self.at.append(now)
            elif condition != ServerBusy.condition:
                book.faults.append(f"{mark} was refused with {condition}: {text}")
            elif "may or may not" in text:
                book.unknown.add(mark)
                self.failed_at.append(now)
            else:
                book.refused[mark] = text
                self.failed_at.append(now)
            await asyncio.sleep(0.005 if accepted else 0.05)

    def went_on(self, since: float, until: float) -> bool:
        return any(since < at < until for at in self.at)

    def failed(self, since: float, until: float) -> bool:
        return any(since < at < until for at in self.failed_at)


class Consumer:
    """Receives and completes all that comes."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._at: dict[int, Mark] = {}
        self.times: list[float] = []
        self.receiver: Receiver | None = None

    async def start(self, connection: LoadConnection, queue: str) -> None:
        self.receiver = await connection.receiver(queue, credit=200, decide=self._decide)
        self.receiver.on_confirmed = self._confirmed

    def _decide(self, deliveries: list[Delivery]) -> list[tuple[list[int], bytes]]:
        from harness.amqp_driver import COMPLETE

        for delivery in deliveries:
            found = MARK.search(delivery.payload)
            assert found is not None
            mark = (found[1].decode(), int(found[2]))
            self._book.received(mark)
            self._at[delivery.id] = mark
            self.times.append(time.monotonic())
        return [([delivery.id for delivery in deliveries], COMPLETE)]

    def _confirmed(self, number: int, _state: bytes) -> None:
        self._book.completed.add(self._at[number])

    def went_on(self, since: float, until: float) -> bool:
        return any(since < at < until for at in self.times)
