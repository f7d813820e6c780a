"""Pages of a tap as Arrow record batches that equal the schema exactly, one for each page.

The columns come from amqp/columns.py as buffers; they are put together here without a copy.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from busbar.amqp.column_buffers import Bits, Blobs, Longs, Properties, Texts
from busbar.amqp.columns import EventColumns, MessageColumns
from busbar.spark.schema import EVENTS, MESSAGES, OUTCOMES, PROPERTY, STATES

MESSAGE_SCHEMA: Final = to_arrow_schema(MESSAGES, timezone="UTC")
EVENT_SCHEMA: Final = to_arrow_schema(EVENTS, timezone="UTC")

_TIME: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = MESSAGE_SCHEMA.field("properties").type
_STATES: Final = pa.array(STATES, pa.string())
_OUTCOMES: Final = pa.array(OUTCOMES, pa.string())


def message_batch(entity: str, index: int, rows: bytes, bodies: bool = True) -> pa.RecordBatch:
    """The messages of a page of a fragment."""
    columns = MessageColumns(index, bodies)
    columns.add_rows(rows)
    count = int(columns.count)
    arrays = [
        pa.repeat(entity, count),
        pa.repeat(pa.scalar(index, pa.int32()), count),
        _longs(columns.numbers, pa.int64()),
        _longs(columns.dead_numbers, pa.int64()),
        _longs(columns.enqueued, _TIME),
        _longs(columns.scheduled, _TIME),
        _longs(columns.expires, _TIME),
        _texts(columns.message_ids, pa.string()),
        _texts(columns.session_ids, pa.string()),
        _texts(columns.partition_keys, pa.string()),
        _texts(columns.correlation_ids, pa.string()),
        _texts(columns.subjects, pa.string()),
        _texts(columns.content_types, pa.string()),
        _texts(columns.to, pa.string()),
        _texts(columns.reply_to, pa.string()),
        _texts(columns.reply_to_session_ids, pa.string()),
        _integers(columns.deliveries.getvalue(), count),
        _named(columns.lanes.getvalue(), count, _STATES),
        _texts(columns.reasons, pa.string()),
        _texts(columns.descriptions, pa.string()),
        _maps(columns.properties, count),
        _maps(columns.annotations, count),
        _blobs(columns.body),
        _texts(columns.body_types, pa.string()),
        _blobs(columns.raw),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)


def event_batch(entity: str, index: int, rows: bytes) -> pa.RecordBatch:
    """The events of a page of a fragment."""
    columns = EventColumns(index)
    columns.add_rows(rows)
    count = int(columns.count)
    arrays = [
        pa.repeat(entity, count),
        pa.repeat(pa.scalar(index, pa.int32()), count),
        _longs(columns.positions, pa.int64()),
        _longs(columns.numbers, pa.int64()),
        _named(columns.outcomes.getvalue(), count, _OUTCOMES),
        _longs(columns.times, _TIME),
        _longs(columns.enqueued, _TIME),
        _integers(columns.deliveries.getvalue(), count),
        _texts(columns.reasons, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def _valid(bits: Bits) -> pa.Buffer | None:
    return pa.py_buffer(bits.value()) if bits.unset else None


def _texts(column: Texts, kind: pa.DataType) -> pa.Array:
    buffers = [
        _valid(column.valid),
        pa.py_buffer(column.offsets.getvalue()),
        pa.py_buffer(column.data.getvalue()),
    ]
    return pa.Array.from_buffers(kind, int(column.valid.count), buffers, null_count=int(column.valid.unset))


def _blobs(column: Blobs) -> pa.Array:
    buffers = [
        _valid(column.valid),
        pa.py_buffer(column.offsets.getvalue()),
        pa.py_buffer(column.value()),
    ]
    return pa.Array.from_buffers(
        pa.binary(), int(column.valid.count), buffers, null_count=int(column.valid.unset)
    )


def _longs(column: Longs, kind: pa.DataType) -> pa.Array:
    buffers = [_valid(column.valid), pa.py_buffer(column.data.getvalue())]
    return pa.Array.from_buffers(kind, int(column.valid.count), buffers, null_count=int(column.valid.unset))


def _integers(data: bytes, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(data)], null_count=0)


def _named(data: bytes, count: int, names: pa.Array) -> pa.Array:
    """Bytes as the names that they stand for; those of a newer broker have none yet."""
    numbers = pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(data)], null_count=0)
    if data and max(data) >= len(names):
        numbers = pa.array([number if number < len(names) else 0 for number in data], pa.uint8())
    return names.take(numbers)


def _maps(column: Properties, count: int) -> pa.Array:
    entries = int(column.count)
    values = pa.StructArray.from_arrays(
        [
            _texts(column.types, pa.string()),
            _texts(column.texts, pa.string()),
            _longs(column.longs, pa.int64()),
            pa.Array.from_buffers(
                pa.float64(),
                entries,
                [_valid(column.doubles_valid), pa.py_buffer(column.doubles.getvalue())],
                null_count=int(column.doubles_valid.unset),
            ),
            pa.Array.from_buffers(
                pa.bool_(),
                entries,
                [_valid(column.booleans_valid), pa.py_buffer(column.booleans.value())],
                null_count=int(column.booleans_valid.unset),
            ),
            _longs(column.times, _TIME),
            _texts(column.binaries, pa.binary()),
        ],
        fields=list(to_arrow_schema(PROPERTY, timezone="UTC")),
    )
    pairs = pa.StructArray.from_arrays(
        [_texts(column.names, pa.string()), values], fields=[_MAP.key_field, _MAP.item_field]
    )
    offsets = pa.py_buffer(column.offsets.getvalue())
    return pa.Array.from_buffers(_MAP, count, [None, offsets], null_count=0, children=[pairs])
