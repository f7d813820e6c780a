"""`kill -9` of one broker of several: what express entities lose is what that broker had in memory (docs/express.md).

Messages stay in memory for minutes here, except in the test of the delay. A message has a key for its fragment, so that it
is known which broker has it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from busbar.client import MessagingFactory, OutgoingMessage, encode
from harness.amqp_driver import connect
from harness.processes import brokers_of
from harness.serving import Busbar, config_text
from tests.durability.outage_load import keys_by_fragment
from tests.durability.test_store_outage import Operator
from tests.interop.forwarding import bodies

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

KEYS = keys_by_fragment()
PARTITIONED: dict[str, object] = {"EnableExpress": True, "EnablePartitioning": True}
TOPIC = {
    "Name": "t",
    "Properties": PARTITIONED,
    "Subscriptions": [{"Name": "a", "Properties": {}}, {"Name": "b", "Properties": {}}],
}
KILLED = "broker-1"
ALL = list(range(len(KEYS)))
CLIENTS = 4


@dataclass
class Cluster:
    server: Busbar
    factory: MessagingFactory

    async def fragments(self, entity: str) -> dict[str, list[int]]:
        """The indexes of an entity's fragments, by broker."""
        found: dict[str, list[int]] = {}
        for view in await asyncio.to_thread(Operator(self.server).ask, "GET", f"fragments/{entity}"):
            found.setdefault(view["broker"], []).append(view["index"])
        assert len(found) == 2
        return found

    async def send(self, entity: str, word: str, forced: bool = False) -> None:
        """One message to each fragment."""
        sender = await self.factory.sender(entity)
        messages = [
            OutgoingMessage(f"{word} {index}".encode(), partition_key=key, force_persistence=forced)
            for index, key in enumerate(KEYS)
        ]
        await sender.send([encode(message) for message in messages])
        await sender.close()

    async def kill_one(self) -> None:
        """Kill a broker, and wait until another process has its stores."""
        before = brokers_of(self.server)[KILLED]
        os.kill(before, signal.SIGKILL)
        operator = Operator(self.server)
        async with asyncio.timeout(60):
            while brokers_of(self.server).get(KILLED) in (before, None):
                await asyncio.sleep(0.02)
            while any(
                store["state"] != "open" for store in await asyncio.to_thread(operator.ask, "GET", "stores")
            ):
                await asyncio.sleep(0.05)

    async def receive(self, entity: str) -> list[str]:
        """All that is there, completed."""
        async with await MessagingFactory.connect(self.server.connection_string) as factory:
            receiver = await factory.receiver(entity)
            got: list[str] = []
            while more := await receiver.receive(100, 3):
                await receiver.complete(more)
                got += bodies(more)
            await receiver.close()
        return sorted(got)


@asynccontextmanager
async def cluster(path: Path, delay: int = 600_000) -> AsyncIterator[Cluster]:
    config = config_text({"q": PARTITIONED, "clients": PARTITIONED}, {"express_delay": delay}, [TOPIC])
    server = Busbar(path / "data", config, arguments=("--brokers", "2", "--stores", "4")).start()
    try:
        async with await MessagingFactory.connect(server.connection_string) as factory:
            yield Cluster(server, factory)
    finally:
        assert await asyncio.to_thread(server.stop) == 0, server.error_text
    assert "Traceback" not in server.error_text, server.error_text


def words(word: str, indexes: list[int]) -> list[str]:
    return [f"{word} {index}" for index in indexes]


@dataclass
class AfterKill:
    """What is there when one of two brokers was killed."""

    kept: dict[str, list[int]]
    """By entity: its fragments in the other broker."""
    received: dict[str, list[str]]


async def send_from_both(here: Cluster, indexes: list[int]) -> None:
    """Send one message to each of these fragments, from clients of both brokers. All are acknowledged."""
    for number in range(CLIENTS):
        connection = await connect(here.server.port)
        payloads = [
            encode(OutgoingMessage(f"client-{number} {index}".encode(), partition_key=KEYS[index]))
            for index in indexes
        ]
        sender = await connection.sender("clients", payloads.__getitem__, in_flight=1)
        await sender.send(len(payloads))
        assert sender.acknowledged == len(payloads)
        connection.abort()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def after(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AfterKill]:
    async with cluster(tmp_path_factory.mktemp("express")) as here:
        kept = {entity: (await here.fragments(entity))["broker-0"] for entity in ("q", "t", "clients")}
        for entity in ("q", "t", "clients"):
            await here.send(entity, "forced", forced=True)
        for entity in ("q", "t"):
            await here.send(entity, "young")
        await send_from_both(here, kept["clients"])
        await here.kill_one()
        entities = ("q", "t/Subscriptions/a", "t/Subscriptions/b", "clients")
        yield AfterKill(kept, {entity: await here.receive(entity) for entity in entities})


@pytest.mark.req("B9")
@pytest.mark.parametrize("entity", ["q", "t/Subscriptions/a", "t/Subscriptions/b"])
async def test_only_what_the_killed_broker_had_in_memory_is_lost(after: AfterKill, entity: str) -> None:
    assert after.received[entity] == sorted([*words("forced", ALL), *words("young", after.kept[entity[0]])])


@pytest.mark.req("B9")
async def test_the_other_broker_keeps_what_clients_of_the_killed_one_have_sent(after: AfterKill) -> None:
    sent = [text for number in range(CLIENTS) for text in words(f"client-{number}", after.kept["clients"])]
    assert after.received["clients"] == sorted([*words("forced", ALL), *sent])


@pytest.mark.req("B9")
async def test_what_has_stayed_for_the_delay_and_what_was_completed_is_as_it_was(tmp_path: Path) -> None:
    async with cluster(tmp_path, delay=700) as here:
        await here.send("q", "completed")
        assert await here.receive("q") == sorted(words("completed", ALL))
        await here.send("q", "stayed")
        await asyncio.sleep(3)
        await here.kill_one()
        assert await here.receive("q") == sorted(words("stayed", ALL))
        await here.send("q", "before the stop")
        assert await asyncio.to_thread(here.server.stop) == 0
        await asyncio.to_thread(here.server.start)
        assert await here.receive("q") == sorted(words("before the stop", ALL)), "a clean stop writes all"
