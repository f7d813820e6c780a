"""The catalogue: names, persistence, what may change, and fragment ids that are never given twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from busbar.broker.store_host import LocalStoreHost
from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.definition import decode_definition, encode_definition
from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.store_set import StoreSet
from busbar.model.api import EntityView
from busbar.model.effects import Effect, Refused, Sent
from busbar.model.entities import (
    EntityStatus,
    QueueDescription,
    Tier,
    TopicDescription,
)
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
)
from busbar.model.limits import Limits
from busbar.store.contract import Store
from busbar.store.sqlite.catalogue import catalogue_in
from busbar.store.sqlite.store import SqliteStore
from harness.memory_catalogue import CatalogueDisk
from harness.memory_store import Disk, MemoryStore
from tests.unit.broker.hosting import clock, send

TOPIC = TopicDescription(user_metadata="news")


class Namespace:
    def __init__(self, host: LocalStoreHost, catalogue: Catalogue, said: list[Effect]) -> None:
        self.host = host
        self.catalogue = catalogue
        self.said = said

    async def answer(self, request: int) -> Effect:
        await self.host.drain(5)
        return next(effect for effect in self.said if effect.request == request)


@asynccontextmanager
async def namespace(
    path: Path,
    limits: Limits | None = None,
    tier: Tier = Tier.STANDARD,
    disk: Disk | None = None,
    catalogue_disk: CatalogueDisk | None = None,
) -> AsyncIterator[Namespace]:
    """A namespace in a file of the directory, or in memory if a disk is given."""
    said: list[Effect] = []

    def factory() -> Store:
        return SqliteStore(path / "s.db") if disk is None else MemoryStore(disk)

    loop = asyncio.get_running_loop()
    host = LocalStoreHost("test", factory, loop, clock, lambda: 1, said.extend)
    await host.open()
    place = catalogue_in(path) if disk is None else (catalogue_disk or CatalogueDisk()).location
    home = CatalogueHome(place, loop)
    catalogue = Catalogue(StoreSet([host]), home, limits or Limits(), tier)
    await catalogue.load()
    try:
        yield Namespace(host, catalogue, said)
    finally:
        await catalogue.close()
        await host.close()


async def test_entities_survive_a_restart_with_their_spelling_and_messages(tmp_path: Path) -> None:
    queue = QueueDescription(lock_duration=30_000, user_metadata="mine", status=EntityStatus.SEND_DISABLED)
    async with namespace(tmp_path) as here:
        await here.catalogue.create("Team/Orders", queue)
        await here.catalogue.create("events", TOPIC)
        await here.catalogue.create("plain", QueueDescription())
        here.host.submit([send(here.catalogue.find("PLAIN").fragments[0], 1, count=3)])
        assert isinstance(await here.answer(1), Sent)
    async with namespace(tmp_path) as here:
        found = here.catalogue.find("tEAM/oRDERS")
        assert (found.path, found.description) == ("Team/Orders", queue)
        assert here.catalogue.find("events").description == TOPIC
        assert [view.path for view in here.catalogue.entities()] == ["events", "plain", "Team/Orders"]
        here.host.submit([send(here.catalogue.find("plain").fragments[0], 2)])
        sent = await here.answer(2)
        assert isinstance(sent, Sent)
        assert sent.numbers == [4]
        here.host.submit([send(found.fragments[0], 3)])
        assert isinstance(await here.answer(3), Refused), "its settings came back too"


async def test_a_fragment_id_is_never_given_twice(tmp_path: Path) -> None:
    async with namespace(tmp_path) as here:
        first = (await here.catalogue.create("a", QueueDescription())).fragments
        here.host.submit([send(first[0], 1, count=10)])
        await here.answer(1)
        await here.catalogue.delete("A")
        second = (await here.catalogue.create("a", QueueDescription())).fragments
        assert set(first).isdisjoint(second)
        await here.catalogue.delete("a")
    async with namespace(tmp_path) as here:
        third = (await here.catalogue.create("a", QueueDescription())).fragments
        assert set(third).isdisjoint((*first, *second))


async def test_a_deletion_that_was_interrupted_is_finished_by_the_next_start(tmp_path: Path) -> None:
    async with namespace(tmp_path) as here:
        (fragment,) = (await here.catalogue.create("a", QueueDescription())).fragments
        here.host.submit([send(fragment, 1, count=10)])
        await here.answer(1)
        await here.catalogue.delete("a")
        await here.catalogue.close()  # at once: nothing was emptied yet
    async with namespace(tmp_path) as here:
        with pytest.raises(EntityNotFound):
            here.catalogue.find("a")
        for _ in range(200):
            heads = await here.host.on_store(lambda store: store.heads())
            if not any(head.fragment == fragment for head in heads):
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("the messages of the deleted queue are still there")


async def test_a_partitioned_queue_has_sixteen_fragments(tmp_path: Path) -> None:
    async with namespace(tmp_path) as here:
        view = await here.catalogue.create("p", QueueDescription(enable_partitioning=True))
        assert len(set(view.fragments)) == 16


async def test_an_update_is_in_force_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with namespace(tmp_path) as here:
        (fragment,) = (await here.catalogue.create("q", QueueDescription())).fragments
        await here.catalogue.update("Q", QueueDescription(status=EntityStatus.DISABLED))
        here.host.submit([send(fragment, 1)])
        assert isinstance(await here.answer(1), Refused)
    async with namespace(tmp_path) as here:
        assert here.catalogue.find("q").description == QueueDescription(status=EntityStatus.DISABLED)
        assert here.catalogue.find("q").path == "q"


@pytest.mark.parametrize("name", ["requires_session", "requires_duplicate_detection", "enable_partitioning"])
async def test_what_creation_decided_cannot_be_changed(tmp_path: Path, name: str) -> None:
    async with namespace(tmp_path) as here:
        await here.catalogue.create("q", QueueDescription())
        changed = QueueDescription(**{name: True})  # type: ignore[arg-type]  # all three are flags
        words = name.title().replace("_", "") + " is false since its creation"
        with pytest.raises(ArgumentError, match=words):
            await here.catalogue.update("q", changed)
        with pytest.raises(InvalidOperation, match="another kind"):
            await here.catalogue.update("q", TopicDescription())


async def test_rules_are_checked_and_named(tmp_path: Path) -> None:
    async with namespace(tmp_path, Limits(max_entities=1)) as here:
        with pytest.raises(EntityNotFound, match="'nothing' could not be found"):
            here.catalogue.find("nothing")
        with pytest.raises(ArgumentError):
            await here.catalogue.create("a b", QueueDescription())
        with pytest.raises(ArgumentOutOfRange, match="LockDuration"):
            await here.catalogue.create("a", QueueDescription(lock_duration=1))
        await here.catalogue.create("a", TOPIC)
        with pytest.raises(EntityAlreadyExists):
            await here.catalogue.create("A", QueueDescription())
        with pytest.raises(QuotaExceeded):
            await here.catalogue.create("b", QueueDescription())


def test_a_definition_of_another_version_can_be_read() -> None:
    view = EntityView("q", QueueDescription(), (1,))
    assert decode_definition(encode_definition(view)) == view
    newer = encode_definition(view).replace(b'"lock_duration":60000', b'"from_the_future":1')
    assert decode_definition(newer) == view, "unknown fields are ignored, missing ones have their defaults"
