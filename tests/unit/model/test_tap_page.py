"""Packed messages: what fits in a page, and columns as a store gives them."""

from __future__ import annotations

import pytest

from busbar.model.errors import InternalError
from busbar.model.message import ACTIVE, DEAD, KEPT, Record
from busbar.model.tap_page import Changed, TapPageBuilder
from tests.pages import Shown, packing_of, shown

MANY = 1 << 40


def record(n: int, content: bytes | None = b"content") -> Record:
    return Record(n, 5, 0, 0, 0, 1, content, None)


def columns(
    packing: TapPageBuilder,
    contents: list[bytes],
    *,
    first: int = 1,
    numbers: bytes = b"",
    times: bytes = b"",
    largest: int = 100,
    changed: Changed | None = None,
) -> bool:
    small = b"".join(content for content in contents if len(content) <= largest)
    sizes = b",".join(b"%d" % len(content) for content in contents)
    times = times or b",".join(b"%d" % (50 + i) for i in range(len(contents)))
    return packing.add_columns(
        KEPT, first, len(contents), numbers, times, sizes, small, largest, changed or {}
    )


def test_a_page_has_at_least_one_message_and_at_most_what_fits() -> None:
    for limit, max_bytes, expected in (
        (9, MANY, 4),
        (2, MANY, 2),
        (9, 40, 2),
        (9, 39, 1),
        (9, 0, 1),
        (0, MANY, 0),
    ):
        packing = TapPageBuilder(limit, max_bytes, 10)
        added = [packing.add(record(n, b"x" * 10), ACTIVE) for n in range(1, 5)]
        assert added == [True] * expected + [False] * (4 - expected)
        assert (packing.count, packing.full, packing.last) == (expected, expected < 4, expected)
        together = TapPageBuilder(limit, max_bytes, 10)
        assert columns(together, [b"x" * 10] * 4) == (expected == 4)
        assert (together.count, together.full) == (expected, expected < 4)
        assert b"".join(together.contents) == b"".join(packing.contents)


def test_room_is_what_fits_of_messages_like_those_before() -> None:
    packing = TapPageBuilder(50, 1000, 10)
    assert packing.room() == 50
    packing.add(record(1, b"x" * 90), ACTIVE)
    assert 1 <= packing.room() <= 10
    while packing.add(record(2, b"x" * 90), ACTIVE):
        assert packing.room() >= 0
    assert packing.full and packing.room() == 0
    counted = TapPageBuilder(1, 1000, 10)
    counted.add(record(1), ACTIVE)
    assert counted.room() == 0 and not counted.full


def test_columns_are_the_messages_that_were_read() -> None:
    packing = packing_of([record(2, b"before")], [DEAD])
    changed: Changed = {9: (3, 1, {"a": b"1"}), 12: (1, 0, None)}
    contents = [b"", b"nine", b"\0", b"last"]
    assert columns(packing, contents, numbers=b"3,9,12,400", times=b"50,60;7,70,80;90", changed=changed)
    assert shown(packing) == [
        Shown(2, 0, 5, 0, 0, DEAD, None, b"before"),
        Shown(3, 0, 50, 0, 0, KEPT, None, b""),
        Shown(9, 1, 60, 7, 3, KEPT, {"a": b"1"}, b"nine"),
        Shown(12, 0, 70, 0, 1, KEPT, None, b"\0"),
        Shown(400, 0, 80, 90, 0, KEPT, None, b"last"),
    ]


def test_numbers_that_are_not_given_are_consecutive() -> None:
    packing = TapPageBuilder(9, MANY, 0)
    assert columns(packing, [b"a", b"b", b"c"], first=7)
    assert [(message.n, message.content) for message in shown(packing)] == [(7, b"a"), (8, b"b"), (9, b"c")]


def test_a_large_message_ends_the_columns_and_not_the_page() -> None:
    packing = TapPageBuilder(9, MANY, 0)
    assert not columns(packing, [b"small", b"x" * 101, b"small"])
    assert (packing.count, packing.full) == (1, False)
    assert packing.add(record(2, b"x" * 101), KEPT)
    assert [len(message.content) for message in shown(packing)] == [5, 101]


def test_what_does_not_fit_together_is_no_page() -> None:
    packing = packing_of([record(5)], [ACTIVE])
    with pytest.raises(InternalError, match="behind message 5"):
        columns(packing, [b"a"], first=5)
    for first, contents in ((6, b""), (7, b"ab")):
        with pytest.raises(InternalError, match="bytes were read"):
            packing.add_columns(KEPT, first, 1, b"", b"1", b"1", contents, 9, {})
    with pytest.raises(InternalError, match="shorter"):
        packing.add_columns(KEPT, 9, 2, b"", b"1", b"1,1", b"ab", 9, {})
    with pytest.raises(InternalError, match="message 4"):
        packing.add(record(4, None), ACTIVE)
