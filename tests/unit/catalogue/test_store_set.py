"""Several stores: where fragments go, whether a store is the right one, and what an unavailable store does to whom."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from busbar.broker import fragment_loading
from busbar.broker.host_api import StoreState
from busbar.catalogue.definition import encode_definition
from busbar.catalogue.placement import place
from busbar.model.api import EntityView
from busbar.model.commands import Demand, Inspect, Leave
from busbar.model.effects import Delivered, Drained, Inspected, Refused, Sent
from busbar.model.errors import ArgumentError, InvalidOperation, ServerBusy
from busbar.store.catalogue_contract import CatalogueContent
from busbar.store.contract import StoreError
from harness.memory_store import Disk
from tests.unit.broker.namespaces import NAMES, Disks, started
from tests.unit.catalogue.several_stores import PARTITIONED, QUEUE, copy_of, partitioned_disks, send

pytestmark = pytest.mark.usefixtures("short_pauses")


# ---- placement ----


def test_fragments_are_spread_over_the_stores_and_stay_where_they_are() -> None:
    assert place("orders", 1, NAMES) == ("store-2",), "the hash never changes"
    assert place("ORDERS", 4, NAMES) == ("store-2", "store-3", "store-0", "store-1")
    assert set(Counter(place("any", 16, NAMES)).values()) == {4}
    regular = Counter(place(f"queue-{number}", 1, NAMES)[0] for number in range(4_000))
    assert all(900 < count < 1_100 for count in regular.values()), regular


async def test_the_placement_is_written_down(tmp_path: object) -> None:
    disks = Disks()
    async with started(disks) as here:
        view = await here.catalogue.create("p", PARTITIONED)
        assert view.stores == place("p", 16, NAMES)
        regular = await here.catalogue.create("r", QUEUE)
        assert len(regular.stores) == len(regular.fragments) == 1
    for name in NAMES:
        held = {
            fragment for fragment, store in zip(view.fragments, view.stores, strict=True) if store == name
        }
        assert held <= disks.there[name].fragments.keys()
        assert len(disks.there[name].fragments.keys() & {*view.fragments}) == 4
    async with started(disks, [*NAMES, "store-4"]) as here:
        assert here.stores.names == [*NAMES, "store-4"]
        assert here.catalogue.find("p").stores == view.stores, "one more store moves nothing"
        assert isinstance(await here.ask(send(here, view.fragments[3], 1)), Sent)
        assert "store-4" in (await here.catalogue.create("p2", PARTITIONED)).stores


async def test_fewer_stores_than_there_are_is_said_once() -> None:
    disks = Disks()
    async with started(disks):
        pass
    async with started(disks, ["store-0"]) as here:
        assert here.stores.names == NAMES
        assert [note for note in here.catalogue.notes if "4 stores" in note] == here.catalogue.notes


async def test_a_store_of_the_version_before_opens_and_gets_company() -> None:
    """One store, without identity and versions."""
    disks = Disks()
    old = EntityView("Old", QUEUE, (1,), 1, 1, ("store-0",))
    disks.there["store-0"] = Disk(definitions={"entity/old": encode_definition(old), "last-fragment": b"7"})
    async with started(disks) as here:
        assert here.stores.names == NAMES
        assert here.catalogue.find("old").stores == ("store-0",)
        assert isinstance(await here.ask(send(here, 1, 1)), Sent)
        assert (await here.catalogue.create("new", QUEUE)).fragments == (8,)
    async with started(disks) as here:
        assert here.catalogue.find("OLD").path == "Old"


# ---- is it that store? ----


async def two_stores_kept_out(disks: Disks, start_out: str, reason: str) -> None:
    async with started(disks) as here:
        assert here.stores.unavailable() == {start_out}
        assert reason in here.host(start_out).reason
        assert any(reason in note for note in here.catalogue.notes)


async def test_a_store_of_another_namespace_is_kept_out() -> None:
    disks, others = await partitioned_disks(), await partitioned_disks()
    disks.there["store-2"] = others.there["store-2"]
    await two_stores_kept_out(disks, "store-2", "another namespace")


async def test_a_store_that_is_missing_or_damaged_is_out_and_comes_back() -> None:
    disks = await partitioned_disks()
    disks.refusing["store-1"] = "it is damaged"
    kept = disks.there.pop("store-1")
    async with started(disks) as here:
        assert here.stores.unavailable() == {"store-1"}
        found = here.catalogue.find("q")
        out = [f for f, store in zip(found.fragments, found.stores, strict=True) if store == "store-1"]
        refused = await here.ask(send(here, out[0], 1))
        assert isinstance(refused, Refused) and refused.certain
        assert refused.condition == ServerBusy.condition, "unavailable, not unknown"
        assert not (await here.port.runtime("q")).available
        states = [(view.store, view.state) for view in await here.port.fragments("q")]
        assert states.count(("store-1", "unavailable")) == 4 and ("store-2", "open") in states
        here.port.submit([Demand(out[0], here.origin, 5, 0, 3, False, False)])
        disks.there["store-1"] = kept
        del disks.refusing["store-1"]
        await here.until_open()
        assert isinstance(await here.ask(send(here, out[0], 2)), Sent)
        async with asyncio.timeout(5):
            while not [effect for effect in here.said if isinstance(effect, Delivered)]:
                await asyncio.sleep(0.002)


async def test_swapped_files_are_named_and_without_any_store_there_is_no_start() -> None:
    disks = await partitioned_disks()
    disks.there["store-1"], disks.there["store-2"] = disks.there["store-2"], disks.there["store-1"]
    async with started(disks) as here:
        assert here.stores.unavailable() == {"store-1", "store-2"}
        assert here.host("store-1").reason == "it is the store store-2, not store-1: were the files swapped?"
        await here.catalogue.create("r", QUEUE)
    for name in NAMES:
        disks.refusing[name] = f"{name} is damaged"
    with pytest.raises(StoreError, match=r"store-0 is damaged; .*store-3 is damaged"):
        async with started(disks):
            pass


async def test_an_empty_file_is_not_taken_for_the_store_until_it_is_reset() -> None:
    disks = await partitioned_disks()
    disks.there["store-3"] = Disk()
    async with started(disks) as here:
        assert "not the store that was there" in here.host("store-3").reason
        await asyncio.sleep(0.2)
        assert here.stores.unavailable() == {"store-3"}, "it is not taken by itself"
        view = await here.port.change_store("store-3", "reset")
        assert (view.state, view.lost_messages) == ("open", -1)
        (fragment,) = [
            f.id for f in await here.port.fragments("q") if f.store == "store-3" and f.index in (0, 1, 2, 3)
        ]
        sent = await here.ask(send(here, fragment, 1))
        assert isinstance(sent, Sent)
        assert sent.numbers[0] > 1_000_000_000_000, "above all that may have been given before"
    async with started(disks) as here:
        assert not here.stores.unavailable()


async def test_only_a_store_that_is_out_can_be_reset() -> None:
    async with started(Disks()) as here:
        with pytest.raises(InvalidOperation):
            await here.port.change_store("store-0", "reset")
        with pytest.raises(ArgumentError, match="store-0, store-1"):
            await here.port.change_store("store-9", "offline")
        with pytest.raises(ArgumentError):
            await here.port.change_store("store-0", "away")


# ---- out, and back ----


async def test_definitions_that_cannot_be_written_take_the_store_out_and_back() -> None:
    disks = Disks()
    async with started(disks) as here:
        await here.catalogue.create("p", PARTITIONED)
        disks.failing.add("store-1")
        with pytest.raises(ServerBusy):
            await here.catalogue.create("q", PARTITIONED)
        await here.until_open()
        await here.catalogue.create("q", PARTITIONED)


async def test_offline_finishes_what_is_under_way_and_keeps_what_consumers_want() -> None:
    disks = Disks()
    async with started(disks) as here:
        view = await here.catalogue.create("r", QUEUE)
        (fragment,), (store,) = view.fragments, view.stores
        here.port.submit([send(here, fragment, request) for request in range(1, 50)])
        here.port.submit([Demand(fragment, here.origin, 1, 0, 10, False, False)])
        shown = await here.port.change_store(store, "offline")
        assert (shown.state, shown.reason) == ("unavailable", "taken offline by an operator")
        answers = {effect.request: effect for effect in here.said if effect.request}
        assert len(answers) == 49, "every one was answered"
        sent = sum(isinstance(answer, Sent) for answer in answers.values())
        assert all(answer.certain for answer in answers.values() if isinstance(answer, Refused))
        refused = await here.ask(send(here, fragment, 100))
        assert isinstance(refused, Refused) and refused.certain and store in refused.text
        here.said.clear()
        # A thousand consumers come and go, one drains, one stays.
        for consumer in range(2, 1_000):
            here.port.submit([Demand(fragment, here.origin, consumer, 0, 5, False, False)])
            here.port.submit([Leave(fragment, here.origin, consumer)])
        here.port.submit([Demand(fragment, here.origin, 1, 0, 0, True, False)])
        for _ in range(100):
            here.port.submit([Demand(fragment, here.origin, 2_000, 0, 1, False, False)])
        await asyncio.sleep(0.01)
        assert [type(effect) for effect in here.said] == [Drained], "a drain is answered at once"
        parked = here.host(store)._lifecycle._buffer._fragments[fragment]
        assert len(parked.demands) == 1 and len(parked.gone) <= 1, "nothing piles up"
        assert (await here.port.change_store(store, "online")).state == "open"
        await here.ask(send(here, fragment, 200, count=100))
        await asyncio.sleep(0.05)
        delivered: Counter[int] = Counter()
        for effect in here.said:
            if isinstance(effect, Delivered):
                delivered[int(effect.consumer)] += len(effect.records)
        assert delivered == {2_000: 100}
        inspected = await here.ask(Inspect(fragment, here.origin, 300))
        assert isinstance(inspected, Inspected) and inspected.counts[0] == sent + 100


async def test_a_store_that_vanishes_is_made_anew_and_the_loss_is_counted() -> None:
    disks = Disks()
    async with started(disks) as here:
        view = await here.catalogue.create("r", QUEUE)
        (fragment,), (store,) = view.fragments, view.stores
        await here.ask(send(here, fragment, 1, count=7))
        here.port.submit([Demand(fragment, here.origin, 1, 0, 2, False, False)])
        await asyncio.sleep(0.02)
        here.port.submit(
            [Demand(fragment, here.origin, 2, 0, 50, False, False), Leave(fragment, here.origin, 1)]
        )
        await asyncio.sleep(0.02)
        del disks.there[store]
        async with asyncio.timeout(5):
            while here.host(store).state is StoreState.OPEN and here.host(store).loss is None:
                await asyncio.sleep(0.002)
        here.port.submit([Leave(fragment, here.origin, 3)])
        async with asyncio.timeout(5):
            while here.host(store).loss is None or here.stores.unavailable():
                await asyncio.sleep(0.002)
        (shown,) = [shown for shown in await here.port.stores() if shown.name == store]
        assert shown.lost_messages == 7 and shown.lost_at and shown.state == "open"
        here.said.clear()
        sent = await here.ask(send(here, fragment, 2))
        assert isinstance(sent, Sent) and sent.numbers == [8], "numbers go on"
        async with asyncio.timeout(5):
            while not [e for e in here.said if isinstance(e, Delivered) and e.consumer == 2]:
                await asyncio.sleep(0.002)
    async with started(disks) as here:
        assert not here.stores.unavailable(), "the new store is known"


async def test_numbers_go_on_wherever_the_process_dies_while_a_store_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Targets of its moves keep the numbers that they have taken: a message with a number of before would be lost."""
    monkeypatch.setattr(fragment_loading, "FRAGMENTS_AT_ONCE", 1)
    disks = Disks()
    snapshots: list[tuple[dict[str, Disk], CatalogueContent | None]] = []

    def snapshot() -> None:
        snapshots.append(
            ({name: copy_of(disk) for name, disk in disks.there.items()}, disks.catalogue.content)
        )

    async with started(disks) as here:
        views = [await here.catalogue.create(name, PARTITIONED) for name in ("p", "q")]
        mine = {
            fragment
            for view in views
            for fragment, store in zip(view.fragments, view.stores, strict=True)
            if store == "store-1"
        }
        for request, fragment in enumerate(sorted(mine), 1):
            await here.ask(send(here, fragment, request, count=7))
        disks.written = disks.catalogue.written = snapshot
        del disks.there["store-1"]
        async with asyncio.timeout(5):
            while here.host("store-1").loss is None or here.stores.unavailable():
                await asyncio.sleep(0.002)
        disks.written = None
    assert len(snapshots) > len(mine), "each fragment was a commit of its own"
    for number, (there, content) in enumerate(snapshots):
        found = Disks()
        found.there, found.catalogue.content = there, content
        async with started(found) as here:
            if here.stores.unavailable():
                await here.port.change_store("store-1", "reset")
            for request, fragment in enumerate(sorted(mine), 1):
                sent = await here.ask(send(here, fragment, request))
                assert isinstance(sent, Sent) and sent.numbers[0] > 7, f"{fragment} after write {number}"


async def test_a_store_that_was_made_anew_is_admitted_although_the_first_attempt_failed() -> None:
    disks = Disks()
    async with started(disks) as here:
        view = await here.catalogue.create("r", QUEUE)
        (fragment,), (store,) = view.fragments, view.stores
        await here.ask(send(here, fragment, 1, count=7))
        disks.failing.add(store)
        del disks.there[store]
        async with asyncio.timeout(5):
            while here.host(store).loss is None or here.stores.unavailable():
                await asyncio.sleep(0.002)
        assert not disks.failing, "its definitions could not be written at first"
        sent = await here.ask(send(here, fragment, 2))
        assert isinstance(sent, Sent) and sent.numbers == [8]
    async with started(disks) as here:
        assert not here.stores.unavailable(), "the new store is known"


async def test_a_store_that_another_owner_changed_is_read_anew() -> None:
    disks = Disks()
    async with started(disks) as here:
        view = await here.catalogue.create("r", QUEUE)
        (fragment,), (store,) = view.fragments, view.stores
        await here.ask(send(here, fragment, 1, count=3))
        await here.port.change_store(store, "offline")
        async with started(disks) as other:
            assert isinstance(await other.ask(send(other, fragment, 1, count=4)), Sent)
        await here.port.change_store(store, "online")
        inspected = await here.ask(Inspect(fragment, here.origin, 9))
        assert isinstance(inspected, Inspected) and inspected.counts[0] == 7


async def test_locks_that_rest_on_what_is_not_durable_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end came before a commit did: its fragment's locks are not written down, the others' are."""
    disks = Disks()
    async with started(disks, ["store-0"]) as here:
        views = [await here.catalogue.create(name, QUEUE) for name in ("a", "b")]
        for request, view in enumerate(views, 1):
            (fragment,) = view.fragments
            await here.ask(send(here, fragment, request, count=2))
            here.port.submit([Demand(fragment, here.origin, 1, 0, 1, False, False)])
        await asyncio.sleep(0.02)
        slot = here.host("store-0").commit_loop.slots[views[0].fragments[0]]
        slot.dirty = True  # as it is when draining has taken too long
    kept = {view.path: disks.there["store-0"].fragments[view.fragments[0]].locks for view in views}
    assert kept["a"] == [] and len(kept["b"]) == 1
