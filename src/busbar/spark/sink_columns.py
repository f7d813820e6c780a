"""Maps the columns of a frame to the fields of its messages. Everything is decided before anything is sent.

The name of a column is the name of its field, unless the option `column.<field>` names another column for it; upper and
lower case are the same, as in Spark. A frame has a `body`, or `raw`: whole messages as AMQP bytes, as the source returns
them. If it has `raw` and other fields, the option `message` must decide which of them count.

If a frame has `entity`, `fragment` and `sequence_number`, it was read from a broker. Its other columns that only a broker
sets (state, enqueued_time, ...) are left out; in any other frame they are unknown. Unknown columns are refused, unless
`unknownColumns` is ignore.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from busbar.spark.errors import OptionError, SinkError
from busbar.spark.schema import MESSAGES, PROPERTY
from busbar.spark.sink_options import COLUMN_PREFIX, RAW, SinkOptions

TEXTS: Final = (
    "message_id",
    "session_id",
    "partition_key",
    "correlation_id",
    "subject",
    "content_type",
    "to",
    "reply_to",
    "reply_to_session_id",
)
"""In the order of the arguments of message.compose.compose."""

_SCALARS: Final = (StringType, LongType, IntegerType, ShortType, ByteType, DoubleType, FloatType, BooleanType)


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_integer(kind: DataType) -> bool:
    return isinstance(kind, (ByteType, ShortType, IntegerType, LongType))


def is_source_property(kind: DataType) -> bool:
    """Whether this is the struct that the source returns for a property; any part of it may be null."""
    return isinstance(kind, StructType) and [(field.name, field.dataType) for field in kind.fields] == [
        (field.name, field.dataType) for field in PROPERTY.fields
    ]


def _is_properties(kind: DataType) -> bool:
    if not isinstance(kind, MapType) or not isinstance(kind.keyType, StringType):
        return False
    value = kind.valueType
    return isinstance(value, (*_SCALARS, TimestampType, BinaryType)) or is_source_property(value)


Check = tuple[Callable[[DataType], bool], str]

_TEXT: Final[Check] = (_is_text, "STRING")
FIELDS: Final[dict[str, Check]] = {
    **dict.fromkeys(TEXTS, _TEXT),
    "body": (lambda kind: isinstance(kind, (BinaryType, StringType)), "BINARY or STRING"),
    "raw": (lambda kind: isinstance(kind, BinaryType), "BINARY (a message in AMQP's encoding)"),
    "time_to_live": (
        lambda kind: _is_integer(kind) or isinstance(kind, DayTimeIntervalType),
        "BIGINT or another integer (milliseconds), or INTERVAL DAY TO SECOND",
    ),
    "scheduled_enqueue_time": (lambda kind: isinstance(kind, TimestampType), "TIMESTAMP"),
    "properties": (
        _is_properties,
        "MAP<STRING, V> with V one of STRING, an integer, DOUBLE, FLOAT, BOOLEAN, TIMESTAMP, BINARY, or the STRUCT that "
        "reading gives",
    ),
}
"""For each field of a message the types that its column may have, and their description."""

_SOURCE: Final[dict[str, Check]] = {
    "entity": _TEXT,
    "fragment": (_is_integer, "INT"),
    "sequence_number": (_is_integer, "BIGINT"),
}
_OF_A_BROKER: Final = frozenset(MESSAGES.fieldNames()) - FIELDS.keys() - _SOURCE.keys()


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """Indexes of columns: by field, and for ids. `source` has entity and sequence number."""

    fields: dict[str, int]
    raw: bool
    id_columns: tuple[int, ...]
    source: tuple[int, int] | None
    from_source: bool
    body_type: int | None
    source_properties: bool


def plan_of(schema: StructType, options: SinkOptions) -> ColumnPlan:
    """The plan for a schema. Raises SinkError, OptionError."""
    names = _Names(schema)
    fields = _fields(names, options)
    carried = _find_source_columns(names, fields)
    raw = _is_raw(fields, options)
    id_columns = tuple(names.index_of("idColumns", name) for name in options.id_columns)
    if options.id_from_source and carried is None:
        raise OptionError(
            "idFrom",
            "is 'source', which needs the columns entity, fragment and sequence_number in the frame.",
        )
    has_id = raw or "message_id" in fields or bool(id_columns) or carried is not None
    if options.once and not has_id:
        raise SinkError(
            "BUSBAR_SINK_NO_ID",
            "Messages without ids cannot be recognized when Spark repeats a task or a batch. Give the frame a column "
            "'message_id', name the columns that make a row unique with the option 'idColumns', or keep the columns entity, "
            "fragment and sequence_number of a frame that was read from Busbar. If a message may come more than once, set "
            "the option 'delivery' to 'at-least-once'.",
        )
    source_like = carried is not None
    if not options.ignore_unknown:
        _check_unknown(names, {*fields.values(), *id_columns}, source_like)
    properties = fields.get("properties")
    return ColumnPlan(
        fields={name: index for name, index in fields.items() if (name == RAW) == raw},
        raw=raw,
        id_columns=id_columns,
        source=carried,
        from_source=options.id_from_source,
        body_type=names.find("body_type") if source_like else None,
        source_properties=properties is not None and is_source_property(_value_type(schema, properties)),
    )


class _Names:
    """The columns of a frame by name."""

    def __init__(self, schema: StructType) -> None:
        self.schema = schema
        self._indexes: dict[str, int] = {}
        for index, field in enumerate(schema.fields):
            other = self._indexes.setdefault(field.name.lower(), index)
            if other != index:
                raise SinkError(
                    "BUSBAR_SINK_SCHEMA",
                    f"The columns {schema.fields[other].name!r} and {field.name!r} have the same name.",
                )

    def find(self, name: str) -> int | None:
        return self._indexes.get(name.lower())

    def index_of(self, option: str, name: str) -> int:
        index = self.find(name)
        if index is None:
            there = ", ".join(self.schema.fieldNames())
            raise OptionError(
                option, f"names the column {name!r}, which the frame does not have. It has: {there}."
            )
        return index

    def check(self, index: int, field: str, check: Check) -> None:
        column = self.schema.fields[index]
        allowed, said = check
        if not allowed(column.dataType):
            raise SinkError(
                "BUSBAR_SINK_SCHEMA",
                f"The column {column.name!r} has the type {column.dataType.simpleString().upper()}, but the field {field!r} "
                f"of a message is {said}. Cast the column, drop it, or name another one with the option "
                f"'{COLUMN_PREFIX}{field}'.",
            )


def _fields(names: _Names, options: SinkOptions) -> dict[str, int]:
    found: dict[str, int] = {}
    for field in options.columns:
        if field not in FIELDS:
            raise OptionError(
                f"{COLUMN_PREFIX}{field}",
                f"is for a field that messages do not have; they have: {', '.join(FIELDS)}.",
            )
    for field, check in FIELDS.items():
        named = options.columns.get(field)
        index = names.find(field) if named is None else names.index_of(f"{COLUMN_PREFIX}{field}", named)
        if index is not None:
            names.check(index, field, check)
            found[field] = index
    return found


def _find_source_columns(names: _Names, fields: dict[str, int]) -> tuple[int, int] | None:
    indexes = {name: names.find(name) for name in _SOURCE}
    for name, index in indexes.items():
        if index is None or index in fields.values():
            return None
        if not _SOURCE[name][0](names.schema.fields[index].dataType):
            return None
    entity, number = indexes["entity"], indexes["sequence_number"]
    return None if entity is None or number is None else (entity, number)


def _is_raw(fields: dict[str, int], options: SinkOptions) -> bool:
    others = [name for name in fields if name != RAW]
    if options.message:
        wanted = RAW if options.message == RAW else "body"
        if wanted not in fields:
            raise OptionError("message", f"is {options.message!r}, but the frame has no column {wanted!r}.")
        return options.message == RAW
    if RAW not in fields:
        if "body" not in fields:
            raise SinkError(
                "BUSBAR_SINK_SCHEMA",
                "The frame has neither a column 'body' nor 'raw'. The body of a message is BINARY or STRING; for structured "
                "rows, to_json(struct(*)) makes one. The option 'column.body' can name another column.",
            )
        return False
    if others:
        raise SinkError(
            "BUSBAR_SINK_SCHEMA",
            f"The frame has whole messages in 'raw' and also {', '.join(others)}. Set the option 'message' to 'raw' to send "
            "the messages as they are, or to 'columns' to send what the columns say.",
        )
    return True


def _check_unknown(names: _Names, used: set[int], source_like: bool) -> None:
    for index, field in enumerate(names.schema.fields):
        name = field.name.lower()
        if index in used or (source_like and (name in _OF_A_BROKER or name in _SOURCE)):
            continue
        raise SinkError(
            "BUSBAR_SINK_SCHEMA",
            f"The column {field.name!r} ({field.dataType.simpleString().upper()}) is no field of a message; there are: "
            f"{', '.join(FIELDS)}. Drop it, name it for a field with an option such as "
            f"'{COLUMN_PREFIX}subject', or set the option 'unknownColumns' to 'ignore'.",
        )


def _value_type(schema: StructType, index: int) -> DataType:
    kind = schema.fields[index].dataType
    assert isinstance(kind, MapType)
    return kind.valueType
