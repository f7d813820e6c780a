"""What a fragment counts for operators."""

from __future__ import annotations

from busbar.fragment.figures import FiguresOfFragments
from busbar.model import commands as c
from busbar.model.figures import DEAD_LETTER_REASONS, FragmentCounters
from tests.unit.fragment.queue import NOW, Queue, draft, settings


def counters(queue: Queue) -> FragmentCounters:
    return FragmentCounters(*queue.machine._state.figures.values())


def test_messages_and_bytes_count_as_they_were_sent() -> None:
    queue = Queue(settings())
    queue.send(draft(b"12345"), draft(b"678"), draft(b"later", scheduled=NOW + 1_000))
    assert counters(queue)[:4] == (3, 13, 0, 0)
    first, second = queue.receive(2)
    queue.settle(c.ABANDON, first)
    assert counters(queue)[:4] == (3, 13, 2, 8)
    queue.settle(c.COMPLETE, *queue.receive(1), second)
    assert counters(queue)[:4] == (3, 13, 3, 13), "what is delivered again counts again"
    queue.pass_time(1_000)
    assert counters(queue).messages_in == 3, "a message that is due has come before"


def test_what_is_refused_is_not_counted() -> None:
    queue = Queue(settings(quota_bytes=600))
    queue.send(draft(b"x" * 200))
    queue.run(c.Send(1, 1, 7, [draft(b"x" * 600)], False))
    assert counters(queue).messages_in == 1


def test_deferred_messages_go_out_once_more() -> None:
    queue = Queue(settings())
    (n,) = queue.send(draft(b"1234"))
    queue.settle(c.DEFER, *queue.receive(1))
    queue.ask_deferred(99)
    assert counters(queue).messages_out == 1, "nothing was found"
    queue.settle(c.COMPLETE, *queue.receive_deferred(n))
    found = counters(queue)
    assert (found.messages_out, found.bytes_out) == (2, 8)
    assert (found.deferred, found.completed) == (1, 1)


def test_lost_locks_and_reasons_are_counted() -> None:
    queue = Queue(settings(max_deliveries=2))
    queue.send(draft())
    for _ in range(2):
        queue.receive(1)
        queue.pass_time(60_000)
    found = counters(queue)
    assert (found.locks_lost, found.abandoned, found.dead_letters) == (2, 0, 1)
    reasons = queue.machine._state.figures._reasons
    assert {reason for reason, count in reasons.items() if count} == {"MaxDeliveryCountExceeded"}


def test_reasons_are_a_bounded_set() -> None:
    figures = FiguresOfFragments()
    for n in range(100):
        figures.of(1).dead_letter(f"reason {n}")
    figures.of(2).dead_letter("FilterException")
    assert figures.dead_letters.keys() == {*DEAD_LETTER_REASONS}
    assert (figures.dead_letters["other"], figures.dead_letters["FilterException"]) == (100, 1)


def test_figures_go_on_with_the_next_machine_and_end_with_the_fragment() -> None:
    figures = FiguresOfFragments()
    figures.of(7).came(3, 30)
    assert figures.of(7).messages_in == 3
    figures.of(8)
    assert [*figures.used()] == [7], "the other one has done nothing"
    figures.forget([7, 9])
    assert figures.used() == {}
