"""`kill -9` of the controller under load, again and again on the same data.

Afterwards every acknowledged send is there unless it was completed, every acknowledged settlement holds, what is
unknown may be either, nothing is there twice, and sequence numbers only ever went up. BUSBAR_KILL_SEED replays a run
(its kills fall at the same times; where the server stands then is up to the machine), BUSBAR_DEEP=1 makes hundreds of
rounds. In every other round the event loop makes the commits of the store.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from busbar.amqp.events import Delivery
from harness.amqp_driver import ABANDON, COMPLETE, DEAD_LETTER, DEFER, connect
from harness.promises import require_kept
from harness.serving import Busbar, config_text
from tests.durability.load_client import Book, Mark, Seen, Told, TormentedSender, round_of_load, seen

ROUNDS = 300 if os.environ.get("BUSBAR_DEEP") == "1" else 12
SEED = int(os.environ.get("BUSBAR_KILL_SEED", str(random.randrange(1 << 32))))
BATCH = 10


@pytest.mark.req("U5")
def test_kill_under_load(tmp_path: Path) -> None:
    print(f"BUSBAR_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    # In every other round the event loop commits, instead of the threads of the stores.
    queues = {"q": {"MaxDeliveryCount": 100_000}}
    configs = [config_text(queues), config_text(queues, {"inline_commit_messages": 1_000})]
    servers = [Busbar(tmp_path / "data", config) for config in configs]
    book = Book()
    restarts = []
    highest = 0
    for number in range(ROUNDS):
        began = time.monotonic()
        server = servers[number % 2].start()
        restarts.append(time.monotonic() - began)
        senders = [TormentedSender(book, f"r{number}s", 1), TormentedSender(book, f"r{number}b", BATCH)]
        asyncio.run(kill_amid(server, book, senders, chance))
        highest = check_numbers(book, number, highest)
        require_kept(f"round {number}, BUSBAR_KILL_SEED={SEED}", book.faults)
    server.start()
    try:
        places = asyncio.run(drain(server.port, book))
    finally:
        code = server.stop()
    check_end(book, places)
    require_kept(f"BUSBAR_KILL_SEED={SEED}", book.faults)
    assert code == 0, server.error_text
    acknowledged = sum(told.sent is True for told in book.messages.values())
    confirmed = sum(sum(told.confirmed.values()) for told in book.messages.values())
    assert acknowledged > 100 * ROUNDS and confirmed > 20 * ROUNDS, "there was no load"
    unknown = len(book.messages) - acknowledged
    print(
        f"{ROUNDS} rounds: {acknowledged} sends and {confirmed} settlements acknowledged, {unknown} sends unknown; "
        f"restarts took {sorted(restarts)[len(restarts) // 2]:.2f} s, {max(restarts):.2f} s at most"
    )


async def kill_amid(
    server: Busbar, book: Book, senders: list[TormentedSender], chance: random.Random
) -> None:
    load = asyncio.create_task(round_of_load(server.port, book, senders, chance))
    await asyncio.sleep(chance.uniform(0.05, 0.6))
    # Not awaited on purpose: the clients read on until the socket ends.
    await asyncio.to_thread(server.kill)
    await asyncio.wait_for(load, 20)


def check_numbers(book: Book, round_number: int, highest: int) -> int:
    """Numbers of this round are above all of earlier rounds, and in the order in which each sender sent."""
    top = highest
    for name in (f"r{round_number}s", f"r{round_number}b"):
        known = sorted(
            (mark[1], told.number) for mark, told in book.messages.items() if mark[0] == name and told.number
        )
        numbers = [number for _index, number in known]
        if numbers != sorted(numbers):
            book.faults.append(f"{name}: sequence numbers are not in the order of sending")
        if numbers and numbers[0] <= highest:
            book.faults.append(f"{name}: number {numbers[0]} after {highest} was given in an earlier round")
        top = max([top, *numbers])
    return top


async def drain(port: int, book: Book, queue: str = "q") -> dict[Mark, tuple[str, Seen]]:
    """Take everything out: the queue (or subscription), its dead letters, and by peeking what is deferred."""
    places: dict[Mark, tuple[str, Seen]] = {}

    def put(where: str, what: Seen) -> None:
        if what.mark in places:
            book.faults.append(f"{what.mark} is in {where} and in {places[what.mark][0]}")
        places[what.mark] = (where, what)
        book.found(what, where)

    for where, address in (("the queue", queue), ("the dead letters", f"{queue}/$DeadLetterQueue")):
        connection = await connect(port)
        last = time.monotonic()

        def taken(deliveries: list[Delivery], where: str = where) -> list[tuple[list[int], bytes]]:
            nonlocal last
            last = time.monotonic()
            for delivery in deliveries:
                put(where, seen(delivery.payload))
            return [([delivery.id for delivery in deliveries], COMPLETE)]

        receiver = await connection.receiver(address, credit=1_000, decide=taken)
        while time.monotonic() - last < 0.7:
            await asyncio.sleep(0.05)
        await receiver.settled(receiver.received)
        if receiver.denied:
            book.faults.append(
                f"{where}: {len(receiver.denied)} completions were refused: {receiver.denied[:3]}"
            )
        await connection.close()
    connection = await connect(port)
    node = await connection.requests(f"{queue}/$management")
    start = 1
    while messages := await node.peek(start):
        for message in messages:
            what = seen(message)
            put("the deferred", what)
            start = what.number + 1
    await connection.close()
    return places


def check_end(book: Book, places: dict[Mark, tuple[str, Seen]]) -> None:
    """Where each message was found agrees with what was acknowledged about it."""
    for mark, told in book.messages.items():
        place = places[mark][0] if mark in places else "nowhere"
        allowed = _places(told)
        if place not in allowed:
            book.faults.append(f"{mark} is {place}; {told} allows {sorted(allowed)}")
    for name, size in book.batches.items():
        last = max((mark[1] for mark in book.messages if mark[0] == name), default=-1)
        for first in range(0, last, size):
            batch = [book.messages[name, number] for number in range(first, first + size)]
            there = sum(bool(told.number) for told in batch)
            if there not in (0, size) and not any(told.said[COMPLETE] for told in batch):
                book.faults.append(
                    f"{name}: {there} of the {size} messages of the batch at {first} are there"
                )


def _places(told: Told) -> set[str]:
    if told.confirmed[COMPLETE]:
        return {"nowhere"}
    if told.confirmed[DEFER]:
        return {"the deferred"}
    if told.confirmed[DEAD_LETTER]:
        return {"the dead letters"}
    allowed = {"the queue"}
    if told.sent is not True and not told.number:
        allowed.add("nowhere")
    if told.said[COMPLETE]:
        allowed.add("nowhere")
    if told.said[DEFER]:
        allowed.add("the deferred")
    if told.said[DEAD_LETTER]:
        allowed.add("the dead letters")
    return allowed


def test_the_book_finds_fault() -> None:
    """What this file asserts can fail: a lost send, a completion that comes back, a number given twice or backwards."""
    book = Book()
    lost, back, refused = ("s", 1), ("s", 2), ("s", 3)
    book.messages[lost].sent = True
    book.messages[back].sent = True
    book.messages[back].confirmed[COMPLETE] = 1
    check_end(book, {back: ("the queue", Seen(back, 7, 0))})
    assert len(book.faults) == 2
    book.found(Seen(back, 7, 0), "x")
    assert "came back" in book.faults[2]
    book.messages[refused].sent = False
    book.found(Seen(refused, 7, 0), "x")
    assert "refused" in book.faults[3] and "was given to" in book.faults[4]
    book.found(Seen(("nobody", 1), 9, 0), "x")
    assert "never sent" in book.faults[5]
    book.messages["r1s", 0].number = 5
    check_numbers(book, 1, 6)
    assert "earlier round" in book.faults[6]
    counted = book.messages["s", 4]
    counted.sent, counted.said[ABANDON], counted.confirmed[ABANDON] = True, 2, 2
    book.found(Seen(("s", 4), 11, 1), "x")
    assert "delivery count" in book.faults[7]
