"""What every store does for taps: messages that are kept, seen over several lanes; where taps stand; events."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from busbar.fragment.changes import OVERHEAD, Changes, Head, Keep, MessageEdit, TapRow
from busbar.fragment.reads import ReadEvents, ReadKept, ReadSpan, ReadTapPage, ReadTime
from busbar.model.effects import COMPLETED, DEAD_LETTERED, MessageEvent
from busbar.model.message import (
    ACTIVE,
    DEAD,
    DEAD_DEFERRED,
    DEFERRED,
    KEPT,
    KEPT_DEAD,
    LANES,
    SCHEDULED,
    Record,
)
from busbar.store.contract import Store
from tests.conformance.stores import MANY, Open, delete, lanes, put, record, values
from tests.pages import Shown, shown

MAIN = [ACTIVE, DEFERRED, DEAD, DEAD_DEFERRED, KEPT]
DEAD_LETTERS = [DEAD, DEAD_DEFERRED, KEPT_DEAD, KEPT]


def keep(store: Store, fragment: int, *keeps: Keep) -> None:
    changes = Changes(fragment)
    changes.keeps = list(keeps)
    store.commit([changes])


def span(
    store: Store,
    fragment: int,
    lanes: list[int] | None = None,
    *,
    by_dead: bool = False,
    after: int = 0,
    upto: int = MANY,
    limit: int = 1000,
    max_bytes: int = MANY,
) -> ReadSpan:
    """The messages of a span. As many as fit are the same for readers: their bytes are counted otherwise."""
    asked = MAIN if lanes is None else lanes
    read = ReadSpan(asked, by_dead, after, upto, limit, max_bytes)
    store.read(fragment, [read])
    if max_bytes == MANY:
        packed = pack(store, fragment, asked, by_dead=by_dead, after=after, upto=upto, limit=limit)
        assert [as_shown(r, 0) for r in read.records] == [replace(r, lane=0) for r in shown(packed.packing)]
        assert packed.complete == read.complete
    return read


def pack(
    store: Store,
    fragment: int,
    lanes: list[int] | None = None,
    *,
    by_dead: bool = False,
    after: int = 0,
    upto: int = MANY,
    limit: int = 1000,
    max_bytes: int = MANY,
) -> ReadTapPage:
    read = ReadTapPage(MAIN if lanes is None else lanes, by_dead, after, upto, limit, max_bytes)
    store.read(fragment, [read])
    return read


def as_shown(r: Record, lane: int) -> Shown:
    assert r.content is not None
    return Shown(
        r.n, r.dead_letter_number, r.enqueued, r.ttl, r.deliveries, lane, r.overlay or None, r.content
    )


def seen(read: ReadTapPage) -> list[tuple[int, int]]:
    return [(r.n, r.lane) for r in shown(read.packing)]


def spread(store: Store, fragment: int, count: int, lanes: list[int]) -> None:
    changes = Changes(fragment)
    for n in range(1, count + 1):
        changes.puts.setdefault(lanes[n % len(lanes)], []).append(record(n, b"%d" % n, size=10))
    store.commit([changes])


# Keeping


def test_a_kept_message_is_as_it_was(store: Store) -> None:
    kept = record(1, b"bytes", ttl=5, deliveries=3, overlay={"a": b"1"}, dead=9)
    with_session = Record(2, 1, 0, 0, 0, 7, b"content", None, "session")
    put(store, 1, ACTIVE, kept, with_session, record(3))
    keep(store, 1, Keep(ACTIVE, KEPT, [1, 2]))
    read = span(store, 1)
    assert seen(pack(store, 1)) == [(1, KEPT), (2, KEPT), (3, ACTIVE)]
    assert [values(r) for r in read.records[:2]] == [values(kept), values(with_session)]
    assert [r.session_id for r in read.records] == [None, "session", None]


def test_readers_see_what_was_sent_and_what_happened_since(store: Store) -> None:
    written = [
        record(1, b"one", ttl=5),
        record(2, b"two", deliveries=3, overlay={"a": b"1", "b": b""}),
        Record(3, 1, 0, 0, 0, 700, b"three", None, "session"),
        record(4, b"four", due=9, deliveries=1, dead=3),
        record(5, b""),
    ]
    put(store, 1, ACTIVE, *written)
    for limit in (9, 1000):
        assert shown(pack(store, 1, limit=limit).packing) == [as_shown(r, ACTIVE) for r in written]


LARGE = 100_000
CONTENTS = [b"", b"\0", b"\0\0\0", b"a,b", b"\xff\xfe", "\u20ac".encode() * 30, bytes(range(256)) * 32]


@pytest.mark.parametrize("gap", [1, 2, 50])
@pytest.mark.parametrize("run", [1, 7, 100, 2000])
@pytest.mark.parametrize("every", [0, 300])
def test_long_pages_have_every_message(store: Store, gap: int, run: int, every: int) -> None:
    """However lanes alternate, numbers leave gaps, and contents are large or changed in between."""
    expected = []
    changes = Changes(1)
    for i in range(1, 1501):
        n, lane = i * gap, MAIN[i // run % len(MAIN)]
        large = every and i % every == 5
        content = os.urandom(LARGE) if large else CONTENTS[i % len(CONTENTS)] + b"%d" % i
        overlay = {"name": b"%d" % i} if i % 200 == 7 else None
        message = record(
            n, content, ttl=i % 3, deliveries=i % 200 == 9, overlay=overlay, dead=n if i % 250 == 8 else 0
        )
        changes.puts.setdefault(lane, []).append(message)
        expected.append(as_shown(message, lane))
    store.commit([changes])
    found: list[Shown] = []
    after, complete = 0, False
    while not complete:
        read = pack(store, 1, after=after, limit=900, max_bytes=600_000)
        page = shown(read.packing)
        assert 0 < len(page) <= 900
        assert len(page) == 1 or sum(len(r.content) + OVERHEAD for r in page) <= 600_000
        assert read.complete or len(page) == 900 or sum(len(r.content) for r in page) > 300_000
        found += page
        after, complete = read.last(), read.complete
    assert found == expected
    for limit in (33, 64, 100):
        read = pack(store, 1, after=gap * 10, upto=gap * 74, limit=limit)
        assert shown(read.packing) == expected[10:74][:limit]
        assert read.complete == (limit >= 64)


@pytest.mark.parametrize("size", [0, 255, 8_192, 70_000, 1_000_000])
def test_kept_content_of_any_size(store: Store, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    put(store, 1, DEAD, record(1, content, dead=1))
    keep(store, 1, Keep(DEAD, KEPT, [1]))
    keep(store, 1, Keep(KEPT, KEPT_DEAD, [1]))
    assert [r.content for r in span(store, 1, DEAD_LETTERS, by_dead=True).records] == [content]


def test_keeping_touches_only_its_numbers_lane_and_fragment(store: Store) -> None:
    for fragment in (1, 2):
        put(store, fragment, ACTIVE, *(record(n) for n in (1, 2, 3, 5, 9)))
        put(store, fragment, DEAD, record(4, dead=1))
    keep(store, 1, Keep(ACTIVE, KEPT, [9, 2, 3, 4, 77]), Keep(DEAD, KEPT_DEAD, [4]))
    assert lanes(store, 1) == {ACTIVE: [1, 5], KEPT: [2, 3, 9], KEPT_DEAD: [4]}
    assert lanes(store, 2) == {ACTIVE: [1, 2, 3, 5, 9], DEAD: [4]}


def test_one_commit_edits_then_keeps_then_deletes(store: Store) -> None:
    put(store, 1, ACTIVE, *(record(n) for n in range(1, 7)))
    changes = Changes(1)
    changes.puts = {ACTIVE: [record(7)], KEPT: [record(8)]}
    changes.edits = [
        MessageEdit(ACTIVE, 1, DEAD, 4, {"r": b"x"}, 11),
        MessageEdit(ACTIVE, 2, ACTIVE, 2, None),
    ]
    changes.keeps = [Keep(DEAD, KEPT, [1]), Keep(ACTIVE, KEPT, [2, 3, 7]), Keep(KEPT, KEPT_DEAD, [1])]
    changes.deletes = {ACTIVE: [4], KEPT: [3]}
    store.commit([changes])
    assert lanes(store, 1) == {ACTIVE: [5, 6], KEPT: [2, 7, 8], KEPT_DEAD: [1]}
    read = span(store, 1, [KEPT, KEPT_DEAD])
    assert [(r.n, r.deliveries, r.overlay, r.dead_letter_number) for r in read.records][:2] == [
        (1, 4, {"r": b"x"}, 11),
        (2, 2, None, 0),
    ]


@pytest.mark.parametrize("count", [1, 3, 1024, 2500])
def test_keeping_any_number(store: Store, count: int) -> None:
    put(store, 1, ACTIVE, *(record(n) for n in range(1, 2 * count + 1)))
    keep(store, 1, Keep(ACTIVE, KEPT, list(range(1, 2 * count + 1, 2))))
    assert seen(pack(store, 1, [KEPT], limit=9999)) == [(n, KEPT) for n in range(1, 2 * count + 1, 2)]


# Spans


def test_a_span_merges_lanes_in_the_order_of_numbers(store: Store) -> None:
    spread(store, 1, 300, [ACTIVE, KEPT, DEAD, KEPT, KEPT, DEFERRED, DEAD_DEFERRED, SCHEDULED])
    spread(store, 2, 5, [ACTIVE])
    read = span(store, 1)
    assert [r.n for r in read.records] == [n for n in range(1, 301) if n % 8 != 7]
    assert {lane for n, lane in seen(pack(store, 1)) if n % 8 == 5} == {DEFERRED}
    assert [r.content for r in read.records] == [b"%d" % r.n for r in read.records]
    assert read.complete


def test_a_span_has_its_ends(store: Store) -> None:
    spread(store, 1, 20, [ACTIVE, KEPT])
    read = span(store, 1, after=3, upto=9)
    assert [r.n for r in read.records] == [4, 5, 6, 7, 8, 9]
    assert read.complete
    assert seen(pack(store, 1, after=9, upto=9)) == []
    assert span(store, 1, after=9, upto=9).complete
    assert span(store, 1, [], after=0).complete and span(store, 3).complete


def test_a_span_keeps_its_limits(store: Store) -> None:
    spread(store, 1, 20, [ACTIVE, KEPT, KEPT])
    read = span(store, 1, limit=7)
    assert ([r.n for r in read.records], read.complete) == ([1, 2, 3, 4, 5, 6, 7], False)
    read = span(store, 1, after=2, max_bytes=39)  # ten bytes each
    assert ([r.n for r in read.records], read.complete) == ([3, 4, 5], False)
    read = span(store, 1, after=2, max_bytes=0)  # but at least one
    assert ([r.n for r in read.records], read.complete) == ([3], False)
    assert seen(pack(store, 1, limit=0)) == [] and not span(store, 1, limit=0).complete
    assert span(store, 1, limit=20, max_bytes=200).complete
    assert [r.n for r in span(store, 1, after=15, limit=5, max_bytes=50).records] == [16, 17, 18, 19, 20]


def test_a_span_of_dead_letters_is_in_the_order_in_which_they_came(store: Store) -> None:
    changes = Changes(1)
    changes.puts = {
        ACTIVE: [record(1), record(20)],
        DEAD: [record(2, dead=5), record(9, dead=1)],
        DEAD_DEFERRED: [record(3, dead=3)],
        KEPT: [record(4), record(5, dead=4)],
        KEPT_DEAD: [record(8, dead=2)],
    }
    store.commit([changes])
    read = span(store, 1, DEAD_LETTERS, by_dead=True)
    packed = pack(store, 1, DEAD_LETTERS, by_dead=True)
    assert seen(packed) == [(9, DEAD), (8, KEPT_DEAD), (3, DEAD_DEFERRED), (5, KEPT), (2, DEAD)]
    assert read.complete
    read = span(store, 1, DEAD_LETTERS, by_dead=True, after=1, upto=4, limit=2)
    assert ([r.dead_letter_number for r in read.records], read.complete) == ([2, 3], False)


def test_an_edit_numbers_a_dead_letter(store: Store) -> None:
    put(store, 1, ACTIVE, record(1), record(2))
    changes = Changes(1)
    changes.edits = [MessageEdit(ACTIVE, 2, DEAD, 1, None, 1), MessageEdit(ACTIVE, 1, DEAD, 1, None, 2)]
    store.commit([changes])
    again = Changes(1)
    again.edits = [MessageEdit(DEAD, 2, DEAD, 2, None, 1)]
    store.commit([again])
    read = span(store, 1, DEAD_LETTERS, by_dead=True)
    assert [(r.n, r.dead_letter_number, r.deliveries) for r in read.records] == [(2, 1, 2), (1, 2, 1)]


def test_any_page_size_sees_each_message_once(store: Store) -> None:
    spread(store, 1, 200, [ACTIVE, ACTIVE, KEPT, ACTIVE, DEAD, KEPT])
    for size in (1, 7, 64, 199, 200):
        after, found = 0, []
        while True:
            read = span(store, 1, after=after, limit=size)
            found += [r.n for r in read.records]
            if read.complete:
                break
            after = found[-1]
        assert found == list(range(1, 201))


def test_reading_a_span_leaves_the_store_to_others(store: Store) -> None:
    """A page that ends early must not hold on to anything."""
    spread(store, 1, 50, [ACTIVE, KEPT])
    span(store, 1, limit=1)
    delete(store, 1, ACTIVE, *range(1, 51))
    assert store.drop(1, 100)
    assert seen(pack(store, 1)) == []


# What can go


def test_the_first_kept_messages(store: Store) -> None:
    changes = Changes(1)
    changes.puts = {
        ACTIVE: [record(2)],
        KEPT: [record(1, size=5, enqueued=10), record(3, size=6, enqueued=11, dead=7), record(9)],
        KEPT_DEAD: [
            record(4, dead=6, size=3, enqueued=9),
            record(5, dead=2, size=4, enqueued=8),
            record(6, dead=8),
        ],
    }
    store.commit([changes])
    kept, dead = ReadKept(KEPT, 8, 10), ReadKept(KEPT_DEAD, 7, 10)
    one, none = ReadKept(KEPT, 99, 1), ReadKept(KEPT_DEAD, 1, 10)
    store.read(1, [kept, dead, one, none])
    assert kept.rows == [(1, 0, 5, 10), (3, 7, 6, 11)]
    assert dead.rows == [(5, 2, 4, 8), (4, 6, 3, 9)]
    assert one.rows == [(1, 0, 5, 10)]
    assert none.rows == []


# Times


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_where_a_time_lies(store: Store, count: int) -> None:
    changes = Changes(1)
    for n in range(1, count + 1):
        lane = (ACTIVE, KEPT, DEAD)[n * 7 % 3]
        # Numbers have gaps, and several messages came at one time.
        changes.puts.setdefault(lane, []).append(record(n * 1000, enqueued=10 * (n // 2)))
    store.commit([changes])
    for time in range(-5, 10 * (count // 2) + 20, 5):
        read = ReadTime(MAIN, False, time)
        store.read(1, [read])
        before = [n * 1000 for n in range(1, count + 1) if 10 * (n // 2) < time]
        assert read.position == max(before, default=0)


def test_where_a_time_lies_among_dead_letters(store: Store) -> None:
    put(store, 1, DEAD, record(1, enqueued=10, dead=3), record(2, enqueued=20, dead=1))
    put(store, 1, KEPT_DEAD, record(3, enqueued=30, dead=2))
    found = []
    for time in (10, 11, 21, 31):
        read = ReadTime(DEAD_LETTERS, True, time)
        store.read(1, [read])
        found.append(read.position)
    assert found == [0, 3, 3, 3]
    nothing = ReadTime(DEAD_LETTERS, True, 50)
    store.read(2, [nothing])
    assert nothing.position == 0


# Where taps stand


def tap_values(row: TapRow) -> tuple[int, int, int, int, int, bool]:
    return row.id, row.position, row.lost, row.event_position, row.event_lost, row.truncated


def test_taps_come_move_and_go(open_store: Open) -> None:
    store = open_store()
    store.claim()
    assert store.taps(1) == []
    changes = Changes(1)
    changes.taps = {7: TapRow(7, 10), 3: TapRow(3, 5, 4, 2, 1, True)}
    store.commit([changes])
    changes.taps[7].position = 99  # type: ignore[union-attr]  # not shared
    store.taps(1)[0].position = 99
    other = Changes(2)
    other.taps = {7: TapRow(7, 1)}
    store.commit([other])
    store.close()

    again = open_store()
    again.claim()
    assert [tap_values(row) for row in again.taps(1)] == [(3, 5, 4, 2, 1, True), (7, 10, 0, 0, 0, False)]
    moved = Changes(1)
    moved.taps = {7: TapRow(7, 11, 0, 6), 3: None, 4: None}
    again.commit([moved])
    assert [tap_values(row) for row in again.taps(1)] == [(7, 11, 0, 6, 0, False)]
    assert [tap_values(row) for row in again.taps(2)] == [(7, 1, 0, 0, 0, False)]
    again.close()


# Events


def event(at: int, n: int = 1, reason: str = "") -> MessageEvent:
    return MessageEvent(at, n, DEAD_LETTERED if reason else COMPLETED, 1_000 + at, 900, 2, reason)


def events(store: Store, fragment: int, after: int = 0, upto: int = MANY, limit: int = 9999) -> list[tuple]:
    read = ReadEvents(after, upto, limit)
    store.read(fragment, [read])
    return [(e.at, e.n, e.outcome, e.time, e.enqueued, e.deliveries, e.reason) for e in read.events]


def test_events_come_back_as_they_were(open_store: Open) -> None:
    store = open_store()
    store.claim()
    changes = Changes(1)
    changes.events = [event(1, 7), event(2, 8, "MaxDeliveryCountExceeded é")]
    changes.head = Head(
        1, 8, [0] * LANES, 0, last_dead=1, last_event=2, events=2, kept_size=5, kept_dead_size=3
    )
    store.commit([changes])
    store.close()
    again = open_store()
    again.claim()
    assert events(again, 1) == [
        (1, 7, COMPLETED, 1_001, 900, 2, ""),
        (2, 8, DEAD_LETTERED, 1_002, 900, 2, "MaxDeliveryCountExceeded é"),
    ]
    assert events(again, 2) == []
    (head,) = again.heads()
    assert (head.last_dead, head.last_event, head.events) == (1, 2, 2)
    assert (head.kept_size, head.kept_dead_size) == (5, 3)
    again.close()


@pytest.mark.parametrize("count", [1, 3, 1024, 2500])
def test_any_number_of_events(store: Store, count: int) -> None:
    changes = Changes(1)
    changes.events = [event(at) for at in range(1, count + 1)]
    store.commit([changes])
    assert [row[0] for row in events(store, 1)] == list(range(1, count + 1))
    assert [row[0] for row in events(store, 1, after=count - 1)] == [count]
    assert [row[0] for row in events(store, 1, upto=2, limit=1)] == [1]


def test_events_are_forgotten_up_to_a_position_also_new_ones(store: Store) -> None:
    for fragment in (1, 2):
        changes = Changes(fragment)
        changes.events = [event(at) for at in range(1, 6)]
        store.commit([changes])
    changes = Changes(1)
    changes.events = [event(6), event(7)]
    changes.events_upto = 6
    store.commit([changes])
    assert [row[0] for row in events(store, 1)] == [7]
    assert [row[0] for row in events(store, 2)] == [1, 2, 3, 4, 5]


# Dropping


def test_dropping_takes_all_of_it_along_in_slices(store: Store) -> None:
    changes = Changes(1)
    changes.puts = {ACTIVE: [record(1, size=10)], KEPT: [record(n, size=100) for n in (2, 3, 4)]}
    changes.puts[KEPT_DEAD] = [record(5, size=1000, dead=1)]
    changes.events = [event(at) for at in range(1, 8)]
    changes.taps = {1: TapRow(1, 0)}
    changes.head = Head(1, 5, [1, 0, 0, 0, 0, 3, 1, 0, 0, 0], 10, 0, 0, 0, 1, 7, 7, 1300, 1000)
    store.commit([changes])
    other = Changes(2)
    other.taps, other.events = {1: TapRow(1, 0)}, [event(1)]
    store.commit([other])

    def head() -> tuple[list[int], int, int, int, int]:
        (mine,) = store.heads([1])
        return mine.counts, mine.size, mine.kept_size, mine.kept_dead_size, mine.events

    assert not store.drop(1, 3)
    counts, size, kept_size, kept_dead_size, kept_events = head()
    assert (sum(counts), kept_events) == (2, 7)
    assert size + kept_size == sum(r.size for r in span(store, 1, [ACTIVE, KEPT, KEPT_DEAD]).records)
    assert kept_dead_size == sum(r.size for r in span(store, 1, [KEPT_DEAD]).records)
    assert not store.drop(1, 3)
    assert head() == ([0] * LANES, 0, 0, 0, 6)
    assert not store.drop(1, 3)
    assert store.drop(1, 3)
    assert store.taps(1) == [] and events(store, 1) == []
    assert len(store.taps(2)) == 1 and len(events(store, 2)) == 1
