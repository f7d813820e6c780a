"""Sequences in which the broker and the model once disagreed, by what they were about: one test for each."""

from __future__ import annotations

import pytest

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD
from busbar.model.settings import TapSettings
from harness.simulated_host import JobFault
from tests.simulation.scenarios import (
    LOCK,
    NotingQueue,
    NotingSessions,
    NotingTaps,
    begin,
    demand,
    draft,
    send,
    settings,
    settle,
)

HOW_IT_FAILS = pytest.mark.parametrize("fault", list(JobFault), ids=lambda fault: fault.name.lower())


def test_what_expires_in_the_main_queue_is_delivered_by_the_dead_letter_queue_in_the_same_turn() -> None:
    world, queue = begin(NotingQueue, settings(dead_letter=True))
    queue.do(send(draft(ttl=30)))
    queue.do(demand(14, 1, DEAD))
    world.pass_time(40)
    queue.do(demand(11, 1))
    (delivered,) = [effect for effect in world.effects_of(c.Demand) if isinstance(effect, e.Delivered)]
    assert (delivered.consumer, [record.n for record in delivered.records]) == (14, [1])
    world.drain()
    assert world.delivered() == [(14, 1)]


@pytest.mark.parametrize("dead_letter", [False, True])
def test_a_lock_ends_the_message_has_expired_and_a_later_one_is_delivered_all_in_one_turn(
    dead_letter: bool,
) -> None:
    world, queue = begin(NotingQueue, settings(dead_letter=dead_letter))
    queue.do(send(draft(ttl=60), draft()))
    queue.do(demand(11, 1))
    world.drain()
    world.pass_time(70, fire=False)
    queue.do(demand(12, 1))
    (delivered,) = world.effects_of(c.Demand)
    assert isinstance(delivered, e.Delivered) and [record.n for record in delivered.records] == [2]
    world.drain()
    assert world.delivered() == [(11, 1), (12, 2)]
    assert bool(queue.lane(DEAD)) is dead_letter


@pytest.mark.parametrize("landed", [False, True])
def test_a_crash_interrupts_the_removal_of_expired_messages(landed: bool) -> None:
    world, queue = begin(NotingQueue, settings(), turn_messages=3, page_records=3, ready_records=3)
    queue.do(send(*[draft(ttl=30) for _ in range(8)]))
    world.drain()
    world.pass_time(40)
    world.leaves_reads = True
    queue.do(demand(11, 1))
    while len(queue.lane(ACTIVE)) == 8:
        world.turn()
        world.work()
    world.turn()
    assert queue.lane(ACTIVE), "not all of them have been removed"
    world.crash(landed)
    world.leaves_reads = False
    queue.do(demand(11, 1, drain=True))
    world.drain()
    assert not queue.lane(ACTIVE) and world.delivered() == []


@HOW_IT_FAILS
def test_a_drain_is_undone_with_the_removal_of_what_expired_and_the_holder_wants_nothing_more(
    fault: JobFault,
) -> None:
    world, queue = begin(NotingSessions, settings(sessions=True))
    queue.do(send(*[draft(ttl=30, session="s") for _ in range(3)]))
    queue.do(c.AcceptSession(1, 1, 1, 100, "s"))
    world.drain()
    world.pass_time(40)
    queue.do(demand(100, 1, drain=True))
    assert any(isinstance(effect, e.Drained) for _, effects in world.applied for effect in effects)
    world.turn()
    world.work(fault)
    assert not any(isinstance(effect, e.Drained) for effect in world.heard), "it was undone"
    world.heal()
    assert len([effect for effect in world.heard if isinstance(effect, e.Drained)]) == 1
    queue.do(c.Leave(1, 1, 100))
    world.drain()


@HOW_IT_FAILS
def test_a_session_is_lost_by_time_again_after_a_failed_commit_with_expired_messages_left(
    fault: JobFault,
) -> None:
    world, queue = begin(NotingSessions, settings(sessions=True), turn_messages=3, session_page=2)
    queue.do(
        send(*[draft(session="s") for _ in range(2)], *[draft(ttl=LOCK + 5, session="s") for _ in range(6)])
    )
    queue.do(c.AcceptSession(1, 1, 1, 100, "s"))
    queue.do(demand(100, 2))
    world.drain()
    assert world.delivered() == [(100, 1), (100, 2)]
    world.pass_time(LOCK + 10, fire=False)
    queue.do(c.AwaitSession(1, 1, 1))
    assert any(isinstance(effect, e.SessionLost) for _, effects in world.applied for effect in effects)
    world.turn()
    world.work(fault)
    world.heal()
    assert [effect.consumer for effect in world.heard if isinstance(effect, e.SessionLost)] == [100], "once"
    queue.do(c.AcceptSession(1, 1, 1, 101, None))
    world.drain()
    world.check()


def test_the_lock_of_a_dead_letter_ends_in_the_turn_that_refuses_a_session_state() -> None:
    world, queue = begin(NotingSessions, settings(most=1, sessions=True))
    queue.do(send(draft(session="s")))
    queue.do(c.AcceptSession(1, 1, 1, 100, "s"))
    queue.do(demand(100, 1))
    world.drain()
    queue.do(settle(world.last_delivery(), c.ABANDON))
    queue.do(demand(14, 1, DEAD))
    world.drain()
    assert world.delivered()[-1] == (14, 1)
    world.pass_time(LOCK + 5, fire=False)
    queue.do(c.SetSessionState(1, 1, 1, 99, b"state"))
    effects = world.effects_of(c.SetSessionState)
    assert any(isinstance(effect, e.Refused) for effect in effects)
    assert queue.machine.locks() == []
    world.drain()
    assert queue.lane(DEAD)[1].deliveries == 2


@pytest.mark.parametrize("fault", [None, *JobFault])
def test_events_happen_while_those_before_them_are_still_on_their_way_out(fault: JobFault | None) -> None:
    of = settings()
    of.taps = [TapSettings(1, "tap", ACTIVE, True)]
    world, queue = begin(NotingTaps, of)
    assert isinstance(queue, NotingTaps)
    queue.do(send(*[draft() for _ in range(4)]))
    queue.do(demand(11, 2))
    world.drain()
    first = world.last_delivery()
    queue.do(settle(first, c.ABANDON))
    world.turn()  # on their way out
    queue.do(demand(12, 2))
    queue.do(settle(first, c.COMPLETE))
    world.work(fault)
    world.heal()
    world.drain()
    (reader,) = queue.readers.values()
    queue.catch_up(reader)
    queue.check_events(reader)
    assert sorted(reader.events) == list(range(1, len(reader.events) + 1)), "no event is missing"


@HOW_IT_FAILS
@pytest.mark.parametrize("outcome", [c.ABANDON, c.DEFER, c.DEAD_LETTER, c.RELEASE, c.COMPLETE])
def test_a_settlement_with_properties_is_made_and_its_report_is_lost(outcome: int, fault: JobFault) -> None:
    """The lock had ended with it. If it were held again, the message would be counted with the size that it had before."""
    world, queue = begin(NotingQueue, settings())
    queue.do(send(draft()))
    queue.do(demand(11, 1))
    world.drain()
    first = world.last_delivery()
    queue.do(settle(first, outcome, {"a": b"1"}))
    world.turn()
    world.work(fault)
    made = fault in (JobFault.UNHEARD, JobFault.TORN)
    assert queue.made is made
    world.drain()
    assert bool(queue.machine.locks()) is not made
    queue.do(settle(first, c.COMPLETE))
    world.drain()
    (settled,) = [effect for effect in world.heard if isinstance(effect, e.Settled)]
    assert bool(settled.lost) is made
    world.pass_time(LOCK + 5)
    for sub in (ACTIVE, DEAD):
        queue.do(c.Purge(1, 1, 1, sub, world.now + 1, 10))
    world.drain()
    if outcome != c.DEFER or not made:
        assert queue.stored.head.size == 0, "nothing is left, and nothing is counted"


def test_a_store_is_brought_online_before_its_last_job_has_returned() -> None:
    world, queue = begin(NotingQueue, settings())
    queue.do(send(draft()))
    world.turn()
    world.take_offline()
    queue.do(demand(11, 1))
    world.bring_online()
    world.drain()
    assert world.delivered() == [(11, 1)]


@pytest.mark.parametrize("offline", [False, True])
def test_a_store_is_back_when_it_is_reset_and_fails_later(offline: bool) -> None:
    world, queue = begin(NotingQueue, settings())
    queue.do(send(draft()))
    world.drain()
    if offline:
        world.take_offline()
        world.bring_online()
        world.heal()
    world.reset()
    queue.do(send(draft()))
    world.turn()
    while world.host.lifecycle.is_open:
        world.work(JobFault.LOST)
    world.work(JobFault.LOST)  # it cannot be opened at first
    world.heal()
    queue.do(demand(11, 2))
    world.drain()
    assert world.delivered() == [(11, 1)], "it was not re-created"


def test_a_clean_end_keeps_locks_through_a_start_that_fails() -> None:
    world, queue = begin(NotingQueue, settings())
    queue.do(send(draft()))
    queue.do(demand(11, 1))
    world.drain()
    world.refuse_opening()
    world.restart()
    world.crash(False)
    world.allow_opening()
    world.heal()
    assert [lock.record.n for lock in queue.machine.locks()] == [1]
    queue.do(settle(world.last_delivery(), c.COMPLETE))
    world.drain()
    assert not queue.lane(ACTIVE)


def test_a_store_is_lost_again_before_the_reader_of_a_tap_was_told_of_the_first_loss() -> None:
    of = settings()
    of.taps = [TapSettings(1, "tap", ACTIVE, True)]
    world, queue = begin(NotingTaps, of)
    assert isinstance(queue, NotingTaps)
    (reader,) = queue.readers.values()
    queue.show(reader)
    queue.do(send(draft()))
    world.drain()
    for _ in range(2):
        world.take_offline()
        world.drain()
        world.reset()
        world.heal()
    queue.do(send(draft()))
    queue.show(reader)
    world.drain()
    queue.read(reader, 50, 5_000)
    world.drain()
    assert reader.truncated == 1
    queue.finish(reader)
    assert reader.at == 2


def test_a_store_that_was_re_created_cannot_be_admitted_at_first() -> None:
    """What was known of its fragments is still known when it is re-created again."""
    world, queue = begin(NotingQueue, settings())
    queue.do(send(draft(), draft()))
    world.drain()
    world.take_offline()
    world.drain()
    world.reset()
    world.work()
    world.work(JobFault.LOST)  # it is admitted
    world.reset()
    world.heal()
    assert world.host.lifecycle.loss is not None and world.host.lifecycle.loss.messages == 2
    queue.do(send(draft()))
    world.drain()
    assert list(queue.lane(ACTIVE)) == [3], "numbers go on"
