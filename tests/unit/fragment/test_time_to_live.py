"""Time to live: lazily evaluated, when somebody wants the message."""

from __future__ import annotations

from busbar.fragment.text import amqp_string
from busbar.model import commands as c
from busbar.model.commands import ABANDON, COMPLETE, DEAD_LETTER, DEFER
from busbar.model.errors import MessageNotFound
from busbar.model.message import DEAD
from tests.unit.fragment.queue import NOW, Queue, draft, lost, numbers, refusal, settings


def test_an_expired_message_is_dropped_instead_of_delivered() -> None:
    queue = Queue()
    queue.send(draft(ttl=1000), draft())
    queue.pass_time(1000)
    assert numbers(queue.receive(5)) == [2]
    assert queue.counts() == [1, 0, 0, 0, 0]


def test_it_is_there_until_somebody_asks() -> None:
    queue = Queue()
    queue.send(draft(ttl=1000))
    queue.pass_time(5000)
    assert queue.peeked() == [1]
    queue.receive()
    assert queue.peeked() == []


def test_it_can_be_dead_lettered() -> None:
    queue = Queue(settings(dead_letter_on_expiration=True))
    queue.send(draft(ttl=1000))
    queue.pass_time(1000)
    assert queue.receive() == []
    [dead] = queue.receive(sub=DEAD)
    assert dead.record.deliveries == 0
    assert dead.record.overlay == {
        "DeadLetterReason": amqp_string("TTLExpiredException"),
        "DeadLetterErrorDescription": amqp_string("The message expired and was dead lettered."),
    }


def test_the_smaller_time_counts() -> None:
    queue = Queue(settings(ttl_ms=1000))
    queue.send(draft(ttl=5000), draft(ttl=500), draft())
    assert [record.ttl for record in queue.peek().records] == [1000, 500, 1000]


def test_a_locked_message_can_still_be_completed() -> None:
    queue = Queue()
    queue.send(draft(ttl=1000))
    [message] = queue.receive()
    queue.pass_time(2000)
    assert lost(queue.settle(COMPLETE, message)) == []


def test_an_abandoned_one_has_expired() -> None:
    queue = Queue()
    queue.send(draft(ttl=1000))
    [message] = queue.receive()
    queue.pass_time(2000)
    queue.settle(ABANDON, message)
    assert queue.receive() == []
    assert queue.counts() == [0, 0, 0, 0, 0]


def test_the_dead_letter_queue_ignores_it() -> None:
    queue = Queue()
    queue.send(draft(ttl=1000))
    queue.settle(DEAD_LETTER, *queue.receive())
    queue.pass_time(5000)
    assert numbers(queue.receive(sub=DEAD)) == [1]


def test_an_expired_deferred_message_is_not_found_and_gone() -> None:
    queue = Queue(settings(dead_letter_on_expiration=True))
    queue.send(draft(ttl=1000))
    queue.settle(DEFER, *queue.receive())
    queue.pass_time(5000)
    assert refusal(queue.ask_deferred(1)) == MessageNotFound.condition
    assert queue.counts() == [0, 0, 0, 0, 0]


def test_of_a_scheduled_message_it_starts_with_the_activation() -> None:
    queue = Queue()
    queue.send(draft(ttl=1000, scheduled=NOW + 5000))
    queue.pass_time(5000)
    queue.pass_time(999)
    assert len(queue.receive()) == 1


def test_a_backlog_of_expired_messages_is_cleared_in_bounded_turns() -> None:
    queue = Queue()
    queue.send(*(draft(ttl=10) for _ in range(2500)))
    queue.send(draft())
    queue.pass_time(100)
    queue.step(c.Demand(1, 1, 5, 0, 1, False, False))
    assert queue.stored.head.counts[0] >= 2501 - 1000
    assert queue.machine.has_work(queue.now)
    [delivery] = queue.tick()
    assert [record.n for record in delivery.records] == [2501]  # type: ignore[attr-defined]
