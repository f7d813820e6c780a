"""Taps: what is kept for them, where they begin, how they move, and when they lose something."""

from __future__ import annotations

import pytest

from busbar.fragment.bounds import Bounds
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, DEFERRED, KEPT, KEPT_DEAD
from busbar.model.settings import LATEST
from tests.pages import shown
from tests.unit.fragment.queue import LOCK, NOW, draft, refusal, settings
from tests.unit.fragment.tap_queue import OTHER, TAP, TapQueue, tap, tapped


class TestKeeping:
    def test_what_receivers_are_done_with_is_shown_to_a_tap(self) -> None:
        queue = tapped()
        queue.send(draft(b"one"), draft(b"two"), draft(b"three"))
        queue.consume_all(2)
        page = queue.read()
        assert [(r.n, r.content) for r in shown(page)] == [(1, b"one"), (2, b"two"), (3, b"three")]
        assert [r.lane for r in shown(page)] == [KEPT, KEPT, ACTIVE]
        assert page.upto == 3

    def test_receivers_never_see_it_again(self) -> None:
        queue = tapped()
        queue.send_many(3)
        queue.consume_all()
        assert queue.receive(10) == []
        assert queue.peeked() == []
        assert queue.counts() == [0, 0, 0, 0, 0]
        assert queue.kept() == [1, 2, 3]

    @pytest.mark.parametrize("how", ["delete", "purge", "expire", "deferred"])
    def test_however_it_goes(self, how: str) -> None:
        queue = tapped()
        queue.send(draft(b"x", ttl=1000 if how == "expire" else 0))
        if how == "delete":
            queue.receive(delete=True)
        elif how == "purge":
            queue.purge()
        elif how == "expire":
            queue.pass_time(2000)
            queue.receive()
        else:
            queue.settle(c.DEFER, *queue.receive())
            queue.receive_deferred(1, delete=True)
        assert queue.kept() == [1]
        assert queue.seen() == [1]

    def test_a_message_that_comes_and_goes_in_one_commit_is_put_where_it_is_kept(self) -> None:
        queue = tapped()
        queue.tick()
        queue.demand(9, 5, delete=True)
        queue.group = True
        queue.send(draft(b"quick"))
        changes = queue.commit()
        assert changes is not None
        assert [record.n for record in changes.puts[KEPT]] == [1]
        assert not changes.puts[ACTIVE] and not changes.keeps
        queue.group = False
        assert [record.content for record in shown(queue.read())] == [b"quick"]

    def test_one_that_was_edited_in_between_goes_its_way(self) -> None:
        queue = tapped(max_deliveries=2)
        queue.tick()
        queue.group = True
        queue.send(draft(b"twice"))
        queue.settle(c.ABANDON, *queue.receive(), overlay={"a": b"1"})
        queue.settle(c.COMPLETE, *queue.receive())
        queue.commit()
        queue.group = False
        [record] = shown(queue.read())
        assert (record.deliveries, record.overlay, record.content) == (1, {"a": b"1"}, b"twice")

    def test_it_does_not_count_to_the_quota(self) -> None:
        queue = tapped(quota_bytes=1000)
        for _ in range(20):
            queue.send(draft(b"x" * 500))
            queue.consume_all()
        assert len(queue.kept()) == 20

    def test_without_taps_nothing_is_kept_and_nothing_more_is_written(self) -> None:
        queue = TapQueue()
        queue.send_many(2)
        queue.group = True
        queue.consume_all()
        changes = queue.commit()
        assert changes is not None
        assert changes.deletes[ACTIVE] == [1, 2]
        assert not (changes.keeps or changes.taps or changes.events)
        assert queue.machine._state.taps is None

    def test_scheduled_messages_appear_when_they_become_active(self) -> None:
        queue = tapped()
        queue.send(draft(b"later", scheduled=NOW + 100), draft(b"never", scheduled=NOW + 200), draft(b"now"))
        assert queue.seen() == [3]
        queue.run(c.CancelScheduled(1, 1, 5, [2]))
        queue.pass_time(150)
        assert [(r.n, r.content) for r in shown(queue.read())] == [(3, b"now"), (4, b"later")]
        queue.consume_all()
        assert queue.seen() == [3, 4]

    def test_a_page_is_bounded_by_count_and_bytes(self) -> None:
        queue = tapped()
        queue.send_many(5, b"x" * 100)
        queue.consume_all(3)
        page = queue.read(count=2)
        assert ([r.n for r in shown(page)], page.upto) == ([1, 2], 2)
        page = queue.read(after=2, max_bytes=350)
        assert ([r.n for r in shown(page)], page.upto) == ([3, 4], 4)
        page = queue.read(after=3, upto=4, max_bytes=1)
        assert ([r.n for r in shown(page)], page.upto) == ([4], 4)
        page = queue.read(after=5)
        assert ([r.n for r in shown(page)], page.upto) == ([], 5)

    def test_without_a_tap_one_sees_what_the_queue_holds(self) -> None:
        queue = tapped()
        queue.send_many(4)
        messages = queue.receive(3)
        queue.settle(c.COMPLETE, messages[0])
        queue.settle(c.DEFER, messages[1])
        queue.settle(c.DEAD_LETTER, messages[2])
        page = queue.read(tap=0)
        assert [(r.n, r.lane) for r in shown(page)] == [
            (2, DEFERRED),
            (4, ACTIVE),
        ]
        assert [r.n for r in shown(queue.read(tap=0, sub=DEAD))] == [3]


class TestDeadLetters:
    def test_positions_follow_the_order_of_dying(self) -> None:
        queue = tapped(tap(sub=DEAD))
        queue.send_many(3)
        one, two, three = queue.receive(3)
        queue.settle(c.DEAD_LETTER, three)
        queue.settle(c.DEAD_LETTER, one)
        queue.settle(c.COMPLETE, two)
        page = queue.read()
        assert [(r.n, r.dead) for r in shown(page)] == [(3, 1), (1, 2)]
        assert page.upto == 2
        queue.settle(c.COMPLETE, *queue.receive(2, sub=DEAD))
        assert queue.kept_dead() == [1, 3]
        assert queue.seen() == [3, 1]
        queue.advance(1)
        assert queue.kept_dead() == [1]

    def test_dead_letters_are_numbered_without_taps_too(self) -> None:
        queue = TapQueue()
        queue.send_many(2)
        queue.settle(c.DEAD_LETTER, *queue.receive(2))
        queue.restart(clean=False)
        queue.change(settings(taps=[tap(sub=DEAD)]))
        assert queue.seen() == [1, 2]

    def test_what_a_main_tap_has_passed_stays_for_one_of_the_dead(self) -> None:
        queue = tapped(tap(), tap(OTHER, DEAD))
        queue.send_many(3)
        queue.settle(c.DEAD_LETTER, *queue.receive(2))
        queue.settle(c.COMPLETE, *queue.receive(2, sub=DEAD))
        queue.consume_all()
        assert (queue.kept(), queue.kept_dead()) == ([1, 2, 3], [])
        assert queue.seen(tap=OTHER) == [1, 2]
        queue.advance(3)
        assert (queue.kept(), queue.kept_dead()) == ([], [1, 2])
        assert queue.seen(tap=OTHER) == [1, 2]
        queue.advance(2, OTHER)
        assert queue.kept_dead() == []

    def test_expired_messages_are_dead_letters_of_the_stream(self) -> None:
        queue = tapped(tap(sub=DEAD), dead_letter_on_expiration=True)
        queue.send(draft(ttl=100))
        queue.pass_time(200)
        assert queue.receive() == []
        assert queue.seen() == [1]


class TestBeginning:
    def test_earliest_sees_what_is_there(self) -> None:
        queue = TapQueue()
        queue.send_many(3)
        queue.consume_all(1)
        queue.change(settings(taps=[tap()]))
        assert queue.seen() == [2, 3]
        assert queue.state().position == 0

    def test_latest_sees_what_comes(self) -> None:
        queue = TapQueue()
        queue.send_many(3)
        queue.change(settings(taps=[tap(start=LATEST)]))
        assert queue.state().position == 3
        queue.send_many(1)
        queue.consume_all()
        assert queue.seen(after=3) == [4]
        assert queue.kept() == [4]

    def test_settings_count_with_the_next_command_also_without_a_tick(self) -> None:
        queue = TapQueue()
        queue.machine.settings = settings(taps=[tap()])
        assert queue.machine.wake_at() == 1
        queue.send_many(1)
        queue.consume_all()
        assert queue.seen() == [1]

    def test_a_deleted_tap_takes_along_what_it_held(self) -> None:
        queue = tapped()
        queue.send_many(5)
        queue.consume_all()
        queue.change(settings())
        assert queue.kept() == []
        assert queue.stored.taps == {}
        assert queue.stored.head.kept_size == 0
        assert queue.machine._state.taps is None
        assert refusal(queue.ask_read()) == "amqp:not-found"

    def test_a_tap_outlives_a_restart(self) -> None:
        queue = tapped()
        queue.send_many(5)
        queue.consume_all()
        queue.advance(2)
        queue.restart(clean=False)
        assert queue.state().position == 2
        assert queue.seen(after=2) == [3, 4, 5]
        queue.advance(5)
        assert queue.kept() == []

    def test_what_was_passed_before_a_restart_goes_after_it(self) -> None:
        queue = tapped()
        queue.send_many(5)
        queue.consume_all()
        queue.step(c.AdvanceTap(1, 1, 5, TAP, c.MESSAGES, 4, ""))
        assert queue.kept() == [1, 2, 3, 4, 5], "the tick has not come"
        queue.restart(clean=False)
        queue.tick()
        assert queue.kept() == [5]


class TestMoving:
    def test_never_back(self) -> None:
        queue = tapped()
        queue.send_many(4)
        assert isinstance(queue.advance(3), e.Done)
        assert isinstance(queue.advance(1), e.Done)
        assert isinstance(queue.advance(3), e.Done)
        assert queue.state().position == 3
        assert refusal(queue.ask_read(after=2)) == "busbar:tap-passed"

    def test_never_beyond_the_end(self) -> None:
        queue = tapped()
        queue.send_many(4)
        assert refusal(queue.advance(5)) == "com.microsoft:argument-out-of-range"
        assert queue.state().position == 0

    def test_only_by_its_owner(self) -> None:
        queue = tapped(tap(owner="checkpoint"))
        queue.send_many(1)
        assert refusal(queue.advance(1, owner="another")) == "busbar:tap-owned"
        assert refusal(queue.resume(owner="another")) == "busbar:tap-owned"
        assert isinstance(queue.advance(1, owner="checkpoint"), e.Done)

    def test_the_slowest_decides_what_is_kept(self) -> None:
        queue = tapped(tap(), tap(OTHER))
        queue.send_many(4)
        queue.consume_all()
        queue.advance(4)
        assert queue.kept() == [1, 2, 3, 4]
        queue.advance(2, OTHER)
        assert queue.kept() == [3, 4]
        assert queue.state().kept == 0
        assert queue.state(OTHER).kept == 2

    def test_what_goes_at_once_is_bounded(self) -> None:
        bounds = Bounds()
        bounds.swept = 10
        queue = TapQueue(settings(taps=[tap()]), bounds=bounds)
        queue.send_many(95)
        queue.consume_all()
        queue.step(c.AdvanceTap(1, 1, 5, TAP, c.MESSAGES, 95, ""))
        left = [95]
        while queue.machine.has_work(queue.now):
            queue.step(c.Tick(1))
            left.append(len(queue.kept()))
        assert left == [95, 85, 75, 65, 55, 45, 35, 25, 15, 5, 0]

    def test_an_advance_that_was_not_committed_did_not_take_place(self) -> None:
        queue = tapped()
        queue.send_many(3)
        queue.consume_all()
        queue.group = True
        queue.step(c.AdvanceTap(1, 1, 5, TAP, c.MESSAGES, 3, ""))
        queue.undo()
        queue.group = False
        queue.tick()
        assert queue.state().position == 0
        assert queue.seen() == [1, 2, 3]

    def test_what_could_not_go_goes_later(self) -> None:
        queue = tapped()
        queue.send_many(2)
        queue.consume_all()
        queue.step(c.AdvanceTap(1, 1, 5, TAP, c.MESSAGES, 2, ""))
        queue.group = True
        queue.step(c.Tick(1))
        queue.undo()
        assert queue.kept() == [1, 2]
        queue.group = False
        queue.tick()
        assert queue.kept() == []

    def test_the_order_of_completion_does_not_matter(self) -> None:
        queue = tapped()
        queue.send_many(3)
        one, two, three = queue.receive(3)
        queue.settle(c.COMPLETE, three)
        queue.settle(c.COMPLETE, one)
        queue.advance(2)
        assert queue.kept() == [3]
        queue.settle(c.COMPLETE, two)
        assert queue.kept() == [3], "it was passed while it was locked"

    def test_a_completion_that_was_not_committed_is_not_kept_twice(self) -> None:
        queue = tapped()
        queue.send_many(2)
        [message] = queue.receive()
        queue.group = True
        queue.settle(c.COMPLETE, message)
        queue.undo()
        queue.group = False
        assert queue.kept() == []
        queue.settle(c.COMPLETE, message)
        assert queue.kept() == [1]
        assert queue.seen() == [1, 2]

    def test_times_are_found(self) -> None:
        queue = tapped()
        for _ in range(3):
            queue.send_many(2)
            queue.pass_time(100)
        queue.consume_all(3)
        found = [queue.run(c.FindTime(1, 1, 5, ACTIVE, NOW + after))[0] for after in (0, 1, 100, 101, 1000)]
        assert [effect.position for effect in found if isinstance(effect, e.PositionFound)] == [0, 2, 2, 4, 6]


class TestLimits:
    def test_too_many_bytes_truncate_the_slowest_alone(self) -> None:
        queue = tapped(tap(max_bytes=1000), tap(OTHER, max_bytes=1000))
        queue.send_many(4, b"x" * 236)  # 300 each
        queue.advance(2, OTHER)
        queue.consume_all(3)
        assert queue.kept() == [1, 2, 3]
        queue.consume_all()
        state = queue.state()
        assert (state.truncated, state.lost, state.position) == (True, 2, 0)
        assert not queue.state(OTHER).truncated
        assert queue.kept() == [3, 4]
        assert refusal(queue.ask_read()) == "busbar:tap-truncated"
        assert queue.seen(after=2, tap=OTHER) == [3, 4]

    def test_truncations_are_counted(self) -> None:
        taps = [tap(max_bytes=1000, owner="me"), tap(OTHER)]
        queue = tapped(*taps)
        queue.send_many(10, b"x" * 236)  # 300 each
        queue.advance(10, OTHER)
        queue.consume_all(3)
        [message] = queue.receive()
        queue.group = True
        queue.step(c.Settle(1, 1, 5, c.COMPLETE, [message.n], [message.nonce], None, False))
        assert queue.machine._state.taps is not None
        assert queue.machine._state.taps.taps[TAP].truncations == 1
        queue.undo()
        queue.group = False
        assert (queue.state().truncated, queue.state().truncations) == (False, 0), "it did not take place"
        queue.settle(c.COMPLETE, message)
        queue.tick()
        assert (queue.state().truncated, queue.state().truncations) == (True, 1)
        queue.resume(owner="me")
        queue.change(settings(taps=[*taps, tap(43, start=LATEST)]))
        assert (queue.state().truncated, queue.state().truncations) == (False, 1)
        queue.consume_all()
        queue.tick()
        assert (queue.state().truncated, queue.state().truncations) == (True, 2)
        assert queue.state(OTHER).truncations == 0

    def test_the_error_comes_before_any_gap(self) -> None:
        queue = tapped(tap(max_bytes=1000))
        queue.send_many(10, b"x" * 236)
        assert [r.n for r in shown(queue.read(count=2))] == [1, 2]
        queue.consume_all(8)
        answer = queue.ask_read(after=2)
        assert refusal(answer) == "busbar:tap-truncated"
        assert isinstance(answer, e.Refused) and "up to position 8" in answer.text
        assert queue.seen(after=8) == [9, 10], "what lies behind is still there"

    def test_it_goes_on_behind_what_was_lost(self) -> None:
        queue = tapped(tap(max_bytes=1000, owner="me"))
        queue.send_many(5, b"x" * 236)
        queue.consume_all(4)
        answer = queue.resume(owner="me")
        assert isinstance(answer, e.TapStates)
        assert [(s.position, s.truncated) for s in answer.taps] == [(4, False)]
        queue.consume_all()
        assert queue.kept() == [5], "it holds again"
        assert queue.seen(after=4) == [5]

    def test_age_is_counted_from_the_first_message_kept(self) -> None:
        queue = tapped(tap(max_age=1000))
        queue.send_many(2)
        queue.pass_time(400)
        queue.send_many(1)
        queue.consume_all(2)
        assert queue.machine.wake_at() == NOW + 1000
        queue.pass_time(599)
        assert not queue.state().truncated
        queue.pass_time(1)
        state = queue.state()
        assert (state.truncated, state.lost) == (True, 2)
        assert queue.kept() == []

    def test_what_is_still_in_the_queue_does_not_grow_old(self) -> None:
        queue = tapped(tap(max_age=1000))
        queue.send_many(2)
        queue.pass_time(5000)
        assert not queue.state().truncated
        assert queue.seen() == [1, 2]

    def test_a_dead_letter_tap_has_its_own_limit(self) -> None:
        queue = tapped(tap(), tap(OTHER, DEAD, max_bytes=400))
        queue.send_many(5, b"x" * 236)
        queue.consume_all(3)
        assert not queue.state(OTHER).truncated, "the bytes are kept for another"
        queue.settle(c.DEAD_LETTER, *queue.receive(2))
        queue.settle(c.COMPLETE, *queue.receive(2, sub=DEAD))
        assert not queue.state(OTHER).truncated
        queue.advance(5)
        state = queue.state(OTHER)
        assert (state.truncated, state.lost) == (True, 2)
        assert queue.lane(KEPT_DEAD) == {}

    def test_a_limit_never_refuses_a_send(self) -> None:
        queue = tapped(tap(max_bytes=1), quota_bytes=10_000)
        for _ in range(20):
            queue.send_many(3, b"x" * 200)
            queue.receive(3, delete=True)
        assert queue.kept() == []

    def test_limits_hold_over_a_restart(self) -> None:
        queue = tapped(tap(max_age=1000))
        queue.send_many(1)
        queue.consume_all()
        queue.restart(clean=False)
        queue.tick()
        assert queue.machine.wake_at() == NOW + 1000

    def test_a_lock_that_ends_is_no_reason_to_truncate(self) -> None:
        queue = tapped(tap(max_age=LOCK * 3))
        queue.send_many(1)
        queue.receive()
        queue.pass_time(LOCK)
        assert not queue.state().truncated
        assert queue.seen() == [1]
