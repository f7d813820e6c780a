"""Sends, quotas, scheduled messages."""

from __future__ import annotations

from busbar.fragment.changes import OVERHEAD
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.errors import EntityDisabled, MessageNotFound, QuotaExceeded
from busbar.model.message import ACTIVE, SCHEDULED
from tests.unit.fragment.queue import NOW, Queue, draft, numbers, refusal, settings


def test_a_disabled_entity_refuses_sends() -> None:
    queue = Queue(settings(can_send=False))
    [answer] = queue.run(c.Send(1, 1, 9, [draft()], False))
    assert refusal(answer) == EntityDisabled.condition
    assert answer.request == 9
    assert queue.counts() == [0, 0, 0, 0, 0]


class TestQuota:
    ROOM_FOR_TWO = settings(quota_bytes=2 * (100 + OVERHEAD))

    def test_each_message_by_itself(self) -> None:
        queue = Queue(self.ROOM_FOR_TWO)
        [answer] = queue.run(
            c.Send(1, 1, 1, [draft(b"x" * 100), draft(b"x" * 101), draft(b"x" * 100), draft()], False)
        )
        assert isinstance(answer, e.Sent)
        assert answer.numbers == [1, 0, 2, 0]
        assert [(index, condition) for index, condition, _ in answer.refused] == [
            (1, QuotaExceeded.condition),
            (3, QuotaExceeded.condition),
        ]
        assert "328 bytes" in answer.refused[1][2]

    def test_a_batch_as_a_whole(self) -> None:
        queue = Queue(self.ROOM_FOR_TWO)
        [answer] = queue.run(c.Send(1, 1, 1, [draft(b"x" * 100)] * 3, True))
        assert refusal(answer) == QuotaExceeded.condition
        assert queue.send(*[draft(b"x" * 100)] * 2, atomic=True) == [1, 2]

    def test_completing_makes_room(self) -> None:
        queue = Queue(self.ROOM_FOR_TWO)
        queue.send_many(2, b"x" * 100)
        queue.settle(c.COMPLETE, *queue.receive())
        assert queue.send_many(1, b"x" * 100) == [3]

    def test_every_lane_counts(self) -> None:
        queue = Queue(self.ROOM_FOR_TWO)
        queue.send(draft(b"x" * 100), draft(b"x" * 100, scheduled=NOW + 5))
        queue.settle(c.DEFER, *queue.receive())
        [answer] = queue.run(c.Send(1, 1, 1, [draft()], False))
        assert isinstance(answer, e.Sent) and answer.numbers == [0]


class TestScheduled:
    def test_it_waits_for_its_time_and_is_then_new(self) -> None:
        queue = Queue()
        assert queue.send(draft(b"later", scheduled=NOW + 5000), draft()) == [1, 2]
        assert queue.counts() == [1, 0, 0, 1, 0]
        assert numbers(queue.receive(5)) == [2]
        assert queue.machine.wake_at() == NOW + 5000
        queue.pass_time(5000)
        [message] = queue.receive(5)
        assert (message.n, message.record.enqueued, message.record.content) == (3, NOW + 5000, b"later")
        assert queue.counts() == [2, 0, 0, 0, 0]

    def test_a_time_in_the_past_is_now(self) -> None:
        queue = Queue()
        queue.send(draft(scheduled=NOW))
        assert numbers(queue.receive()) == [1]

    def test_they_become_active_in_the_order_of_their_times(self) -> None:
        queue = Queue()
        queue.send(draft(b"b", scheduled=NOW + 20), draft(b"a", scheduled=NOW + 10))
        queue.pass_time(30)
        assert [message.record.content for message in queue.receive(5)] == [b"a", b"b"]

    def test_the_next_one_wakes(self) -> None:
        queue = Queue()
        queue.send(draft(scheduled=NOW + 10), draft(scheduled=NOW + 20))
        queue.pass_time(10)
        assert queue.machine.wake_at() == NOW + 20
        queue.restart(clean=False)
        assert queue.machine.wake_at() == NOW + 20

    def test_a_waiting_consumer_gets_it(self) -> None:
        queue = Queue()
        queue.send(draft(scheduled=NOW + 10))
        queue.demand(5, credit=1)
        assert len(queue.pass_time(10)) == 1

    def test_many_due_at_once_come_in_bounded_turns(self) -> None:
        queue = Queue()
        queue.send(*(draft(scheduled=NOW + 10) for _ in range(1700)))
        queue.now += 10
        queue.step(c.Tick(1))
        assert 0 < queue.stored.head.counts[ACTIVE] <= 1000
        queue.tick()
        assert queue.counts() == [1700, 0, 0, 0, 0]
        assert numbers(queue.receive(1700)) == list(range(1701, 3401))

    def test_cancel_removes(self) -> None:
        queue = Queue()
        queue.send(draft(scheduled=NOW + 10), draft(scheduled=NOW + 20))
        [answer] = queue.run(c.CancelScheduled(1, 1, 5, [1]))
        assert isinstance(answer, e.Done)
        assert queue.pass_time(10) == []
        assert queue.counts() == [0, 0, 0, 1, 0]
        assert queue.machine.wake_at() == NOW + 20

    def test_cancel_is_all_or_none(self) -> None:
        queue = Queue()
        queue.send(draft(scheduled=NOW + 10), draft())
        for unknown in (2, 3, 0, -1, 2**70):
            [answer] = queue.run(c.CancelScheduled(1, 1, 5, [1, unknown]))
            assert refusal(answer) == MessageNotFound.condition
        assert queue.counts()[SCHEDULED] == 1

    def test_what_is_due_by_now_cannot_be_cancelled(self) -> None:
        queue = Queue()
        queue.send(draft(scheduled=NOW + 10))
        queue.pass_time(10)
        [answer] = queue.run(c.CancelScheduled(1, 1, 5, [1]))
        assert refusal(answer) == MessageNotFound.condition
