"""What the host has done on the store's thread besides commits: loading fragments, reloading, comparing locks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from busbar.fragment.changes import Changes, Head, Lock, empty_head
from busbar.fragment.reads import ReadMany
from busbar.store.contract import Store

LOCKS_AT_ONCE = 100  # each is read with its content, so not too many together


@dataclass(frozen=True, slots=True)
class Durable:
    """What a store knows of a fragment."""

    head: Head
    next_due: int
    locks: list[Lock]
    shelves: list[int]


def open_store(factory: Callable[[], Store]) -> tuple[Store, int]:
    """An open and claimed store, and its epoch."""
    store = factory()
    try:
        epoch = store.claim()
    except BaseException:
        store.close()
        raise
    return store, epoch


def load(
    store: Store, fragments: Iterable[int], last: Callable[[int], int] | None = None
) -> dict[int, Durable]:
    """Fragments for their machines, with the locks of the last clean shutdown; unknown ones are created empty, and
    number their messages from what `last` says."""
    fragments = list(fragments)
    heads = {head.fragment: head for head in store.heads(fragments)}
    loaded = {}
    fresh = []
    for fragment in fragments:
        head = heads.get(fragment)
        if head is None:
            head = empty_head(fragment)
            head.last = last(fragment) if last is not None else 0
            fresh.append(head)
            loaded[fragment] = Durable(head.copy(), 0, [], [])
        else:
            loaded[fragment] = Durable(
                head, store.next_due(fragment), store.take_locks(fragment), store.shelves(fragment)
            )
    if fresh:
        store.commit([_created(head) for head in fresh])
    return loaded


def _created(head: Head) -> Changes:
    changes = Changes(head.fragment)
    changes.head = head
    return changes


def reload(store: Store, fragments: Iterable[int]) -> dict[int, Durable]:
    """What is durable of fragments whose machines live on (they hold the locks and know the shelves)."""
    heads = {head.fragment: head for head in store.heads()}
    return {
        fragment: Durable(heads.get(fragment) or empty_head(fragment), store.next_due(fragment), [], [])
        for fragment in fragments
    }


def lost_locks(store: Store, held: Mapping[int, list[Lock]]) -> dict[int, list[int]]:
    """Numbers of locked messages, by fragment, that the store does not have (any more) where the lock says."""
    lost: dict[int, list[int]] = {}
    for fragment, locks in held.items():
        by_lane: dict[int, list[int]] = {}
        for lock in locks:
            by_lane.setdefault(lock.lane, []).append(lock.record.n)
        for lane, numbers in by_lane.items():
            for start in range(0, len(numbers), LOCKS_AT_ONCE):
                some = numbers[start : start + LOCKS_AT_ONCE]
                read = ReadMany(lane, some)
                store.read(fragment, [read])
                there = {record.n for record in read.records}
                missing = [n for n in some if n not in there]
                if missing:
                    lost.setdefault(fragment, []).extend(missing)
    return lost
