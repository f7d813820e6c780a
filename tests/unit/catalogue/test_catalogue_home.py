"""The home of the catalogue: outcomes that are unknown, other writers, a lost file."""

from __future__ import annotations

import asyncio

import pytest

from busbar.catalogue import catalogue
from busbar.model.effects import Sent
from busbar.model.errors import EntityNotFound, ServerBusy
from busbar.store.catalogue_contract import CatalogueContent
from busbar.store.contract import StoreError
from harness.memory_store import Fault
from tests.unit.broker.namespaces import NAMES, Disks, started
from tests.unit.catalogue.several_stores import PARTITIONED, QUEUE, partitioned_disks, send

pytestmark = pytest.mark.usefixtures("short_pauses")


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
    disks = await partitioned_disks()
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
