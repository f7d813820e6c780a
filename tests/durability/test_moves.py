"""Messages that are forwarded arrive exactly once, whatever is killed on their way, and whichever store is away.

Ids tell messages apart. One that its sender was told of is found as often as there are ways to its end: once in a chain,
once behind a queue that it was sent via, once among forwarded dead letters, and once for each forwarding subscription in a
fan-out. One whose answer was lost is found so often or not at all. All is counted at the end, when nothing fails any more.
Every send ends: with an answer, or with an error of its connection.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from busbar.catalogue.placement import place
from busbar.client import (
    NO_RETRY,
    BusbarClientError,
    MessagingFactory,
    OutgoingMessage,
    Sender,
    SendFailed,
    encode,
)
from harness.processes import brokers_of
from harness.promises import require_kept
from harness.serving import Busbar, Properties, config_text
from harness.waiting import eventually, until
from tests.durability.test_store_outage import Operator

SEED = int(os.environ.get("BUSBAR_KILL_SEED", time.time_ns() % 1_000_000))
ROUNDS = 12 if os.environ.get("BUSBAR_DEEP") else 3
LOAD_SECONDS = 2.5
FAN_OUT = 3
STORES = ["store-0", "store-1", "store-2", "store-3"]
QUEUES: dict[str, Properties] = {
    "end": {},
    "third": {"ForwardTo": "end"},
    "second": {"ForwardTo": "third", "EnablePartitioning": True},
    "first": {"ForwardTo": "second"},
    "gathered": {"EnablePartitioning": True},
    "staging": {},
    "arrived": {},
    "letters": {},
    "poisoned": {"ForwardDeadLetteredMessagesTo": "letters", "MaxDeliveryCount": 1},
}
TOPIC = {
    "Name": "spread",
    "Properties": {"EnablePartitioning": True},
    "Subscriptions": [
        {"Name": f"s{number}", "Properties": {"ForwardTo": "gathered"}} for number in range(FAN_OUT)
    ],
}


@dataclass(frozen=True)
class Way:
    """Where messages are sent to, where they arrive, and how often."""

    entity: str
    end: str
    times: int = 1
    via: str | None = None
    pause: float = 0.0
    """Seconds between two batches."""


WAYS = [
    Way("first", "end"),
    Way("spread", "gathered", FAN_OUT),
    Way("arrived", "arrived", via="staging", pause=0.02),
    Way("poisoned", "letters", pause=0.02),
]
ANSWER_SECONDS = 8.0
"""A broker that is killed is back before that."""

pytestmark = pytest.mark.timeout(80 * ROUNDS)


def config() -> str:
    return config_text(QUEUES, topics=[TOPIC])


class Ledger:
    """What senders were told."""

    def __init__(self) -> None:
        self.stored: set[str] = set()
        self.unknown: set[str] = set()
        self.slowest = 0.0
        """How long a send took, in seconds."""
        self._last = 0

    def new_ids(self, count: int) -> list[str]:
        first, self._last = self._last, self._last + count
        return [f"m{number}" for number in range(first, first + count)]

    def faults(self, found: Counter[str], times: int) -> list[str]:
        lost = [f"{id} is lost" for id in self.stored if not found[id]]
        wrong = [f"{id} is there {count} times" for id, count in found.items() if count != times]
        alien = [id for id in found if id not in self.stored and id not in self.unknown]
        return (lost + wrong + alien)[:20]


async def send_until(end: float, server: Busbar, way: Way, ledger: Ledger) -> None:
    """Send batches, and note what became of each message."""
    while time.monotonic() < end:
        with suppress(BusbarClientError, OSError):
            async with await MessagingFactory.connect(
                server.connection_string, retry=NO_RETRY, operation_timeout=30
            ) as factory:
                sender = await factory.sender(way.entity, via=way.via)
                while time.monotonic() < end:
                    await send_batch(sender, ledger)
                    await asyncio.sleep(way.pause)
        await asyncio.sleep(0.05)


async def send_batch(sender: Sender, ledger: Ledger) -> None:
    ids = ledger.new_ids(20)
    messages = [encode(OutgoingMessage(id.encode(), message_id=id)) for id in ids]
    ledger.unknown.update(ids)  # until it is said what became of them
    begun = time.monotonic()
    try:
        await sender.send(messages)
        ledger.stored.update(ids)
    except SendFailed as failure:
        bad = {*failure.failed, *failure.unknown}
        ledger.stored.update(id for index, id in enumerate(ids) if index not in bad)
        raise
    finally:
        ledger.slowest = max(ledger.slowest, time.monotonic() - begun)


async def abandon_all(server: Busbar) -> None:
    """Receive the messages of "poisoned" and abandon them, which makes dead letters of them."""
    while True:
        with suppress(BusbarClientError, OSError):
            async with await MessagingFactory.connect(server.connection_string, retry=NO_RETRY) as factory:
                receiver = await factory.receiver("poisoned", credit=100)
                while True:
                    await receiver.abandon(await receiver.receive(100, 0.2))
        await asyncio.sleep(0.05)


@asynccontextmanager
async def clients(server: Busbar, seconds: float, ledgers: dict[Way, Ledger]) -> AsyncIterator[None]:
    """Clients that send for so long, and one that makes dead letters."""
    end = time.monotonic() + seconds
    sending = [asyncio.create_task(send_until(end, server, way, ledgers[way])) for way in WAYS]
    abandoning = asyncio.create_task(abandon_all(server))
    yield
    await asyncio.gather(*sending)
    abandoning.cancel()
    await asyncio.gather(abandoning, return_exceptions=True)


async def drained(server: Busbar, entity: str) -> Counter[str]:
    """Every message of an entity, by its id, until none came for a while."""
    found: Counter[str] = Counter()
    async with await MessagingFactory.connect(server.connection_string) as factory:
        receiver = await factory.receiver(entity)
        while messages := await receiver.receive(500, 4):
            found.update(str(message.decode().message_id) for message in messages)
            await receiver.complete(messages)
    return found


def left_behind(server: Busbar) -> dict[str, int]:
    """Messages that are still on their way, or that were dead-lettered."""
    operator = Operator(server)
    places = ["first", "second", "third", "staging", "poisoned"]
    places += [*(f"spread/Subscriptions/s{n}" for n in range(FAN_OUT))]
    found: dict[str, int] = {}
    for path in places:
        for fragment in operator.ask("GET", f"fragments/{path}"):
            count = sum(
                fragment[state] for state in ("active", "deadLetter", "transfer", "transferDeadLetter")
            )
            found[path] = found.get(path, 0) + count
    return {path: count for path, count in found.items() if count}


async def check_all(server: Busbar, ledgers: dict[Way, Ledger]) -> None:
    left: dict[str, int] = {}

    def has_arrived() -> bool:
        nonlocal left
        left = left_behind(server)
        return not left

    async with clients(server, 0, ledgers):
        await until(has_arrived, lambda: left, seconds=60, pause=0.2)
    counted = await asyncio.gather(*[drained(server, way.end) for way in WAYS])
    for way, found in zip(WAYS, counted, strict=True):
        ledger = ledgers[way]
        require_kept(
            f"each message arrives once, {way} BUSBAR_KILL_SEED={SEED}", ledger.faults(found, way.times)
        )
        assert len(ledger.stored) > 200, "too little was sent to show anything"
        assert ledger.slowest < ANSWER_SECONDS, f"{way} BUSBAR_KILL_SEED={SEED}"
        unknown = len(ledger.unknown - ledger.stored)
        print(f"{way.entity}: {len(ledger.stored)} stored, {unknown} unknown, {ledger.slowest:.2f} s at most")


@pytest.mark.req("P24")
def test_each_message_arrives_once_although_the_process_is_killed(tmp_path: Path) -> None:
    print(f"BUSBAR_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    server = Busbar(tmp_path / "data", config())
    ledgers = {way: Ledger() for way in WAYS}

    async def round_of_load() -> None:
        async with clients(server, LOAD_SECONDS, ledgers):
            await asyncio.sleep(chance.uniform(0.5, LOAD_SECONDS - 0.5))
            server.kill()

    for _ in range(ROUNDS):
        server.start()
        asyncio.run(round_of_load())
    server.start()
    try:
        asyncio.run(check_all(server, ledgers))
    finally:
        assert server.stop() == 0


@pytest.mark.req("P24")
def test_each_message_arrives_once_although_brokers_are_killed(tmp_path: Path) -> None:
    """One of four at a time: of the source, of the target, or of both."""
    print(f"BUSBAR_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    server = Busbar(tmp_path / "data", config(), arguments=("--brokers", "4")).start()
    ledgers = {way: Ledger() for way in WAYS}

    async def load_and_kill() -> None:
        async with clients(server, ROUNDS * LOAD_SECONDS, ledgers):
            for _ in range(ROUNDS):
                await asyncio.sleep(chance.uniform(0.5, LOAD_SECONDS - 0.5))
                running = brokers_of(server)
                name = chance.choice(sorted(running))
                os.kill(running[name], signal.SIGKILL)

    try:
        asyncio.run(load_and_kill())
        eventually(lambda: len(brokers_of(server)) == 4)
        asyncio.run(check_all(server, ledgers))
    finally:
        server.stop()


@pytest.mark.req("P25")
def test_a_store_that_is_away_holds_its_own_messages_only(tmp_path: Path) -> None:
    """Messages for its fragments wait and arrive when it is back. Those without a key go to other fragments."""
    with_away = next(name for name in map("q{}".format, range(99)) if place(name, 1, STORES) == ("store-2",))
    source, spreading = [
        name for name in map("s{}".format, range(99)) if place(name, 1, STORES) == ("store-0",)
    ][:2]
    queues: dict[str, Properties] = {
        with_away: {},
        "p": {"EnablePartitioning": True},
        source: {"ForwardTo": with_away},
        spreading: {"ForwardTo": "p"},
    }
    server = Busbar(tmp_path / "data", config_text(queues), arguments=("--stores", "4")).start()
    operator = Operator(server)

    async def send(entity: str, *ids: str) -> None:
        async with await MessagingFactory.connect(server.connection_string) as factory:
            sender = await factory.sender(entity)
            await sender.send([encode(OutgoingMessage(id.encode(), message_id=id)) for id in ids])

    def waiting(entity: str) -> int:
        return sum(int(one["transfer"]) for one in operator.ask("GET", f"fragments/{entity}"))

    try:
        operator.ask("POST", "stores/store-2/offline")
        asyncio.run(send(source, "a", "b"))
        eventually(lambda: waiting(source) == 2)
        many = [f"m{number}" for number in range(6_000)]
        for first in range(0, len(many), 300):
            asyncio.run(send(spreading, *many[first : first + 300]))
        # Some went to fragments of the store before it was known to be away, and wait.
        eventually(lambda: sum(int(one["active"]) for one in operator.ask("GET", "fragments/p")) > 4_000)
        assert waiting(spreading) < 2_000
        operator.ask("POST", "stores/store-2/online")
        eventually(lambda: waiting(source) == 0)
        assert asyncio.run(drained(server, with_away)) == Counter(("a", "b"))
        eventually(lambda: waiting(spreading) == 0)
        assert asyncio.run(drained(server, "p")) == Counter(many)
    finally:
        assert server.stop() == 0
