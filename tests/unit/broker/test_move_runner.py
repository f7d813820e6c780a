"""The mover at work in a process: real catalogue, hosts and machines, on stores in memory that a test can break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described
from busbar.broker.move_runner import MoveRunner
from busbar.catalogue.placement import place
from busbar.message.content import property_fields
from busbar.message.parsing import parse_message
from busbar.model.commands import Inspect, Peek, Send
from busbar.model.effects import Inspected, Peeked, Sent
from busbar.model.entities import QueueDescription
from busbar.model.message import ACTIVE, DEAD, OUTBOX, Draft
from harness.memory_store import Fault, MemoryStore
from tests.unit.broker.hosting import clock
from tests.unit.broker.namespaces import NAMES, Disks, Namespace, quick_pauses, started

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_pauses(monkeypatch)


def name_in(store: str, word: str) -> str:
    return next(name for name in map(f"{word}{{}}".format, range(999)) if place(name, 1, NAMES) == (store,))


SOURCE, TARGET = name_in("store-0", "source"), name_in("store-1", "target")


@asynccontextmanager
async def moving(disks: Disks) -> AsyncIterator[Namespace]:
    """A namespace with a mover, which is there before fragments are loaded, as in a real process."""
    here = Namespace(disks)
    moves = MoveRunner(here.port, asyncio.get_running_loop(), clock, here.stores.routes.sink_of)
    here.port.report_transfers = moves.transfers
    try:
        await here.catalogue.load(NAMES)
        moves.start(60_000)
        yield here
    finally:
        await moves.stop()
        await here.catalogue.close()
        await here.stores.close(1)


def draft(id: str) -> Draft:
    raw = encode_value(Described(0x73, [id])) + encode_value(Described(0x75, b"body"))
    return parse_message(raw, 0, len(raw), "fresh", 128)


class Asker:
    """Commands with new requests."""

    def __init__(self, here: Namespace) -> None:
        self.here = here
        self._last = 0

    def request(self) -> int:
        self._last += 1
        return self._last

    async def send(self, path: str, *ids: str) -> None:
        (fragment,) = self.here.catalogue.find(path).fragments
        command = Send(fragment, self.here.origin, self.request(), [draft(id) for id in ids], False)
        assert isinstance(await self.here.ask(command), Sent)

    async def ids(self, path: str, sub: int = ACTIVE) -> list[str]:
        (fragment,) = self.here.catalogue.find(path).fragments
        peek = Peek(fragment, self.here.origin, self.request(), sub, 1, 1_000, 1 << 30)
        found = await self.here.ask(peek)
        assert isinstance(found, Peeked)
        return [str(property_fields(record.content or b"")[0]) for record in found.records]

    async def waiting(self, path: str) -> int:
        (fragment,) = self.here.catalogue.find(path).fragments
        found = await self.here.ask(Inspect(fragment, self.here.origin, self.request()))
        assert isinstance(found, Inspected)
        return found.counts[OUTBOX]

    async def until_there(self, path: str, *ids: str) -> None:
        async with asyncio.timeout(10):
            while len(found := await self.ids(path)) < len(ids):
                await asyncio.sleep(0.005)
        assert found == [*ids]


async def forwarding(here: Namespace) -> Asker:
    await here.catalogue.create(TARGET, QueueDescription())
    await here.catalogue.create(SOURCE, QueueDescription(forward_to=TARGET))
    return Asker(here)


async def test_messages_move_between_stores() -> None:
    async with moving(Disks()) as here:
        asker = await forwarding(here)
        ids = [f"m{number}" for number in range(50)]
        for id in ids:
            await asker.send(SOURCE, id)
        await asker.until_there(TARGET, *ids)
        async with asyncio.timeout(5):
            while await asker.waiting(SOURCE):
                await asyncio.sleep(0.005)
        report = await here.port.transfers()
        assert report.moved == 50 and report.transfers == []


async def test_what_was_in_the_outbox_moves_after_a_restart() -> None:
    disks = Disks()
    async with started(disks) as here:  # nothing moves without a mover
        asker = await forwarding(here)
        await asker.send(SOURCE, "a", "b")
        assert await asker.waiting(SOURCE) == 2
    async with moving(disks) as here:
        await Asker(here).until_there(TARGET, "a", "b")


async def test_a_target_whose_store_is_offline_is_waited_for_and_shown() -> None:
    async with moving(Disks()) as here:
        asker = await forwarding(here)
        await here.port.change_store("store-1", "offline")
        await asker.send(SOURCE, "a")
        held = (await here.port.transfers()).transfers
        async with asyncio.timeout(5):
            while not held or held[0].state != "held":
                await asyncio.sleep(0.005)
                held = (await here.port.transfers()).transfers
        (view,) = held
        assert (view.source, view.target, view.waiting, view.cause) == (SOURCE, TARGET, 1, "unavailable")
        assert abs(view.since - clock()) < 5_000
        await here.port.change_store("store-1", "online")
        await asker.until_there(TARGET, "a")


async def test_a_target_that_is_being_created_is_waited_for() -> None:
    """Its sources have its fragments before the catalogue has the entity. That is not a target that is gone."""
    async with moving(Disks()) as here:
        asker = await forwarding(here)
        await here.catalogue.delete(TARGET)
        hangs = here.disks.hanging["store-1"]
        hangs.begin("write_definitions")
        creating = asyncio.create_task(here.catalogue.create(TARGET, QueueDescription()))
        await asyncio.to_thread(hangs.reached.wait, 5)
        async with asyncio.timeout(5):
            while not await asker.waiting(SOURCE):
                await asker.send(SOURCE, "sent")
                await asyncio.sleep(0.005)
        early = len(await asker.ids(SOURCE, DEAD))  # of those that came before the source had the settings
        await asyncio.sleep(0.05)
        assert await asker.waiting(SOURCE) and len(await asker.ids(SOURCE, DEAD)) == early
        hangs.end()
        await creating
        await asker.until_there(TARGET, "sent")
        assert len(await asker.ids(SOURCE, DEAD)) == early


async def test_a_target_that_is_deleted_meanwhile_leaves_its_messages_with_their_source() -> None:
    async with moving(Disks()) as here:
        asker = await forwarding(here)
        await here.port.change_store("store-1", "offline")
        await asker.send(SOURCE, "a")
        async with asyncio.timeout(5):
            while not await asker.waiting(SOURCE):
                await asyncio.sleep(0.005)
        await here.port.change_store("store-1", "online")
        await here.catalogue.delete(TARGET)
        async with asyncio.timeout(10):
            while await asker.waiting(SOURCE):
                await asyncio.sleep(0.005)
        # If it had arrived before, it went with its target.
        assert await asker.ids(SOURCE, DEAD) == (["a"] if (await here.port.transfers()).moved == 0 else [])


@pytest.mark.parametrize("fault", [*Fault])
async def test_a_commit_that_fails_at_either_end_loses_and_doubles_nothing(fault: Fault) -> None:
    async with moving(Disks()) as here:
        asker = await forwarding(here)
        sent: list[str] = []
        for number, store in enumerate(("store-1", "store-0", "store-1", "store-0")):
            if store == "store-1":  # the target's: what it was offered is refused, or its fate is unknown
                fail_next_commit(here, store, fault)
            ids = [f"m{number}-{index}" for index in range(5)]
            await asker.send(SOURCE, *ids)
            sent += ids
            if store == "store-0":  # the source's: it may be the removal of what was taken
                fail_next_commit(here, store, fault)
                await asyncio.sleep(0.05)
                await here.until_open()
                clear_faults(here, store)
            await asyncio.sleep(0.02)
            await here.until_open()
        await asker.until_there(TARGET, *sent)


def store_of(here: Namespace, store: str) -> MemoryStore:
    found = here.host(store)._access.store
    assert isinstance(found, MemoryStore)
    return found


def fail_next_commit(here: Namespace, store: str, fault: Fault) -> None:
    store_of(here, store).fail_next_commit(fault)


def clear_faults(here: Namespace, store: str) -> None:
    """A fault that met no commit is taken back: the next send is not to fail."""
    store_of(here, store)._faults.clear()
