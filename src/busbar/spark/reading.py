"""What a task does: read ranges of positions, page by page, as Arrow batches.

A range lies below a durable end, so it gives the same messages whenever it is read: that is what lets Spark repeat a
batch. Two pages are read ahead while the last one is on its way to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from busbar.client import TapPassed, TapTruncated
from busbar.client.blocking import BlockingTaps
from busbar.spark.decode import event_batch, message_batch
from busbar.spark.errors import SourceError
from busbar.spark.options import EVENTS, PAGE_BYTES, SourceOptions
from busbar.spark.planning import Range, Ranges
from busbar.spark.reach import log, loss, place, spoken, taps_of


def read_ranges(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task yields."""
    if not isinstance(partition, Ranges):
        return  # Spark's own for "nothing to read"
    taps = taps_of(options)
    for fragment, after, upto in partition.ranges:
        yield from _read_range(options, taps, partition, (fragment, after, upto))


def _read_range(
    options: SourceOptions, taps: BlockingTaps, partition: Ranges, span: Range
) -> Iterator[pa.RecordBatch]:
    fragment, after, upto = span
    events = options.stream == EVENTS
    position = after
    while position < upto:
        with spoken(options):
            try:
                pages = taps.pages(
                    partition.tap, fragment, position, upto, stream=options.stream, max_bytes=PAGE_BYTES
                )
                for page in pages:
                    position = page.upto
                    if page.count == 0:
                        continue
                    if events:
                        yield event_batch(options.entity, fragment, page.rows)
                    else:
                        yield message_batch(options.entity, fragment, page.rows, options.bodies)
            except (TapTruncated, TapPassed) as error:
                if options.fail_on_loss or partition.tap is None:
                    raise
                position = _behind_loss(options, taps, partition, fragment, max(position, after), error.text)
                continue
        if position < upto:
            raise SourceError(
                "BUSBAR_NOT_AVAILABLE",
                f"Fragment {fragment} of {place(options)!r} gave nothing behind {position}, but the batch ends at {upto}: "
                "other receivers hold messages that the tap was to consume.",
            )


def _behind_loss(
    options: SourceOptions, taps: BlockingTaps, partition: Ranges, fragment: int, position: int, text: str
) -> int:
    log.warning("%s Going on, as failOnDataLoss is false.", text)
    assert partition.tap is not None
    view = taps.resume(partition.tap, partition.owner) if partition.owner else taps.show(partition.tap)
    for state in view.fragments:
        if state.index == fragment:
            if options.stream == EVENTS:
                return max(position, state.event_position, state.event_lost)
            return max(position, state.position, state.lost)
    raise loss(text)
