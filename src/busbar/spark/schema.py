"""The columns of the `busbar` format for reading: of messages, and of events.

Timestamps are UTC. A sequence number is the one that clients see: it contains the index of its fragment, so it is unique in
the entity and rises within a fragment.

`properties` and `annotations` keep AMQP's types: `type` names it, and the value is in the field that holds its kind
(pages/columns.py has the rules); the others are null. `raw` is the message as a client would have sent it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from busbar.spark.errors import OptionError

PROPERTY: Final = StructType(
    [
        StructField("type", StringType(), False),
        StructField("string", StringType()),
        StructField("long", LongType()),
        StructField("double", DoubleType()),
        StructField("boolean", BooleanType()),
        StructField("timestamp", TimestampType()),
        StructField("binary", BinaryType()),
    ]
)


def _column(name: str, kind: DataType, null: bool = True) -> StructField:
    return StructField(name, kind, null)


MESSAGES: Final = StructType(
    [
        _column("entity", StringType(), False),
        _column("fragment", IntegerType(), False),
        _column("sequence_number", LongType(), False),
        _column("dead_letter_number", LongType()),
        _column("enqueued_time", TimestampType(), False),
        _column("scheduled_enqueue_time", TimestampType()),
        _column("expires_at", TimestampType()),
        _column("message_id", StringType()),
        _column("session_id", StringType()),
        _column("partition_key", StringType()),
        _column("correlation_id", StringType()),
        _column("subject", StringType()),
        _column("content_type", StringType()),
        _column("to", StringType()),
        _column("reply_to", StringType()),
        _column("reply_to_session_id", StringType()),
        _column("delivery_count", IntegerType(), False),
        _column("state", StringType(), False),
        _column("dead_letter_reason", StringType()),
        _column("dead_letter_description", StringType()),
        _column("properties", MapType(StringType(), PROPERTY, False), False),
        _column("annotations", MapType(StringType(), PROPERTY, False), False),
        _column("body", BinaryType()),
        _column("body_type", StringType()),
        _column("raw", BinaryType()),
    ]
)

EVENTS: Final = StructType(
    [
        _column("entity", StringType(), False),
        _column("fragment", IntegerType(), False),
        _column("position", LongType(), False),
        _column("sequence_number", LongType()),
        _column("outcome", StringType(), False),
        _column("time", TimestampType(), False),
        _column("enqueued_time", TimestampType()),
        _column("delivery_count", IntegerType(), False),
        _column("reason", StringType()),
    ]
)

STATES: Final = (
    "active",
    "dead-lettered",
    "deferred",
    "scheduled",
    "dead-lettered-deferred",
    "done",
    "done",
)
"""By lane (model/message.py). "done": receivers have finished it, and a tap has kept it."""

OUTCOMES: Final = (
    "unknown",
    "completed",
    "received-and-deleted",
    "abandoned",
    "deferred",
    "dead-lettered",
    "lock-expired",
    "expired",
    "purged",
    "duplicate-dropped",
    "consumed",
    "forwarded",
)
"""By the numbers of model/effects.py."""


SUB_QUEUE: Final = StructField("sub_queue", StringType(), False)
"""A column of reads of several entities: "deadletter" for messages of a dead-letter queue, else empty."""


def schema_of(stream: str, several: bool = False) -> StructType:
    """All columns of a stream; `several`: of a read of several entities."""
    schema = EVENTS if stream == "events" else MESSAGES
    return StructType([*schema.fields, SUB_QUEUE]) if several else schema


def with_columns(schema: StructType, columns: str) -> StructType:
    """The columns of a schema that a list with commas names, in that order. Raises OptionError."""
    names = [name.strip() for name in columns.split(",") if name.strip()]
    known = {field.name: field for field in schema.fields}
    for name in names:
        if name not in known:
            raise OptionError("columns", f"names {name!r}; there are: {', '.join(known)}.")
    if not names or len(set(names)) < len(names):
        raise OptionError(
            "columns", f"is {columns!r}; it is a list of different columns with commas between them."
        )
    return StructType([known[name] for name in names])


def check_schema(given: StructType, schema: StructType) -> StructType:
    """The schema that a program passes to Spark's `schema(...)`, if it has columns of this one. Raises OptionError."""
    known = {field.name: field for field in schema.fields}
    for field in given.fields:
        column = known.get(field.name)
        if column is None:
            raise OptionError("schema", f"has a column {field.name!r}; there are: {', '.join(known)}.")
        if column.dataType != field.dataType:
            raise OptionError(
                "schema",
                f"has the column {field.name!r} with the type {field.dataType.simpleString()}; its type is "
                f"{column.dataType.simpleString()}. The option 'columns' selects columns with their types.",
            )
    return given
