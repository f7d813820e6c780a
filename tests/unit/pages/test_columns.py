"""Columns of bulk rows: what they say of a message is what decoding it in full says."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.amqp.codec import encode_value
from busbar.amqp.types import (
    Byte,
    Char,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    UShort,
)
from busbar.message.compose import compose
from busbar.message.decoded import DecodedMessage, decode_message, encode_message
from busbar.message.parsing import parse_message
from busbar.model.errors import MalformedMessage
from busbar.pages.column_buffers import Bits, Booleans, Cuts, Doubles, Longs, Texts, Valid
from busbar.pages.columns import EventColumns, MessageColumns
from busbar.pages.rows import raw_message

ENQUEUED = 1_700_000_000_000


def content_of(payload: bytes) -> bytes:
    return parse_message(payload, 0, len(payload), "fresh", 128).content


def row(
    content: bytes,
    n: int = 7,
    dead: int = 0,
    ttl: int = 0,
    deliveries: int = 0,
    lane: int = 0,
    overlay: dict[str, object] | None = None,
) -> bytes:
    """A run of one message, by the format's words in rows.py and not by its code."""
    given = b"" if overlay is None else encode_value(overlay)
    head = struct.pack(">qqqqIBII", n, dead, ENQUEUED, ttl, deliveries, lane, len(given), len(content))
    return struct.pack(">I", 1) + head + given + content


def bits(column: Bits) -> list[bool]:
    raw = column.value()
    return [bool(raw[i // 8] >> (i % 8) & 1) for i in range(int(column.count))]


def valid(column: Valid) -> list[bool]:
    """Of a column that knows how many rows there are."""
    if column.there in (0, column.count):
        return [column.there > 0] * int(column.count)
    found = bits(column.bits)
    assert len(found) == column.count and sum(found) == column.there
    return found


def texts(column: Texts | Cuts) -> list[bytes | None]:
    offsets = memoryview(column.offsets.getvalue()).cast("i")
    data = cut(column) if isinstance(column, Cuts) else column.data.getvalue()
    return [
        data[offsets[i] : offsets[i + 1]] if there else None for i, there in enumerate(valid(column.valid))
    ]


def cut(column: Cuts) -> bytes:
    bounds = memoryview(column.bounds.getvalue()).cast("i")
    assert len(bounds) == 2 * column.pieces + 1 and list(bounds) == sorted(bounds)
    return b"".join(column.page[bounds[i] : bounds[i + 1]] for i in range(1, len(bounds), 2))


def raws(columns: MessageColumns) -> list[bytes | None]:
    pairs = zip(texts(columns.raw_heads), texts(columns.raw), strict=True)
    return [None if raw is None else (head or b"") + raw for head, raw in pairs]


def longs(column: Longs) -> list[int | None]:
    values = memoryview(column.data.getvalue()).cast("q")
    return [values[i] if there else None for i, there in enumerate(valid(column.valid))]


def columns_of(*rows: bytes, index: int = 0, bodies: bool = True) -> MessageColumns:
    columns = MessageColumns(index, bodies)
    columns.add_rows(b"".join(rows))
    closed(columns, columns.count)
    for entries in (columns.properties, columns.annotations):
        closed(entries, entries.count)
    return columns


def closed(columns: object, count: int) -> None:
    """All columns are told how many rows there are."""
    for name in dir(columns):
        column = getattr(columns, name)
        if isinstance(column, Texts | Cuts | Longs | Doubles | Booleans):
            column.skip_to(count)


def only(column: Texts | Cuts) -> bytes | None:
    (value,) = texts(column)
    return value


def properties(columns: MessageColumns) -> dict[str, tuple[str, object]]:
    """Name to type and the one value that is set, of a single row."""
    found = columns.properties
    doubles = memoryview(found.doubles.data.getvalue()).cast("d")
    fields: list[list[object]] = [
        [None if text is None else text.decode() for text in texts(found.texts)],
        list(longs(found.longs)),
        [doubles[i] if there else None for i, there in enumerate(valid(found.doubles.valid))],
        [
            value if there else None
            for value, there in zip(bits(found.booleans.data), valid(found.booleans.valid), strict=True)
        ],
        list(longs(found.times)),
        list(texts(found.binaries)),
    ]
    result: dict[str, tuple[str, object]] = {}
    for i, name in enumerate(texts(found.names)):
        kind = texts(found.types)[i]
        values = [field[i] for field in fields if field[i] is not None]
        assert len(values) <= 1 and name is not None and kind is not None
        result[name.decode()] = (kind.decode(), values[0] if values else None)
    return result


def test_fields_of_a_message() -> None:
    message = DecodedMessage(data=b"body", application_properties={"a": "b"})
    message.message_id = "id"
    message.to = "to"
    message.subject = "label"
    message.reply_to = "reply"
    message.correlation_id = "correlation"
    message.content_type = "text/plain"
    message.group_id = "session"
    message.reply_to_group_id = "reply session"
    annotations = encode_value(
        Described(
            ULong(0x72),
            {
                Symbol("x-opt-partition-key"): "key",
                Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5),
                Symbol("mine"): 1,
            },
        )
    )
    header = encode_value(Described(ULong(0x70), [True]))
    content = content_of(header + annotations + encode_message(message))
    columns = columns_of(row(content, n=9, dead=3, ttl=1000, deliveries=2, lane=1), index=5)
    assert longs(columns.numbers) == [5 << 48 | 9]
    assert longs(columns.dead_numbers) == [3]
    assert longs(columns.enqueued) == [ENQUEUED * 1000]
    assert longs(columns.expires) == [(ENQUEUED + 1000) * 1000]
    assert longs(columns.scheduled) == [5000]
    assert columns.deliveries.getvalue() == struct.pack("<i", 2)
    assert columns.lanes.getvalue() == b"\x01"
    assert only(columns.message_ids) == b"id"
    assert only(columns.session_ids) == b"session"
    assert only(columns.partition_keys) == b"key"
    assert only(columns.correlation_ids) == b"correlation"
    assert only(columns.subjects) == b"label"
    assert only(columns.content_types) == b"text/plain"
    assert only(columns.to) == b"to"
    assert only(columns.reply_to) == b"reply"
    assert only(columns.reply_to_session_ids) == b"reply session"
    assert only(columns.body) == b"body"
    assert only(columns.body_types) == b"data"
    assert properties(columns) == {"a": ("string", "b")}
    assert texts(columns.annotations.names) == [
        b"x-opt-partition-key",
        b"x-opt-scheduled-enqueue-time",
        b"mine",
    ]
    (raw,) = raws(columns)
    assert raw is not None
    assert content_of(raw) == content  # a message that is sent again is the same message


def test_what_is_absent_is_null() -> None:
    columns = columns_of(row(content_of(encode_message(DecodedMessage(data=b"")))))
    assert only(columns.message_ids) == b"fresh"
    for column in (
        columns.session_ids,
        columns.partition_keys,
        columns.subjects,
        columns.reasons,
        columns.descriptions,
    ):
        assert only(column) is None
    assert longs(columns.expires) == longs(columns.scheduled) == longs(columns.dead_numbers) == [None]
    assert only(columns.body) == b""
    assert properties(columns) == {}


def test_a_message_without_a_body_has_none() -> None:
    message = DecodedMessage()
    message.message_id = "id"
    bare = encode_message(message)
    bodiless = bare[: bare.index(b"\x00\x53\x77")]
    columns = columns_of(row(content_of(bodiless)))
    assert only(columns.body) is None
    assert only(columns.body_types) is None


def test_without_bodies_the_rest_is_there() -> None:
    message = DecodedMessage(data=b"body", application_properties={"a": True})
    columns = columns_of(row(content_of(encode_message(message))), bodies=False)
    assert only(columns.body) is None
    assert raws(columns) == [None]
    assert only(columns.body_types) == b"data"
    assert properties(columns) == {"a": ("boolean", True)}


@pytest.mark.parametrize(
    ("value", "kind", "body"),
    [
        ("ü", b"string", "ü".encode()),
        ("x" * 300, b"string", b"x" * 300),
        (b"\x00\x01", b"binary", b"\x00\x01"),
        (5, b"value", encode_value(5)),
        (None, b"value", encode_value(None)),
        ({"a": [1]}, b"value", encode_value({"a": [1]})),
    ],
)
def test_bodies_that_are_values(value: object, kind: bytes, body: bytes) -> None:
    columns = columns_of(row(content_of(encode_message(DecodedMessage(value)))))
    assert only(columns.body_types) == kind
    assert only(columns.body) == body


def test_several_data_sections_are_joined() -> None:
    sections = b"".join(encode_value(Described(ULong(0x75), part)) for part in (b"a", b"", b"c" * 300))
    assert only(columns_of(row(content_of(sections))).body) == b"a" + b"c" * 300


def test_the_overlay_replaces_properties_and_tells_why_a_message_died() -> None:
    message = DecodedMessage(data=b"", application_properties={"a": "old", "b": 1})
    overlay: dict[str, object] = {
        "a": Int(2),
        "DeadLetterReason": "why",
        "DeadLetterErrorDescription": "because",
    }
    columns = columns_of(row(content_of(encode_message(message)), overlay=overlay))
    assert properties(columns) == {
        "a": ("int", 2),
        "b": ("long", 1),
        "DeadLetterReason": ("string", "why"),
        "DeadLetterErrorDescription": ("string", "because"),
    }
    assert only(columns.reasons) == b"why"
    assert only(columns.descriptions) == b"because"


def test_what_has_no_exact_place() -> None:
    values: dict[str, object] = {
        "large": ULong((1 << 64) - 1),
        "distant": Timestamp(1 << 62),
        "list": [1, 2],
        "none": None,
    }
    columns = columns_of(
        row(content_of(encode_message(DecodedMessage(data=b"", application_properties=values))))
    )
    assert properties(columns) == {
        "large": ("ulong", str((1 << 64) - 1)),
        "distant": ("timestamp", 1 << 62),
        "list": ("list", encode_value([1, 2])),
        "none": ("null", None),
    }


def test_text_that_is_not_utf8_is_replaced() -> None:
    message = DecodedMessage(data=b"")
    message.message_id = "id"
    message.subject = "abc"
    bare = encode_message(message).replace(b"abc", b"a\xffc")
    assert only(columns_of(row(content_of(bare))).subjects) == "a\ufffdc".encode()


def test_ids_of_other_types_are_written_out() -> None:
    known = uuid.UUID("12345678-1234-5678-1234-567812345678")
    cases: Iterable[tuple[object, bytes]] = (
        (known, str(known).encode()),
        (ULong(300), b"300"),
        (b"\x0a\x0b", b"0a0b"),
        (b"received", b"received"),
    )
    for given_id, text in cases:
        message = DecodedMessage(data=b"")
        message.message_id = given_id
        message.correlation_id = given_id
        columns = columns_of(row(content_of(encode_message(message))))
        assert only(columns.message_ids) == text
        assert only(columns.correlation_ids) == text


def test_delivery_annotations_are_no_part_of_a_raw_message() -> None:
    sent = compose(b"body", "id")
    content = content_of(sent + encode_value(Described(ULong(0x71), {Symbol("hop"): 1})))
    assert content != content_of(sent)
    columns = columns_of(row(content), row(content_of(sent)))
    assert raws(columns) == [sent, sent] == [raw_message(content)] * 2
    assert texts(columns.body) == [b"body", b"body"]


def test_an_empty_session_id_is_one() -> None:
    for session, text in (("", b""), (None, None)):
        columns = columns_of(row(content_of(compose(b"body", "id", session))))
        assert only(columns.session_ids) == text


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=300),
    st.binary(max_size=300),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float32),
    st.integers(0, (1 << 16) - 1).map(UShort),
    st.integers(0, (1 << 32) - 1).map(UInt),
    st.integers(0, (1 << 63) - 1).map(ULong),
    st.integers(-128, 127).map(Byte),
    st.integers(-(1 << 15), (1 << 15) - 1).map(Short),
    st.integers(-(1 << 31), (1 << 31) - 1).map(Int),
    st.integers(-(10**15), 10**15).map(Timestamp),
    st.text(alphabet="abc", max_size=20).map(Symbol),
    st.characters(codec="utf-8").map(Char),
    st.uuids(),
)
NAMES = st.text(max_size=20)
FIELD = st.none() | st.text(max_size=100)


@st.composite
def messages(draw: st.DrawFn) -> DecodedMessage:
    message = DecodedMessage(
        draw(VALUES), draw(st.none() | st.binary(max_size=600)), draw(st.dictionaries(NAMES, VALUES))
    )
    message.message_id = draw(st.text(min_size=1, max_size=100))
    message.to = draw(FIELD)
    message.subject = draw(FIELD)
    message.reply_to = draw(FIELD)
    message.correlation_id = draw(FIELD)
    message.content_type = draw(FIELD)
    message.group_id = draw(FIELD)
    message.reply_to_group_id = draw(FIELD)
    return message


def encoded(text: object) -> bytes | None:
    return None if text is None else str(text).encode()


@given(st.lists(messages(), max_size=12))
def test_columns_say_what_decoding_says(given_messages: list[DecodedMessage]) -> None:
    contents = [content_of(encode_message(message)) for message in given_messages]
    columns = columns_of(*[row(content, n=i + 1) for i, content in enumerate(contents)])
    assert longs(columns.numbers) == list(range(1, len(contents) + 1))
    decoded = [decode_message(raw) for raw in raws(columns) if raw is not None]
    assert len(decoded) == len(contents)
    assert texts(columns.message_ids) == [encoded(message.message_id) for message in decoded]
    assert texts(columns.to) == [encoded(message.to) for message in decoded]
    assert texts(columns.subjects) == [encoded(message.subject) for message in decoded]
    assert texts(columns.reply_to) == [encoded(message.reply_to) for message in decoded]
    assert texts(columns.correlation_ids) == [encoded(message.correlation_id) for message in decoded]
    assert texts(columns.content_types) == [encoded(message.content_type) for message in decoded]
    assert texts(columns.session_ids) == [encoded(message.group_id) for message in decoded]
    assert texts(columns.reply_to_session_ids) == [encoded(message.reply_to_group_id) for message in decoded]
    for message, body in zip(decoded, texts(columns.body), strict=True):
        if message.data is not None:
            assert body == message.data
    for content, message in zip(contents, decoded, strict=True):
        shown = properties(columns_of(row(content)))
        assert shown.keys() == message.application_properties.keys()
        for name, value in message.application_properties.items():
            expected = value
            if isinstance(value, Timestamp):
                expected = int(value) * 1000
            elif isinstance(value, uuid.UUID):
                expected = str(value)
            assert shown[name][1] == expected


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_are_rows_or_malformed(garbage: bytes, cut: int) -> None:
    whole = row(content_of(encode_message(DecodedMessage(data=b"body", application_properties={"a": 1}))))
    for rows in (garbage, whole[:cut], whole + garbage, whole[:cut] + garbage):
        for columns in (MessageColumns(0, True), EventColumns(0)):
            try:
                columns.add_rows(rows)
            except MalformedMessage:
                pass


def test_events() -> None:
    body = struct.pack(">qqBqqI", 4, 9, 5, 2_000, 1_000, 3) + b"why"
    plain = struct.pack(">qqBqqI", 5, 0, 1, 3_000, 0, 0)
    rows = struct.pack(">I", len(body)) + body + struct.pack(">I", len(plain)) + plain
    columns = EventColumns(2)
    columns.add_rows(rows)
    closed(columns, 2)
    assert longs(columns.positions) == [4, 5]
    assert longs(columns.numbers) == [2 << 48 | 9, None]
    assert columns.outcomes.getvalue() == b"\x05\x01"
    assert longs(columns.times) == [2_000_000, 3_000_000]
    assert longs(columns.enqueued) == [1_000_000, None]
    assert columns.deliveries.getvalue() == struct.pack("<ii", 3, 0)
    assert texts(columns.reasons) == [b"why", None]
