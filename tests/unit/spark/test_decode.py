"""Pages as Arrow batches: valid by Arrow's own rules, and what they say of a message is what decoding it says."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Symbol, ULong
from busbar.message.decoded import DecodedMessage, encode_message
from busbar.message.parsing import parse_message
from busbar.model.effects import DEAD_LETTERED, FORWARDED
from busbar.pages.rows import raw_message
from busbar.spark.decode import EVENT_SCHEMA, MESSAGE_SCHEMA, PageDecoder, event_batch, message_batch
from busbar.spark.errors import OptionError
from busbar.spark.schema import MESSAGES, check_schema, schema_of, with_columns


def content(
    body: bytes | None, subject: str | None = None, key: str | None = None, **properties: object
) -> bytes:
    message = DecodedMessage(data=body, application_properties=dict(properties))
    message.subject = subject
    payload = encode_message(message)
    if body is None:
        payload = payload.replace(encode_value(Described(ULong(0x77), None)), b"")
    if key is not None:
        payload = encode_value(Described(ULong(0x72), {Symbol("x-opt-partition-key"): key})) + payload
    return parse_message(payload, 0, len(payload), "fresh", 128).content


def page(*contents: bytes) -> bytes:
    heads = [
        struct.pack(">qqqqIBII", n, 0, 1_000 * n, 0, 0, 0, 0, len(kept)) for n, kept in enumerate(contents, 1)
    ]
    return struct.pack(">I", len(contents)) + b"".join(heads) + b"".join(contents)


MIXED = [
    content(b"one"),
    content(b"two", "second", "key", flag=True, number=5),
    content(b""),
    content(None, "fourth"),
    content(b"x" * 3_000, None, "another key", ratio=0.5),
]


# Nulls in front, behind and in between; more rows than a byte of a bitmap has.
@pytest.mark.parametrize(
    "contents", [[], MIXED[:1], MIXED[1:2], MIXED, [*MIXED[:1] * 9, *MIXED, *MIXED[1:2] * 9]]
)
def test_a_page_is_a_batch(contents: list[bytes]) -> None:
    batch = message_batch("orders", 3, page(*contents) if contents else b"")
    batch.validate(full=True)
    assert batch.schema.equals(MESSAGE_SCHEMA)
    rows = batch.to_pylist()
    assert [row["sequence_number"] for row in rows] == [3 << 48 | n for n in range(1, len(contents) + 1)]
    assert [row["raw"] for row in rows] == [raw_message(kept) for kept in contents]
    for row, kept in zip(rows, contents, strict=True):
        which = MIXED.index(kept)
        assert row["body"] == (b"one", b"two", b"", None, b"x" * 3_000)[which]
        assert row["body_type"] == (None if which == 3 else "data")
        assert row["subject"] == (None, "second", None, "fourth", None)[which]
        assert row["partition_key"] == (None, "key", None, None, "another key")[which]
        shown = {
            name: next(v for k, v in kind.items() if k != "type" and v is not None)
            for name, kind in row["properties"]
        }
        assert shown == ({}, {"flag": True, "number": 5}, {}, {}, {"ratio": 0.5})[which]
        assert row["expires_at"] is None and row["session_id"] is None


@pytest.mark.parametrize("column", MESSAGES.fieldNames())
def test_a_column_alone_is_as_among_all(column: str) -> None:
    rows = page(*MIXED)
    alone = PageDecoder(StructType([MESSAGES[column]])).batch("orders", "", 3, rows)
    alone.validate(full=True)
    assert alone.schema.names == [column]
    assert alone.column(column).equals(message_batch("orders", 3, rows).column(column))


def test_columns_by_name_and_by_schema() -> None:
    full = schema_of("messages", several=True)
    chosen = with_columns(full, "subject, sub_queue")
    assert chosen.fieldNames() == ["subject", "sub_queue"]
    decoder = PageDecoder(check_schema(chosen, full))
    assert not decoder.needs_bodies and not decoder.needs_application_properties
    assert decoder.batch("orders", "deadletter", 0, page(*MIXED[1:2])).to_pylist() == [
        {"subject": "second", "sub_queue": "deadletter"}
    ]
    with pytest.raises(OptionError, match="'columns' names 'sub_queue'"):
        with_columns(MESSAGES, "sub_queue")
    with pytest.raises(OptionError, match="a list of different columns"):
        with_columns(MESSAGES, "body,body")
    with pytest.raises(OptionError, match="the type int; its type is string"):
        check_schema(StructType([StructField("subject", IntegerType())]), full)
    with pytest.raises(OptionError, match="has a column 'sbject'"):
        check_schema(StructType([StructField("sbject", IntegerType())]), full)


def test_without_bodies_nothing_is_copied() -> None:
    batch = message_batch("orders", 0, page(*MIXED), bodies=False)
    batch.validate(full=True)
    assert batch.column("raw").null_count == batch.column("body").null_count == len(MIXED)
    assert batch.column("body_type").null_count == 1


def test_a_batch_of_events() -> None:
    rows = b"".join(
        struct.pack(">I", 37 + len(why)) + struct.pack(">qqBqqI", at, number, 1, 2_000, when, 3) + why
        for at, number, when, why in ((4, 9, 1_000, b"why"), (5, 0, 0, b""), (6, 10, 0, b"\xff"))
    )
    batch = event_batch("orders", 2, rows)
    batch.validate(full=True)
    assert batch.schema.equals(EVENT_SCHEMA)
    assert batch.column("sequence_number") == pa.array([2 << 48 | 9, None, 2 << 48 | 10], pa.int64())
    assert batch.column("reason").to_pylist() == ["why", None, "\ufffd"]


def test_every_outcome_has_a_name() -> None:
    rows = b"".join(
        struct.pack(">I", 37) + struct.pack(">qqBqqI", at, at, at, 2_000, 1_000, 0)
        for at in range(FORWARDED + 2)
    )
    names = event_batch("orders", 0, rows).column("outcome").to_pylist()
    assert names[DEAD_LETTERED] == "dead-lettered" and names[FORWARDED] == "forwarded"
    assert len(set(names)) == FORWARDED + 1
    assert names[0] == names[-1] == "unknown", "of a newer broker"
