"""Clients of a server that will be killed, and the book they keep of what it promised.

Senders give every message a mark that names its sender and number; receivers complete, abandon, defer, dead-letter or keep
what comes. The book holds, for each message, what was said, what was acknowledged and what is unknown, over all rounds.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from busbar.amqp.codec import decode_value, encode_value
from busbar.amqp.events import Delivery
from busbar.amqp.types import Described, ULong
from harness.amqp_driver import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    ConnectionOver,
    LinkRefused,
    Receiver,
    Sender,
    connect,
)

MARK = re.compile(rb"<(\w+):(\d{6})>")
NUMBER = re.compile(rb"\xa3\x15x-opt-sequence-number\x81(.{8})", re.DOTALL)
KEEP = b""
CHOICES = ((COMPLETE, 60), (ABANDON, 10), (DEFER, 10), (DEAD_LETTER, 10), (KEEP, 10))

Mark = tuple[str, int]  # sender, number of the message on it


@dataclass(slots=True)
class Told:
    """What a client said about a message and what the server answered."""

    sent: bool | None = None  # True: acknowledged; False: refused; None: unknown
    number: int = 0  # the sequence number it was seen with
    said: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))  # settlements asked for
    confirmed: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))


@dataclass(slots=True)
class Seen:
    """A message in the hands of a receiver."""

    mark: Mark
    number: int
    deliveries: int


def seen(payload: bytes) -> Seen:
    mark = MARK.search(payload)
    number = NUMBER.search(payload)
    assert mark is not None and number is not None, payload[:200]
    header, _ = decode_value(payload, 0, len(payload))
    assert isinstance(header, Described) and header.descriptor == 0x70 and isinstance(header.value, list)
    count = header.value[4] if len(header.value) > 4 else 0
    return Seen((mark[1].decode(), int(mark[2])), int.from_bytes(number[1], "big"), int(str(count or 0)))


class Book:
    def __init__(self) -> None:
        self.messages: dict[Mark, Told] = defaultdict(Told)
        self.marks: dict[int, Mark] = {}
        self.batches: dict[str, int] = {}  # by sender, when it sends batches: their size
        self.faults: list[str] = []

    def found(self, what: Seen, where: str) -> Told:
        """A message came: it is one that was sent, with the number it always had, and not one that is gone."""
        told = self.messages.get(what.mark)
        if told is None:
            self.faults.append(f"{where}: {what.mark} was never sent")
            return Told()
        if told.confirmed[COMPLETE]:
            self.faults.append(f"{where}: {what.mark} came back after its completion was confirmed")
        if told.sent is False:
            self.faults.append(f"{where}: {what.mark} came although it was refused")
        if told.number and told.number != what.number:
            self.faults.append(f"{where}: {what.mark} has number {what.number} and had {told.number}")
        owner = self.marks.setdefault(what.number, what.mark)
        if owner != what.mark:
            self.faults.append(f"{where}: number {what.number} was given to {owner} and to {what.mark}")
        told.number = what.number
        least = told.confirmed[ABANDON]
        most = told.said[ABANDON]
        if not least <= what.deliveries <= most:
            self.faults.append(
                f"{where}: {what.mark} has delivery count {what.deliveries}; abandoned {least} to {most} times"
            )
        return told


class TormentedSender:
    """To a queue, or to a topic, each of whose subscriptions has a book of its own."""

    def __init__(
        self, book: Book, name: str, batch: int, address: str = "q", others: Sequence[Book] = ()
    ) -> None:
        self._books = (book, *others)
        self._address = address
        self.name = name
        self.batch = batch
        if batch > 1:
            for each in self._books:
                each.batches[name] = batch

    def _payload(self, number: int) -> bytes:
        for book in self._books:
            book.messages[self.name, number]  # from here on it may be there
        body = b"<%s:%06d>" % (self.name.encode(), number) + b"." * (number % 700)
        return encode_value(Described(ULong(0x75), body))

    async def run(self, port: int, count: int) -> None:
        try:
            connection = await connect(port)
            sender: Sender = await connection.sender(
                self._address, self._payload, in_flight=200, batch=self.batch
            )
            sender.on_acknowledged = self._acknowledged
            await sender.send(count)
        except (ConnectionOver, LinkRefused, OSError):
            return  # killed: what was not answered is unknown
        for first, _condition in sender.refused:
            self._answered(first, self.batch, False)

    def _acknowledged(self, first: int, count: int) -> None:
        self._answered(first, count, True)

    def _answered(self, first: int, count: int, sent: bool) -> None:
        for book in self._books:
            for number in range(first, first + count):
                book.messages[self.name, number].sent = sent


class TormentedReceiver:
    def __init__(
        self, book: Book, name: str, chance: random.Random, held: dict[Mark, str], address: str = "q"
    ) -> None:
        self._book = book
        self._address = address
        self._name = name
        self._chance = chance
        self._held = held  # messages that some receiver of this round has and has not given back
        self._at: dict[int, Seen] = {}

    async def run(self, port: int, *, single: bool) -> None:
        try:
            connection = await connect(port)
            receiver: Receiver = await connection.receiver(
                self._address, credit=100, decide=self._decide, single=single
            )
            receiver.on_confirmed = self._confirmed
            await connection.lost
        except (ConnectionOver, LinkRefused, OSError):
            return
        for number, condition in receiver.denied:
            self._book.faults.append(f"{self._name}: {self._at[number].mark} was not settled: {condition}")

    def _decide(self, deliveries: list[Delivery]) -> list[tuple[list[int], bytes]]:
        chosen: dict[bytes, list[int]] = defaultdict(list)
        states = [state for state, _ in CHOICES]
        weights = [weight for _, weight in CHOICES]
        for delivery in deliveries:
            what = seen(delivery.payload)
            told = self._book.found(what, self._name)
            holder = self._held.get(what.mark)
            if holder is not None:
                self._book.faults.append(f"{self._name}: {what.mark} is also held by {holder}")
            self._at[delivery.id] = what
            state = self._chance.choices(states, weights)[0]
            if state == ABANDON:
                self._held.pop(what.mark, None)
            else:
                self._held[what.mark] = self._name
            if state != KEEP:
                told.said[state] += 1
                chosen[state].append(delivery.id)
        return [(ids, state) for state, ids in chosen.items()]

    def _confirmed(self, delivery: int, state: bytes) -> None:
        self._book.messages[self._at[delivery].mark].confirmed[state] += 1


async def round_of_load(
    port: int, book: Book, senders: list[TormentedSender], chance: random.Random, receivers: int = 2
) -> None:
    """Runs until the server dies under it."""
    held: dict[Mark, str] = {}
    work = [asyncio.create_task(sender.run(port, 1_500)) for sender in senders]
    for index in range(receivers):
        receiver = TormentedReceiver(book, f"receiver {index}", chance, held)
        work.append(asyncio.create_task(receiver.run(port, single=index % 2 == 0)))
    await asyncio.gather(*work)
