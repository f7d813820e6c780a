"""What a task does: read ranges of positions, page by page, as Arrow batches.

A range lies below a durable end, so it gives the same messages whenever it is read: that is what lets Spark repeat a
batch. Pages are read ahead while the last one is on its way to Spark, also those of the next range: a task that has
many fragments does not wait at the beginning of each.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from busbar.client import Page, TapPassed, TapTruncated
from busbar.client.blocking import BlockingTaps
from busbar.spark.decode import event_batch, message_batch
from busbar.spark.errors import SourceError
from busbar.spark.options import EVENTS, PAGE_BYTES, SourceOptions
from busbar.spark.planning import Range, Ranges
from busbar.spark.reach import log, loss, place, spoken, taps_of

FragmentPages = Generator[tuple[int, Page], None, None]
"""Pages with the fragment they are of."""


def read_ranges(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task yields."""
    if not isinstance(partition, Ranges):
        return  # Spark's own for "nothing to read"
    taps = taps_of(options)
    pages = _pages(options, taps, partition)
    if len(partition.ranges) > 1:
        pages = _ahead(pages)
    try:
        for fragment, page in pages:
            if options.stream == EVENTS:
                yield event_batch(options.entity, fragment, page.rows)
            else:
                yield message_batch(options.entity, fragment, page.rows, options.bodies)
    finally:
        pages.close()


def _pages(options: SourceOptions, taps: BlockingTaps, partition: Ranges) -> FragmentPages:
    with spoken(options):
        for span in partition.ranges:
            yield from _pages_of_range(options, taps, partition, span)


def _pages_of_range(
    options: SourceOptions, taps: BlockingTaps, partition: Ranges, span: Range
) -> FragmentPages:
    fragment, position, upto = span
    while position < upto:
        try:
            for page in taps.pages(
                partition.tap, fragment, position, upto, stream=options.stream, max_bytes=PAGE_BYTES
            ):
                position = page.upto
                if page.count:
                    yield fragment, page
        except (TapTruncated, TapPassed) as error:
            if options.fail_on_loss or partition.tap is None:
                raise
            position = _behind_loss(options, taps, partition, fragment, position, error.text)
            continue
        if position < upto:
            raise SourceError(
                "BUSBAR_NOT_AVAILABLE",
                f"Fragment {fragment} of {place(options)!r} gave nothing behind {position}, but the batch ends at "
                f"{upto}: other receivers hold messages that the tap was to consume.",
            )


def _behind_loss(
    options: SourceOptions, taps: BlockingTaps, partition: Ranges, fragment: int, position: int, text: str
) -> int:
    """Where reading can go on in a fragment."""
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
    raise loss(text)


def _ahead(pages: FragmentPages) -> FragmentPages:
    """The same pages, taken by a thread of their own: one waits while another is worked on."""
    ready: queue.Queue[tuple[int, Page] | BaseException | None] = queue.Queue(1)
    stopped = threading.Event()

    def take() -> None:
        try:
            for item in pages:
                ready.put(item)
                if stopped.is_set():
                    break
            ready.put(None)
        except BaseException as error:
            ready.put(error)
        finally:
            pages.close()

    thread = threading.Thread(target=take, name="busbar-pages", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        while thread.is_alive():  # it may be waiting for room
            try:
                ready.get(timeout=0.05)
            except queue.Empty:
                pass
