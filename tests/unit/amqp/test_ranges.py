"""Ranges of dispositions: what they find, and that finding it costs no more than what is found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from busbar.amqp.connection import Connection
from busbar.amqp.credit import MASK, serial_distance
from busbar.amqp.deliveries import SentDelivery
from busbar.amqp.events import Disposed, Event
from busbar.amqp.link import Link
from busbar.amqp.outcomes import ACCEPTED
from busbar.amqp.ranges import LEAST_ORDER, compacted, take
from busbar.amqp.types import Described, UInt, ULong
from tests.unit.amqp.fake_wire import Wire, frame, of

COUNT = 1_000


def served(count: int = COUNT) -> tuple[Connection, Link]:
    """A server that has sent `count` deliveries, none of them settled."""
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.receiver(session)
    ours.grant(count)
    wire.run()
    theirs.deliver([number.to_bytes(4, "big") for number in range(count)], [b"x"] * count, False)
    wire.run()
    assert theirs.unsettled == count
    return wire.server, theirs


def said(first: int, last: int, settled: bool, code: int = ACCEPTED) -> bytes:
    return frame(0, 0x15, [True, UInt(first), UInt(last), settled, Described(ULong(code), [])])


def ids_of(events: list[Event]) -> list[int]:
    return [id for event in of(Disposed, events) for id in event.ids]


def test_a_delivery_is_reported_once_however_often_it_is_disposed() -> None:
    server, link = served()
    events = server.receive_data(said(0, COUNT - 1, False) * 500, 1)
    assert ids_of(events) == [*range(COUNT)]
    assert ids_of(server.receive_data(said(0, 0x7FFFFFFF, True) * 500 + said(3, 3, True), 1)) == []
    link.confirm([*range(COUNT)], ACCEPTED)
    assert link.unsettled == 0


def test_progress_reports_are_not_passed_on() -> None:
    server, link = served()
    assert server.receive_data(said(0, COUNT - 1, False, 0x23) * 500, 1) == []
    assert link.unsettled == COUNT
    assert ids_of(server.receive_data(said(0, COUNT - 1, True), 1)) == [*range(COUNT)]
    assert link.unsettled == 0


def test_a_range_passes_no_id_twice() -> None:
    server, link = served()
    order = link.session.order
    assert len(order) == COUNT
    for number in range(0, COUNT, 2):
        server.receive_data(said(number, number, True), 1)
    assert len(order) == COUNT, "those settled by themselves are still passed once"
    assert ids_of(server.receive_data(said(0, 499, False), 1)) == [*range(1, 500, 2)]
    assert order == [*range(500, COUNT)]
    assert ids_of(server.receive_data(said(0x40000000, 0x7FFFFFFF, False), 1)) == []
    assert order == [*range(500, COUNT)], "a range of what was never sent looks at none of them"


def test_the_order_is_as_long_as_what_is_unsettled() -> None:
    server, link = served(10)
    ours = link
    for start in range(10, 10 * LEAST_ORDER, 100):
        server.receive_data(
            frame(0, 0x13, [UInt(0), UInt(MASK >> 1), UInt(0), UInt(5000), UInt(0), UInt(start), UInt(100)]),
            1,
        )
        ours.deliver([b"t"] * 100, [b"x"] * 100, False)
        for number in range(start, start + 100):
            server.receive_data(said(number, number, True), 1)
        server.data_to_send()
    assert link.unsettled == 10
    assert len(link.session.order) <= 2 * LEAST_ORDER + 200


@given(
    st.integers(0, MASK),
    st.sets(st.integers(0, 200)),
    st.integers(-300, 300),
    st.one_of(st.integers(-5, 300), st.integers(2**31 - 500, 2**31 - 1)),
)
def test_ranges_find_what_a_search_of_all_finds(
    base: int, offsets: set[int], start: int, length: int
) -> None:
    order = [(base + offset) & MASK for offset in sorted(offsets)]
    first, last = (base + start) & MASK, (base + start + length) & MASK
    expected = [id for id in order if length >= 0 and 0 <= serial_distance(first, id) <= length]
    left = [id for id in order if id not in expected]
    assert take(order, first, last) == expected
    assert order == left


def test_compaction_keeps_what_has_no_disposition() -> None:
    _, theirs = served(3)
    table = {1: SentDelivery(theirs, b"1"), 2: SentDelivery(theirs, b"2")}
    table[2].disposed = True
    order = [*range(LEAST_ORDER + 4)]
    assert compacted(order, table) is order
    assert compacted([*order, LEAST_ORDER + 5], table) == [1]
