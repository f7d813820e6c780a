"""What is kept in memory, and what is read again."""

from __future__ import annotations

from busbar.fragment import locks
from busbar.fragment.bounds import Bounds
from busbar.model.commands import ABANDON, COMPLETE, DEAD_LETTER, RELEASE
from busbar.model.message import DEAD
from tests.unit.fragment.queue import LOCK, Queue, draft, lost, numbers, settings

BOUNDS = Bounds()


def window_records(queue: Queue) -> int:
    return len(queue.machine._state.main.ready)


def test_a_deep_backlog_is_paged_in_order_and_stays_in_the_store() -> None:
    queue = Queue()
    for _ in range(10):
        queue.send_many(1000)
        assert window_records(queue) <= BOUNDS.ready_records
    got: list[int] = []
    while messages := queue.receive(100):
        got += numbers(messages)
        queue.settle(COMPLETE, *messages)
        assert window_records(queue) <= BOUNDS.ready_records
        if len(got) == 5000:
            queue.send_many(10)
    assert got == list(range(1, 10_011))


def test_the_window_is_bounded_by_bytes_too() -> None:
    queue = Queue()
    queue.send_many(50, b"x" * 100_000)
    assert window_records(queue) <= BOUNDS.ready_bytes // 100_000 + 1
    assert numbers(queue.receive(50)) == list(range(1, 51))


def test_a_thousand_messages_in_flight_are_delivered_without_a_read() -> None:
    queue = Queue()
    for _ in range(3):
        queue.send_many(1_000, b"x" * 1_200)
        assert len(queue.receive(1_000)) == 1_000
    assert queue.reads == 0


def test_a_backlog_is_read_in_pages_of_what_may_be_ready() -> None:
    queue = Queue()
    queue.send_many(BOUNDS.ready_records * 3)
    assert len(queue.receive(BOUNDS.ready_records * 3)) == BOUNDS.ready_records * 3
    assert queue.reads == 2


def test_locked_messages_are_skipped_by_pages_after_a_restart() -> None:
    queue = Queue()
    queue.send_many(1500)
    kept = queue.receive(700)
    queue.restart(clean=True)
    assert numbers(queue.receive(2000)) == list(range(701, 1501))
    assert lost(queue.settle(COMPLETE, *kept)) == []


def test_locks_kept_over_a_restart_end_as_usual() -> None:
    queue = Queue()
    queue.send_many(3)
    a, b, _ = queue.receive(3)
    queue.restart(clean=True)
    queue.settle(ABANDON, b)
    [again] = queue.receive()
    assert (again.n, again.record.content, again.record.deliveries) == (2, b"x", 1)
    queue.settle(COMPLETE, again)
    queue.pass_time(LOCK)
    assert [(m.n, m.record.content, m.record.deliveries) for m in queue.receive(9)] == [
        (1, b"x", 1),
        (3, b"x", 1),
    ]
    assert lost(queue.settle(COMPLETE, a)) == [0]


def test_a_crash_ends_locks_without_counting() -> None:
    queue = Queue()
    queue.send_many(2)
    [message] = queue.receive()
    queue.restart(clean=False)
    assert lost(queue.settle(COMPLETE, message)) == [0]
    assert [(m.n, m.record.deliveries) for m in queue.receive(9)] == [(1, 0), (2, 0)]


def test_bytes_under_locks_are_bounded_and_read_again() -> None:
    size = 256 * 1024
    number = BOUNDS.kept_bytes // size + 10
    queue = Queue()
    queue.send_many(number, b"x" * size)
    messages = queue.receive(number)
    kept = [lock for lock in queue.machine.locks() if lock.record.content is not None]
    assert sum(lock.record.size for lock in kept) <= BOUNDS.kept_bytes
    assert len(kept) < number
    for message in reversed(messages):
        queue.settle(ABANDON, message)
    again = queue.receive(number)
    assert numbers(again) == list(range(1, number + 1))
    assert {len(message.record.content or b"") for message in again} == {size}
    assert {message.record.deliveries for message in again} == {1}


def test_bytes_of_messages_that_died_are_bounded_too() -> None:
    queue = Queue(settings(dead_letter_on_expiration=True))
    size = 256 * 1024
    number = BOUNDS.kept_bytes // size + 20
    queue.send(*(draft(b"x" * size, ttl=10) for _ in range(number)), draft())
    queue.settle(DEAD_LETTER, queue.receive(number + 1)[-1])
    queue.restart(clean=False)
    assert numbers(queue.receive(1, sub=DEAD)) == [number + 1]  # its window has passed all the lower numbers
    queue.pass_time(10)
    assert queue.receive() == []
    assert len(queue.machine._state.dead.returned) == number
    assert queue.machine._state.dead.returned_bytes <= BOUNDS.kept_bytes
    dead = queue.receive(number, sub=DEAD)
    assert [len(message.record.content or b"") for message in dead] == [size] * number


def test_when_too_many_return_the_window_is_rewound() -> None:
    queue = Queue()
    number = BOUNDS.returned_records + 2000
    for _ in range(number // 1000):
        queue.send_many(1000)
    messages = queue.receive(number)
    for start in range(number - 1000, -1, -1000):
        queue.settle(RELEASE, *messages[start : start + 1000])
    assert len(queue.machine._state.main.returned) <= BOUNDS.returned_records
    assert numbers(queue.receive(number)) == list(range(1, number + 1))


def test_dead_letters_in_any_order_around_the_cursor_are_served_in_order() -> None:
    queue = Queue()
    queue.send_many(2000)
    messages = queue.receive(2000)
    queue.settle(DEAD_LETTER, *messages[1000:])
    assert numbers(queue.receive(10, sub=DEAD)) == list(range(1001, 1011))
    queue.settle(DEAD_LETTER, *messages[:1000])
    assert numbers(queue.receive(2000, sub=DEAD)) == [*range(1, 1001), *range(1011, 2001)]


def test_settled_locks_do_not_pile_up_until_their_time() -> None:
    queue = Queue()
    for _ in range(5000):
        queue.now += 1
        queue.send_many(1)
        queue.settle(COMPLETE, *queue.receive())
    table = queue.machine._state.locks
    assert table._numbers <= locks.SLACK + 2
    assert len(table._ends) <= locks.SLACK + 2
