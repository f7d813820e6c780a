"""Any changes at all in every store, against a model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar.fragment.changes import Changes, Head, Keep, MessageEdit, OutboxChange
from busbar.fragment.reads import ReadDue, ReadOutbox, ReadSpan, ReadTapPage
from busbar.model.message import DEAD, KEPT, KEPT_DEAD, LANES, OUTBOX, SCHEDULED, VIA, Record
from busbar.store.contract import Store
from tests.conformance.stores import MANY, PLACES, Open, head_values, page, record, values
from tests.pages import shown


class Model:
    """What a store holds, as plainly as it can be said."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int, int], Record] = {}
        self.last: dict[int, int] = {}

    def perform(self, changes: Changes) -> None:
        f = changes.fragment
        for lane, records in changes.puts.items():
            for r in records:
                self.rows[f, lane, r.n] = r
        for e in changes.edits:
            if found := self.rows.pop((f, e.lane, e.n), None):
                self.rows[f, e.to, e.n] = _edited(found, e)
        for keep in changes.keeps:
            for n in keep.numbers:
                if found := self.rows.pop((f, keep.lane, n), None):
                    self.rows[f, keep.to, n] = found
        for lane, gone in changes.deletes.items():
            for n in gone:
                self.rows.pop((f, lane, n), None)
        head = self.head(f)
        changes.head = Head(f, head[1], list(head[2]), head[3])

    def head(self, fragment: int) -> tuple[int, int, tuple[int, ...], int]:
        mine = [(lane, r) for (f, lane, _), r in self.rows.items() if f == fragment]
        counts = tuple(sum(1 for at, _ in mine if at == lane) for lane in range(LANES))
        return fragment, self.last.get(fragment, 0), counts, sum(r.size for _, r in mine)

    def page(self, fragment: int, lane: int) -> list[Record]:
        return [self.rows[key] for key in sorted(self.rows) if key[:2] == (fragment, lane)]

    def span(self, fragment: int, by_dead: bool) -> list[tuple[int, int]]:
        """Numbers and lanes in the order of positions."""
        mine = [
            (r.dead_letter_number if by_dead else r.n, n, lane)
            for (f, lane, n), r in self.rows.items()
            if f == fragment
        ]
        return [(n, lane) for position, n, lane in sorted(mine) if position]


def _edited(r: Record, e: MessageEdit) -> Record:
    return Record(
        r.n,
        r.enqueued,
        r.ttl,
        r.due,
        e.deliveries,
        r.size if e.size < 0 else e.size,
        r.content,
        e.overlay,
        None,
        e.dead,
        r.hops,
        r.target,
        r.kind,
    )


FRAGMENTS = st.integers(1, 2)
LANE = st.integers(0, LANES - 1)
OVERLAYS = st.none() | st.dictionaries(st.text(max_size=3), st.binary(max_size=3), max_size=2)
PUTS = st.lists(st.tuples(LANE, st.binary(max_size=9), st.integers(1, 50), OVERLAYS), max_size=6)
EDITS = st.lists(st.tuples(st.integers(0, 30), LANE, st.booleans(), st.integers(0, 9), OVERLAYS), max_size=5)
KEEPS = st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=8)
DELETES = st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=8)
STEPS = st.lists(
    st.lists(st.tuples(FRAGMENTS, PUTS, EDITS, KEEPS, DELETES), max_size=2, unique_by=lambda part: part[0])
    | st.sampled_from(["crash", "restart"]),
    max_size=7,
)


@pytest.mark.parametrize("place", [place for place in PLACES if place != "postgresql"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_any_changes_leave_what_a_dictionary_would_hold(place: str, steps: list) -> None:
    _compare_any_steps(place, steps)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_any_changes_in_a_database_server_leave_what_a_dictionary_would_hold(steps: list) -> None:
    _compare_any_steps("postgresql", steps)


def _compare_any_steps(place: str, steps: list) -> None:
    with TemporaryDirectory() as directory:
        open_store = PLACES[place](Path(directory))
        model = Model()
        store = open_store()
        store.claim()
        for step in [*steps, "crash"]:
            store = _performed(store, open_store, model, step)
            _compare(store, model)
        store.close()


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_changes_between_which_nothing_is_read(place: str, steps: list) -> None:
    with TemporaryDirectory() as directory:
        open_store = PLACES[place](Path(directory))
        model = Model()
        store = open_store()
        store.claim()
        for step in [*steps, "crash"]:
            store = _performed(store, open_store, model, step)
        _compare(store, model)
        store.close()


def _performed(store: Store, open_store: Open, model: Model, step: str | list) -> Store:
    """Perform a step in the store and in the model; returns the handle for the next one."""
    if not isinstance(step, str):
        store.commit([_changes(model, *part) for part in step])
        return store
    if step == "restart":
        store.release()
    store.close()
    again = open_store()
    again.claim()
    return again


def _changes(model: Model, fragment: int, puts: list, edits: list, keeps: list, deletes: list) -> Changes:
    """Changes as a machine may make them: new numbers, and edits and deletes that mostly name what is there."""
    changes = Changes(fragment)
    here = {n: lane for f, lane, n in model.rows if f == fragment}
    for lane, content, due, overlay in puts:
        n = model.last[fragment] = model.last.get(fragment, 0) + 1
        moved = {"target": due % 3 + 1, "kind": VIA} if lane == OUTBOX else {}
        put = record(n, content, due=due, overlay=overlay, hops=due % 5, **moved)
        changes.puts.setdefault(lane, []).append(put)
        here[n] = lane
    for n, to, right, deliveries, overlay in edits:
        to = to if to != OUTBOX else DEAD  # nothing comes into the outbox by an edit
        lane = here.get(n, 0) if right else (here.get(n, 0) + 1) % LANES
        dead = n if deliveries % 2 else 0  # only that positions differ matters here
        changes.edits.append(MessageEdit(lane, n, to, deliveries, overlay, dead, deliveries * 7))
        if lane == OUTBOX:  # a message goes out of it by a delete
            changes.edits.pop()
        elif here.get(n) == lane:
            here[n] = to
    for n, right in keeps:
        lane = here.get(n, 0) if right else (here.get(n, 0) + 1) % LANES
        to = KEPT if lane != KEPT else KEPT_DEAD
        if lane not in (KEPT_DEAD, OUTBOX):  # no tap keeps what is in the outbox
            changes.keeps.append(Keep(lane, to, [n]))
            if here.get(n) == lane:
                here[n] = to
    for n, right in deletes:
        lane = here.get(n, 0) if right else (here.get(n, 0) + 1) % LANES
        changes.deletes.setdefault(lane, []).append(n)
    before = Counter(r.target for r in model.page(fragment, OUTBOX))
    model.perform(changes)
    after = Counter(r.target for r in model.page(fragment, OUTBOX))
    for target in before | after:
        change = changes.outbox[target] = OutboxChange(f"path {target}")
        change.count = after[target] - before[target]
    return changes


def _compare(store: Store, model: Model) -> None:
    heads = {head.fragment: head_values(head) for head in store.heads()}
    for fragment in (1, 2):
        assert heads.get(fragment, model.head(fragment)) == model.head(fragment)
        for lane in range(LANES):
            assert [values(r) for r in page(store, fragment, lane)] == [
                values(r) for r in model.page(fragment, lane)
            ]
        for by_dead in (False, True):
            span = ReadSpan(list(range(LANES)), by_dead, 0, MANY, 1000, MANY)
            store.read(fragment, [span])
            packed = ReadTapPage(list(range(LANES)), by_dead, 0, MANY, 1000, MANY)
            store.read(fragment, [packed])
            messages = shown(packed.packing)
            assert [(r.n, r.lane) for r in messages] == model.span(fragment, by_dead)
            assert [r.n for r in messages] == [r.n for r in span.records]
            assert span.complete and packed.complete
            for message, known in zip(messages, span.records, strict=True):
                assert message.overlay == (known.overlay or None)
                assert message.dead == known.dead_letter_number
                for name in ("enqueued", "ttl", "deliveries", "content"):
                    assert getattr(message, name) == getattr(known, name)
        waiting = model.page(fragment, OUTBOX)
        for target in range(1, 4):
            out = ReadOutbox(target, 1, 100, MANY)
            store.read(fragment, [out])
            assert [values(r) for r in out.records] == [
                values(r) for r in waiting if r.target == target and r.n > 1
            ]
        counts = Counter(r.target for r in waiting)
        assert store.outbox(fragment) == {
            target: (f"path {target}", count) for target, count in counts.items()
        }
        due = ReadDue(25, 100, MANY)
        store.read(fragment, [due])
        scheduled = sorted((r.due, r.n) for r in model.page(fragment, SCHEDULED))
        assert [(r.due, r.n) for r in due.records] == [key for key in scheduled if key[0] <= 25]
        assert due.next_due == next((key[0] for key in scheduled if key[0] > 25), 0)
        assert store.next_due(fragment) == (scheduled[0][0] if scheduled else 0)
