"""What becomes of a message when its lock ends."""

from __future__ import annotations

import pytest

from busbar.fragment.text import amqp_string
from busbar.model.commands import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE, Settle, Tick
from busbar.model.effects import Renewed
from busbar.model.errors import ArgumentError, InvalidOperation, MessageLockLost, QuotaExceeded
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, DEFERRED
from tests.unit.fragment.queue import LOCK, Held, Queue, lost, numbers, refusal, settings


def one(queue: Queue) -> Held:
    queue.send_many(1)
    [message] = queue.receive()
    return message


def test_complete_removes() -> None:
    queue = Queue()
    message = one(queue)
    assert lost(queue.settle(COMPLETE, message)) == []
    assert queue.peeked() == []
    assert queue.counts() == [0, 0, 0, 0, 0]
    assert queue.stored.head.size == 0


def test_complete_of_many_is_one_delete() -> None:
    queue = Queue()
    queue.send_many(100)
    queue.settle(COMPLETE, *queue.receive(100))
    assert queue.machine.locks() == []
    assert queue.lane(ACTIVE) == {}


def test_abandon_counts_and_the_message_is_next() -> None:
    queue = Queue()
    queue.send_many(3)
    first, second = queue.receive(2)
    queue.settle(ABANDON, first)
    [again, third] = queue.receive(2)
    assert (again.n, again.record.deliveries) == (1, 1)
    assert third.n == 3
    assert lost(queue.settle(COMPLETE, second)) == []


def test_abandoned_messages_come_back_in_order_before_the_rest() -> None:
    queue = Queue()
    queue.send_many(6)
    a, b, d = queue.receive(3)
    queue.settle(ABANDON, d)
    queue.settle(ABANDON, a)
    queue.settle(ABANDON, b)
    assert numbers(queue.receive(10)) == [1, 2, 3, 4, 5, 6]


def test_release_counts_nothing_and_writes_nothing() -> None:
    queue = Queue()
    message = one(queue)
    queue.group = True
    queue.settle(RELEASE, message)
    assert queue.machine.change_count() == 0
    [again] = queue.receive()
    assert again.record.deliveries == 0


def test_a_count_survives_a_crash() -> None:
    queue = Queue()
    queue.settle(ABANDON, one(queue))
    queue.restart(clean=False)
    assert queue.receive()[0].record.deliveries == 1


def test_an_old_lock_does_not_settle_the_new_delivery() -> None:
    queue = Queue()
    old = one(queue)
    queue.settle(RELEASE, old)
    [new] = queue.receive()
    assert lost(queue.settle(COMPLETE, old)) == [0]
    assert lost(queue.settle(COMPLETE, new)) == []


def test_lost_locks_are_named_and_the_others_are_settled() -> None:
    queue = Queue()
    queue.send_many(3)
    a, b, d = queue.receive(3)
    queue.settle(COMPLETE, b)
    stranger = Held(d.record, d.nonce + 1, d.until)
    assert lost(queue.settle(COMPLETE, a, b, stranger)) == [1, 2]
    assert queue.peeked() == [3]


def test_an_atomic_settlement_with_a_lost_lock_changes_nothing() -> None:
    queue = Queue()
    queue.send_many(2)
    a, b = queue.receive(2)
    queue.settle(COMPLETE, b)
    assert refusal(queue.settle(COMPLETE, a, b, atomic=True)) == MessageLockLost.condition
    assert queue.peeked() == [1]
    assert lost(queue.settle(COMPLETE, a)) == []


@pytest.mark.parametrize("outcome", [-1, 5])
def test_an_unknown_outcome_is_refused(outcome: int) -> None:
    queue = Queue()
    message = one(queue)
    assert refusal(queue.settle(outcome, message)) == ArgumentError.condition
    assert lost(queue.settle(COMPLETE, message)) == []


def test_forged_numbers_of_any_size_are_just_lost() -> None:
    queue = Queue()
    message = one(queue)
    answer = queue.run(
        Settle(1, 1, 1, COMPLETE, [message.n, 2**80, -1], [2**90, 2**80, -(2**70)], None, False)
    )
    assert lost(answer[0]) == [0, 1, 2]


class TestExpiryOfLocks:
    def test_it_counts_and_gives_back(self) -> None:
        queue = Queue()
        message = one(queue)
        assert queue.machine.wake_at() == message.until
        queue.pass_time(LOCK - 1)
        assert queue.receive() == []
        queue.pass_time(1)
        assert lost(queue.settle(COMPLETE, message)) == [0]
        [again] = queue.receive()
        assert again.record.deliveries == 1

    def test_a_settlement_at_the_very_end_is_too_late(self) -> None:
        queue = Queue()
        message = one(queue)
        queue.now = message.until
        assert lost(queue.settle(COMPLETE, message)) == [0]

    def test_the_waiting_consumer_gets_it(self) -> None:
        queue = Queue()
        one(queue)
        queue.demand(7, credit=1)
        assert len(queue.pass_time(LOCK)) == 1

    def test_many_expire_in_bounded_turns(self) -> None:
        queue = Queue()
        queue.send_many(2500)
        assert len(queue.receive(2500)) == 2500
        queue.now += LOCK
        queue.group = True
        queue.step(Tick(1))
        assert queue.machine.change_count() == 1000
        assert queue.machine.has_work(queue.now)
        queue.group = False
        queue.tick()
        assert queue.machine.locks() == []
        assert numbers(queue.receive(2500)) == list(range(1, 2501))

    def test_one_whose_turn_to_end_has_not_come_settles_nothing_either(self) -> None:
        queue = Queue()
        queue.send_many(2500)
        messages = queue.receive(2500)
        queue.now += LOCK
        [answer] = queue.step(
            Settle(1, 1, 1, COMPLETE, [m.n for m in messages], [m.nonce for m in messages], None, False)
        )
        assert lost(answer) == list(range(2500))

    def test_nothing_is_left_to_wake_for_when_all_is_settled(self) -> None:
        queue = Queue()
        queue.send_many(10)
        queue.settle(COMPLETE, *queue.receive(10))
        assert queue.machine.wake_at() == 0


class TestRenewal:
    def test_it_starts_the_time_anew(self) -> None:
        queue = Queue()
        message = one(queue)
        queue.pass_time(LOCK - 1)
        answer = queue.renew(message)
        assert isinstance(answer, Renewed)
        assert answer.until == queue.now + LOCK
        queue.pass_time(LOCK - 1)
        assert queue.machine.wake_at() == answer.until
        assert lost(queue.settle(COMPLETE, message)) == []

    def test_all_or_none(self) -> None:
        queue = Queue()
        queue.send_many(2)
        a, b = queue.receive(2)
        queue.settle(COMPLETE, b)
        queue.pass_time(1000)
        assert refusal(queue.renew(a, b)) == MessageLockLost.condition
        assert queue.machine.wake_at() == a.until

    def test_not_when_the_time_is_over(self) -> None:
        queue = Queue()
        message = one(queue)
        queue.now = message.until
        assert refusal(queue.renew(message)) == MessageLockLost.condition


class TestMaximumDeliveries:
    def test_the_last_failure_dead_letters(self) -> None:
        queue = Queue(settings(max_deliveries=3))
        queue.send_many(1)
        for _ in range(2):
            queue.settle(ABANDON, *queue.receive())
        [last] = queue.receive()
        assert last.record.deliveries == 2
        queue.pass_time(LOCK)
        assert queue.receive() == []
        [dead] = queue.dead_letters()
        assert (dead.n, dead.deliveries) == (1, 3)
        assert dead.overlay is not None
        assert dead.overlay["DeadLetterReason"] == amqp_string("MaxDeliveryCountExceeded")
        assert b"3 delivery attempts" in dead.overlay["DeadLetterErrorDescription"]

    def test_a_release_never_dead_letters(self) -> None:
        queue = Queue(settings(max_deliveries=1))
        message = one(queue)
        queue.settle(RELEASE, message)
        assert len(queue.receive()) == 1

    def test_in_the_dead_letter_queue_counts_go_on(self) -> None:
        queue = Queue(settings(max_deliveries=2))
        queue.settle(DEAD_LETTER, one(queue))
        for deliveries in range(5):
            [message] = queue.receive(sub=DEAD)
            assert message.record.deliveries == deliveries
            queue.settle(ABANDON, message)

    def test_a_deferred_message_too(self) -> None:
        queue = Queue(settings(max_deliveries=1))
        queue.settle(DEFER, one(queue))
        queue.settle(ABANDON, *queue.receive_deferred(1))
        assert [record.n for record in queue.dead_letters()] == [1]
        assert queue.counts() == [0, 1, 0, 0, 0]


class TestDeadLettering:
    def test_number_time_and_properties_are_kept(self) -> None:
        queue = Queue()
        message = one(queue)
        queue.pass_time(1000)
        queue.settle(DEAD_LETTER, message, overlay={"DeadLetterReason": amqp_string("bad")})
        assert queue.counts() == [0, 1, 0, 0, 0]
        [dead] = queue.receive(sub=DEAD)
        assert (dead.n, dead.record.enqueued, dead.record.deliveries) == (1, message.record.enqueued, 0)
        assert dead.record.overlay == {"DeadLetterReason": amqp_string("bad")}

    def test_not_from_the_dead_letter_queue(self) -> None:
        queue = Queue()
        queue.settle(DEAD_LETTER, one(queue))
        [dead] = queue.receive(sub=DEAD)
        assert refusal(queue.settle(DEAD_LETTER, dead)) == InvalidOperation.condition
        assert lost(queue.settle(COMPLETE, dead)) == []
        assert queue.counts() == [0, 0, 0, 0, 0]

    def test_the_dead_letter_queue_is_in_order_whatever_the_order_of_death(self) -> None:
        queue = Queue()
        queue.send_many(4)
        a, b, d, f = queue.receive(4)
        for message in (d, a, f, b):
            queue.settle(DEAD_LETTER, message)
        assert numbers(queue.receive(9, sub=DEAD)) == [1, 2, 3, 4]

    def test_a_waiting_consumer_of_the_dead_letter_queue_gets_it(self) -> None:
        queue = Queue()
        message = one(queue)
        queue.demand(8, credit=1, sub=DEAD)
        queue.settle(DEAD_LETTER, message)
        assert queue.receive(sub=DEAD) == []
        assert len(queue.machine.locks()) == 1


class TestDeferral:
    def test_only_its_number_gets_it(self) -> None:
        queue = Queue()
        queue.settle(DEFER, one(queue))
        assert queue.counts() == [0, 0, 1, 0, 0]
        assert queue.receive() == []
        [message] = queue.receive_deferred(1)
        assert (message.n, message.record.deliveries) == (1, 0)
        assert lost(queue.settle(COMPLETE, message)) == []
        assert queue.counts() == [0, 0, 0, 0, 0]

    @pytest.mark.parametrize("outcome", [ABANDON, RELEASE, DEFER])
    def test_it_goes_back_to_deferred(self, outcome: int) -> None:
        queue = Queue()
        queue.settle(DEFER, one(queue))
        queue.settle(outcome, *queue.receive_deferred(1))
        assert queue.receive() == []
        [message] = queue.receive_deferred(1)
        assert message.record.deliveries == (1 if outcome == ABANDON else 0)

    def test_an_expired_lock_too(self) -> None:
        queue = Queue()
        queue.settle(DEFER, one(queue))
        queue.receive_deferred(1)
        queue.pass_time(LOCK)
        [message] = queue.receive_deferred(1)
        assert message.record.deliveries == 1

    def test_it_can_be_dead_lettered(self) -> None:
        queue = Queue()
        queue.settle(DEFER, one(queue))
        queue.settle(DEAD_LETTER, *queue.receive_deferred(1))
        assert queue.counts() == [0, 1, 0, 0, 0]

    def test_inside_the_dead_letter_queue(self) -> None:
        queue = Queue()
        queue.settle(DEAD_LETTER, one(queue))
        queue.settle(DEFER, *queue.receive(sub=DEAD))
        assert queue.counts()[DEAD_DEFERRED] == 1
        assert queue.receive(sub=DEAD) == []
        queue.settle(COMPLETE, *queue.receive_deferred(1, sub=DEAD))
        assert queue.counts() == [0, 0, 0, 0, 0]


class TestProperties:
    def test_they_are_merged_by_name(self) -> None:
        queue = Queue()
        queue.settle(ABANDON, one(queue), overlay={"a": b"1", "b": b"2"})
        queue.settle(DEFER, *queue.receive(), overlay={"b": b"3", "c": b"4"})
        [message] = queue.receive_deferred(1)
        assert message.record.overlay == {"a": b"1", "b": b"3", "c": b"4"}
        assert queue.lane(DEFERRED)[1].overlay == message.record.overlay

    def test_too_many_are_refused_and_the_lock_is_kept(self) -> None:
        queue = Queue()
        queue.settle(ABANDON, one(queue), overlay={"a": b"1" * 40_000})
        [message] = queue.receive()
        assert (
            refusal(queue.settle(ABANDON, message, overlay={"b": b"1" * 40_000}))
            == InvalidOperation.condition
        )
        assert lost(queue.settle(ABANDON, message, overlay={"a": b"2" * 40_000})) == []


def test_properties_set_at_settlement_count_in_the_size_until_the_message_is_gone() -> None:
    queue = Queue()
    message = one(queue)
    plain = queue.stored.head.size
    queue.settle(ABANDON, message, overlay={"note": b"x" * 1_000})
    assert queue.stored.head.size == plain + 1_004
    [message] = queue.receive()
    queue.settle(DEFER, message, overlay={"note": b"x" * 10})
    assert queue.stored.head.size == plain + 14
    [message] = queue.receive_deferred(message.n)
    queue.settle(DEAD_LETTER, message, overlay={"DeadLetterReason": amqp_string("bad")})
    assert queue.stored.head.size == plain + 14 + len("DeadLetterReason") + 5, "reason and note"
    [message] = queue.receive(sub=DEAD)
    queue.settle(COMPLETE, message)
    assert queue.stored.head.size == 0


def test_properties_that_do_not_fit_into_a_full_entity_are_refused_unless_they_are_small() -> None:
    queue = Queue(settings(quota_bytes=3_000))
    queue.send_many(2)
    first, second = queue.receive(2)
    refused = refusal(queue.settle(DEAD_LETTER, first, overlay={"note": b"x" * 4_000}))
    assert refused == QuotaExceeded.condition
    assert lost(queue.settle(DEAD_LETTER, first, overlay={"note": b"x" * 1_000})) == []
    assert lost(queue.settle(DEAD_LETTER, second, overlay={"note": b"x" * 1_000})) == []
    assert len(queue.peeked(DEAD)) == 2
