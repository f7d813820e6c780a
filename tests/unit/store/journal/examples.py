"""Group commits of every kind, for the tests of a journal."""

from __future__ import annotations

from hypothesis import strategies as st

from busbar.fragment.changes import (
    OVERHEAD,
    Changes,
    Head,
    Keep,
    MessageEdit,
    OutboxChange,
    SessionChange,
    SessionHold,
    TapRow,
)
from busbar.model.effects import MessageEvent
from busbar.model.message import LANES, Record

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
POSITIVE = st.integers(0, (1 << 63) - 1)
NUMBERS = st.integers(1, 1 << 48)
TEXTS = st.text(st.characters(), max_size=12)  # with surrogates
BYTES = st.binary(max_size=200)
LANE = st.integers(0, LANES - 1)
OVERLAYS = st.none() | st.dictionaries(TEXTS, BYTES, max_size=3)
CONTENTS = st.none() | BYTES | st.sampled_from([b"x" * 64, b"y" * 100])


@st.composite
def records(draw: st.DrawFn) -> Record:
    content = draw(CONTENTS)
    usual = OVERHEAD + (0 if content is None else len(content))
    return Record(
        draw(NUMBERS),
        draw(POSITIVE),
        draw(st.just(0) | POSITIVE),
        draw(st.just(0) | POSITIVE),
        draw(st.just(0) | POSITIVE),
        draw(st.just(usual) | POSITIVE),
        content,
        draw(OVERLAYS),
        draw(st.none() | TEXTS),
        draw(st.just(0) | POSITIVE),
        draw(st.just(0) | POSITIVE),
        draw(st.just(0) | POSITIVE),
        draw(st.just(0) | st.integers(0, 3)),
    )


@st.composite
def sessions(draw: st.DrawFn) -> SessionChange:
    change = SessionChange()
    change.active, change.turn, change.moved = draw(LONGS), draw(POSITIVE), draw(st.booleans())
    return change


@st.composite
def outbox_rows(draw: st.DrawFn) -> OutboxChange:
    row = OutboxChange(draw(TEXTS))
    row.count = draw(LONGS)
    return row


EDITS = st.builds(MessageEdit, LANE, NUMBERS, LANE, POSITIVE, OVERLAYS, POSITIVE, LONGS)
KEEPS = st.builds(Keep, LANE, LANE, st.lists(NUMBERS, max_size=5))
TAPS = st.builds(TapRow, POSITIVE, POSITIVE, POSITIVE, POSITIVE, POSITIVE, st.booleans())
EVENTS = st.builds(MessageEvent, POSITIVE, POSITIVE, POSITIVE, POSITIVE, POSITIVE, POSITIVE, TEXTS)


@st.composite
def changes(draw: st.DrawFn) -> Changes:
    made = Changes(draw(POSITIVE))
    made.puts = draw(st.dictionaries(LANE, st.lists(records(), max_size=4), max_size=3))
    made.edits = draw(st.lists(EDITS, max_size=3))
    made.keeps = draw(st.lists(KEEPS, max_size=3))
    made.deletes = draw(st.dictionaries(LANE, st.lists(NUMBERS, max_size=5), max_size=3))
    made.ids_upto = draw(st.none() | st.tuples(POSITIVE, BYTES))
    made.ids = draw(st.lists(st.tuples(POSITIVE, BYTES, POSITIVE, POSITIVE), max_size=3))
    made.sessions = draw(st.dictionaries(TEXTS, sessions(), max_size=3))
    made.states = draw(st.dictionaries(TEXTS, st.tuples(POSITIVE, st.none() | BYTES), max_size=3))
    made.outbox = draw(st.dictionaries(POSITIVE, outbox_rows(), max_size=3))
    for hold in draw(st.lists(st.builds(SessionHold, TEXTS, TEXTS, POSITIVE), max_size=3)):
        made.holds[hold.session] = hold if hold.until % 2 else None
    rows = draw(st.lists(TAPS, max_size=3))
    made.taps = {int(row.id): row for row in rows}
    if draw(st.booleans()):
        made.taps[0] = None
    made.events = draw(st.lists(EVENTS, max_size=3))
    made.events_upto = draw(POSITIVE)
    made.written = draw(st.lists(st.tuples(TEXTS, POSITIVE, BYTES), max_size=3))
    made.writers = draw(st.dictionaries(TEXTS, st.none() | st.tuples(POSITIVE, POSITIVE), max_size=3))
    if draw(st.booleans()):
        counts = draw(st.lists(POSITIVE, min_size=LANES, max_size=LANES))
        made.head = Head(made.fragment, draw(POSITIVE), counts, *[draw(POSITIVE) for _ in range(9)])
    return made


def plain(value: object) -> object:
    """A value that compares by what it contains."""
    if isinstance(value, Record):
        return tuple(
            plain(part)
            for part in (
                value.n,
                value.enqueued,
                value.ttl,
                value.due,
                value.deliveries,
                value.size,
                value.content,
                value.overlay,
                value.session_id,
                value.dead_letter_number,
                value.hops,
                value.target,
                value.kind,
            )
        )
    if isinstance(value, Head):
        return (
            value.fragment,
            value.last,
            tuple(value.counts),
            value.size,
            value.ids,
            value.dropped,
            value.turn,
            value.last_dead,
            value.last_event,
            value.events,
            value.kept_size,
            value.kept_dead_size,
        )
    if isinstance(value, MessageEdit):
        return (value.lane, value.n, value.to, value.deliveries, plain(value.overlay), value.dead, value.size)
    if isinstance(value, Keep):
        return (value.lane, value.to, tuple(sorted(set(value.numbers))))
    if isinstance(value, SessionChange):
        return (value.active, value.turn, value.moved)
    if isinstance(value, SessionHold):
        return (value.session, value.holder, value.until)
    if isinstance(value, OutboxChange):
        return (value.path, value.count)
    if isinstance(value, TapRow):
        return (
            value.id,
            value.position,
            value.lost,
            value.event_position,
            value.event_lost,
            value.truncated,
        )
    if isinstance(value, MessageEvent):
        return (
            value.at,
            value.n,
            value.outcome,
            value.time,
            value.enqueued,
            value.deliveries,
            value.reason,
        )
    if isinstance(value, Changes):
        return (
            value.fragment,
            plain(value.puts),
            plain(value.edits),
            plain(value.keeps),
            {lane: sorted(set(numbers)) for lane, numbers in value.deletes.items()},
            value.ids_upto,
            value.ids,
            plain(value.sessions),
            value.states,
            plain(value.holds),
            plain(value.outbox),
            plain(value.taps),
            plain(value.events),
            value.events_upto,
            value.written,
            value.writers,
            plain(value.head),
        )
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value
