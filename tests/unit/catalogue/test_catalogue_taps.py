"""Taps in the catalogue: kept with their entity, ids given once, the settings of fragments, and who owns one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from busbar.catalogue.definition import decode_definition, encode_definition
from busbar.model.api import EntityView
from busbar.model.entities import QueueDescription, TopicDescription
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    ServerBusy,
    TapNotFound,
    TapOwned,
)
from busbar.model.limits import Limits
from busbar.model.message import ACTIVE, DEAD
from busbar.model.settings import EARLIEST, LATEST, TapSettings
from busbar.model.taps import TapChange, TapDescription
from tests.unit.broker.namespaces import Disks, Namespace, started


async def queue_of(here: Namespace, path: str = "q", **properties: Any) -> EntityView:
    return await here.catalogue.create(path, QueueDescription(**properties))


def names(view: EntityView) -> list[str]:
    return [tap.name for tap in view.taps]


def settings_in(here: Namespace, view: EntityView) -> list[list[TapSettings]]:
    """What each fragment of the entity was told of its taps."""
    return [
        here.catalogue._fragments_in(store)[fragment].taps
        for fragment, store in zip(view.fragments, view.stores, strict=True)
    ]


async def test_taps_survive_a_restart_and_an_update_of_their_entity() -> None:
    disks = Disks()
    async with started(disks) as here:
        await queue_of(here)
        asked = TapDescription("Archive", events=True, from_earliest=True, owner="me", max_age=5, max_size=6)
        made = await here.catalogue.create_tap("Q", asked)
        (tap,) = made.taps
        assert tap == replace(asked, id=tap.id, created=tap.created) and tap.id and tap.created
        updated = await here.catalogue.update("q", QueueDescription(lock_duration=30_000))
        assert updated.taps == made.taps
    async with started(disks) as here:
        assert here.catalogue.find("q").taps == made.taps


async def test_ids_are_given_once() -> None:
    disks = Disks()
    async with started(disks) as here:
        await queue_of(here)
        await queue_of(here, "other")
        first = (await here.catalogue.create_tap("q", TapDescription("a", id=77))).taps[0].id
        second = (await here.catalogue.create_tap("other", TapDescription("a"))).taps[0].id
        await here.catalogue.change_tap("q", "a", False, TapChange(delete=True))
        await here.catalogue.delete("other")
    async with started(disks) as here:
        third = (await here.catalogue.create_tap("q", TapDescription("a"))).taps[0].id
    assert len({first, second, third}) == 3 and third > second > first


async def test_every_fragment_is_told() -> None:
    async with started(Disks()) as here:
        await queue_of(here, enable_partitioning=True)
        await here.catalogue.create_tap("q", TapDescription("main", lease=9))
        view = await here.catalogue.create_tap(
            "q", TapDescription("main", dead_letter=True, from_earliest=True)
        )
        for taps in settings_in(here, view):
            assert [(tap.id, tap.name, tap.sub, tap.start, tap.lease_ms) for tap in taps] == [
                (view.taps[0].id, "main", ACTIVE, LATEST, 9),
                (view.taps[1].id, "main", DEAD, EARLIEST, 300_000),
            ]
        view = await here.catalogue.change_tap("q", "MAIN", False, TapChange(delete=True))
        assert [[tap.sub for tap in taps] for taps in settings_in(here, view)] == [[DEAD]] * 16


async def test_watchers_hear_of_taps_and_a_change_that_changes_nothing_is_none() -> None:
    heard: list[EntityView | None] = []
    async with started(Disks()) as here:
        before = await queue_of(here)
        here.catalogue.watch(lambda path, view: heard.append(view))
        made = await here.catalogue.create_tap("q", TapDescription("a", owner="me"))
        assert await here.catalogue.change_tap("q", "a", False, TapChange(owner="me")) == made
        assert heard == [made] and made.updated == before.updated


async def test_a_tap_has_one_owner() -> None:
    async with started(Disks()) as here:
        await queue_of(here)
        await here.catalogue.create_tap("q", TapDescription("a"))
        taken = await here.catalogue.change_tap("q", "a", False, TapChange(owner="one"))
        assert taken.taps[0].owner == "one"
        with pytest.raises(TapOwned, match="'one', not to 'two'"):
            await here.catalogue.change_tap("q", "a", False, TapChange(owner="two"))
        forced = await here.catalogue.change_tap("q", "a", False, TapChange(owner="two", take_over=True))
        assert forced.taps[0].owner == "two"


async def test_a_tap_that_consumes_is_alone_and_begins_at_the_beginning() -> None:
    async with started(Disks()) as here:
        await queue_of(here)
        view = await here.catalogue.create_tap("q", TapDescription("eater", consumes=True))
        assert view.taps[0].from_earliest
        with pytest.raises(InvalidOperation, match="eater"):
            await here.catalogue.create_tap("q", TapDescription("second", consumes=True))
        with pytest.raises(InvalidOperation, match="dead-letter"):
            await here.catalogue.create_tap("q", TapDescription("dead", dead_letter=True, consumes=True))
        assert names(await here.catalogue.create_tap("q", TapDescription("watcher"))) == ["eater", "watcher"]


@pytest.mark.parametrize(
    ("tap", "error"),
    [
        (TapDescription(""), ArgumentOutOfRange),
        (TapDescription("a b"), ArgumentError),
        (TapDescription("x" * 51), ArgumentOutOfRange),
        (TapDescription("t", max_age=-1), ArgumentOutOfRange),
        (TapDescription("t", max_size=-1), ArgumentOutOfRange),
        (TapDescription("t", lease=0), ArgumentOutOfRange),
        (TapDescription("t", owner="x" * 1025), ArgumentOutOfRange),
        (TapDescription("OLD"), EntityAlreadyExists),
    ],
)
async def test_what_is_no_tap_is_refused(tap: TapDescription, error: type[Exception]) -> None:
    async with started(Disks()) as here:
        await queue_of(here)
        before = await here.catalogue.create_tap("q", TapDescription("old"))
        with pytest.raises(error):
            await here.catalogue.create_tap("q", tap)
        assert here.catalogue.find("q") == before


async def test_a_queue_has_so_many_taps() -> None:
    async with started(Disks()) as here:
        await queue_of(here)
        most = Limits().max_taps
        for index in range(most):
            await here.catalogue.create_tap("q", TapDescription(f"t{index}", dead_letter=index % 2 == 1))
        with pytest.raises(QuotaExceeded, match=f"{most} taps"):
            await here.catalogue.create_tap("q", TapDescription("more"))


async def test_what_is_not_there() -> None:
    async with started(Disks()) as here:
        await queue_of(here)
        await here.catalogue.create("t", TopicDescription())
        await here.catalogue.create_tap("q", TapDescription("a"))
        with pytest.raises(EntityNotFound):
            await here.catalogue.create_tap("nothing", TapDescription("a"))
        with pytest.raises(InvalidOperation, match="neither a queue nor"):
            await here.catalogue.create_tap("t", TapDescription("a"))
        with pytest.raises(TapNotFound, match="no tap 'b'"):
            await here.catalogue.change_tap("q", "b", False, TapChange(delete=True))
        with pytest.raises(TapNotFound):  # that one is on the queue, not on its dead-letter queue
            await here.catalogue.change_tap("q", "a", True, TapChange(delete=True))


async def test_a_queue_made_anew_has_no_taps() -> None:
    async with started(Disks()) as here:
        await queue_of(here)
        await here.catalogue.create_tap("q", TapDescription("a"))
        await here.catalogue.delete("q")
        assert (await queue_of(here)).taps == ()


async def test_a_change_needs_the_stores_of_the_entity() -> None:
    async with started(Disks()) as here:
        await queue_of(here, enable_partitioning=True)
        before = await here.catalogue.create_tap("q", TapDescription("a", owner="me"))
        await here.stores.change("store-1", "offline")
        with pytest.raises(ServerBusy, match="store-1"):
            await here.catalogue.create_tap("q", TapDescription("b"))
        assert here.catalogue.find("q") == before
        assert await here.catalogue.change_tap("q", "a", False, TapChange(owner="me")) == before


def test_older_definitions_have_none() -> None:
    view = EntityView("q", QueueDescription(), (1,), 5, 5, ("store-0",))
    encoded = encode_definition(view)
    assert decode_definition(encoded.replace(b',"taps":[]', b"")) == view
    assert b"taps" in encoded
