"""Deferred messages by number, peek, purge, counters."""

from __future__ import annotations

from busbar.fragment.changes import OVERHEAD
from busbar.model.commands import ABANDON, DEAD_LETTER, DEFER, Peek
from busbar.model.effects import Peeked
from busbar.model.errors import EntityDisabled, MessageNotFound
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, DEFERRED, SCHEDULED
from tests.unit.fragment.queue import LOCK, NOW, Queue, draft, numbers, refusal, settings


class TestReceiveDeferred:
    def deferred(self, number: int) -> Queue:
        queue = Queue()
        queue.send_many(number)
        queue.settle(DEFER, *queue.receive(number))
        return queue

    def test_in_the_order_that_was_asked_for(self) -> None:
        assert numbers(self.deferred(3).receive_deferred(3, 1)) == [3, 1]

    def test_one_that_is_not_there_refuses_all(self) -> None:
        queue = self.deferred(2)
        for unknown in (3, 0, -5, 2**70):
            assert refusal(queue.ask_deferred(1, unknown)) == MessageNotFound.condition
        assert queue.machine.locks() == []

    def test_a_locked_one_is_not_there(self) -> None:
        queue = self.deferred(2)
        queue.receive_deferred(1)
        assert refusal(queue.ask_deferred(2, 1)) == MessageNotFound.condition
        assert numbers(queue.receive_deferred(2)) == [2]

    def test_a_lock_that_ends_right_now_hides_it_a_last_time(self) -> None:
        """What was read before the lock ended has the old delivery count, so it must not be handed out."""
        queue = self.deferred(1)
        queue.receive_deferred(1)
        queue.now += LOCK
        assert refusal(queue.ask_deferred(1)) == MessageNotFound.condition
        [message] = queue.receive_deferred(1)
        assert message.record.deliveries == 1

    def test_an_active_one_is_not_deferred(self) -> None:
        queue = self.deferred(1)
        queue.send_many(1)
        assert refusal(queue.ask_deferred(2)) == MessageNotFound.condition

    def test_the_sub_queues_are_separate(self) -> None:
        assert refusal(self.deferred(1).ask_deferred(1, sub=DEAD)) == MessageNotFound.condition

    def test_receive_and_delete(self) -> None:
        queue = self.deferred(2)
        [message] = queue.receive_deferred(1, delete=True)
        assert message.until == 0
        assert queue.counts() == [0, 0, 1, 0, 0]
        assert queue.machine.locks() == []

    def test_not_while_receiving_is_disabled(self) -> None:
        queue = self.deferred(1)
        queue.machine.settings = settings(can_receive=False)
        assert refusal(queue.ask_deferred(1)) == EntityDisabled.condition


class TestPeek:
    def test_every_state_in_order(self) -> None:
        queue = Queue()
        queue.send(draft(), draft(), draft(scheduled=NOW + 9), draft(), draft())
        first, second = queue.receive(2)
        queue.settle(DEFER, first)
        peeked = queue.peek()
        assert [record.n for record in peeked.records] == [1, 2, 3, 4, 5]
        assert peeked.lanes == [DEFERRED, ACTIVE, SCHEDULED, ACTIVE, ACTIVE]
        queue.settle(DEAD_LETTER, second)
        assert queue.peeked() == [1, 3, 4, 5]
        assert queue.peeked(sub=DEAD) == [2]

    def test_of_one_state(self) -> None:
        queue = Queue()
        queue.send(draft(), draft(scheduled=NOW + 9), draft(), draft())
        queue.settle(DEFER, *queue.receive(1))
        queue.settle(DEAD_LETTER, *queue.receive(1))
        queue.settle(DEFER, *queue.receive(1, sub=DEAD))
        assert queue.peeked(DEFERRED) == [1] and queue.peeked(SCHEDULED) == [2]
        assert queue.peeked(DEAD_DEFERRED) == queue.peeked(DEAD) == [3]
        assert queue.peeked() == [1, 2, 4]

    def test_ends_of_locks_if_they_are_asked_for(self) -> None:
        queue = Queue()
        queue.send_many(3)
        queue.receive(2)
        (answer,) = queue.run(Peek(1, 1, 5, ACTIVE, 0, 10, 9999, None, True))
        assert isinstance(answer, Peeked) and answer.locked == [NOW + LOCK, NOW + LOCK, 0]
        assert queue.peek().locked == []
        queue.now += LOCK  # the lock is over, and nothing has noticed that yet
        (answer,) = queue.run(Peek(1, 1, 5, ACTIVE, 0, 10, 9999, None, True))[:1]
        assert isinstance(answer, Peeked) and answer.locked == [0, 0, 0]

    def test_from_a_number_on(self) -> None:
        queue = Queue()
        queue.send_many(5)
        assert [record.n for record in queue.peek(start=4).records] == [4, 5]
        assert [record.n for record in queue.peek(start=-3, number=1).records] == [1]
        assert queue.peek(start=6).records == []
        assert queue.peek(number=0).records == []

    def test_the_size_is_bounded_but_one_always_comes(self) -> None:
        queue = Queue()
        queue.send_many(5, b"x" * 1000)
        assert len(queue.peek(max_bytes=2 * (1000 + OVERHEAD)).records) == 2
        assert len(queue.peek(max_bytes=10).records) == 1

    def test_going_on_behind_the_last_number_reaches_every_message(self) -> None:
        queue = Queue()
        queue.send(*(draft(b"x" * (1 if n % 3 else 900), scheduled=NOW + 9 * (n % 2)) for n in range(60)))
        queue.settle(DEFER, *queue.receive(7))
        seen: list[int] = []
        while records := queue.peek(start=seen[-1] + 1 if seen else 0, number=7, max_bytes=1500).records:
            seen += [record.n for record in records]
        assert seen == list(range(1, 61))

    def test_going_on_reaches_every_message_also_when_a_lock_ends_during_the_read(self) -> None:
        queue = Queue(settings(max_deliveries=1))
        queue.send(draft(), draft(), draft(b"x" * 500), draft(scheduled=NOW + 10 * LOCK))
        queue.receive(1)
        queue.read_ms = LOCK  # then 1 is a dead letter
        seen = [record.n for record in queue.peek(max_bytes=300).records]
        while records := queue.peek(start=seen[-1] + 1, max_bytes=300).records:
            seen += [record.n for record in records]
        assert seen == [1, 2, 3, 4]

    def test_it_changes_nothing(self) -> None:
        queue = Queue()
        queue.send_many(3)
        queue.group = True
        queue.peek()
        assert queue.machine.change_count() == 0
        assert numbers(queue.receive(5)) == [1, 2, 3]

    def test_it_shows_counts_and_properties(self) -> None:
        queue = Queue()
        queue.send_many(1)
        queue.settle(ABANDON, *queue.receive(), overlay={"a": b"1"})
        [record] = queue.peek().records
        assert (record.deliveries, record.overlay) == (1, {"a": b"1"})


class TestPurge:
    def test_available_messages_go_and_locked_ones_stay(self) -> None:
        queue = Queue()
        queue.send_many(5)
        queue.receive(2)
        assert queue.purge() == 3
        assert queue.peeked() == [1, 2]

    def test_up_to_a_count_from_the_oldest(self) -> None:
        queue = Queue()
        queue.send_many(5)
        assert queue.purge(number=2) == 2
        assert queue.peeked() == [3, 4, 5]

    def test_only_what_is_older(self) -> None:
        queue = Queue()
        queue.send_many(2)
        queue.pass_time(10)
        queue.send_many(2)
        assert queue.purge(before=NOW + 10) == 2
        assert queue.peeked() == [3, 4]

    def test_deferred_and_scheduled_ones_stay(self) -> None:
        queue = Queue()
        queue.send(draft(), draft(scheduled=NOW + 10))
        queue.settle(DEFER, *queue.receive())
        assert queue.purge() == 0

    def test_a_deep_backlog_goes_in_several_calls(self) -> None:
        queue = Queue()
        queue.send_many(3000)
        queue.restart(clean=False)
        purged = []
        while count := queue.purge(number=4000):
            purged.append(count)
        assert sum(purged) == 3000
        assert max(purged) <= 1000
        assert queue.counts() == [0, 0, 0, 0, 0]

    def test_the_dead_letter_queue(self) -> None:
        queue = Queue()
        queue.send_many(2)
        queue.settle(DEAD_LETTER, *queue.receive(2))
        assert queue.purge(sub=DEAD) == 2
        assert queue.counts() == [0, 0, 0, 0, 0]


def test_counters() -> None:
    queue = Queue()
    queue.send(draft(), draft(), draft(), draft(scheduled=NOW + 10))
    a, b = queue.receive(2)
    queue.settle(DEFER, a)
    queue.settle(DEAD_LETTER, b)
    assert queue.counts() == [1, 1, 1, 1, 0]
    assert queue.stored.head.size == 4 * (1 + OVERHEAD)
