"""Several stores: where fragments go, how the catalogue stays whole, and what a store that is unavailable does to whom."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from busbar.broker import fragment_loading
from busbar.broker.host_api import StoreState
from busbar.catalogue import catalogue
from busbar.catalogue.definition import encode_definition
from busbar.catalogue.placement import place
from busbar.catalogue.store_definitions import decode_entry, encode_entry
from busbar.model.api import EntityView
from busbar.model.commands import Demand, Inspect, Leave, Send
from busbar.model.effects import Delivered, Drained, Inspected, Refused, Sent
from busbar.model.entities import QueueDescription, SubscriptionDescription, TopicDescription
from busbar.model.errors import ArgumentError, EntityNotFound, InvalidOperation, ServerBusy
from busbar.store.catalogue_contract import CatalogueContent, VersionedEntry
from busbar.store.contract import StoreError
from harness.memory_fragment import MemoryFragment
from harness.memory_store import Disk, Fault
from tests.unit.broker.hosting import draft
from tests.unit.broker.namespaces import NAMES, Disks, Namespace, quick_pauses, started

QUEUE = QueueDescription()
PARTITIONED = QueueDescription(enable_partitioning=True)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    quick_pauses(monkeypatch)
    yield


def send(here: Namespace, fragment: int, request: int, count: int = 1) -> Send:
    return Send(fragment, here.origin, request, [draft()] * count, True)


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


async def a_namespace() -> Disks:
    disks = Disks()
    async with started(disks) as here:
        await here.catalogue.create("q", PARTITIONED)
    return disks


async def test_a_store_of_another_namespace_is_kept_out() -> None:
    disks, others = await a_namespace(), await a_namespace()
    disks.there["store-2"] = others.there["store-2"]
    await two_stores_kept_out(disks, "store-2", "another namespace")


async def test_a_store_that_is_missing_or_damaged_is_out_and_comes_back() -> None:
    disks = await a_namespace()
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
    disks = await a_namespace()
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
    disks = await a_namespace()
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


# ---- the catalogue ----


def test_entries_say_their_version() -> None:
    for entry in (
        VersionedEntry(0, b"{}"),
        VersionedEntry(12, b""),
        VersionedEntry(12, b"=v1-"),
        VersionedEntry(1 << 60, None),
    ):
        assert decode_entry(encode_entry(entry)) == entry
    assert decode_entry(b'{"kind":"queue"}') == VersionedEntry(0, b'{"kind":"queue"}')
    assert decode_entry(b"") == VersionedEntry(0, b"")
    with pytest.raises(StoreError):
        decode_entry(b"vague")


async def test_a_creation_needs_the_stores_of_its_fragments_and_nothing_else_needs_a_store() -> None:
    disks = Disks()
    async with started(disks) as here:
        first = await here.catalogue.create("p", PARTITIONED)
        regular = {(await here.catalogue.create(f"r{n}", QUEUE)).stores[0]: f"r{n}" for n in range(40)}
        (gone,) = here.catalogue.find(regular["store-2"]).fragments
        assert isinstance(await here.ask(send(here, gone, 1)), Sent)
        await here.port.change_store("store-2", "offline")
        with pytest.raises(ServerBusy, match="store-2 is unavailable, which has to hold a part of it"):
            await here.catalogue.create("new", PARTITIONED)
        with pytest.raises(EntityNotFound):
            here.catalogue.find("new")
        await here.catalogue.update("p", QueueDescription(enable_partitioning=True, max_delivery_count=3))
        await here.catalogue.delete(regular["store-2"])
        for name in NAMES[:2] + NAMES[3:]:
            await here.port.change_store(name, "offline")
        await here.catalogue.delete(regular["store-0"])
        with pytest.raises(ServerBusy):
            await here.catalogue.create("nowhere", QUEUE)
        for name in NAMES:
            assert (await here.port.change_store(name, "online")).state == "open"
        async with asyncio.timeout(5):
            while gone in disks.there["store-2"].fragments:
                await asyncio.sleep(0.002)
        for fragment, store in zip(first.fragments, first.stores, strict=True):
            settings = here.host(store).commit_loop.slots[fragment].machine.settings
            assert settings.max_deliveries == 3, "also in the store that was unavailable"
        await here.catalogue.create("new", PARTITIONED)
        await here.catalogue.delete("p")
    async with started(disks) as here:
        for path in ("p", regular["store-2"], regular["store-0"]):
            with pytest.raises(EntityNotFound):
                here.catalogue.find(path)
        assert here.catalogue.find("new").stores


async def test_a_regular_entity_is_created_in_a_store_that_is_there() -> None:
    async with started(Disks()) as here:
        await here.port.change_store("store-2", "offline")
        names = [f"r{number}" for number in range(12)]
        made = [await here.catalogue.create(name, QUEUE) for name in names]
        placed = [place(name, 1, NAMES) for name in names]
        assert ("store-2",) in placed and all(view.stores != ("store-2",) for view in made)
        for view, expected in zip(made, placed, strict=True):
            assert view.stores == expected or expected == ("store-2",), "others stay where they would be"
        for request, view in enumerate(made, 1):
            assert isinstance(await here.ask(send(here, view.fragments[0], request)), Sent)


async def test_a_deleted_fragment_of_a_store_that_is_back_does_nothing_any_more() -> None:
    """It was deleted while its store was unavailable. Until it is emptied, it would forward what it has."""
    disks = Disks()
    async with started(disks) as here:
        source = await here.catalogue.create("source", QUEUE)
        (store,) = source.stores
        target = next(f"t{n}" for n in range(20) if place(f"t{n}", 1, NAMES) != (store,))
        await here.catalogue.create(target, QUEUE)
        await here.ask(send(here, source.fragments[0], 1, count=5))
        await here.port.change_store(store, "offline")
        await here.catalogue.update("source", QueueDescription(forward_to=target))
        await here.catalogue.delete("source")
        assert source.fragments[0] not in here.host(store).commit_loop.slots
        await here.port.change_store(store, "online")
        async with asyncio.timeout(5):
            while source.fragments[0] in disks.there[store].fragments:
                await asyncio.sleep(0.002)
        assert (await here.port.runtime(target)).active == 0


async def test_a_creation_that_fails_in_one_of_its_stores_is_taken_back() -> None:
    disks = Disks()
    async with started(disks) as here:
        disks.failing.add("store-1")
        with pytest.raises(ServerBusy, match="store-1 failed, and the change was taken back"):
            await here.catalogue.create("p", PARTITIONED)
        with pytest.raises(EntityNotFound):
            here.catalogue.find("p")
        assert disks.catalogue.value("entity/p") is None
        await here.until_open()
        async with asyncio.timeout(5):
            while any(disk.fragments for disk in disks.there.values()):
                await asyncio.sleep(0.002)
        first = (await here.catalogue.create("p", PARTITIONED)).fragments
    async with started(disks) as here:
        assert here.catalogue.find("p").fragments == first
        assert isinstance(await here.ask(Inspect(first[0], here.origin, 1)), Inspected)


async def test_a_creation_that_cannot_be_taken_back_stands_and_that_is_said() -> None:
    disks = Disks()
    async with started(disks) as here:
        disks.failing.add("store-1")
        hangs = disks.hanging["store-1"]
        hangs.begin("commit")  # of the new fragments
        creation = asyncio.create_task(here.catalogue.create("p", PARTITIONED))
        await asyncio.to_thread(hangs.reached.wait, 5)
        disks.catalogue.faults.append(Fault.FULL)
        hangs.end()
        with pytest.raises(ServerBusy) as failed:
            await creation
        assert not failed.value.certain
        await here.until_open()
        for request, fragment in enumerate(here.catalogue.find("p").fragments, 1):
            assert isinstance(await here.ask(send(here, fragment, request)), Sent)


async def test_a_deletion_stands_although_one_of_its_stores_fails() -> None:
    disks = Disks()
    async with started(disks) as here:
        first = (await here.catalogue.create("p", PARTITIONED)).fragments
        disks.failing.add("store-1")
        await here.catalogue.delete("p")
        with pytest.raises(EntityNotFound):
            here.catalogue.find("p")
        await here.until_open()
        async with asyncio.timeout(5):
            while any(disk.fragments for disk in disks.there.values()):
                await asyncio.sleep(0.002)
        second = await here.catalogue.create("p", PARTITIONED)
        assert set(first).isdisjoint(second.fragments)
    async with started(disks) as here:
        assert here.catalogue.find("p") == second
        assert disks.entry("store-1", "entity/p") is not None


async def test_a_change_that_was_cut_short_is_finished_by_the_next_start() -> None:
    """The process died when the catalogue had the change, and no store had anything of it."""
    disks = Disks()
    async with started(disks) as here:
        old = await here.catalogue.create("old", QUEUE)
        await here.ask(send(here, old.fragments[0], 1))
    before = {name: _copy(disks.there[name]) for name in NAMES}
    async with started(disks) as here:
        await here.catalogue.create("p", PARTITIONED)
        await here.catalogue.delete("old")
        found = disks.catalogue.content
    disks.there, disks.catalogue.content = before, found
    async with started(disks) as here:
        with pytest.raises(EntityNotFound):
            here.catalogue.find("old")
        for request, fragment in enumerate(here.catalogue.find("p").fragments, 1):
            assert isinstance(await here.ask(send(here, fragment, request)), Sent)
        async with asyncio.timeout(5):
            while any(old.fragments[0] in disk.fragments for disk in disks.there.values()):
                await asyncio.sleep(0.002)
    assert all((disks.entry(name, "entity/p") or b"")[:1] == b"v" for name in NAMES)


async def test_each_store_has_the_definitions_of_its_own_fragments() -> None:
    disks = Disks()

    def kept(store: str) -> set[str]:
        return {name for name in disks.there[store].definitions if name.startswith(("entity/", "emptying/"))}

    async with started(disks) as here:
        await here.catalogue.create("p", PARTITIONED)
        topic = await here.catalogue.create("t", TopicDescription())
        await here.catalogue.create("t/Subscriptions/s", SubscriptionDescription())
        (store,) = topic.stores
        subscription = {"entity/t", "entity/t/subscriptions/s", "entity/t/subscriptions/s/rules/$default"}
        for name in NAMES:
            assert kept(name) == {"entity/p"} | (subscription if name == store else set())
        await here.catalogue.delete("t/Subscriptions/s/Rules/$Default")
        assert kept(store) == {"entity/p", "entity/t", "entity/t/subscriptions/s"}
        out = next(name for name in NAMES if name != store)
        await here.port.change_store(out, "offline")
        await here.catalogue.delete("p")
        await here.catalogue.delete("t")
        assert not any(name.startswith("entity/") for name in kept(store))
        assert kept(out) == {"entity/p"}, "it is behind"
        assert (await here.port.change_store(out, "online")).state == "open"
        assert "entity/p" not in kept(out)
    async with started(disks):
        pass
    assert not any(name.startswith("entity/") for store in NAMES for name in kept(store))


async def test_definitions_that_a_full_store_did_not_get_come_with_the_next_change() -> None:
    disks = Disks()
    async with started(disks) as here:
        view = await here.catalogue.create("r", QUEUE)
        (store,) = view.stores
        old = disks.entry(store, "entity/r")
        disks.full.add(store)
        await here.catalogue.update("r", QueueDescription(max_delivery_count=3))
        assert disks.entry(store, "entity/r") == old and not here.stores.unavailable()
        assert here.host(store).commit_loop.slots[view.fragments[0]].machine.settings.max_deliveries == 3
        await here.catalogue.create("p", PARTITIONED)
        new = decode_entry(disks.entry(store, "entity/r") or b"")
        assert new.value == disks.catalogue.value("entity/r")


# ---- the home of the catalogue ----


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.UNHEARD])
async def test_an_unknown_outcome_is_found_out_at_once(fault: Fault) -> None:
    disks = Disks()
    async with started(disks) as here:
        disks.catalogue.faults.append(fault)
        if fault is Fault.LOST:
            with pytest.raises(ServerBusy, match="nothing was changed"):
                await here.catalogue.create("p", PARTITIONED)
        view = await here.catalogue.create("p", PARTITIONED)
        assert isinstance(await here.ask(send(here, view.fragments[0], 1)), Sent)
    async with started(disks) as here:
        assert here.catalogue.find("p") == view


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.UNHEARD])
async def test_an_outcome_that_stays_unknown_is_found_out_when_the_catalogue_is_back(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "RECOVERY_SECONDS", 0.01)
    disks = Disks()
    async with started(disks) as here:
        kept = await here.catalogue.create("kept", QUEUE)
        disks.catalogue.faults.append(fault)
        disks.catalogue.refusal = StoreError("unplugged")
        with pytest.raises(ServerBusy, match="may or may not") as failed:
            await here.catalogue.create("p", PARTITIONED)
        assert not failed.value.certain
        with pytest.raises(ServerBusy, match="nothing was changed"):
            await here.catalogue.delete("kept")
        assert isinstance(await here.ask(send(here, kept.fragments[0], 1)), Sent), (
            "messages need no catalogue"
        )
        disks.catalogue.refusal = None
        async with asyncio.timeout(5):
            while here.catalogue._home.is_unknown or here.catalogue._changes.turn.locked():
                await asyncio.sleep(0.002)
        if fault is Fault.LOST:
            await here.catalogue.create("p", PARTITIONED)
        found = here.catalogue.find("p")
        assert isinstance(await here.ask(send(here, found.fragments[1], 2)), Sent)
        await here.catalogue.delete("kept")
    async with started(disks) as here:
        assert here.catalogue.find("p") == found


async def test_another_writer_stops_this_one() -> None:
    disks = Disks()
    async with started(disks) as here:
        fenced = asyncio.Event()
        here.catalogue._home._fenced = fenced.set
        await here.catalogue.create("q", QUEUE)
        disks.catalogue.location.open().claim()
        with pytest.raises(ServerBusy):
            await here.catalogue.delete("q")
        assert fenced.is_set() and disks.catalogue.value("entity/q") is not None


async def test_a_lost_catalogue_is_named_and_nothing_is_made_in_its_place() -> None:
    disks = await a_namespace()
    disks.catalogue.content = None
    rows = {name: dict(disks.there[name].definitions) for name in NAMES}
    with pytest.raises(StoreError, match=r"is missing, although store-0 .*`busbar catalogue rebuild`"):
        async with started(disks):
            pass
    assert disks.catalogue.content is None
    assert rows == {name: dict(disks.there[name].definitions) for name in NAMES}
    disks.catalogue.content = CatalogueContent("other")
    disks.catalogue.refusal = StoreError("it is damaged")
    with pytest.raises(StoreError, match=r"the catalogue cannot be used: it is damaged.*rebuild"):
        async with started(disks):
            pass


async def test_what_is_created_together_is_one_write() -> None:
    disks = Disks()
    async with started(disks) as here:
        commits = [disks.there[name].commits for name in NAMES]
        async with here.catalogue.batch() as plan:
            for number in range(50):
                plan.create(f"q{number}", QUEUE)
            with pytest.raises(EntityNotFound):
                here.catalogue.find("q7")
        assert all(disks.there[name].commits <= commits[i] + 1 for i, name in enumerate(NAMES))
        assert isinstance(await here.ask(send(here, here.catalogue.find("q7").fragments[0], 1)), Sent)
    async with started(disks) as here:
        assert len(here.catalogue) == 50


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
        snapshots.append(({name: _copy(disk) for name, disk in disks.there.items()}, disks.catalogue.content))

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


def _copy(disk: Disk) -> Disk:
    """The disk as it is now, if all its fragments are empty."""
    heads = {key: fragment.head.copy() for key, fragment in disk.fragments.items()}
    return Disk(
        {key: MemoryFragment(head) for key, head in heads.items()}, dict(disk.definitions), disk.epoch
    )


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
