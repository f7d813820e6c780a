"""What fragments of an entity that forwards are told of its target, whatever becomes of that."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.catalogue.fragment_settings import FragmentSettingsBuilder
from busbar.catalogue.index import EntityIndex
from busbar.catalogue.staged_index import StagedIndex
from busbar.model.api import EntityView
from busbar.model.entities import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.errors import ServerBusy
from busbar.model.limits import Limits
from busbar.model.partitioning import FRAGMENTS
from busbar.model.settings import (
    TARGET_DISABLED,
    TARGET_MISSING,
    TARGET_OPEN,
    ForwardSettings,
    FragmentSettings,
)
from harness.memory_store import Fault
from tests.unit.broker.namespaces import Disks, Namespace, started


def told(here: Namespace, path: str) -> list[FragmentSettings]:
    """The settings that the machines of an entity have now."""
    view = here.catalogue.find(path)
    return [
        here.host(store).commit_loop.slots[fragment].machine.settings
        for fragment, store in zip(view.fragments, view.stores, strict=True)
    ]


def forwards(here: Namespace, path: str) -> list[ForwardSettings]:
    found = [settings.forward for settings in told(here, path)]
    assert all(forward is not None for forward in found)
    return [forward for forward in found if forward is not None]


async def queue(here: Namespace, path: str, **properties: Any) -> EntityView:
    return await here.catalogue.create(path, QueueDescription(**properties))


async def test_every_fragment_has_its_index_and_the_fragments_of_the_target() -> None:
    async with started(Disks()) as here:
        target = await queue(here, "Target", enable_partitioning=True, requires_duplicate_detection=True)
        await queue(here, "source", enable_partitioning=True, forward_to="target")
        found = forwards(here, "source")
        assert [forward.index for forward in found] == list(range(FRAGMENTS))
        for forward in found:
            assert (forward.path, forward.fragments) == ("Target", list(target.fragments))
            assert forward.detects_duplicates and forward.takes == TARGET_OPEN
        assert {settings.path for settings in told(here, "source")} == {"source"}
        assert told(here, "Target")[0].forward is None


async def test_dead_letters_have_a_target_of_their_own() -> None:
    async with started(Disks()) as here:
        letters = await here.catalogue.create("letters", TopicDescription())
        await here.catalogue.create("t", TopicDescription())
        await here.catalogue.create(
            "t/Subscriptions/s", SubscriptionDescription(forward_dead_lettered_messages_to="letters")
        )
        (settings,) = told(here, "t/Subscriptions/s")
        assert settings.forward is None and settings.forward_dead_letters is not None
        assert settings.forward_dead_letters.fragments == list(letters.fragments)
        assert settings.path == "t/Subscriptions/s"


async def test_sources_are_told_when_a_target_is_disabled_deleted_and_created_again() -> None:
    async with started(Disks()) as here:
        first = await queue(here, "target")
        await queue(here, "source", forward_to="target")
        await here.catalogue.create("t", TopicDescription())
        await here.catalogue.create("t/Subscriptions/s", SubscriptionDescription(forward_to="target"))
        sources = ("source", "t/Subscriptions/s")

        def takes() -> set[int]:
            return {forwards(here, path)[0].takes for path in sources}

        assert takes() == {TARGET_OPEN}
        for status in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED):
            await here.catalogue.update("target", QueueDescription(status=status))
            assert takes() == {TARGET_DISABLED}
        await here.catalogue.update("target", QueueDescription(status=EntityStatus.RECEIVE_DISABLED))
        assert takes() == {TARGET_OPEN}
        await here.catalogue.delete("target")
        assert takes() == {TARGET_MISSING}
        assert [forwards(here, path)[0].fragments for path in sources] == [[], []]
        second = await queue(here, "TARGET", enable_partitioning=True)
        assert takes() == {TARGET_OPEN}
        for path in sources:
            assert forwards(here, path)[0].fragments == list(second.fragments)
        assert not {*first.fragments} & {*second.fragments}


async def test_a_source_is_told_when_it_forwards_elsewhere_or_no_more() -> None:
    async with started(Disks()) as here:
        await queue(here, "a")
        second = await queue(here, "b")
        await queue(here, "source", forward_to="a", forward_dead_lettered_messages_to="a")
        await here.catalogue.update("source", QueueDescription(forward_to="b"))
        assert forwards(here, "source")[0].fragments == list(second.fragments)
        assert told(here, "source")[0].forward_dead_letters is None
        await here.catalogue.delete("a")  # nobody forwards there any more
        await here.catalogue.update("source", QueueDescription())
        assert told(here, "source")[0].forward is None


async def test_a_source_in_a_chain_and_one_that_forwards_to_itself_are_told() -> None:
    async with started(Disks()) as here:
        itself = await queue(here, "itself")
        await here.catalogue.update("itself", QueueDescription(forward_to="itself"))
        assert forwards(here, "itself")[0].fragments == list(itself.fragments)
        await here.catalogue.update(
            "itself", QueueDescription(forward_to="itself", status=EntityStatus.SEND_DISABLED)
        )
        assert forwards(here, "itself")[0].takes == TARGET_DISABLED


async def test_the_targets_are_known_again_after_a_restart() -> None:
    disks = Disks()
    async with started(disks) as here:
        target = await queue(here, "target")
        await queue(here, "source", forward_to="target")
        await queue(here, "lost", forward_to="target")
        await here.catalogue.update("target", QueueDescription(status=EntityStatus.DISABLED))
    async with started(disks) as here:
        for path in ("source", "lost"):
            assert forwards(here, path)[0].fragments == list(target.fragments)
            assert forwards(here, path)[0].takes == TARGET_DISABLED
        await here.catalogue.delete("target")
        assert forwards(here, "source")[0].takes == TARGET_MISSING


async def test_a_change_of_a_target_that_is_not_made_is_not_made_for_its_sources() -> None:
    disks = Disks()
    async with started(disks) as here:
        await queue(here, "target")
        await queue(here, "source", forward_to="target")
        for fault in (Fault.FULL, Fault.LOST):
            disks.catalogue.faults.append(fault)
            with pytest.raises(ServerBusy):
                await here.catalogue.update("target", QueueDescription(status=EntityStatus.DISABLED))
            assert forwards(here, "source")[0].takes == TARGET_OPEN


def test_entities_that_forward_are_found_by_their_target() -> None:
    index = EntityIndex()
    both = EntityView("a", QueueDescription(forward_to="T", forward_dead_lettered_messages_to="t"), (1,))
    other = EntityView("b", QueueDescription(forward_to="t"), (2,))
    index.put(both)
    index.put(other)
    assert [view.path for view in index.sources("t")] == ["a", "b"]
    index.put(EntityView("a", QueueDescription(forward_dead_lettered_messages_to="t"), (1,)))
    assert {view.path for view in index.sources("T")} == {"a", "b"}
    staged = StagedIndex(index)
    staged.put(EntityView("b", QueueDescription(forward_to="elsewhere"), (2,)))
    staged.put(EntityView("c", SubscriptionDescription(forward_to="t"), (3,)))
    assert {view.path for view in staged.sources("t")} == {"a", "c"}
    assert [view.path for view in staged.sources("elsewhere")] == ["b"]
    index.remove("a")
    index.remove("b")
    assert index.sources("t") == []


async def test_marks_of_fragments_that_are_gone_are_forgotten_at_their_targets() -> None:
    disks = Disks()
    async with started(disks) as here:
        target = await queue(here, "target")
        others = await queue(here, "other")
        gone = await queue(here, "gone", forward_to="target")
        moved = await queue(here, "moved", forward_to="other")
        kept = await queue(here, "kept", forward_to="target")
        await here.catalogue.delete("gone")
        await here.catalogue.update("moved", QueueDescription())
        asked = {command.fragment: command.sources for command in here.catalogue._marks.commands()}
        assert asked == {target.fragments[0]: [*gone.fragments], others.fragments[0]: [*gone.fragments]}
        assert not {*kept.fragments, *moved.fragments} & {*gone.fragments}
    async with started(
        disks
    ) as here:  # which of them had marks is not known any more: those that are targets now
        assert [command.fragment for command in here.catalogue._marks.commands()] == [*target.fragments]


def test_limits_of_the_namespace_are_settings_of_every_fragment() -> None:
    index = EntityIndex()
    index.put(EntityView("q", QueueDescription(), (1,), stores=("s",)))
    index.put(EntityView("small", QueueDescription(max_message_size=1_024), (2,), stores=("s",)))
    index.put(EntityView("t", TopicDescription(max_message_size=99_999), (3,), stores=("s",)))
    limits = Limits(transfer_patience=5_000, max_message_size=10_000, max_header_size=700)
    settings = FragmentSettingsBuilder(limits).in_store("s", index, index)
    assert [settings[fragment].transfer_patience_ms for fragment in (1, 2, 3)] == [5_000] * 3
    assert [settings[fragment].max_message_bytes for fragment in (1, 2, 3)] == [10_000, 1_024, 10_000]
    assert [settings[fragment].max_header_bytes for fragment in (1, 2, 3)] == [700] * 3
