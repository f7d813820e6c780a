"""Reads ranges of positions in a task, page by page, as Arrow batches.

A range is below a durable end, so every read returns the same messages. That lets Spark repeat a batch. Pages are read ahead
while the last one is on its way to Spark, also those of the next range. So a task with many fragments does not wait at the
beginning of each.

A worker is prepared before its first task. Spark runs the garbage collector after every task, over everything that was ever
imported, which takes as long as reading some ten thousand messages. So the objects that exist by then are excluded from
collection. Also, the C library keeps freed memory for its next use up to twice the largest block that it has freed. Without
a large block it would return the pages of a tap to the system, one by one, to have them cleared again. So the worker
allocates and frees one large block.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from busbar.client import Page, TapPassed, TapSelection, TapTruncated
from busbar.client.blocking import BlockingTaps
from busbar.spark.connection import client_errors, data_loss, entity_label, log, taps_of
from busbar.spark.decode import PageDecoder
from busbar.spark.entity_names import label_of
from busbar.spark.errors import SourceError
from busbar.spark.options import EVENTS, PAGE_BYTES, SourceOptions
from busbar.spark.planning import EntityRanges, Ranges

LARGE_BLOCK = 31 * 1024 * 1024
"""For a larger block (32 MiB) the C library would not adapt."""

FragmentPages = Generator[tuple[int, Page], None, None]
"""Pages with their fragment."""


def read_ranges(
    options: SourceOptions, partition: InputPartition, decoder: PageDecoder
) -> Iterator[pa.RecordBatch]:
    """The batches of a task."""
    if not isinstance(partition, Ranges):
        return  # Spark's own for "nothing to read"
    _prepare_worker()
    select = selection_of(options, decoder)
    for part in partition.parts:
        named = options.of(label_of(part.entity, part.sub_queue)) if options.several else options
        yield from _read_part(named, part, decoder, select)


def selection_of(options: SourceOptions, decoder: PageDecoder) -> TapSelection | None:
    """What the broker sends of each page; None for everything."""
    if options.stream == EVENTS:
        return None
    return options.filter.selection(
        bodies=decoder.needs_bodies, application_properties=decoder.needs_application_properties
    )


def _read_part(
    options: SourceOptions, part: EntityRanges, decoder: PageDecoder, select: TapSelection | None
) -> Iterator[pa.RecordBatch]:
    totals = ReadTotals()
    with client_errors(options), closing(_pages(options, taps_of(options), part, select, totals)) as pages:
        for fragment, page in pages:
            yield decoder.batch(part.entity, part.sub_queue, fragment, page.rows)
    log.info(
        "Read %d of %d messages of %r in %d bytes.",
        totals.messages,
        totals.scanned,
        label_of(part.entity, part.sub_queue),
        totals.bytes,
    )


@dataclass(slots=True)
class ReadTotals:
    """What a task has read of an entity, for its log."""

    messages: int = 0
    scanned: int = 0
    """The messages that the broker has read for it."""
    bytes: int = 0

    def add(self, page: Page) -> None:
        self.messages += page.count
        self.scanned += page.scanned
        self.bytes += len(page.rows)


@cache
def _prepare_worker() -> None:
    gc.freeze()
    bytes(LARGE_BLOCK)  # never touched, so it uses no physical memory


def _pages(
    options: SourceOptions,
    taps: BlockingTaps,
    partition: EntityRanges,
    select: TapSelection | None,
    totals: ReadTotals,
) -> FragmentPages:
    left = deque(partition.ranges)  # the first one begins behind what was read

    def come_to(fragment: int, position: int) -> None:
        while left[0][0] != fragment:
            left.popleft()
        left[0] = (fragment, position, left[0][2])

    while left:
        try:
            with closing(
                taps.pages_of(
                    partition.tap, list(left), stream=options.stream, max_bytes=PAGE_BYTES, select=select
                )
            ) as pages:
                for fragment, page in pages:
                    come_to(fragment, page.upto)
                    totals.add(page)
                    if page.count:
                        yield fragment, page
        except (TapTruncated, TapPassed) as error:
            if options.fail_on_loss or partition.tap is None:
                raise
            while left[0][1] >= left[0][2]:
                left.popleft()  # it was read to its end
            fragment, position, _ = left[0]
            come_to(fragment, _position_after_loss(options, taps, partition, fragment, position, error.text))
            continue
        short = next(((index, at, upto) for index, at, upto in left if at < upto), None)
        if short is None:
            return
        raise SourceError(
            "BUSBAR_NOT_AVAILABLE",
            f"Fragment {short[0]} of {entity_label(options)!r} gave nothing behind {short[1]}, but the batch ends at "
            f"{short[2]}: other receivers hold messages that the tap was to consume.",
        )


def _position_after_loss(
    options: SourceOptions,
    taps: BlockingTaps,
    partition: EntityRanges,
    fragment: int,
    position: int,
    text: str,
) -> int:
    """The position at which reading can continue in a fragment."""
    log.warning("%s Going on, as failOnDataLoss is false.", text)
    assert partition.tap is not None
    view = taps.resume(partition.tap, partition.owner) if partition.owner else taps.show(partition.tap)
    for state in view.fragments:
        if state.index == fragment:
            events = options.stream == EVENTS
            reached = (
                max(state.event_position, state.event_lost) if events else max(state.position, state.lost)
            )
            if reached > position:
                return reached
    raise data_loss(text)
