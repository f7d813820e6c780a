"""Taps that consume: an exclusive lease on a sub-queue, and what they pass is deleted."""

from __future__ import annotations

from busbar.fragment.bounds import Bounds
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD
from busbar.model.settings import LATEST, FragmentSettings
from tests.pages import shown
from tests.unit.fragment.queue import LOCK, NOW, held, numbers, refusal, settings
from tests.unit.fragment.session_queue import of
from tests.unit.fragment.tap_queue import OTHER, TAP, TapQueue, tap, tapped

LEASE = 10_000
CONSUMER = tap(consumes=True, lease=LEASE)


def test_what_it_passes_is_deleted() -> None:
    queue = tapped(CONSUMER)
    queue.send_many(5)
    assert queue.seen() == [1, 2, 3, 4, 5]
    assert isinstance(queue.advance(3), e.Done)
    assert queue.peeked() == [4, 5]
    assert queue.seen(after=3) == [4, 5]
    state = queue.state()
    assert (state.position, state.lost, state.end) == (3, 0, 5)


def test_while_its_lease_runs_nobody_else_is_served() -> None:
    queue = tapped(CONSUMER)
    queue.send_many(3)
    queue.seen()
    assert queue.demand(7, 5) == []
    assert queue.receive(2) == [], "a drain is answered"
    assert queue.run(c.Purge(1, 1, 5, ACTIVE, 1 << 60, 9))[0].__class__ is e.Refused
    assert refusal(queue.ask_deferred(1)) == "amqp:not-allowed"
    queue.pass_time(LEASE - 1)
    assert queue.machine.wake_at() == NOW + LEASE
    assert numbers(held(queue.pass_time(1))) == [1, 2, 3], "those who wait get them now"


def test_reading_and_moving_renew_the_lease() -> None:
    queue = tapped(CONSUMER)
    queue.send_many(3)
    queue.seen()
    queue.demand(7, 5)
    queue.pass_time(LEASE - 1)
    queue.advance(1)
    assert queue.pass_time(LEASE - 1) == []
    queue.seen(after=1)
    assert queue.pass_time(LEASE - 1) == []
    assert numbers(held(queue.pass_time(1))) == [2, 3]


def test_it_sees_nothing_beyond_what_somebody_has_locked() -> None:
    queue = tapped(CONSUMER)
    queue.send_many(4)
    one, two = queue.receive(2)
    queue.settle(c.COMPLETE, one)
    page = queue.read()
    assert (shown(page), page.upto) == ([], 1)
    assert refusal(queue.advance(3)) == "com.microsoft:argument-out-of-range"
    queue.settle(c.ABANDON, two)
    assert queue.seen() == [2, 3, 4]


def test_deferred_and_dead_letters_are_not_its_business() -> None:
    queue = tapped(CONSUMER)
    queue.send_many(3)
    one, two = queue.receive(2)
    queue.settle(c.DEFER, one)
    queue.settle(c.DEAD_LETTER, two)
    assert queue.seen() == [3]
    queue.advance(3)
    assert queue.counts() == [0, 1, 1, 0, 0]
    assert numbers(queue.receive(1, sub=DEAD)) == [2]


def test_what_lay_before_its_beginning_is_left_to_others() -> None:
    queue = TapQueue()
    queue.send_many(2)
    queue.change(settings(taps=[tap(consumes=True, lease=LEASE, start=LATEST)]))
    queue.send_many(2)
    assert queue.seen(after=2) == [3, 4]
    queue.advance(4)
    assert queue.peeked() == [1, 2]
    queue.pass_time(LEASE)
    assert numbers(queue.receive(5)) == [1, 2]
    queue.send_many(1)
    assert queue.seen(after=4) == [5], "the locks of others before its position do not matter"


def test_what_it_passed_goes_bit_by_bit_and_nobody_gets_it_meanwhile() -> None:
    bounds = Bounds()
    bounds.page_records = 10
    queue = TapQueue(settings(taps=[CONSUMER]), bounds=bounds)
    queue.send_many(35)
    queue.seen()
    queue.demand(7, 100)
    queue.step(c.AdvanceTap(1, 1, 5, TAP, c.MESSAGES, 30, ""))
    queue.now += LEASE
    delivered: list[int] = []
    left = []
    while queue.machine.has_work(queue.now):
        delivered += numbers(held(queue.step(c.Tick(1))))
        left.append(queue.stored.head.counts[ACTIVE])
    assert left[:3] == [25, 15, 5]
    assert delivered == [31, 32, 33, 34, 35]


def test_a_restart_in_the_middle_loses_nothing_of_it() -> None:
    queue = tapped(CONSUMER)
    queue.send_many(5)
    queue.seen()
    queue.step(c.AdvanceTap(1, 1, 5, TAP, c.MESSAGES, 4, ""))
    queue.restart(clean=False)
    assert queue.demand(7, 10) == [], "nobody knows whether the lease runs: it does"
    assert queue.peeked() == [5]
    assert numbers(held(queue.pass_time(LEASE))) == [5]


def test_other_taps_keep_what_it_consumes() -> None:
    queue = tapped(CONSUMER, tap(OTHER, events=True))
    queue.send_many(2)
    queue.seen()
    queue.advance(2)
    assert queue.kept() == [1, 2]
    assert queue.seen(tap=OTHER) == [1, 2]
    assert [event.outcome for event in queue.events(tap=OTHER)] == [e.CONSUMED, e.CONSUMED]


def test_only_one_at_a_time() -> None:
    queue = tapped(CONSUMER, tap(OTHER, consumes=True, lease=LEASE))
    queue.send_many(1)
    queue.seen()
    assert refusal(queue.ask_read(tap=OTHER)) == "busbar:tap-owned"
    queue.pass_time(LEASE)
    assert queue.seen(tap=OTHER) == [1]


def test_dead_letters_can_be_consumed() -> None:
    queue = tapped(tap(sub=DEAD, consumes=True, lease=LEASE))
    queue.send_many(4)
    messages = queue.receive(3)
    queue.settle(c.DEAD_LETTER, messages[2])
    queue.settle(c.DEAD_LETTER, messages[0])
    queue.settle(c.DEAD_LETTER, messages[1])
    assert queue.seen() == [3, 1, 2]
    assert queue.receive(5, sub=DEAD) == []
    assert numbers(queue.receive(5)) == [4], "the main queue is served"
    queue.advance(2)
    assert [record.n for record in queue.dead_letters()] == [2]


def test_an_undone_advance_deletes_nothing() -> None:
    queue = tapped(CONSUMER)
    queue.send_many(3)
    queue.seen()
    queue.group = True
    queue.step(c.AdvanceTap(1, 1, 5, TAP, c.MESSAGES, 3, ""))
    queue.undo()
    queue.group = False
    queue.tick()
    assert queue.seen() == [1, 2, 3]
    assert queue.receive(1) == [], "the lease was never durable and stays"


class TestWithSessions:
    def queue(self) -> TapQueue:
        return TapQueue(FragmentSettings(LOCK, 10, 0, False, 0, True, True, 0, True, [CONSUMER, tap(OTHER)]))

    def test_a_kept_message_leaves_its_session(self) -> None:
        queue = self.queue()
        queue.send(of("a"), of("b"))
        accepted = queue.run(c.AcceptSession(1, 1, 5, 3, "a"))[0]
        assert isinstance(accepted, e.SessionAccepted)
        queue.settle(c.COMPLETE, *held(queue.demand(3, 5)))
        assert queue.stored.sessions.keys() == {"b"}
        assert queue.kept() == [1]
        assert queue.seen(tap=OTHER) == [1, 2]

    def test_no_session_is_handed_out_while_a_tap_consumes(self) -> None:
        queue = self.queue()
        queue.send(of("a"), of("b"), of("a"))
        queue.seen()
        assert refusal(queue.run(c.AcceptSession(1, 1, 5, 3, "a"))[0]) == "amqp:not-allowed"
        assert queue.run(c.AwaitSession(1, 1, 6)) == []
        queue.advance(2)
        assert queue.stored.sessions.keys() == {"a"}
        [offer] = queue.pass_time(LEASE)
        assert isinstance(offer, e.SessionOffered)
        accepted = queue.run(c.AcceptSession(1, 1, 7, 3, None))[0]
        assert isinstance(accepted, e.SessionAccepted) and accepted.session == "a"
        assert numbers(held(queue.demand(3, 5))) == [3]

    def test_one_who_holds_a_session_gets_no_more(self) -> None:
        queue = self.queue()
        queue.send(of("a"))
        queue.run(c.AcceptSession(1, 1, 5, 3, "a"))
        queue.seen()
        assert queue.demand(3, 5) == []
        assert numbers(held(queue.pass_time(LEASE))) == [1]
