"""Decodes pages of a tap to Arrow record batches that equal the schema exactly, one for each page.

The columns come from pages/columns.py as buffers; they are assembled here without a copy. Bodies and raw messages are in the
page, from which Arrow copies them all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from busbar.pages.column_buffers import Booleans, Cuts, Doubles, Longs, Properties, Texts, Valid
from busbar.pages.columns import (
    ANNOTATIONS,
    APPLICATION,
    BODY,
    BODY_TYPE,
    FIELDS,
    KEYS,
    RAW,
    REASONS,
    EventColumns,
    MessageColumns,
)
from busbar.spark.plain_arrays import integer_array, text_array
from busbar.spark.schema import EVENTS, MESSAGES, OUTCOMES, PROPERTY, STATES

MESSAGE_SCHEMA: Final = to_arrow_schema(MESSAGES, timezone="UTC")
EVENT_SCHEMA: Final = to_arrow_schema(EVENTS, timezone="UTC")

_TIME: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = MESSAGE_SCHEMA.field("properties").type
_FIELDS: Final = list(to_arrow_schema(PROPERTY, timezone="UTC"))
_PLACE_ROWS: Final = 4_096
_STATES: Final = text_array(STATES)
_OUTCOMES: Final = text_array(OUTCOMES)

MessageArray = Callable[[MessageColumns, int], pa.Array]
EventArray = Callable[[EventColumns, int], pa.Array]

_NEEDS: Final = {
    **dict.fromkeys(
        ("message_id", "session_id", "correlation_id", "subject", "content_type", "to", "reply_to"), FIELDS
    ),
    "reply_to_session_id": FIELDS,
    "partition_key": KEYS,
    "scheduled_enqueue_time": KEYS,
    "annotations": ANNOTATIONS,
    "properties": APPLICATION,
    "dead_letter_reason": REASONS,
    "dead_letter_description": REASONS,
    "body": BODY,
    "body_type": BODY_TYPE,
    "raw": RAW,
}
"""The parts of a message that have to be read for a column; the others are in its head."""


def message_batch(entity: str, index: int, rows: bytes, bodies: bool = True) -> pa.RecordBatch:
    """The messages of a page of a fragment, with all columns."""
    return PageDecoder(MESSAGES, bodies=bodies).batch(entity, "", index, rows)


def event_batch(entity: str, index: int, rows: bytes) -> pa.RecordBatch:
    """The events of a page of a fragment, with all columns."""
    return PageDecoder(EVENTS, events=True).batch(entity, "", index, rows)


class PageDecoder:
    """Decodes pages to batches with the columns of a schema, and nothing else of a page."""

    def __init__(self, schema: StructType, *, events: bool = False, bodies: bool = True) -> None:
        self.names = tuple(schema.fieldNames())
        self._events = events
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._needs = 0
        for name in self.names:
            self._needs |= _NEEDS.get(name, 0)
        if not bodies:
            self._needs &= ~(BODY | RAW)

    @property
    def needs_bodies(self) -> bool:
        return self._needs & (BODY | RAW) != 0

    @property
    def needs_application_properties(self) -> bool:
        return self._needs & (APPLICATION | REASONS | RAW) != 0

    def batch(self, entity: str, sub_queue: str, index: int, rows: bytes) -> pa.RecordBatch:
        """The rows of a page of a fragment."""
        if self._events:
            events = EventColumns(index)
            events.add_rows(rows)
            count = int(events.count)
            arrays = [
                self._place(name, entity, sub_queue, index, count)
                if name in PLACE
                else _EVENT_ARRAYS[name](events, count)
                for name in self.names
            ]
        else:
            columns = MessageColumns(index, self.needs_bodies, self._needs)
            columns.add_rows(rows)
            count = int(columns.count)
            arrays = [
                self._place(name, entity, sub_queue, index, count)
                if name in PLACE
                else _MESSAGE_ARRAYS[name](columns, count)
                for name in self.names
            ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _place(self, name: str, entity: str, sub_queue: str, index: int, count: int) -> pa.Array:
        """A column that is the same for all rows: a slice of a longer one, which every page would otherwise create again."""
        length = _PLACE_ROWS
        while length < count:
            length *= 2
        value = entity if name == "entity" else sub_queue if name == "sub_queue" else index
        return _long_column(value, length).slice(0, count)


@lru_cache(maxsize=128)
def _long_column(value: str | int, length: int) -> pa.Array:
    column = text_array([value]) if isinstance(value, str) else integer_array([value], pa.int32())
    return pa.repeat(column[0], length)


PLACE: Final = ("entity", "sub_queue", "fragment")


def _valid(valid: Valid) -> pa.Buffer | None:
    return pa.py_buffer(valid.bits.value()) if valid.there < valid.count else None


def _nulls(valid: Valid) -> int:
    return int(valid.count - valid.there)


def _texts(column: Texts, kind: pa.DataType, count: int) -> pa.Array:
    if column.valid.there == 0:
        return pa.nulls(count, kind)
    column.skip_to(count)
    buffers = [
        _valid(column.valid),
        pa.py_buffer(column.offsets.getvalue()),
        pa.py_buffer(column.data.getvalue()),
    ]
    return pa.Array.from_buffers(kind, count, buffers, null_count=_nulls(column.valid))


def _cut(column: Cuts, count: int) -> pa.Array:
    """The values of a column that are inside a page."""
    if column.valid.there == 0:
        return pa.nulls(count, pa.binary())
    column.skip_to(count)
    # The page as an array of skipped and used parts, in turn: filtering it copies the used parts side by side.
    parts = 2 * int(column.pieces)
    page = [None, pa.py_buffer(column.bounds.getvalue()), pa.py_buffer(column.page)]
    wanted = [None, pa.py_buffer(b"\xaa" * (parts // 8 + 1))]
    pieces = pc.filter(
        pa.Array.from_buffers(pa.binary(), parts, page, null_count=0),
        pa.Array.from_buffers(pa.bool_(), parts, wanted, null_count=0),
    )
    buffers = [_valid(column.valid), pa.py_buffer(column.offsets.getvalue()), pieces.buffers()[2]]
    return pa.Array.from_buffers(pa.binary(), count, buffers, null_count=_nulls(column.valid))


def _raw(columns: MessageColumns, count: int) -> pa.Array:
    """Whole messages: most of each is in the page."""
    messages = _cut(columns.raw, count)
    heads = columns.raw_heads
    if heads.valid.there == 0:
        return messages
    heads.skip_to(count)
    buffers = [None, pa.py_buffer(heads.offsets.getvalue()), pa.py_buffer(heads.data.getvalue())]
    before = pa.Array.from_buffers(pa.binary(), count, buffers, null_count=0)
    return pc.binary_join_element_wise(before, messages, b"")


def _fixed(column: Longs | Doubles, kind: pa.DataType, count: int) -> pa.Array:
    if column.valid.there == 0:
        return pa.nulls(count, kind)
    column.skip_to(count)
    buffers = [_valid(column.valid), pa.py_buffer(column.data.getvalue())]
    return pa.Array.from_buffers(kind, count, buffers, null_count=_nulls(column.valid))


def _booleans(column: Booleans, count: int) -> pa.Array:
    if column.valid.there == 0:
        return pa.nulls(count, pa.bool_())
    column.skip_to(count)
    buffers = [_valid(column.valid), pa.py_buffer(column.data.value())]
    return pa.Array.from_buffers(pa.bool_(), count, buffers, null_count=_nulls(column.valid))


def _integers(data: bytes, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(data)], null_count=0)


def _named(data: bytes, count: int, names: pa.Array) -> pa.Array:
    """Bytes as the names that they stand for; a value of a newer broker has no name."""
    numbers = pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(data)], null_count=0)
    if data and max(data) >= len(names):
        numbers = pa.array([number if number < len(names) else 0 for number in data], pa.uint8())
    return names.take(numbers)


def _maps(column: Properties, count: int) -> pa.Array:
    entries = int(column.count)
    values = pa.StructArray.from_arrays(
        [
            _texts(column.types, pa.string(), entries),
            _texts(column.texts, pa.string(), entries),
            _fixed(column.longs, pa.int64(), entries),
            _fixed(column.doubles, pa.float64(), entries),
            _booleans(column.booleans, entries),
            _fixed(column.times, _TIME, entries),
            _texts(column.binaries, pa.binary(), entries),
        ],
        fields=_FIELDS,
    )
    pairs = pa.StructArray.from_arrays(
        [_texts(column.names, pa.string(), entries), values], fields=[_MAP.key_field, _MAP.item_field]
    )
    offsets = pa.py_buffer(column.offsets.getvalue())
    return pa.Array.from_buffers(_MAP, count, [None, offsets], null_count=0, children=[pairs])


def _text(field: str) -> MessageArray:
    return lambda columns, count: _texts(getattr(columns, field), pa.string(), count)


def _long(field: str) -> MessageArray:
    return lambda columns, count: _fixed(getattr(columns, field), pa.int64(), count)


def _time(field: str) -> MessageArray:
    return lambda columns, count: _fixed(getattr(columns, field), _TIME, count)


_MESSAGE_ARRAYS: Final[dict[str, MessageArray]] = {
    "sequence_number": _long("numbers"),
    "dead_letter_number": _long("dead_numbers"),
    "enqueued_time": _time("enqueued"),
    "scheduled_enqueue_time": _time("scheduled"),
    "expires_at": _time("expires"),
    "message_id": _text("message_ids"),
    "session_id": _text("session_ids"),
    "partition_key": _text("partition_keys"),
    "correlation_id": _text("correlation_ids"),
    "subject": _text("subjects"),
    "content_type": _text("content_types"),
    "to": _text("to"),
    "reply_to": _text("reply_to"),
    "reply_to_session_id": _text("reply_to_session_ids"),
    "delivery_count": lambda columns, count: _integers(columns.deliveries.getvalue(), count),
    "state": lambda columns, count: _named(columns.lanes.getvalue(), count, _STATES),
    "dead_letter_reason": _text("reasons"),
    "dead_letter_description": _text("descriptions"),
    "properties": lambda columns, count: _maps(columns.properties, count),
    "annotations": lambda columns, count: _maps(columns.annotations, count),
    "body": lambda columns, count: _cut(columns.body, count),
    "body_type": _text("body_types"),
    "raw": lambda columns, count: _raw(columns, count),
}

_EVENT_ARRAYS: Final[dict[str, EventArray]] = {
    "position": lambda columns, count: _fixed(columns.positions, pa.int64(), count),
    "sequence_number": lambda columns, count: _fixed(columns.numbers, pa.int64(), count),
    "outcome": lambda columns, count: _named(columns.outcomes.getvalue(), count, _OUTCOMES),
    "time": lambda columns, count: _fixed(columns.times, _TIME, count),
    "enqueued_time": lambda columns, count: _fixed(columns.enqueued, _TIME, count),
    "delivery_count": lambda columns, count: _integers(columns.deliveries.getvalue(), count),
    "reason": lambda columns, count: _texts(columns.reasons, pa.string(), count),
}
