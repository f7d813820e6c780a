"""What becomes of sessions when commits fail: nothing is held that nobody was told of, and nothing is lost silently."""

from __future__ import annotations

import pytest

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE
from tests.unit.fragment.queue import LOCK, lost, numbers, refusal
from tests.unit.fragment.session_queue import SessionQueue, of


def undo(queue: SessionQueue, effects: list[e.Effect]) -> None:
    changes = queue.machine.take_changes()
    queue.machine.undo(
        [changes] if changes is not None else [], effects, queue.stored.head, queue.store.next_due(1)
    )
    queue.group = False


def test_an_accept_that_was_not_heard_of_holds_nothing() -> None:
    queue = SessionQueue()
    queue.send_to("a")
    queue.group = True
    effects = queue.run(c.Send(1, 1, 1, [of("b")], False))
    effects += queue.run(c.AcceptSession(1, 1, 2, 50, "a"))
    undo(queue, effects)
    assert queue.accept("a").session == "a"
    assert queue.list() == ["a"]


def test_settlements_under_a_session_are_undone_and_their_locks_held_again() -> None:
    queue = SessionQueue()
    queue.send_to("a", "a")
    receiver = queue.accept("a")
    taken = receiver.take(2)
    queue.group = True
    undo(queue, [queue.settle(c.COMPLETE, *taken)])
    assert queue.counts()[ACTIVE] == 2
    assert lost(queue.settle(c.COMPLETE, *taken)) == []
    assert queue.list() == []


def test_a_close_stays_a_close() -> None:
    queue = SessionQueue()
    queue.send_to("a", "a")
    receiver = queue.accept("a")
    taken = receiver.take(2)
    queue.group = True
    effects = [queue.settle(c.COMPLETE, taken[0])]
    effects += receiver.close()
    undo(queue, effects)
    assert lost(queue.settle(c.COMPLETE, *taken)) == [0, 1]
    again = queue.accept("a").take(9)
    assert [(m.n, m.record.deliveries) for m in again] == [(1, 0), (2, 0)]


def test_a_loss_that_was_not_heard_of_happens_again_and_counts_once() -> None:
    queue = SessionQueue()
    queue.send_to("a")
    receiver = queue.accept("a")
    receiver.take()
    queue.group = True
    effects = queue.pass_time(LOCK)
    assert isinstance(effects[0], e.SessionLost)
    undo(queue, effects)
    (again,) = queue.tick()
    assert isinstance(again, e.SessionLost) and again.consumer == receiver.consumer
    assert [(m.n, m.record.deliveries) for m in queue.accept("a").take()] == [(1, 1)]


def test_a_loss_is_not_told_to_who_has_left_since() -> None:
    queue = SessionQueue()
    queue.send_to("a")
    receiver = queue.accept("a")
    receiver.take()
    queue.group = True
    effects = queue.pass_time(LOCK)
    effects += receiver.close()
    undo(queue, effects)
    assert queue.tick() == []
    assert [(m.n, m.record.deliveries) for m in queue.accept("a").take()] == [(1, 0)]


def test_a_state_that_was_not_written_is_not_read() -> None:
    queue = SessionQueue()
    receiver = queue.accept("a")
    receiver.write(b"old")
    queue.group = True
    undo(queue, [receiver.write(b"newer")])
    assert receiver.state() == b"old"
    assert isinstance(receiver.write(None), e.Done)
    assert queue.stored.head.size == 0


def test_the_holder_is_served_again_with_its_credit() -> None:
    queue = SessionQueue()
    receiver = queue.accept("a")
    receiver.demand(1)
    queue.group = True
    effects = queue.run(c.Send(1, 1, 1, [of("a")], False))
    assert isinstance(effects[1], e.Delivered)
    undo(queue, effects)
    assert queue.tick() == []
    effects = queue.run(c.Send(1, 1, 1, [of("a"), of("a")], False))
    assert [record.n for record in effects[1].records] == [1]  # type: ignore[attr-defined]


def test_a_session_in_the_fragments_own_hand_waits_again() -> None:
    queue = SessionQueue()
    queue.send(of("a", ttl=50), of("a"), of("b"))
    queue.now += 60
    queue.group = True
    effects = queue.step(c.AwaitSession(1, 1, 11))
    undo(queue, effects)
    queue.tick()
    assert queue.accept().session == "b"
    assert refusal(queue.ask()[1]) == "com.microsoft:timeout"
    assert numbers(queue.accept("a").take(9)) == []


@pytest.mark.timeout(10)
def test_a_drain_is_answered_although_the_removal_of_what_expired_was_undone() -> None:
    """Once the machine never came to rest here (seeds 4 and 114 of test_session_seeds)."""
    queue = SessionQueue()
    queue.send(of("a", ttl=50), of("a"))
    receiver = queue.accept("a")
    queue.now += 60
    queue.group = True
    effects = queue.run(c.Demand(1, 1, receiver.consumer, ACTIVE, 5, True, False))
    assert [type(effect) for effect in effects] == [e.Drained]
    undo(queue, effects)
    assert [type(effect) for effect in queue.tick()] == [e.Drained]
    assert numbers(receiver.take(9)) == [] and queue.counts()[ACTIVE] == 0
