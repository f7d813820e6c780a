"""Paths, kinds of messages, targets of copies, and messages from what a person gives."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from busbar.operations.browsing import MessageKind, place_of
from busbar.operations.composing import properties_of, time_of
from busbar.operations.paths import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, MessagePath, OperationRefused
from busbar.operations.triage import dead_letters_of, target_of

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("path", "entity", "sub_queue"),
    [
        ("orders", "orders", MAIN),
        ("/eu/orders/", "eu/orders", MAIN),
        ("orders/$deadletterqueue", "orders", DEAD_LETTER),
        ("t/Subscriptions/s/$DeadLetterQueue", "t/Subscriptions/s", DEAD_LETTER),
        ("orders/$Transfer/$DeadLetterQueue", "orders", TRANSFER_DEAD_LETTER),
    ],
)
def test_a_path_names_an_entity_and_a_sub_queue(path: str, entity: str, sub_queue: str) -> None:
    found = MessagePath.parse(path)
    assert (found.entity, found.sub_queue) == (entity, sub_queue)
    assert MessagePath.parse(str(found)) == found


def test_a_kind_of_messages_is_in_a_sub_queue() -> None:
    assert place_of("q", MessageKind.DEAD_LETTER).sub_queue == DEAD_LETTER
    assert place_of("q/$DeadLetterQueue", MessageKind.DEAD_LETTER).sub_queue == DEAD_LETTER
    assert place_of("q/$DeadLetterQueue", MessageKind.DEFERRED).sub_queue == DEAD_LETTER
    assert place_of("q", MessageKind.SCHEDULED).sub_queue == MAIN
    for path, kind in (
        ("q/$DeadLetterQueue", MessageKind.SCHEDULED),
        ("q/$DeadLetterQueue", MessageKind.TRANSFER_DEAD_LETTER),
    ):
        with pytest.raises(OperationRefused, match="name the entity 'q'"):
            place_of(path, kind)


def test_the_target_of_copies() -> None:
    assert target_of(dead_letters_of("q"), "") == "q"
    assert target_of(dead_letters_of("q"), "other") == "other"
    assert target_of(dead_letters_of("t/subscriptions/s"), "t") == "t"
    for path, target in (
        ("t/subscriptions/s", ""),
        ("q/$Transfer/$DeadLetterQueue", ""),
        ("q", "t/subscriptions/s"),
        ("q", "q/$DeadLetterQueue"),
    ):
        with pytest.raises(OperationRefused, match="name"):
            target_of(dead_letters_of(path), target)
    with pytest.raises(OperationRefused):
        dead_letters_of("q").of(TRANSFER_DEAD_LETTER)


def test_properties_are_what_they_look_like() -> None:
    pairs = ["a=5", "b=-1.5", "c=true", "d=text", 'e="5"', "f=", "g=x=y", 'h="', "i=1e5", "j=9" + "9" * 18]
    assert properties_of(pairs) == {
        "a": 5, "b": -1.5, "c": True, "d": "text", "e": "5", "f": "", "g": "x=y", "h": '"', "i": "1e5",
        "j": "9" * 19,
    }  # fmt: skip
    for pair in ("key", "=value", ""):
        with pytest.raises(OperationRefused, match="KEY=VALUE"):
            properties_of([pair])


def test_times_as_people_write_them() -> None:
    assert (
        time_of("2026-02-01T00:00:00Z", NOW) == time_of("2026-02-01", NOW) == datetime(2026, 2, 1, tzinfo=UTC)
    )
    assert time_of("2026-02-01T01:00:00+01:00", NOW) == datetime(2026, 2, 1, tzinfo=UTC)
    assert time_of("+90", NOW) == NOW + timedelta(seconds=90)
    for text in ("", "soon", "+", "+x", "+" + "9" * 30):
        with pytest.raises(OperationRefused, match="is not a time"):
            time_of(text, NOW)
