"""A disk that hangs takes its store out, and nothing else; what hung is waited for before anybody touches it again."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from busbar.broker import fragment_loading
from busbar.broker.host_api import StoreState
from busbar.broker.store_host import LocalStoreHost
from busbar.catalogue import sizes
from busbar.catalogue.placement import place
from busbar.model.commands import Peek, Send
from busbar.model.effects import Delivered, Refused, Sent, Settled
from busbar.model.entities import QueueDescription
from busbar.model.errors import ServerBusy
from busbar.model.message import ACTIVE
from busbar.store.contract import StoreError
from busbar.store.location import StoreLocation
from harness.memory_store import Fault, MemoryStore
from tests.unit.broker.hanging import PATIENCE, HangingHost, Hangs, hanging
from tests.unit.broker.hosting import PLAIN, clock, complete, demand, draft, send
from tests.unit.broker.namespaces import NAMES, Disks, quick_pauses, started

QUEUE = QueueDescription()
PARTITIONED = QueueDescription(enable_partitioning=True)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    quick_pauses(monkeypatch)
    yield


async def out(here: HangingHost) -> None:
    await here.until(lambda: here.host.state is StoreState.UNAVAILABLE)
    assert "has not answered" in here.host.reason


async def back(here: HangingHost) -> None:
    here.hangs.end()
    await here.until(lambda: here.host.state is StoreState.OPEN)


@pytest.mark.parametrize("made", [False, True])
async def test_a_commit_that_hangs_is_of_unknown_outcome_and_what_is_behind_it_was_not_done(
    made: bool,
) -> None:
    async with hanging() as here:
        here.hangs.begin("sync" if made else "commit")
        if not made:
            here.store.fail_next_commit(Fault.LOST)
        here.host.submit([send(1, 1)])
        await here.until(here.hangs.reached.is_set)
        here.host.submit([send(1, 2), send(2, 3)])  # gathered for the next group
        here.host.submit([send(1, 4, count=999), send(1, 5, count=999)])  # the group has no room for the last
        await out(here)
        assert not (await here.refused(1)).certain
        assert "may or may not" in (await here.refused(1)).text
        for request in (2, 3, 4, 5):
            refused = await here.refused(request)
            assert refused.certain and refused.condition == ServerBusy.condition
        here.host.submit([send(1, 6)])
        assert (await here.refused(6)).certain, "nobody waits for a store that is unavailable"
        await back(here)
        here.host.submit([demand(1, 10), demand(2, 10), send(1, 7)])
        (number,) = (await here.sent(7)).numbers
        expected = [1, number] if made else [number]
        await here.until(lambda: here.delivered() == expected)
        assert len(here.opened) == 2 and here.opened[0].closed


async def test_nobody_touches_a_store_that_hangs() -> None:
    async with hanging() as here:
        here.hangs.begin("commit")
        here.host.submit([send(1, 1)])
        await out(here)
        await asyncio.sleep(3 * PATIENCE)
        assert len(here.opened) == 1 and not here.opened[0].closed
        assert here.hangs.faults == []
        await back(here)


async def test_a_slow_disk_is_no_loss() -> None:
    """A false alarm: what was acknowledged is there, what was settled is gone, what is held can be settled."""
    async with hanging() as here:
        here.host.submit([send(1, 1, count=3), demand(1, 2)])
        await here.until(lambda: here.delivered() == [1, 2])
        first, *_ = here.all(Delivered)
        here.hangs.begin("sync")
        here.host.submit([complete(first, 2)])
        await out(here)
        assert not (await here.refused(2)).certain
        here.host.submit([demand(1, 5)])  # kept for its return
        await back(here)
        await here.until(lambda: 3 in here.delivered())
        here.host.submit([complete(first, 3)])
        settled = await here.answer(3)
        assert isinstance(settled, Settled)
        assert settled.lost == [*range(len(first.records))], "it was completed, as it turns out"
        await asyncio.sleep(0.05)
        assert sorted(here.delivered()) == [1, 2, 3], "once each"


@pytest.mark.parametrize("seed", range(100 if os.environ.get("BUSBAR_DEEP") == "1" else 2))
async def test_any_history_with_a_disk_that_hangs(seed: int) -> None:
    """What was acknowledged is there once, what was refused for certain is not, and of the rest there is at most one."""
    chance = random.Random(seed)
    async with hanging() as here:
        request, asked = 0, dict[int, bytes]()
        for _ in range(5):
            for what in [(), chance.choice([(), ("commit",), ("sync",), ("commit", "sync")])]:
                if what:
                    here.hangs.begin(*what)
                for _ in range(chance.randrange(1, 12)):
                    request += 1
                    asked[request] = b"%d" % request
                    fragment = chance.randrange(1, 3)
                    here.host.submit([Send(fragment, 1, request, [draft(asked[request])], True)])
                    await asyncio.sleep(chance.choice([0, 0, 0.002]))
                if chance.random() < 0.2:
                    here.hangs.end()
            await here.until(lambda: {effect.request for effect in here.said} >= asked.keys())
            await back(here)
        there = [
            record.content
            for fragment in (1, 2)
            for record in here.disk.fragments[fragment].lanes[0].records.values()
        ]
        assert len(there) == len({*there}), "nothing is there twice"
        outcomes = Counter[str]()
        for number, content in asked.items():
            answer = await here.answer(number)
            certain = isinstance(answer, Sent) or (isinstance(answer, Refused) and answer.certain)
            assert not certain or (content in there) == isinstance(answer, Sent), answer
            outcomes[f"{type(answer).__name__} {'' if certain else 'unknown'}"] += 1
        print(f"seed {seed}: {dict(outcomes)}")


async def test_a_read_that_hangs() -> None:
    async with hanging() as here:
        here.host.submit([send(1, 1, count=3)])
        await here.sent(1)
        here.hangs.begin("read")
        here.host.submit([Peek(1, 1, 2, ACTIVE, 1, 10, 1 << 20), send(2, 3)])
        await out(here)
        assert isinstance(await here.answer(2), Refused)
        assert not (await here.refused(3)).certain, "it was committed before the read"
        await back(here)
        here.host.submit([demand(2, 10), send(2, 4)])
        await here.until(lambda: here.delivered() == [1, 2])


async def test_what_was_posted_behind_other_work_that_hangs_certainly_did_not_take_place() -> None:
    async with hanging((1, 2, 3)) as here:
        here.hangs.begin("drop")
        removing = asyncio.create_task(here.host.remove_fragment(3))
        await here.until(here.hangs.reached.is_set)
        writing = asyncio.create_task(here.host.write_definitions({"a": b"1"}))
        here.host.submit([send(1, 1)])
        await out(here)
        assert (await here.refused(1)).certain
        with pytest.raises(ServerBusy) as dropped:
            await removing
        with pytest.raises(ServerBusy) as written:
            await writing
        assert (dropped.value.certain, written.value.certain) == (False, True)
        await back(here)
        assert here.disk.definitions == {}


async def test_many_fragments_are_loaded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of which is no reason to take the disk for one that hangs."""
    monkeypatch.setattr(fragment_loading, "FRAGMENTS_AT_ONCE", 4)
    async with hanging(tuple(range(1, 12))) as here:
        assert here.host.fragments == 11
        here.host.submit([send(11, 1)])
        await here.sent(1)


async def test_a_process_that_was_held_up_does_not_blame_the_disk() -> None:
    async with hanging() as here:
        here.gate.clear()
        here.host.submit([send(1, 1)])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(3 * PATIENCE)  # noqa: ASYNC251 - as a process does that was stopped, or a machine that slept
        await asyncio.sleep(0)
        here.gate.set()
        await here.sent(1)
        assert here.host.state is StoreState.OPEN and len(here.opened) == 1


async def test_it_hangs_again_while_it_comes_back() -> None:
    async with hanging() as here:
        here.hangs.begin("commit")
        here.host.submit([send(1, 1)])
        await out(here)
        here.hangs.end()
        here.hangs.begin("claim")
        await here.until(here.hangs.reached.is_set)
        await asyncio.sleep(2 * PATIENCE)
        here.host.submit([send(1, 2)])
        assert (await here.refused(2)).certain
        await back(here)
        here.host.submit([send(1, 3)])
        await here.sent(3)


async def test_taken_offline_while_it_hangs_it_stays_so() -> None:
    async with hanging() as here:
        here.hangs.begin("commit")
        here.host.submit([send(1, 1)])
        await here.until(here.hangs.reached.is_set)
        async with asyncio.timeout(10 * PATIENCE):
            await here.host.take_offline()
        assert here.host.state is StoreState.UNAVAILABLE and "offline" in here.host.reason
        here.hangs.end()
        await asyncio.sleep(0.2)
        assert not here.host.is_open and len(here.opened) == 1
        here.host.bring_online()
        await here.until(lambda: here.host.state is StoreState.OPEN)


async def test_taken_offline_while_it_is_being_opened_it_stays_so() -> None:
    async with hanging() as here:
        here.hangs.begin("commit")
        here.host.submit([send(1, 1)])
        await out(here)
        here.hangs.end()
        here.hangs.begin("claim")
        await here.until(here.hangs.reached.is_set)
        await here.host.take_offline()
        here.hangs.end()
        await here.until(lambda: here.opened[-1].closed)
        assert here.host.state is StoreState.UNAVAILABLE
        here.host.bring_online()
        await here.until(lambda: here.host.state is StoreState.OPEN)


@pytest.mark.parametrize("where", ["commit", "save_locks", "release", "close", "claim"])
async def test_a_stop_waits_for_no_disk(where: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with hanging() as here:
        here.host.submit([send(1, 1, count=2), demand(1, 2)])
        await here.until(lambda: len(here.delivered()) == 2)
        if where in ("commit", "claim"):
            here.hangs.begin("commit")
            here.host.submit([send(1, 2)])
            await out(here)
        if where == "claim":
            here.hangs.end()
        if where != "commit":
            here.hangs.begin(where)
        if where == "claim":
            await here.until(here.hangs.reached.is_set)
        began = time.monotonic()
        assert await here.host.drain(10)
        await here.host.close()
        assert time.monotonic() - began < 20 * PATIENCE
        assert "left as it is" in caplog.text
        assert here.hangs.faults == []
        here.hangs.end()
        there = here.disk.fragments[1].lanes[0].records
        assert len(there) >= 2, "what was acknowledged is there"


async def test_a_store_without_work_is_looked_at_and_the_loop_is_not_held_up() -> None:
    hangs = Hangs()

    def mark() -> int:
        hangs("stat")
        return 1

    loop = asyncio.get_running_loop()
    where = StoreLocation("memory:a", MemoryStore, lambda: 0, mark)
    host = LocalStoreHost(
        "a", MemoryStore, loop, clock, lambda: 1, lambda effects: None, place=where, patience=PATIENCE
    )
    await host.open()
    await host.add_fragments({1: PLAIN})
    hangs.begin("stat")
    async with asyncio.timeout(10):
        while host.is_open:
            await asyncio.sleep(0.01)
    assert "has not answered" in host.reason
    hangs.end()
    async with asyncio.timeout(10):
        while not host.is_open:
            await asyncio.sleep(0.01)
    await host.close()


async def test_the_size_of_a_store_is_asked_for_without_waiting_for_its_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sizes, "PATIENCE", 0.1)
    hangs, size = Hangs(), 5

    def slow() -> int:
        hangs("stat")
        return size

    places = {
        "a": StoreLocation("memory:a", MemoryStore, slow, lambda: 1),
        "b": StoreLocation("memory:b", MemoryStore, lambda: 7, lambda: 1),
        "c": None,
    }
    asked = sizes.Sizes()
    hangs.begin("stat")
    assert await asked.of(places) == {"a": 0, "b": 7, "c": 0}
    assert await asked.of(places) == {"a": 0, "b": 7, "c": 0}
    hangs.end()
    async with asyncio.timeout(10):
        while (await asked.of(places))["a"] != 5:
            await asyncio.sleep(0.01)
    size = 6
    hangs.begin("stat")
    assert (await asked.of(places))["a"] == 5, "the last that was known"
    hangs.end()
    assert hangs.faults == [], "one that has not answered is not asked again"


# ---- a namespace with such a store among others ----


def impatient() -> Disks:
    disks = Disks()
    disks.patience = PATIENCE
    return disks


async def test_a_store_that_hangs_at_the_start_does_not_keep_the_others() -> None:
    disks = impatient()
    async with started(disks) as here:
        view = await here.catalogue.create("p", PARTITIONED)
    hangs = disks.hanging["store-1"]
    hangs.begin("claim")
    async with started(disks) as here:
        try:
            assert here.stores.unavailable() == {"store-1"}
            assert any(
                "store-1 is unavailable: its disk has not answered" in note for note in here.catalogue.notes
            )
            assert not (await here.port.runtime("p")).available
            on = view.fragments[view.stores.index("store-2")]
            assert isinstance(await here.ask(Send(on, here.origin, 1, [draft()], True)), Sent)
        finally:
            hangs.end()
        await here.until_open()
        assert (await here.port.runtime("p")).available
        assert hangs.faults == []


async def test_if_all_hang_at_the_start_there_is_none() -> None:
    disks = impatient()
    async with started(disks):
        pass
    for name in NAMES:
        disks.hanging[name].begin("claim")
    try:
        with pytest.raises(StoreError, match=r"(its disk has not answered.*){4}"):
            async with started(disks):
                pass
    finally:
        for hangs in disks.hanging.values():
            hangs.end()


async def test_management_goes_on_without_a_store_that_hangs() -> None:
    disks = impatient()
    async with started(disks) as here:
        hangs = disks.hanging["store-1"]
        hangs.begin("write_definitions")
        try:
            queue = next(f"q{n}" for n in range(20) if "store-1" in place(f"q{n}", 1, NAMES))
            async with asyncio.timeout(10 * PATIENCE):
                with pytest.raises(ServerBusy, match="store-1 failed, and the change was taken back"):
                    await here.catalogue.create(queue, QUEUE)
                assert here.stores.unavailable() == {"store-1"}
                view = await here.catalogue.create(queue, QUEUE)
            assert view.stores != ("store-1",), "it is created in a store that is there"
            with pytest.raises(ServerBusy):
                await here.catalogue.create("p", PARTITIONED)
        finally:
            hangs.end()
        await here.until_open()
        await here.catalogue.create("p", PARTITIONED)
        assert disks.entry("store-1", "entity/p") is not None


async def test_a_catalogue_that_hangs_holds_up_no_message() -> None:
    disks = impatient()
    hangs = Hangs()
    async with started(disks) as here:
        view = await here.catalogue.create("q", QUEUE)
        disks.catalogue.hangs = hangs
        hangs.begin("write_catalogue")
        try:
            async with asyncio.timeout(10 * PATIENCE):
                with pytest.raises(ServerBusy, match="may or may not") as failed:
                    await here.catalogue.create("new", QUEUE)
                assert not failed.value.certain
                with pytest.raises(ServerBusy, match="nothing was changed"):
                    await here.catalogue.delete("q")
            assert isinstance(await here.ask(Send(view.fragments[0], here.origin, 1, [draft()], True)), Sent)
        finally:
            hangs.end()
        async with asyncio.timeout(10):
            while here.catalogue._home.is_unknown or here.catalogue._changes.turn.locked():
                await asyncio.sleep(0.01)
        new = here.catalogue.find("new")
        assert isinstance(await here.ask(Send(new.fragments[0], here.origin, 2, [draft()], True)), Sent)
        await here.catalogue.delete("q")


async def test_management_that_needs_a_store_that_hangs_fails_cleanly() -> None:
    disks = impatient()
    async with started(disks) as here:
        hangs = disks.hanging["store-1"]
        hangs.begin("write_definitions")
        try:
            async with asyncio.timeout(10 * PATIENCE):
                with pytest.raises(ServerBusy):
                    await here.catalogue.create("p", PARTITIONED)
        finally:
            hangs.end()
        await here.until_open()
        await here.catalogue.create("p", PARTITIONED)
