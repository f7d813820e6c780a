"""Pages of a tap as bytes: what is written is read again, what is damaged is refused, and a content is a message again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.amqp.codec import DecodeError, encode_value
from busbar.amqp.types import Described, Symbol, UByte, UInt
from busbar.message.parsing import parse_message
from busbar.model.effects import COMPLETED, DEAD_LETTERED, MessageEvent
from busbar.model.errors import InternalError
from busbar.model.message import ACTIVE, DEAD, KEPT, Record
from busbar.pages.rows import (
    decode_events,
    decode_messages,
    encode_events,
    encode_messages,
    properties_of,
    raw_message,
)
from tests.pages import packing_of

HEADER, ANNOTATIONS, PROPERTIES, APPLICATION, DATA = 0x70, 0x72, 0x73, 0x74, 0x75
numbers = st.integers(0, (1 << 63) - 1)
small = st.integers(0, (1 << 32) - 1)


def section(code: int, value: object) -> bytes:
    return encode_value(Described(code, value))


def content_of(raw: bytes) -> bytes:
    return parse_message(raw, 0, len(raw), "fresh", 128).content


CONTENT = content_of(section(PROPERTIES, ["id"]) + section(DATA, b"body"))


def record(n: int, content: bytes | None = CONTENT, **more: object) -> Record:
    fields: dict[str, object] = {
        "enqueued": 1_000,
        "ttl": 0,
        "due": 0,
        "deliveries": 0,
        "size": 1,
        "overlay": None,
    }
    fields.update(more)
    return Record(n=n, content=content, **fields)  # type: ignore[arg-type]


def rows_of(records: list[Record], lanes: list[int]) -> bytes:
    packing = packing_of(records, lanes)
    return b"".join(encode_messages(packing.heads(), packing.contents, packing.overlays))


def test_messages_come_back_with_every_field() -> None:
    overlay = {"DeadLetterReason": encode_value("why"), "count": encode_value(UInt(3))}
    rows = rows_of(
        [record(5), record(7, dead=2, ttl=60_000, deliveries=3, overlay=overlay), record(9, overlay={})],
        [ACTIVE, DEAD, KEPT],
    )
    first, second, third = decode_messages(rows)
    assert (first.n, first.dead, first.enqueued, first.ttl, first.deliveries) == (5, 0, 1_000, 0, 0)
    assert (first.lane, first.overlay, first.content) == (ACTIVE, b"", CONTENT)
    assert (second.n, second.dead, second.ttl, second.deliveries, second.lane) == (7, 2, 60_000, 3, DEAD)
    assert properties_of(second.overlay) == {"DeadLetterReason": "why", "count": 3}
    assert second.content == CONTENT
    assert (third.lane, properties_of(third.overlay)) == (KEPT, {})


@given(n=numbers, dead=numbers, enqueued=numbers, ttl=numbers, deliveries=small, body=st.binary(max_size=300))
def test_any_numbers_survive(
    n: int, dead: int, enqueued: int, ttl: int, deliveries: int, body: bytes
) -> None:
    content = content_of(section(DATA, body))
    one = record(n, content, dead=dead, enqueued=enqueued, ttl=ttl, deliveries=deliveries)
    (row,) = decode_messages(rows_of([one], [ACTIVE]))
    assert (row.n, row.dead, row.enqueued, row.ttl, row.deliveries) == (n, dead, enqueued, ttl, deliveries)
    assert row.content == content


@given(st.lists(st.tuples(numbers, numbers, numbers, small, st.text(max_size=50)), max_size=5))
def test_events_come_back(given_events: list[tuple[int, int, int, int, str]]) -> None:
    events = [
        MessageEvent(at, n, COMPLETED if deliveries else DEAD_LETTERED, time, time // 2, deliveries, reason)
        for at, n, time, deliveries, reason in given_events
    ]
    found = decode_events(encode_events(events))
    assert [(e.at, e.n, e.outcome, e.time, e.enqueued, e.deliveries, e.reason) for e in found] == [
        (e.at, e.n, e.outcome, e.time, e.enqueued, e.deliveries, e.reason.encode("utf-8", "replace").decode())
        for e in events
    ]


def test_no_rows_are_no_bytes() -> None:
    assert rows_of([], []) == b"" and decode_messages(b"") == []
    assert encode_events([]) == b"" and decode_events(b"") == []


def test_a_message_without_its_content_is_our_own_fault() -> None:
    with pytest.raises(InternalError, match="message 4"):
        rows_of([record(4, None)], [ACTIVE])


@given(st.data())
def test_damaged_rows_are_refused_or_read(data: st.DataObject) -> None:
    """Whatever the bytes: rows, or a DecodeError."""
    overlay = {"a": encode_value("b")}
    rows = bytearray(rows_of([record(1, overlay=overlay), record(2)], [ACTIVE, DEAD]))
    for _ in range(data.draw(st.integers(1, 4))):
        rows[data.draw(st.integers(0, len(rows) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(rows[: data.draw(st.integers(0, len(rows)))])
    for decode in (decode_messages, decode_events):
        try:
            found = decode(cut)
        except DecodeError:
            continue
        assert isinstance(found, list)


def test_an_overlay_longer_than_its_page_is_refused() -> None:
    rows = bytearray(rows_of([record(1)], [ACTIVE]))
    rows[41:45] = (1 << 20).to_bytes(4, "big")
    with pytest.raises(DecodeError, match="bytes left"):
        decode_messages(bytes(rows))


@pytest.mark.parametrize(
    "front",
    [
        b"",
        section(HEADER, [True]),
        section(HEADER, [True, UByte(7)]),
        section(HEADER, [False, UByte(0)]),
        section(ANNOTATIONS, {Symbol("x-opt-partition-key"): "k", Symbol("mine"): [1, 2]}),
        section(HEADER, [True, UByte(9)]) + section(ANNOTATIONS, {Symbol("a" * 200): "v" * 300}),
    ],
)
def test_a_content_is_the_same_message_again(front: bytes) -> None:
    behind = section(PROPERTIES, ["id", None, "to"]) + section(APPLICATION, {"p": 1}) + section(DATA, b"body")
    content = content_of(front + behind)
    raw = raw_message(content)
    assert raw.endswith(behind)
    assert content_of(raw) == content


@pytest.mark.parametrize(
    "content", [b"", b"\x10", b"\x20" + bytes(7), b"\x10" + bytes(3) + b"\x00\x00\x00\x09" + bytes(8)]
)
def test_what_is_no_content_is_refused(content: bytes) -> None:
    with pytest.raises(DecodeError):
        raw_message(content)
