"""Decodes pages of a tap to Arrow record batches that equal the schema exactly, one for each page.

The columns come from pages/columns.py as buffers; they are assembled here without a copy. Bodies and raw messages are in the
page, from which Arrow copies them all at once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from busbar.pages.column_buffers import Booleans, Cuts, Doubles, Longs, Properties, Texts, Valid
from busbar.pages.columns import EventColumns, MessageColumns
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


def message_batch(entity: str, index: int, rows: bytes, bodies: bool = True) -> pa.RecordBatch:
    """The messages of a page of a fragment."""
    columns = MessageColumns(index, bodies)
    columns.add_rows(rows)
    count = int(columns.count)
    arrays = [
        *_place(entity, index, count),
        _fixed(columns.numbers, pa.int64(), count),
        _fixed(columns.dead_numbers, pa.int64(), count),
        _fixed(columns.enqueued, _TIME, count),
        _fixed(columns.scheduled, _TIME, count),
        _fixed(columns.expires, _TIME, count),
        _texts(columns.message_ids, pa.string(), count),
        _texts(columns.session_ids, pa.string(), count),
        _texts(columns.partition_keys, pa.string(), count),
        _texts(columns.correlation_ids, pa.string(), count),
        _texts(columns.subjects, pa.string(), count),
        _texts(columns.content_types, pa.string(), count),
        _texts(columns.to, pa.string(), count),
        _texts(columns.reply_to, pa.string(), count),
        _texts(columns.reply_to_session_ids, pa.string(), count),
        _integers(columns.deliveries.getvalue(), count),
        _named(columns.lanes.getvalue(), count, _STATES),
        _texts(columns.reasons, pa.string(), count),
        _texts(columns.descriptions, pa.string(), count),
        _maps(columns.properties, count),
        _maps(columns.annotations, count),
        _cut(columns.body, count),
        _texts(columns.body_types, pa.string(), count),
        _raw(columns, count),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)


def event_batch(entity: str, index: int, rows: bytes) -> pa.RecordBatch:
    """The events of a page of a fragment."""
    columns = EventColumns(index)
    columns.add_rows(rows)
    count = int(columns.count)
    arrays = [
        *_place(entity, index, count),
        _fixed(columns.positions, pa.int64(), count),
        _fixed(columns.numbers, pa.int64(), count),
        _named(columns.outcomes.getvalue(), count, _OUTCOMES),
        _fixed(columns.times, _TIME, count),
        _fixed(columns.enqueued, _TIME, count),
        _integers(columns.deliveries.getvalue(), count),
        _texts(columns.reasons, pa.string(), count),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def _place(entity: str, index: int, count: int) -> list[pa.Array]:
    """Entity and fragment, the same for all rows: slices of longer columns, which every page would otherwise
    create again."""
    length = _PLACE_ROWS
    while length < count:
        length *= 2
    return [column.slice(0, count) for column in _long_place(entity, index, length)]


@lru_cache(maxsize=64)
def _long_place(entity: str, index: int, length: int) -> tuple[pa.Array, pa.Array]:
    return (
        pa.repeat(text_array([entity])[0], length),
        pa.repeat(integer_array([index], pa.int32())[0], length),
    )


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
    if heads.valid.there == 0 or not columns.bodies:
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
