"""The window of a lane by itself."""

from __future__ import annotations

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Lock
from busbar.fragment.window import Window
from busbar.model.message import ACTIVE, Record


def record(n: int) -> Record:
    return Record(n, 0, 0, 0, 0, 10, b"x", None)


def test_a_rewind_forgets_nothing_that_was_ready() -> None:
    bounds = Bounds()
    bounds.returned_records = 3
    window = Window(ACTIVE, bounds)
    held = {n: Lock(record(n), ACTIVE, 7, 100) for n in (2, 3, 4, 5)}
    page = window.ask_page(8, 1000)
    page.records = [record(n) for n in range(1, 9)]
    assert window.absorb_page(page, held, 20)
    assert [r.n for r in window.ready] == [1, 6, 7, 8]
    for n in held:
        window.give_back(record(n))
    assert window.available() == 0
    assert window.cursor == 1, "the lowest available number was ready, not returned"


def test_ready_and_returned_are_taken_as_one_order() -> None:
    window = Window(ACTIVE, Bounds())
    for n in (2, 4, 6):
        window.arrive(record(n), 0)
    window.give_back(record(5))
    window.give_back(record(1))
    assert [r.n for r in window.take(4, 1000, 0)] == [1, 2, 4, 5]
    assert [r.n for r in window.take(4, 1000, 0)] == [6]
    assert (window.bytes, window.returned_bytes) == (0, 0)


def test_a_page_that_nobody_asked_for_is_not_taken_in() -> None:
    window = Window(ACTIVE, Bounds())
    old = window.ask_page(8, 1000)
    new = window.ask_page(8, 1000)
    assert not window.absorb_page(old, {}, 20)
    assert window.absorb_page(new, {}, 20)
    assert window.cursor == 21, "an empty page: there is nothing up to the last number"


def test_a_stub_that_the_store_has_lost_is_not_waited_for() -> None:
    window = Window(ACTIVE, Bounds())
    for n in (1, 2, 3):
        window.arrive(record(n), 0)
    window.take(3, 1000, 0)
    window.give_back(record(1).without_content())
    window.give_back(record(2))
    assert window.blocked()
    assert window.absorb_stubs(window.ask_stubs())
    assert not window.blocked()
    assert [r.n for r in window.take(3, 1000, 0)] == [2]
