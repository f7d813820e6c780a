"""Work on the store's thread besides commits: loading fragments, reloading them, comparing locks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Changes, Head, Lock, OutboxRow, SessionHold, TapRow, empty_head
from busbar.fragment.figures import FragmentWork
from busbar.fragment.machine import Fragment
from busbar.fragment.reads import ReadByNumber
from busbar.message.content import sizes_as_sent
from busbar.message.parsing import read_draft
from busbar.model.message import DEAD, Record
from busbar.model.settings import FragmentSettings
from busbar.store.contract import Store

FRAGMENTS_AT_ONCE = 500  # more of them in one piece would be taken for a disk that does not answer
ANY_GATEWAY = "*"
"""Among gateways: others may live, too, since not all of them can be reached."""
LOCKS_AT_ONCE = 100  # each is read with its content, so not too many together


@dataclass(frozen=True, slots=True)
class DurableState:
    """What a store has of a fragment."""

    head: Head
    next_due: int
    locks: list[Lock]
    segments: list[int]
    taps: list[TapRow]
    writers: dict[str, tuple[int, int]]
    outbox: dict[int, OutboxRow] = field(default_factory=dict)
    holds: list[SessionHold] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LastKnownNumbers:
    """What is known of a fragment whose store was lost: its numbers go on from there."""

    last: int
    last_dead: int
    last_event: int
    lost: bool
    """It held something, or it is not known whether it did."""


def predecessor_of(head: Head | None, started: int, truncated: bool) -> LastKnownNumbers:
    """The numbers of a lost fragment, by its last counters. If these are not known, numbers go on from the time at which the
    new store was created. If readers of taps have not got the report of an earlier loss (`truncated`), it is reported with
    this one."""
    if head is None:
        return LastKnownNumbers(started, started, started, lost=True)
    held = sum(head.counts) + head.events > 0
    return LastKnownNumbers(head.last, head.last_dead, head.last_event, lost=held or truncated)


def open_store(factory: Callable[[], Store]) -> tuple[Store, int]:
    """An open and claimed store, and its epoch."""
    store = factory()
    try:
        epoch = store.claim()
    except BaseException:
        store.close()
        raise
    return store, epoch


def read_definitions(store: Store) -> tuple[dict[str, bytes], int]:
    """The definitions that the store has, and the highest id of its fragments."""
    return store.definitions(), max((head.fragment for head in store.heads()), default=0)


def slices(fragments: Mapping[int, FragmentSettings]) -> Iterator[dict[int, FragmentSettings]]:
    """Parts of these fragments, small enough for one call of `load` each."""
    of = list(fragments.items())
    for start in range(0, len(of), FRAGMENTS_AT_ONCE):
        yield dict(of[start : start + FRAGMENTS_AT_ONCE])


def load(
    store: Store,
    fragments: Mapping[int, FragmentSettings],
    predecessor: Callable[[int], LastKnownNumbers] | None = None,
    gateways: Collection[str] = (),
) -> dict[int, DurableState]:
    """Load fragments for their machines, with the locks of the last clean shutdown. Unknown fragments are created empty, and
    go on after their predecessors. Session locks whose holders are not at one of these gateways have ended: they are
    deleted."""
    heads = {head.fragment: head for head in store.heads(list(fragments))}
    loaded = {}
    fresh = []
    for fragment, settings in fragments.items():
        head = heads.get(fragment)
        if head is None:
            created = _created(fragment, settings, predecessor(fragment) if predecessor is not None else None)
            assert created.head is not None
            fresh.append(created)
            rows = [row.copy() for row in created.taps.values() if row is not None]
            loaded[fragment] = DurableState(created.head.copy(), 0, [], [], rows, {})
        else:
            holds = store.holds(fragment)
            ended = [hold for hold in holds if hold.gateway() not in gateways and ANY_GATEWAY not in gateways]
            if ended:
                fresh.append(_without_holds(head, ended))
            loaded[fragment] = DurableState(
                head,
                store.next_due(fragment),
                store.take_locks(fragment),
                store.id_segments(fragment),
                store.taps(fragment),
                store.writers(fragment),
                store.outbox(fragment),
                [hold for hold in holds if hold not in ended],
            )
    if fresh:
        store.commit(fresh)
    return loaded


def build_machine(
    fragment: int,
    settings: FragmentSettings,
    durable: DurableState,
    bounds: Bounds | None = None,
    figures: FragmentWork | None = None,
) -> Fragment:
    """The machine of a fragment that was loaded."""
    return Fragment(
        fragment,
        settings,
        durable.head,
        durable.next_due,
        durable.locks,
        bounds,
        durable.segments,
        durable.taps,
        durable.writers,
        durable.outbox,
        read_draft,
        sizes_as_sent,
        durable.holds,
        figures,
    )


def _without_holds(head: Head, ended: Iterable[SessionHold]) -> Changes:
    changes = Changes(head.fragment)
    changes.head = head.copy()
    for hold in ended:
        changes.holds[hold.session] = None
    return changes


def _created(fragment: int, settings: FragmentSettings, before: LastKnownNumbers | None) -> Changes:
    """A new fragment. Its taps begin by themselves. If it has a predecessor, they report what was lost with it. Otherwise
    their readers would read on as if nothing had been between."""
    changes = Changes(fragment)
    changes.head = head = empty_head(fragment)
    if before is not None:
        head.last, head.last_dead, head.last_event = before.last, before.last_dead, before.last_event
        for tap in settings.taps if before.lost else ():
            if not tap.consumes:
                lost = before.last_dead if tap.sub == DEAD else before.last
                lost_events = before.last_event if tap.events else 0
                changes.taps[tap.id] = TapRow(tap.id, 0, lost, 0, lost_events, truncated=True)
    return changes


def reload(store: Store, fragments: Iterable[int]) -> dict[int, DurableState]:
    """What is durable of fragments whose machines stay in memory, with their locks and segments."""
    heads = {head.fragment: head for head in store.heads()}
    return {
        fragment: DurableState(
            heads.get(fragment) or empty_head(fragment),
            store.next_due(fragment),
            [],
            [],
            store.taps(fragment),
            store.writers(fragment),
            store.outbox(fragment),
            store.holds(fragment),
        )
        for fragment in fragments
    }


def save_locks(store: Store, fragment: int, held: Sequence[Lock]) -> None:
    store.save_locks(fragment, held)


def lost_locks(store: Store, held: Mapping[int, list[Lock]]) -> dict[int, list[int]]:
    """By fragment: the numbers of locked messages that the store does not have any more in the state that the lock has.

    A settlement whose outcome was unknown has been made then, and the lock ended with it."""
    lost: dict[int, list[int]] = {}
    for fragment, locks in held.items():
        by_lane: dict[int, list[Lock]] = {}
        for lock in locks:
            by_lane.setdefault(lock.lane, []).append(lock)
        for lane, held_there in by_lane.items():
            for start in range(0, len(held_there), LOCKS_AT_ONCE):
                some = held_there[start : start + LOCKS_AT_ONCE]
                read = ReadByNumber(lane, [lock.record.n for lock in some])
                store.read(fragment, [read])
                there = {record.n: record for record in read.records}
                missing = [lock.record.n for lock in some if not _is_as_locked(lock, there)]
                if missing:
                    lost.setdefault(fragment, []).extend(missing)
    return lost


def _is_as_locked(lock: Lock, there: Mapping[int, Record]) -> bool:
    record = there.get(lock.record.n)
    return (
        record is not None
        and record.deliveries == lock.record.deliveries
        and (record.overlay or {}) == (lock.record.overlay or {})
    )
