"""Who gets which message, when and in which order."""

from __future__ import annotations

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD
from tests.unit.fragment.queue import LOCK, Queue, draft, held, numbers, settings


def delivered(effects: list[e.Effect]) -> list[tuple[int, list[int]]]:
    return [(x.consumer, [r.n for r in x.records]) for x in effects if isinstance(x, e.Delivered)]


def test_numbers_start_at_one_and_rise_without_gaps() -> None:
    queue = Queue()
    assert queue.send_many(3) == [1, 2, 3]
    assert queue.send_many(2) == [4, 5]


def test_messages_come_in_the_order_of_their_numbers() -> None:
    queue = Queue()
    queue.send_many(5)
    assert numbers(queue.receive(3)) == [1, 2, 3]
    assert numbers(queue.receive(3)) == [4, 5]


def test_the_list_of_effects_belongs_to_who_took_it() -> None:
    queue = Queue()
    nothing = queue.machine.take_effects()
    nothing.append(e.Done(1, 1))
    assert queue.machine.take_effects() == []


def test_a_locked_message_is_not_delivered_again() -> None:
    queue = Queue()
    queue.send_many(1)
    assert len(queue.receive()) == 1
    assert queue.receive() == []


def test_a_delivery_carries_the_lock() -> None:
    queue = Queue()
    queue.send_many(1)
    [message] = queue.receive()
    assert message.until == queue.now + LOCK
    assert message.nonce > 0


def test_a_waiting_consumer_gets_what_is_sent_later() -> None:
    queue = Queue()
    assert queue.demand(3, credit=2) == []
    effects = queue.run(c.Send(1, 1, 1, [draft(), draft(), draft()], False))
    assert isinstance(effects[0], e.Sent)
    assert delivered(effects[1:]) == [(3, [1, 2])]


def test_credit_adds_up_and_is_never_overdrawn() -> None:
    queue = Queue()
    queue.demand(3, credit=2)
    queue.demand(3, credit=1)
    assert delivered(queue.run(c.Send(1, 1, 1, [draft()] * 5, False))) == [(3, [1, 2, 3])]


def test_credit_can_be_taken_back() -> None:
    queue = Queue()
    queue.demand(3, credit=5)
    queue.demand(3, credit=-4)
    assert delivered(queue.run(c.Send(1, 1, 1, [draft()] * 5, False))) == [(3, [1])]
    queue.demand(3, credit=-4)
    assert delivered(queue.demand(3, credit=1)) == [(3, [2])]


def test_consumers_are_served_in_the_order_of_their_credit() -> None:
    queue = Queue()
    queue.demand(5, credit=1)
    queue.demand(4, credit=1)
    queue.demand(6, credit=1)
    assert delivered(queue.run(c.Send(1, 1, 1, [draft()] * 3, False))) == [(5, [1]), (4, [2]), (6, [3])]


def test_a_burst_is_at_most_256_kilobytes_then_the_next_consumer_has_its_turn() -> None:
    queue = Queue()
    queue.demand(5, credit=100)
    queue.demand(6, credit=100)
    big = draft(b"x" * 100_000)
    effects = queue.run(c.Send(1, 1, 1, [big] * 7, False))
    assert delivered(effects) == [(5, [1, 2]), (6, [3, 4]), (5, [5, 6]), (6, [7])]


def test_a_message_larger_than_a_burst_is_delivered_alone() -> None:
    queue = Queue()
    queue.demand(5, credit=100)
    effects = queue.run(c.Send(1, 1, 1, [draft(b"x" * 300_000), draft()], False))
    assert delivered(effects) == [(5, [1]), (5, [2])]


def test_a_turn_delivers_at_most_1000_messages() -> None:
    queue = Queue()
    queue.send_many(1000)
    queue.send_many(500)
    queue.demand(5, credit=0)
    effects = queue.step(c.Demand(1, 1, 5, ACTIVE, 1500, False, False))
    assert len(held(effects)) == 1000
    assert queue.machine.has_work(queue.now)
    assert len(held(queue.tick())) == 500
    assert not queue.machine.has_work(queue.now)


def test_who_has_left_is_not_served() -> None:
    queue = Queue()
    queue.demand(5, credit=10)
    queue.demand(6, credit=10)
    queue.run(c.Leave(1, 1, 5))
    assert delivered(queue.run(c.Send(1, 1, 1, [draft()], False))) == [(6, [1])]


def test_an_origin_leaves_with_all_its_consumers() -> None:
    queue = Queue()
    queue.demand(5, credit=10)
    queue.demand(6, credit=10, sub=DEAD)
    queue.run(c.Demand(1, 2, 5, ACTIVE, 10, False, False))
    queue.run(c.Leave(1, 1, 0))
    effects = queue.run(c.Send(1, 1, 1, [draft()], False))
    assert [x.origin for x in effects if isinstance(x, e.Delivered)] == [2]


def test_leaving_keeps_the_locks() -> None:
    queue = Queue()
    queue.send_many(1)
    queue.demand(5, credit=10)
    queue.run(c.Leave(1, 1, 5))
    assert queue.receive() == []
    assert len(queue.machine.locks()) == 1


class TestDrain:
    def test_without_messages_it_is_answered_at_once_and_the_credit_is_gone(self) -> None:
        queue = Queue()
        [answer] = queue.run(c.Demand(1, 1, 5, ACTIVE, 10, True, False))
        assert isinstance(answer, e.Drained) and answer.consumer == 5
        assert delivered(queue.run(c.Send(1, 1, 1, [draft()], False))) == []

    def test_what_is_there_comes_first(self) -> None:
        queue = Queue()
        queue.send_many(3)
        effects = queue.run(c.Demand(1, 1, 5, ACTIVE, 10, True, False))
        assert delivered(effects[:-1]) == [(5, [1, 2, 3])]
        assert isinstance(effects[-1], e.Drained)

    def test_what_must_be_read_comes_first_too(self) -> None:
        queue = Queue()
        queue.send_many(2500)
        queue.restart(clean=False)
        effects = queue.run(c.Demand(1, 1, 5, ACTIVE, 3000, True, False))
        assert numbers(held(effects)) == list(range(1, 2501))
        assert [type(x) for x in effects].count(e.Drained) == 1
        assert isinstance(effects[-1], e.Drained)

    def test_used_up_credit_ends_it(self) -> None:
        queue = Queue()
        queue.send_many(3)
        effects = queue.run(c.Demand(1, 1, 5, ACTIVE, 2, True, False))
        assert delivered(effects[:-1]) == [(5, [1, 2])]
        assert isinstance(effects[-1], e.Drained)

    def test_it_takes_the_credit_of_earlier_demands_with_it(self) -> None:
        queue = Queue()
        queue.demand(5, credit=10)
        assert len(queue.run(c.Demand(1, 1, 5, ACTIVE, 0, True, False))) == 1
        assert delivered(queue.run(c.Send(1, 1, 1, [draft()], False))) == []


class TestReceiveAndDelete:
    def test_messages_go_with_their_delivery(self) -> None:
        queue = Queue()
        queue.send_many(3)
        got = queue.receive(2, delete=True)
        assert numbers(got) == [1, 2]
        assert [message.until for message in got] == [0, 0]
        assert queue.machine.locks() == []
        assert queue.peeked() == [3]

    def test_what_is_sent_and_received_in_one_group_is_never_written(self) -> None:
        queue = Queue()
        queue.demand(5, credit=2, delete=True)
        queue.group = True
        queue.send_many(3)
        changes = queue.commit()
        assert changes is not None
        assert [record.n for record in changes.puts[ACTIVE]] == [3]
        assert changes.deletes.get(ACTIVE, []) == []
        assert queue.stored.head.last == 3
        assert queue.counts()[ACTIVE] == 1

    def test_only_the_last_number_remains_of_a_group_that_was_all_consumed(self) -> None:
        queue = Queue()
        queue.demand(5, credit=9, delete=True)
        queue.send_many(3)
        assert queue.stored.head.last == 3
        queue.restart(clean=False)
        assert queue.send_many(1) == [4]


class TestDisabled:
    def test_nobody_is_served_while_receiving_is_disabled(self) -> None:
        queue = Queue(settings(can_receive=False))
        queue.send_many(2)
        assert queue.demand(5, credit=2) == []
        assert not queue.machine.has_work(queue.now)
        queue.machine.settings = settings()
        assert delivered(queue.tick()) == [(5, [1, 2])]

    def test_a_drain_is_answered_while_receiving_is_disabled(self) -> None:
        queue = Queue(settings(can_receive=False))
        queue.send_many(2)
        assert queue.receive() == []
