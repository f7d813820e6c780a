"""`kill -9` under load on topics, a regular and a partitioned one with three subscriptions each, again and again.

What holds for a queue (test_kill.py) holds for every subscription. Beyond it, a message is in all subscriptions or in none:
an acknowledged one is in all, one whose answer was lost in all or in none, under one number of the topic. So it is with
scheduled messages, which reach the subscriptions long after they were acknowledged. One subscription of each topic is never
received from while the server is killed: it is the witness.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from pathlib import Path

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Symbol, Timestamp, ULong
from harness.amqp_driver import COMPLETE, connect
from harness.promises import require_kept
from harness.serving import Busbar, config_text
from tests.durability.load_client import Book, Mark, Seen, Told, TormentedReceiver, TormentedSender, seen
from tests.durability.test_kill import check_end, drain

ROUNDS = 150 if os.environ.get("BUSBAR_DEEP") == "1" else 5
SEED = int(os.environ.get("BUSBAR_KILL_SEED", str(random.randrange(1 << 32))))
TOPICS = {"regular": False, "partitioned": True}
WITNESS = "witness"
SUBSCRIPTIONS = (WITNESS, "one", "two")
BATCH = 8
OF_TOPIC = re.compile(rb"\xa3\x1dx-opt-enqueue-sequence-number\x81(.{8})", re.DOTALL)


def config() -> str:
    document = json.loads(config_text({}))
    below = [{"Name": name, "Properties": {"MaxDeliveryCount": 100_000}} for name in SUBSCRIPTIONS]
    document["UserConfig"]["Namespaces"][0]["Topics"] = [
        {"Name": name, "Properties": {"EnablePartitioning": partitioned}, "Subscriptions": below}
        for name, partitioned in TOPICS.items()
    ]
    return json.dumps(document)


class LaterSender(TormentedSender):
    """Each of its messages is due a while after it was sent."""

    def _payload(self, number: int) -> bytes:
        due = Timestamp(int(time.time() * 1000) + 20 + number % 400)
        head = encode_value(Described(ULong(0x72), {Symbol("x-opt-scheduled-enqueue-time"): due}))
        return head + super()._payload(number)


class Publication:
    """A topic and what is known about each of its subscriptions."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.books = {name: Book() for name in SUBSCRIPTIONS}

    def path(self, subscription: str) -> str:
        return f"{self.topic}/Subscriptions/{subscription}"

    def load(self, port: int, number: int, chance: random.Random) -> list[asyncio.Task[None]]:
        first, *others = self.books.values()
        senders = [
            TormentedSender(first, f"r{number}s", 1, self.topic, others),
            TormentedSender(first, f"r{number}b", BATCH, self.topic, others),
            LaterSender(first, f"r{number}t", 1, self.topic, others),
        ]
        counts = (600, 800, 150)
        work = [sender.run(port, count) for sender, count in zip(senders, counts, strict=True)]
        for name in SUBSCRIPTIONS[1:]:
            held: dict[Mark, str] = {}
            for index in range(2):
                receiver = TormentedReceiver(
                    self.books[name], f"{name} {index}", chance, held, self.path(name)
                )
                work.append(receiver.run(port, single=index == 0))
        return [asyncio.create_task(each) for each in work]

    async def drained(self, port: int) -> dict[str, dict[Mark, tuple[str, Seen]]]:
        """Where each message is found in each subscription."""
        found = await asyncio.gather(
            *[drain(port, self.books[name], self.path(name)) for name in SUBSCRIPTIONS]
        )
        return dict(zip(SUBSCRIPTIONS, found, strict=True))

    def check(self, places: dict[str, dict[Mark, tuple[str, Seen]]]) -> list[str]:
        for name, book in self.books.items():
            check_end(book, places[name])
        faults = [f"{self.path(name)}: {fault}" for name, book in self.books.items() for fault in book.faults]
        for mark in self.books[WITNESS].messages:
            told = {name: book.messages[mark] for name, book in self.books.items()}
            where = {name for name, each in told.items() if each.number}
            if where not in (set(), set(SUBSCRIPTIONS)):
                faults.append(f"{self.topic}: {mark} is known to {sorted(where)} alone: {told}")
        return faults


@pytest.mark.req("U5")
def test_kill_under_load_on_topics(tmp_path: Path) -> None:
    print(f"BUSBAR_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    server = Busbar(tmp_path / "data", config())
    publications = [Publication(topic) for topic in TOPICS]
    for number in range(ROUNDS):
        server.start()
        asyncio.run(kill_amid(server, publications, number, chance))
    server.start()
    try:
        found = asyncio.run(all_of_it(server.port, publications))
    finally:
        code = server.stop()
    for publication, places in zip(publications, found, strict=True):
        faults = publication.check(places)
        require_kept(f"BUSBAR_KILL_SEED={SEED}", faults)
        told = publication.books[WITNESS].messages.values()
        acknowledged = sum(each.sent is True for each in told)
        unknown = [each for each in told if each.sent is None]
        there = sum(bool(each.number) for each in unknown)
        settled = sum(
            sum(each.confirmed.values())
            for name in SUBSCRIPTIONS[1:]
            for each in publication.books[name].messages.values()
        )
        print(
            f"{publication.topic}: {acknowledged} sends acknowledged, {settled} settlements, {len(unknown)} sends unknown, "
            f"{there} of them there"
        )
        assert acknowledged > 50 * ROUNDS and settled > 10 * ROUNDS, "there was no load"
    assert code == 0, server.error_text
    assert "Traceback" not in server.error_text, server.error_text


async def kill_amid(
    server: Busbar, publications: list[Publication], number: int, chance: random.Random
) -> None:
    load = [task for each in publications for task in each.load(server.port, number, chance)]
    await asyncio.sleep(chance.uniform(0.15, 0.8))
    await asyncio.to_thread(server.kill)
    await asyncio.wait_for(asyncio.gather(*load), 20)


async def all_of_it(
    port: int, publications: list[Publication]
) -> list[dict[str, dict[Mark, tuple[str, Seen]]]]:
    await asyncio.sleep(0.5)  # what is scheduled is due
    numbers = [await topic_numbers(port, each) for each in publications]
    for publication, by_subscription in zip(publications, numbers, strict=True):
        check_numbers(publication, by_subscription)
    return await asyncio.gather(*[each.drained(port) for each in publications])


async def topic_numbers(port: int, publication: Publication) -> dict[str, dict[Mark, int]]:
    """The number that the topic gave to each message, as every subscription has it."""
    connection = await connect(port)
    found: dict[str, dict[Mark, int]] = {}
    for name in SUBSCRIPTIONS:
        found[name] = {}
        node = await connection.requests(f"{publication.path(name)}/$management")
        start = 1
        while messages := await node.peek(start):
            for message in messages:
                number = OF_TOPIC.search(message)
                assert number is not None, message[:200]
                what = seen(message)
                found[name][what.mark] = int.from_bytes(number[1], "big")
                start = what.number + 1
    await connection.close()
    return found


def check_numbers(publication: Publication, found: dict[str, dict[Mark, int]]) -> None:
    witnessed = found[WITNESS]
    faults = publication.books[WITNESS].faults
    if len(set(witnessed.values())) != len(witnessed):
        faults.append("the topic gave a number twice")
    for name in SUBSCRIPTIONS[1:]:
        for mark, number in found[name].items():
            if witnessed.get(mark) != number:
                faults.append(f"{mark} is {number} in {name} and {witnessed.get(mark)} in the witness")


def test_the_check_finds_fault() -> None:
    """What this file asserts can fail: a message that one subscription lacks, and numbers that differ."""
    publication = Publication("regular")
    lost, half = ("s", 1), ("s", 2)
    for name, book in publication.books.items():
        book.messages[lost] = Told(sent=True)
        book.messages[half] = Told(number=0 if name == "one" else 7)
    places = {
        name: {half: ("the queue", Seen(half, 7, 0))}
        | ({} if name == "two" else {lost: ("the queue", Seen(lost, 8, 0))})
        for name in SUBSCRIPTIONS
    }
    check_numbers(publication, {WITNESS: {lost: 1, half: 1}, "one": {lost: 2}, "two": {}})
    faults = publication.check(places)
    assert any("twice" in fault for fault in faults)
    assert any("is 2 in one and 1 in the witness" in fault for fault in faults)
    assert any("two" in fault and "nowhere" in fault for fault in faults)
    assert any("alone" in fault for fault in faults)
    completed = Publication("regular")
    completed.books["one"].messages[lost].confirmed[COMPLETE] = 1
    completed.books["one"].found(Seen(lost, 1, 0), "x")
    assert any("came back" in fault for fault in completed.check({name: {} for name in SUBSCRIPTIONS}))
