"""Which columns are which fields, what is refused before anything is sent, and messages made of record batches."""

from __future__ import annotations

import json
import pickle
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from busbar.amqp.types import Symbol, Timestamp, UByte, ULong
from busbar.message.compose import compose
from busbar.message.decoded import DecodedMessage, decode_message
from busbar.spark.bad_rows import STAGING, BadRows, publish
from busbar.spark.errors import OptionError, SinkError
from busbar.spark.schema import MESSAGES
from busbar.spark.sink_columns import ColumnPlan, plan_of
from busbar.spark.sink_encode import Encoded, MessageEncoder
from busbar.spark.sink_ids import hashed_id
from busbar.spark.sink_options import SinkOptions


def options(**given: str) -> SinkOptions:
    return SinkOptions.parse({"connectionStringEnv": "X", "entity": "orders", **given}, streaming=False)


def planned(schema: str, **given: str) -> ColumnPlan:
    return plan_of(frame(schema), options(**given))


KINDS: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "bigint": LongType(),
    "struct": StructType([StructField("a", StringType())]),
    "timestamp_ntz": TimestampNTZType(),
    "lists": MapType(StringType(), ArrayType(StringType())),
}


def frame(text: str) -> StructType:
    columns = [column.split() for column in text.split(",")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in columns])


def encoded(batch: pa.RecordBatch, **given: str) -> Encoded:
    parsed = options(**given)
    schema = from_arrow_schema(batch.schema, prefer_timestamp_ntz=True)
    found = MessageEncoder(plan_of(schema, parsed), parsed.once).encode(batch)
    assert sorted([*found.rows, *(row for row, _reason in found.bad)]) == list(range(batch.num_rows))
    return found


def made(batch: pa.RecordBatch, **given: str) -> tuple[list[DecodedMessage], list[tuple[int, str]]]:
    found = encoded(batch, **given)
    return [decode_message(message) for message in found.messages], found.bad


# ---- plans -------------------------------------------------------------------------------------------


def test_columns_are_fields_by_their_names() -> None:
    plan = planned("Body binary, message_id string, SUBJECT string")
    assert plan.fields == {"body": 0, "message_id": 1, "subject": 2}
    other = planned(
        "payload string, key string, message_id string",
        **{"column.body": "payload", "column.partition_key": "KEY"},
    )
    assert other.fields == {"body": 0, "partition_key": 1, "message_id": 2}


@pytest.mark.parametrize(
    ("schema", "given", "said"),
    [
        ("message_id string", {}, "neither a column 'body' nor 'raw'"),
        ("body binary, message_id bigint", {}, "'message_id' has the type BIGINT.*is STRING"),
        ("body struct, message_id string", {}, "BINARY or STRING"),
        ("body string, message_id string, time_to_live string", {}, "INTERVAL DAY TO SECOND"),
        ("body string, message_id string, scheduled_enqueue_time timestamp_ntz", {}, "is TIMESTAMP"),
        ("body string, message_id string, properties lists", {}, "MAP<STRING, V>"),
        (
            "body string, message_id string, colour string",
            {},
            "'colour' .STRING. is no field.*unknownColumns",
        ),
        ("body string, message_id string, state string", {}, "'state'"),
        ("body string, Body string, message_id string", {}, "the same name"),
        ("body string", {}, "BUSBAR_SINK_NO_ID.*idColumns.*at-least-once"),
        ("body string, raw binary", {}, "'message' to 'raw'"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(schema: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(SinkError, match=said):
        planned(schema, **given)


@pytest.mark.parametrize(
    ("schema", "given", "said"),
    [
        ("body string, a string", {"column.colour": "a"}, "column.colour.*messages do not have"),
        ("body string", {"column.subject": "a"}, "'a', which the frame does not have. It has: body"),
        ("body string", {"idColumns": "a"}, "idColumns.*'a'"),
        ("body string", {"idColumns": " , "}, "names no column"),
        ("body string, message_id string", {"idFrom": "source"}, "sequence_number"),
        ("body string, a string", {"idColumns": "a", "idFrom": "source"}, "both say"),
        ("body string, message_id string", {"message": "raw"}, "no column 'raw'"),
        ("body string, message_id string", {"batch": "3"}, "needs 'writer'"),
        ("body string, message_id string", {"writer": "w", "batch": "x"}, "rises"),
        ("body string, message_id string", {"deliveri": "x"}, "Did you mean 'delivery'"),
        ("body string, message_id string", {"delivery": "twice"}, "'exactly-once' or 'at-least-once'"),
    ],
)
def test_options_that_do_not_fit_are_refused(schema: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        planned(schema, **given)


def test_a_stream_names_its_writer_itself() -> None:
    for given in ({"writer": "w"}, {"batch": "1"}):
        with pytest.raises(OptionError, match="is for batches"):
            SinkOptions.parse({"connectionStringEnv": "X", "entity": "orders", **given}, streaming=True)


def test_a_frame_that_was_read_is_written_without_what_only_a_broker_sets() -> None:
    plan = plan_of(MESSAGES, options(message="columns"))
    assert plan.source is not None and plan.source_properties and not plan.raw
    assert plan_of(MESSAGES, options(message="raw")).raw
    with pytest.raises(SinkError, match="'message'"):
        plan_of(MESSAGES, options())


def test_errors_cross_process_borders() -> None:
    error = pickle.loads(pickle.dumps(SinkError("BUSBAR_SINK_SCHEMA", "text")))
    assert (str(error), error.condition) == ("[BUSBAR_SINK_SCHEMA] text", "BUSBAR_SINK_SCHEMA")


# ---- messages ----------------------------------------------------------------------------------------


def test_all_fields_of_a_row() -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    texts = [
        "session_id",
        "partition_key",
        "correlation_id",
        "subject",
        "content_type",
        "to",
        "reply_to",
        "reply_to_session_id",
    ]
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "body": "grün",
                "message_id": "one",
                **{name: f"a {name}" for name in texts},
                "time_to_live": timedelta(minutes=1),
                "scheduled_enqueue_time": due,
                "properties": [("colour", "green"), ("none", None)],
            },
            {"body": None, "message_id": "two"},
        ],
        pa.schema(
            [
                *[(name, pa.string()) for name in ("body", "message_id", *texts)],
                ("time_to_live", pa.duration("us")),
                ("scheduled_enqueue_time", pa.timestamp("us", "UTC")),
                ("properties", pa.map_(pa.string(), pa.string())),
            ]
        ),
    )
    assert encoded(batch).messages == [
        compose(
            "grün".encode(),
            "one",
            **{name: f"a {name}" for name in texts},  # type: ignore[arg-type]
            time_to_live=60_000,
            scheduled_enqueue_time=int(due.timestamp() * 1000),
            application_properties={"colour": "green", "none": None},
        ),
        compose(b"", "two"),
    ]


def test_properties_of_plain_types() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    kinds = [
        (pa.int32(), 5),
        (pa.float64(), 2.5),
        (pa.bool_(), True),
        (pa.binary(), b"\x00"),
        (pa.timestamp("us", "UTC"), noon),
    ]
    for kind, value in kinds:
        column = pa.array([None, [("a", value)], [], [("b", value), ("c", None)]], pa.map_(pa.string(), kind))
        ids = pa.array(["0", "1", "2", "3"])
        batch = pa.RecordBatch.from_arrays([ids, ids, column], ["body", "message_id", "properties"])
        messages, bad = made(batch.slice(1))
        wanted = Timestamp(int(noon.timestamp() * 1000)) if value is noon else value
        assert not bad
        assert [message.application_properties or {} for message in messages] == [
            {"a": wanted},
            {},
            {"b": wanted, "c": None},
        ]
        assert type(messages[0].application_properties["a"]) is type(wanted)


def test_properties_as_the_source_gives_them() -> None:
    empty: dict[str, object] = dict.fromkeys(("string", "long", "double", "boolean", "timestamp", "binary"))
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    given: dict[str, dict[str, object]] = {
        "a": {"type": "ubyte", "long": 7},
        "b": {"type": "ulong", "string": str((1 << 64) - 1)},
        "c": {"type": "symbol", "string": "s"},
        "d": {"type": "timestamp", "timestamp": noon},
        "e": {"type": "uuid", "string": str(uuid.UUID(int=5))},
        "f": {"type": "null"},
        "g": {"type": "list", "binary": b"\xc0\x03\x01\x54\x05"},
        "h": {"type": "boolean", "boolean": False},
    }
    rows = [
        {
            "body": b"x",
            "message_id": "1",
            "properties": [(name, empty | value) for name, value in given.items()],
        },
        {"body": b"x", "message_id": "2", "properties": [("a", empty | {"type": "colour"})]},
        {"body": b"x", "message_id": "3", "properties": [("a", empty | {"type": "long"})]},
        {"body": b"x", "message_id": "4", "properties": [("a", empty | {"type": "ubyte", "long": 300})]},
    ]
    schema = to_arrow_schema(MESSAGES, timezone="UTC")
    batch = pa.RecordBatch.from_pylist(
        rows, pa.schema([schema.field(name) for name in ("body", "message_id", "properties")])
    )
    (message,), bad = made(batch)
    found = message.application_properties
    assert found == {
        "a": 7,
        "b": (1 << 64) - 1,
        "c": "s",
        "d": int(noon.timestamp() * 1000),
        "e": uuid.UUID(int=5),
        "f": None,
        "g": [5],
        "h": False,
    }
    assert [type(found[name]) for name in "abcd"] == [UByte, ULong, Symbol, Timestamp]
    assert [row for row, _reason in bad] == [1, 2, 3]
    assert "'colour' is no AMQP type" in bad[0][1]
    assert "'long' has no value" in bad[1][1]


def test_ids_of_rows() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "body": ["a", "b", "c"],
            "message_id": ["own", None, ""],
            "entity": ["orders", "orders", None],
            "fragment": pa.array([0, 0, 0], pa.int32()),
            "sequence_number": [1, 2, 3],
        }
    )
    messages, bad = made(batch)
    assert [message.message_id for message in messages] == ["own", "orders:2"]
    assert bad == [(2, "it has no message id: the columns that make it are null")]
    messages, bad = made(batch, idFrom="source")
    assert [message.message_id for message in messages] == ["orders:1", "orders:2"]
    messages, bad = made(batch, idColumns="body,sequence_number")
    assert [message.message_id for message in messages] == [
        hashed_id((b, n)) for b, n in (("a", 1), ("b", 2), ("c", 3))
    ]
    messages, bad = made(batch, delivery="at-least-once")
    assert [message.message_id for message in messages] == ["own", "orders:2", None]


def test_whole_messages_keep_all_but_a_missing_id() -> None:
    whole = compose(b"x", "own", subject="s", application_properties={"a": 1})
    none = compose(b"y", subject="t")
    columns = {
        "raw": pa.array([whole, none, b"nonsense", None], pa.binary()),
        "entity": ["orders"] * 4,
        "fragment": pa.array([1] * 4, pa.int32()),
        "sequence_number": [5, 6, 7, 8],
    }
    messages, bad = made(pa.RecordBatch.from_pydict(columns))
    assert encoded(pa.RecordBatch.from_pydict(columns)).messages[0] == whole
    assert (messages[1].message_id, messages[1].subject, messages[1].data) == ("orders:6", "t", b"y")
    assert [row for row, _reason in bad] == [2, 3]
    messages, bad = made(pa.RecordBatch.from_pydict({"raw": columns["raw"]}))
    assert [message.message_id for message in messages] == ["own"]
    assert bad[0] == (1, "it has no message id")
    messages, bad = made(pa.RecordBatch.from_pydict(columns), idFrom="source")
    assert [message.message_id for message in messages] == ["orders:5", "orders:6"]


def test_rows_that_cannot_be_messages() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "body": ["a", "b", "c"],
            "message_id": ["1", "2", "3"],
            "time_to_live": [0, -5, 1],
        }
    )
    messages, bad = made(batch)
    assert [message.message_id for message in messages] == ["3"]
    assert [row for row, _reason in bad] == [0, 1]
    assert "time_to_live is -5 ms" in bad[1][1]


def test_bodies_that_columns_cannot_say() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"a", b"b"], pa.binary()),
            "body_type": ["data", "sequence"],
            "entity": ["orders"] * 2,
            "fragment": pa.array([1] * 2, pa.int32()),
            "sequence_number": [5, 6],
        }
    )
    _messages, bad = made(batch)
    assert bad[0][0] == 1 and "'raw'" in bad[0][1]


# ---- bad rows ----------------------------------------------------------------------------------------


def test_a_bad_row_fails_and_is_shown() -> None:
    batch = pa.RecordBatch.from_pydict({"body": ["a", "x" * 500], "message_id": [None, None]})
    with pytest.raises(
        SinkError, match=r"BUSBAR_SINK_BAD_ROW.*'orders': no id. The row: body='xxxx.*\.\.\.$"
    ) as raised:
        BadRows("fail", "orders").add(batch, [(1, "no id")])
    assert len(str(raised.value)) < 300


def test_bad_rows_are_published_with_their_batch(tmp_path: Path) -> None:
    where = tmp_path / "bad"
    batch = pa.RecordBatch.from_pydict({"body": [b"\xff", b"b"], "at": [datetime(2026, 1, 1)] * 2})

    def attempt(row: int) -> str:
        rows = BadRows(str(where), "orders")
        rows.add(batch, [(row, "why")])
        rows.close()
        assert rows.count == 1
        return rows.staged

    failed, first, second = attempt(0), attempt(0), attempt(1)
    publish(str(where), "a/writer", 3, [first, second])
    again = attempt(1)
    publish(str(where), "a/writer", 3, [again])  # the batch is committed again, with one task
    publish(str(where), "a/writer", 4, [])
    files = sorted(where.glob("*.jsonl"))
    assert [file.name for file in files] == ["a%2Fwriter-3-0.jsonl"]
    assert json.loads(files[0].read_text()) == {
        "reason": "why",
        "row": {"body": "Yg==", "at": "2026-01-01 00:00:00"},
    }
    assert [file.name for file in (where / STAGING).iterdir()] == [failed]
