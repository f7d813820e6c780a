"""Stores of the version that had the catalogue in all of them: what becomes of it, wherever the first start is cut short."""

from __future__ import annotations

import asyncio

import pytest

from busbar.catalogue.membership import IDENTITY
from busbar.catalogue.store_definitions import AS_OF, encode_entry
from busbar.model.commands import Send
from busbar.model.effects import Sent
from busbar.model.entities import QueueDescription, SubscriptionDescription, TopicDescription
from busbar.model.errors import EntityNotFound
from busbar.store.catalogue_contract import CatalogueContent, VersionedEntry
from busbar.store.contract import StoreError
from harness.memory_fragment import MemoryFragment
from harness.memory_store import Disk
from tests.unit.broker.hosting import draft
from tests.unit.broker.namespaces import NAMES, Disks, started

PARTITIONED = QueueDescription(enable_partitioning=True)


async def old_disks() -> Disks:
    """A namespace as a version without a home of the catalogue left it: a copy in each store."""
    disks = Disks()
    async with started(disks) as here:
        await here.catalogue.create("p", PARTITIONED)
        await here.catalogue.create("t", TopicDescription())
        await here.catalogue.create("t/Subscriptions/s", SubscriptionDescription())
        await here.catalogue.create("gone", PARTITIONED)
        await here.catalogue.delete("gone")
        async with asyncio.timeout(5):
            while here.catalogue._purger._waiting:
                await asyncio.sleep(0.002)
    content = disks.catalogue.content
    assert content is not None
    copy = {name: encode_entry(entry) for name, entry in content.entries.items()}
    copy["entity/gone"] = encode_entry(VersionedEntry(content.version, None))
    copy["term"] = encode_entry(VersionedEntry(1, b""))
    for disk in disks.there.values():
        disk.definitions = {IDENTITY: disk.definitions[IDENTITY], **copy}
    disks.catalogue.content = None
    return disks


def copied(disks: Disks) -> dict[str, Disk]:
    """The disks as they are now; all their fragments are empty."""
    return {
        name: Disk(
            {key: MemoryFragment(one.head.copy()) for key, one in disk.fragments.items()},
            dict(disk.definitions),
            disk.epoch,
        )
        for name, disk in disks.there.items()
    }


async def is_whole(disks: Disks) -> None:
    async with started(disks) as here:
        assert [view.path for view in here.catalogue.entities()] == ["p", "t", "t/Subscriptions/s"]
        assert len(here.catalogue) == 4 and not here.stores.unavailable() and not here.catalogue.notes
        for request, fragment in enumerate(here.catalogue.find("p").fragments, 1):
            assert isinstance(await here.ask(Send(fragment, here.origin, request, [draft()], True)), Sent)
        made = await here.catalogue.create("new", PARTITIONED)
        assert min(made.fragments) > 34, "ids of before are not given again"


async def test_the_copies_become_the_catalogue_wherever_the_start_is_cut_short() -> None:
    disks = await old_disks()
    points: list[tuple[dict[str, Disk], CatalogueContent | None]] = [(copied(disks), None)]

    def note() -> None:
        points.append((copied(disks), disks.catalogue.content))

    disks.written = disks.catalogue.written = note
    async with started(disks) as here:
        assert len(here.catalogue) == 4
    disks.written = None
    assert len(points) > 4, "at least the catalogue and each store were written"
    assert any(
        content is not None and not any(AS_OF in d.definitions for d in there.values())
        for there, content in points
    )
    for there, content in points:
        found = Disks()
        found.there, found.catalogue.content = there, content
        await is_whole(found)
    for name in NAMES:
        rows = disks.there[name].definitions
        assert AS_OF in rows and "term" not in rows and "entity/gone" not in rows


async def test_the_newest_of_a_majority_counts() -> None:
    disks = await old_disks()
    newer = encode_entry(VersionedEntry(1 << 40, None))
    disks.there["store-2"].definitions["entity/p"] = newer
    async with started(disks) as here:
        with pytest.raises(EntityNotFound):
            here.catalogue.find("p")
        await here.catalogue.create("p", PARTITIONED)
    assert disks.catalogue.content is not None and disks.catalogue.content.version > 1 << 40


@pytest.mark.parametrize("there", [1, 2, 3])
async def test_a_majority_has_to_be_there(there: int) -> None:
    disks = await old_disks()
    for name in NAMES[there:]:
        disks.refusing[name] = "it is damaged"
    if there < 3:
        with pytest.raises(StoreError, match=rf"only {there} of 4 stores.*store-3: it is damaged.*rebuild"):
            async with started(disks):
                pass
        assert disks.catalogue.content is None
        disks.refusing.clear()
        await is_whole(disks)
    else:
        async with started(disks) as here:
            assert here.stores.unavailable() == {"store-3"}
            del disks.refusing["store-3"]
            await here.until_open()
        assert "term" not in disks.there["store-3"].definitions


async def test_a_store_that_cannot_be_opened_may_have_been_served() -> None:
    """The others are new: it is not known whether there was a namespace."""
    disks = await old_disks()
    for name in NAMES[1:]:
        disks.there[name] = Disk()
    disks.refusing["store-0"] = "it is damaged"
    with pytest.raises(StoreError, match=r"no catalogue .* store-0 cannot be opened: it is damaged"):
        async with started(disks):
            pass
    assert disks.catalogue.content is None
