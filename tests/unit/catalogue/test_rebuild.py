"""A catalogue that is made from the definitions in the stores: what counts, and what is missing."""

from __future__ import annotations

import asyncio

import pytest

from busbar.catalogue.change import FRAGMENT_COUNTER
from busbar.catalogue.membership import StoreRows, read_rows
from busbar.catalogue.rebuild import RebuildReport, rebuild
from busbar.catalogue.store_definitions import encode_entry
from busbar.model.access import AccessAction, AccessChange
from busbar.model.commands import Send
from busbar.model.effects import Sent
from busbar.model.entities import (
    AuthorizationRule,
    NamespaceDescription,
    QueueDescription,
    Right,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.errors import EntityNotFound
from busbar.model.names import NAMESPACE_ENTRY
from busbar.store.catalogue_contract import VersionedEntry
from busbar.store.contract import StoreError
from tests.unit.broker.hosting import draft
from tests.unit.broker.namespaces import NAMES, Disks, Namespace, started

QUEUE = QueueDescription()
PARTITIONED = QueueDescription(enable_partitioning=True)


def rebuilt(disks: Disks, *without: str) -> RebuildReport:
    """Lose the catalogue, and make it again from the stores."""
    found: dict[str, StoreRows] = {}
    fragments: dict[str, dict[int, int]] = {}
    for name, disk in disks.there.items():
        if name not in without:
            found[name] = read_rows((dict(disk.definitions), max(disk.fragments, default=0)))
            fragments[name] = {key: sum(one.head.counts) for key, one in disk.fragments.items()}
    disks.catalogue.content, report = rebuild(found, fragments)
    return report


async def filled(here: Namespace) -> None:
    await here.catalogue.create("p", PARTITIONED)
    await here.catalogue.create("t", TopicDescription())
    await here.catalogue.create("t/Subscriptions/s", SubscriptionDescription())
    for number in range(8):
        await here.catalogue.create(f"r{number}", QUEUE)


async def test_all_is_there_again_and_numbers_go_on() -> None:
    disks = Disks()
    async with started(disks) as here:
        await filled(here)
        await here.catalogue.update("r1", QueueDescription(max_delivery_count=3))
        gone = await here.catalogue.create("gone", PARTITIONED)
        await here.catalogue.delete("gone")
        views = here.catalogue.entities()
        before = disks.catalogue.content
    report = rebuilt(disks)
    assert report.stores == NAMES and not (report.missing or report.ignored or report.limited)
    assert report.entities == [view.path for view in views]
    after = disks.catalogue.content
    assert before is not None and after is not None and after.namespace == before.namespace
    assert {k: v.value for k, v in after.entries.items() if k.startswith("entity/")} == {
        k: v.value for k, v in before.entries.items() if k.startswith("entity/")
    }
    async with started(disks) as here:
        assert here.catalogue.entities() == views and not here.catalogue.notes
        assert len(here.catalogue) == len(views) + 1, "a rule"
        made = await here.catalogue.create("new", PARTITIONED)
        assert min(made.fragments) > max(gone.fragments), "ids that were given once are not given again"


async def test_a_renewed_key_of_the_namespace_stays_renewed() -> None:
    disks = Disks()
    async with started(disks) as here:
        rule = AuthorizationRule("Root", frozenset(Right), "old", "second")
        await here.catalogue.create(NAMESPACE_ENTRY, NamespaceDescription((rule,)))
        await here.catalogue.create("q", QUEUE)
        await here.catalogue.change_access("", "Root", AccessChange(AccessAction.RENEW, renewed="primary"))
        (renewed,) = here.catalogue.authorization_rules("")
        assert renewed.primary_key != "old" and renewed.secondary_key == "second"
    assert rebuilt(disks).entities == ["q"]
    async with started(disks) as here:
        assert here.catalogue.authorization_rules("") == (renewed,)
        assert [view.path for view in here.catalogue.entities()] == ["q"]


async def test_what_was_deleted_while_a_store_was_away_stays_deleted() -> None:
    disks = Disks()
    async with started(disks) as here:
        await filled(here)
        await here.catalogue.create("q", PARTITIONED)
        await here.port.change_store("store-2", "offline")
        await here.catalogue.delete("p")
        await here.catalogue.update("q", QueueDescription(enable_partitioning=True, max_delivery_count=3))
        newest = here.catalogue.find("q")
    assert "entity/p" in disks.there["store-2"].definitions
    report = rebuilt(disks)
    assert "p" not in report.entities
    async with started(disks) as here:
        with pytest.raises(EntityNotFound):
            here.catalogue.find("p")
        assert here.catalogue.find("q") == newest


async def test_what_a_store_has_not_got_yet_was_created_all_the_same() -> None:
    disks = Disks()
    async with started(disks) as here:
        await here.catalogue.create("first", PARTITIONED)
        behind = dict(disks.there["store-1"].definitions)
        made = await here.catalogue.create("p", PARTITIONED)
    disks.there["store-1"].definitions = behind
    assert rebuilt(disks).entities == ["first", "p"]
    async with started(disks) as here:
        assert here.catalogue.find("p") == made


async def test_a_missing_store_is_named_with_what_is_missing_of_entities() -> None:
    disks = Disks()
    async with started(disks) as here:
        await filled(here)
        lost = {view.path for view in here.catalogue.entities() if view.stores == ("store-3",)}
        rest = {view.path for view in here.catalogue.entities()} - lost
    report = rebuilt(disks, "store-3")
    assert lost and set(report.entities) == rest
    assert report.missing == ["store-3"] and report.limited == ["p"]
    async with started(disks) as here:
        assert {view.path for view in here.catalogue.entities()} == rest, "its own are in the store alone"


async def test_messages_of_no_entity_are_named_and_stay() -> None:
    disks = Disks()
    async with started(disks) as here:
        view = await here.catalogue.create("r", QUEUE)
        (store,), (fragment,) = view.stores, view.fragments
        assert isinstance(await here.ask(Send(fragment, here.origin, 1, [draft()], True)), Sent)
    del disks.there[store].definitions["entity/r"]
    report = rebuilt(disks)
    assert report.entities == [] and report.unknown_fragments == {store: [fragment]}
    async with started(disks) as here:
        assert min((await here.catalogue.create("p", PARTITIONED)).fragments) > fragment
        assert fragment in disks.there[store].fragments


async def test_a_deleted_fragment_that_was_not_emptied_is_emptied_then() -> None:
    disks = Disks()
    async with started(disks) as here:
        view = await here.catalogue.create("r", QUEUE)
        (store,), (fragment,) = view.stores, view.fragments
        await here.ask(Send(fragment, here.origin, 1, [draft()], True))
        await here.catalogue._purger.close()
        await here.catalogue.delete("r")
    report = rebuilt(disks)
    assert report.entities == [] and not report.unknown_fragments
    async with started(disks):
        async with asyncio.timeout(5):
            while fragment in disks.there[store].fragments:
                await asyncio.sleep(0.002)


async def test_stores_of_other_namespaces_are_ignored_and_none_is_an_error() -> None:
    disks, others = Disks(), Disks()
    for one in (disks, others):
        async with started(one) as here:
            await filled(here)
    disks.there["store-1"] = others.there["store-1"]
    report = rebuilt(disks)
    assert report.ignored == ["store-1"] and report.missing == ["store-1"]
    disks.there["store-2"] = others.there["store-2"]
    with pytest.raises(StoreError, match="equally many"):
        rebuilt(disks)


def test_counters_are_the_highest_that_any_store_has() -> None:
    identity = b'{"namespace":"n","name":"store-%d","id":"%d"}'
    stores = b'{"namespace":"n","stores":[{"name":"store-0","id":"0"},{"name":"store-1","id":"1"}]}'
    found = {}
    for number, (version, last) in enumerate([(9, b"40"), (20, b"30")]):
        rows = {
            "identity": identity % (number, number),
            "stores": encode_entry(VersionedEntry(1, stores)),
            FRAGMENT_COUNTER: encode_entry(VersionedEntry(version, last)),
        }
        found[f"store-{number}"] = read_rows((rows, 0))
    content, _ = rebuild(found, {})
    assert content.entries[FRAGMENT_COUNTER].value == b"40"
    content, _ = rebuild(found, {"store-1": {77: 0}})
    assert content.entries[FRAGMENT_COUNTER].value == b"77"
