"""Events: what has become of each message, as a second stream of a tap."""

from __future__ import annotations

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import DEAD, Draft
from tests.unit.fragment.queue import LOCK, NOW, draft, refusal, settings
from tests.unit.fragment.tap_queue import OTHER, TapQueue, tap, tapped


def test_every_outcome_has_its_event() -> None:
    queue = tapped(tap(events=True), max_deliveries=3)
    queue.send_many(7)
    done, back, later, dead, slow = queue.receive(5)
    queue.settle(c.COMPLETE, done)
    queue.settle(c.ABANDON, back)
    queue.settle(c.DEFER, later)
    queue.settle(c.DEAD_LETTER, dead, overlay={"DeadLetterReason": b"\xa1\x03bad"})
    assert queue.outcomes() == [
        (1, e.COMPLETED),
        (2, e.ABANDONED),
        (3, e.DEFERRED_BY_RECEIVER),
        (4, e.DEAD_LETTERED),
    ]
    assert queue.events()[3].reason == "bad"
    assert queue.events()[1].deliveries == 1
    queue.pass_time(LOCK)
    assert queue.outcomes()[4:] == [(slow.n, e.LOCK_EXPIRED)]
    queue.receive(1, delete=True)
    queue.purge(1)
    queue.receive_deferred(3, delete=True)
    queue.receive(1, sub=DEAD, delete=True)
    assert queue.outcomes()[5:] == [
        (2, e.RECEIVED_AND_DELETED),
        (5, e.PURGED),
        (3, e.RECEIVED_AND_DELETED),
        (4, e.RECEIVED_AND_DELETED),
    ]


def test_the_end_of_a_life_has_a_reason() -> None:
    queue = tapped(tap(events=True), max_deliveries=1)
    queue.send(draft(), draft(ttl=10))
    queue.settle(c.ABANDON, *queue.receive())
    queue.pass_time(20)
    queue.receive()
    assert queue.outcomes() == [(1, e.DEAD_LETTERED), (2, e.EXPIRED)]
    first, second = queue.events()
    assert (first.reason, first.deliveries) == ("MaxDeliveryCountExceeded", 1)
    assert (second.enqueued, second.time) == (NOW, NOW + 20)


def test_duplicates_that_were_dropped_are_told() -> None:
    queue = tapped(tap(events=True), duplicate_window_ms=1000)
    queue.send(Draft(b"x", "id", None, None, 0, 0))
    queue.send(Draft(b"x", "id", None, None, 0, 0))
    [event] = queue.events()
    assert (event.n, event.outcome, event.reason) == (1, e.DUPLICATE_DROPPED, "id")


def test_they_go_when_all_have_passed_them() -> None:
    queue = tapped(tap(events=True), tap(OTHER, events=True))
    queue.send_many(4)
    queue.consume_all()
    queue.advance(3, stream=c.EVENTS)
    assert len(queue.stored.events) == 4
    queue.advance(2, OTHER, stream=c.EVENTS)
    assert [event.at for event in queue.stored.events] == [3, 4]
    assert [event.at for event in queue.events(after=2, tap=OTHER)] == [3, 4]
    queue.change(settings(taps=[tap(events=True)]))
    assert [event.at for event in queue.stored.events] == [4]
    queue.change(settings(taps=[tap(events=True), tap(OTHER)]))
    queue.restart(clean=False)
    assert [event.at for event in queue.events(after=3)] == [4]


def test_without_events_there_are_none() -> None:
    queue = tapped(tap())
    queue.send_many(1)
    queue.consume_all()
    assert queue.stored.events == []
    answer = queue.run(c.ReadTap(1, 1, 5, 41, 0, c.EVENTS, 0, 10, 10, 1000))[0]
    assert refusal(answer) == "amqp:not-allowed"


def test_too_many_truncate_the_tap_and_what_is_lost_is_said() -> None:
    queue = tapped(tap(events=True, max_bytes=300, owner=""))
    queue.send_many(6, b"")  # 64 bytes each
    queue.consume_all(1)
    queue.consume_all(1)
    assert not queue.state().truncated
    queue.consume_all(1)
    state = queue.state()
    assert (state.truncated, state.event_lost) == (True, 3)
    queue.consume_all(1)
    assert queue.state().event_lost == 4, "what is not written is lost as well"
    answer = queue.run(c.ReadTap(1, 1, 5, 41, 0, c.EVENTS, 2, 10, 10, 1000))[0]
    assert refusal(answer) == "busbar:tap-truncated"
    queue.resume()
    queue.consume_all(1)
    assert [(event.at, event.n) for event in queue.events(after=4)] == [(5, 5)]


def test_old_ones_truncate_the_tap() -> None:
    queue = tapped(tap(events=True, max_age=1000))
    queue.send_many(2)
    queue.advance(2)
    queue.consume_all(1)
    assert queue.machine.wake_at() == NOW + 1000
    queue.pass_time(1000)
    assert queue.state().truncated


def test_pages_are_bounded() -> None:
    queue = tapped(tap(events=True))
    queue.send_many(5)
    queue.consume_all()
    answer = queue.run(c.ReadTap(1, 1, 5, 41, 0, c.EVENTS, 0, 5, 2, 1 << 20))[0]
    assert isinstance(answer, e.EventPage)
    assert ([event.n for event in answer.events], answer.upto) == ([1, 2], 2)
    answer = queue.run(c.ReadTap(1, 1, 5, 41, 0, c.EVENTS, 2, 4, 10, 1 << 20))[0]
    assert isinstance(answer, e.EventPage)
    assert ([event.n for event in answer.events], answer.upto) == ([3, 4], 4)


def test_an_undone_settlement_has_no_event() -> None:
    queue = tapped(tap(events=True))
    queue.send_many(1)
    [message] = queue.receive()
    queue.group = True
    queue.settle(c.COMPLETE, message)
    queue.undo()
    queue.group = False
    assert queue.events() == []
    queue.settle(c.COMPLETE, message)
    assert queue.outcomes() == [(1, e.COMPLETED)]
    assert isinstance(queue, TapQueue)
