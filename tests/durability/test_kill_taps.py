"""`kill -9` of a server whose queue has taps, while others send to it and receive from it.

What a tap has shown up to an end stays as it was, whatever happened to the messages since: after every kill it is read again
and compared, byte for byte. In the end the taps have seen each acknowledged message once and each confirmed settlement
once, and nothing that was refused. BUSBAR_KILL_SEED replays a run's kills, BUSBAR_DEEP=1 makes more rounds.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

from busbar.model.effects import ABANDONED, COMPLETED, DEAD_LETTERED, DEFERRED_BY_RECEIVER
from busbar.pages.rows import decode_events, decode_messages
from harness.amqp_driver import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    ConnectionOver,
    LinkRefused,
    Requests,
    connect,
)
from harness.promises import require_kept
from harness.serving import Busbar, config_text
from tests.durability.load_client import MARK, Book, Mark, TormentedSender, round_of_load

ROUNDS = 60 if os.environ.get("BUSBAR_DEEP") == "1" else 6
SEED = int(os.environ.get("BUSBAR_KILL_SEED", str(random.randrange(1 << 32))))
PAGE = 400
OUTCOMES = {
    COMPLETE: COMPLETED,
    ABANDON: ABANDONED,
    DEFER: DEFERRED_BY_RECEIVER,
    DEAD_LETTER: DEAD_LETTERED,
}

Rows = dict[int, tuple[object, ...]]
"""By position."""


class Stream:
    """One stream of a tap, as its reader has it: what stood at each position, and how far all was read."""

    def __init__(self, tap: str, node: str, ends: str, stream: str) -> None:
        self.tap = tap
        self.node = node
        self._ends = ends
        self._stream = stream
        self.seen: Rows = {}
        self.upto = 0
        self.passed = 0
        """It was asked to move so far; nobody knows whether it did."""

    async def follow(self, node: Requests, chance: random.Random) -> None:
        end = (await _ask(node, "ends"))[self._ends][0]
        assert end >= self.upto, f"{self.tap}: the end was {self.upto} and is {end}"
        async for rows, upto in self._pages(node, self.upto, end):
            assert not self.seen.keys() & rows.keys()
            self.seen.update(rows)
            self.upto = upto
        if chance.random() < 0.2 and self.passed < end:
            self.passed = chance.randint(self.passed, end)
            await _ask(
                node,
                "advance-tap",
                {"name": self.tap, "owner": "me", "stream": self._stream, "positions": {0: self.passed}},
            )

    async def again(self, node: Requests) -> None:
        """Read what is left of what was seen, and compare."""
        known = {at: row for at, row in self.seen.items() if at > self.passed}
        now: Rows = {}
        async for rows, _ in self._pages(node, self.passed, self.upto):
            now.update(rows)
        assert now == known, f"{self.tap}, {self._stream}: {_differences(known, now)}"

    async def _pages(self, node: Requests, after: int, upto: int) -> AsyncIterator[tuple[Rows, int]]:
        while after < upto:
            asked = {
                "name": self.tap,
                "fragment": 0,
                "stream": self._stream,
                "after": after,
                "upto": upto,
                "count": PAGE,
                "max-bytes": 100_000,
            }
            page = await _ask(node, "read-tap", asked)
            rows = self._rows(page["rows"])
            positions = [at for at, _ in rows]
            assert positions == sorted(set(positions)), "not in order"
            assert all(after < at <= page["upto"] for at in positions)
            assert page["upto"] > after, "no progress"
            after = page["upto"]
            yield dict(rows), after

    def _rows(self, encoded: bytes) -> list[tuple[int, tuple[object, ...]]]:
        if self._stream == "events":
            return [
                (e.at, (e.n, e.outcome, e.time, e.enqueued, e.deliveries, e.reason))
                for e in decode_events(encoded)
            ]
        found = decode_messages(encoded)
        by_dead = self._ends == "dead-ends"
        return [((r.dead if by_dead else r.n), (r.n, r.enqueued, r.ttl, r.content)) for r in found]


def _differences(known: Rows, now: Rows) -> str:
    missing, new = known.keys() - now.keys(), now.keys() - known.keys()
    other = [at for at in known.keys() & now.keys() if known[at] != now[at]]
    return f"{sorted(missing)[:5]} are missing, {sorted(new)[:5]} are new, {sorted(other)[:5]} are different"


async def _ask(node: Requests, operation: str, body: dict[str, object] | None = None) -> dict:
    reply = await node.ask(body or {}, {"operation": f"busbar:{operation}"})
    assert reply.application_properties["statusCode"] == 200, (operation, reply.application_properties)
    assert isinstance(reply.value, dict)
    return reply.value


MAIN, DEAD = "q/$management", "q/$deadletterqueue/$management"


def test_what_a_tap_has_shown_stays_through_kills(tmp_path: Path) -> None:
    print(f"BUSBAR_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    server = Busbar(tmp_path / "data", config_text({"q": {"MaxDeliveryCount": 100_000}}))
    book = Book()
    messages = Stream("t", MAIN, "ends", "messages")
    events = Stream("t", MAIN, "event-ends", "events")
    dead = Stream("d", DEAD, "dead-ends", "messages")
    streams = [messages, events, dead]
    for number in range(ROUNDS):
        server.start()
        if number == 0:
            asyncio.run(make_taps(server.port))
        senders = [TormentedSender(book, f"r{number}s", 1), TormentedSender(book, f"r{number}b", 10)]
        asyncio.run(kill_amid(server, book, senders, streams, chance))
        require_kept(f"round {number}, BUSBAR_KILL_SEED={SEED}", book.faults)
    server.start()
    try:
        asyncio.run(read_to_the_end(server.port, streams))
    finally:
        code = server.stop()
    assert code == 0, server.error_text
    check_messages(book, messages)
    check_settlements(book, messages, events, dead)
    assert len(messages.seen) > 50 * ROUNDS and len(events.seen) > 20 * ROUNDS, "there was no load"
    assert messages.passed > 0, "no tap ever moved"


async def make_taps(port: int) -> None:
    connection = await connect(port)
    for node, name, recorded in ((MAIN, "t", True), (DEAD, "d", False)):
        made = {"name": name, "events": recorded, "from-earliest": True, "owner": "me"}
        await _ask(await connection.requests(node), "create-tap", made)
    await connection.close()


async def kill_amid(
    server: Busbar,
    book: Book,
    senders: list[TormentedSender],
    streams: list[Stream],
    chance: random.Random,
) -> None:
    load = asyncio.create_task(round_of_load(server.port, book, senders, chance))
    reading = asyncio.create_task(follow(server.port, streams, chance))
    await asyncio.sleep(chance.uniform(0.1, 0.7))
    await asyncio.to_thread(server.kill)
    await asyncio.wait_for(asyncio.gather(load, reading), 20)


async def follow(port: int, streams: list[Stream], chance: random.Random) -> None:
    """Compare with what was seen in earlier rounds, then read on, until the server dies."""
    try:
        connection = await connect(port)
        nodes = {node: await connection.requests(node) for node in {stream.node for stream in streams}}
        for stream in streams:
            await stream.again(nodes[stream.node])
        while True:
            stream = chance.choice(streams)
            await stream.follow(nodes[stream.node], chance)
    except (ConnectionOver, LinkRefused, OSError):
        return


async def read_to_the_end(port: int, streams: list[Stream]) -> None:
    connection = await connect(port)
    for stream in streams:
        node = await connection.requests(stream.node)
        await stream.again(node)
        await stream.follow(node, random.Random(1))
    await connection.close()


def check_messages(book: Book, messages: Stream) -> None:
    found: dict[Mark, list[int]] = defaultdict(list)
    for n, (_, _, _, content) in messages.seen.items():
        assert isinstance(content, bytes)
        match = MARK.search(content)
        assert match is not None
        found[match[1].decode(), int(match[2])].append(n)
    twice = {mark: numbers for mark, numbers in found.items() if len(numbers) > 1}
    require_kept("a tap shows a message once", twice)
    missing = [mark for mark, told in book.messages.items() if told.sent is True and mark not in found]
    require_kept("a tap shows all acknowledged messages", missing)
    for mark, (n,) in found.items():
        told = book.messages.get(mark)
        assert told is not None and told.sent is not False, f"{mark} was refused, or never sent"
        assert told.number in (0, n), f"{mark} had the number {told.number} and has {n}"


def check_settlements(book: Book, messages: Stream, events: Stream, dead: Stream) -> None:
    """Each confirmed settlement was recorded once, and none that nobody asked for."""
    recorded = Counter((row[0], row[1]) for row in events.seen.values())
    buried = Counter(row[0] for row in dead.seen.values())
    for mark, told in book.messages.items():
        if not told.number:
            continue
        for said, outcome in OUTCOMES.items():
            times = recorded[told.number, outcome]
            assert told.confirmed[said] <= times <= told.said[said], (mark, outcome, times)
        assert buried[told.number] == recorded[told.number, DEAD_LETTERED], mark
    assert set(buried) <= {row[0] for row in messages.seen.values()}
