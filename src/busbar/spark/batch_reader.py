"""Reads a batch of the `busbar` format: what entities hold now, or what a tap of theirs has not passed.

With the option `tap` it reads what the tap has not passed, kept messages included, without advancing it. Without `tap` it
reads what the entity holds. reading.py runs in the tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from busbar.client import Ends, NotFound, TapView
from busbar.client.blocking import BlockingTaps
from busbar.spark.connection import client_errors, data_loss, entity_label, taps_of
from busbar.spark.entity_discovery import entities_of
from busbar.spark.errors import OptionError, SourceError, errors_in_short
from busbar.spark.gaps import skip_gaps
from busbar.spark.options import EVENTS, LATEST, Position, SourceOptions
from busbar.spark.planning import Bounds, EntityRanges, plan_tasks
from busbar.spark.pushdown import push_filters, spark_pushes_filters
from busbar.spark.read_filter import CLOCK_STEP_MS
from busbar.spark.read_schema import decoder_of
from busbar.spark.reading import read_ranges
from busbar.spark.stream_tap import POLL_SECONDS

Positions = dict[int, int]


class BatchReader(DataSourceReader):
    """The reader of spark.read."""

    def __init__(self, options: SourceOptions, schema: StructType | None = None) -> None:
        self._options = options
        self._decoder = decoder_of(options, schema)

    @errors_in_short()
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        if options.stream == EVENTS and not options.tap:
            raise OptionError("tap", "is missing: events are recorded for a tap that was made with events.")
        if options.filter.is_nothing:
            return []
        bounds = [EntityBatch(each).bounds() for each in entities_of(options)]
        bounds = [each for each in bounds if options.filter.has_entity(each[0].entity, each[0].sub_queue)]
        return plan_tasks(skip_gaps(options, bounds), options.max_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with errors_in_short():
            yield from read_ranges(self._options, partition, self._decoder)


class FilteringBatchReader(BatchReader):
    """The reader of spark.read in a session that pushes filters."""

    @errors_in_short()
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        found, left = push_filters(filters, self._options)
        self._options = replace(self._options, filter=self._options.filter.and_(found))
        return left


def batch_reader(options: SourceOptions, schema: StructType) -> DataSourceReader:
    """The reader for a batch with these columns."""
    kind = FilteringBatchReader if spark_pushes_filters() else BatchReader
    return kind(options, schema)


class EntityBatch:
    """The part of a batch that one entity has."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def bounds(self) -> Bounds:
        """Where reading begins and ends in each fragment. Raises OptionError, SourceError."""
        options = self._options
        with client_errors(options):
            taps = taps_of(options)
            entity, floors, ends = self._bounds_of_tap(taps) if options.tap else self._bounds(taps)
            begins = self._resolved(taps, options.start, floors, ends)
            stops = self._resolved(taps, options.end, floors, ends)
            self._narrow(taps, begins, stops)
        return EntityRanges(entity, options.sub_queue, options.tap or None, ""), begins, stops

    def _narrow(self, taps: BlockingTaps, begins: Positions, stops: Positions) -> None:
        """Leave out positions at which no message can meet the conditions."""
        found = self._options.filter
        floors: Mapping[int, int] = {}
        ceilings: Mapping[int, int] = {}
        if not self._options.sub_queue and self._options.stream != EVENTS:  # where positions rise with time
            if found.since is not None:
                floors = taps.find_time(max(0, found.since - CLOCK_STEP_MS))
            if found.until is not None:
                ceilings = taps.find_time(max(0, found.until + 1 + CLOCK_STEP_MS))
        for index, stop in stops.items():
            after, last = found.numbers_in(index)
            begins[index] = max(begins[index], after, floors.get(index, 0))
            stops[index] = max(begins[index], min(stop, last, ceilings.get(index, stop)))

    def _bounds(self, taps: BlockingTaps) -> tuple[str, Positions, Positions]:
        """The entity as the broker spells it; by fragment, the lowest position that can be read from, and the end."""
        patience = time.monotonic() + self._options.wait
        found: Ends = taps.ends()
        while len(found.ends) < found.fragments:
            self._wait(patience)
            found = taps.ends()
        ends = found.dead_ends if self._options.sub_queue else found.ends
        return found.entity, dict.fromkeys(ends, 0), dict(ends)

    def _bounds_of_tap(self, taps: BlockingTaps) -> tuple[str, Positions, Positions]:
        options = self._options
        view = self._view(taps)
        patience = time.monotonic() + options.wait
        while not all(each.available for each in view.fragments):
            self._wait(patience)
            view = self._view(taps)
        if options.stream == EVENTS:
            if not view.events:
                raise OptionError("stream", f"is 'events', which the tap {view.name!r} does not record.")
            floors = {each.index: max(each.event_position, each.event_lost) for each in view.fragments}
            return view.entity, floors, {each.index: each.event_end for each in view.fragments}
        if view.truncated and options.fail_on_loss:
            lost = {each.index: each.lost for each in view.fragments if each.lost > each.position}
            raise data_loss(
                f"The tap {view.name!r} was truncated; by fragment, messages were lost up to {lost}."
            )
        floors = {each.index: max(each.position, each.lost) for each in view.fragments}
        return view.entity, floors, {each.index: each.end for each in view.fragments}

    def _view(self, taps: BlockingTaps) -> TapView:
        try:
            return taps.show(self._options.tap)
        except NotFound:
            taps.ends()  # raises NotFound if the entity itself is missing
            raise OptionError(
                "tap", f"names {self._options.tap!r}, which {entity_label(self._options)!r} does not have."
            ) from None

    def _wait(self, patience: float) -> None:
        if time.monotonic() > patience:
            raise SourceError(
                "BUSBAR_UNAVAILABLE",
                f"A store of {entity_label(self._options)!r} was out for {self._options.wait:g} s (option 'waitForBroker').",
            )
        time.sleep(POLL_SECONDS)

    def _resolved(
        self, taps: BlockingTaps, position: Position, floors: Positions, ends: Positions
    ) -> Positions:
        """The last position in each fragment before a given one, within what can be read."""
        if position.word == LATEST:
            return dict(ends)
        wanted: Mapping[int, int] = {}
        if position.time is not None:
            wanted = taps.find_time(position.time)
        elif position.numbers:
            wanted = {index: number - 1 for index, number in position.numbers}
            unknown = sorted(set(wanted) - set(ends))
            if unknown:
                raise OptionError(
                    "startingPosition" if position == self._options.start else "endingPosition",
                    f"names fragments {unknown}; {entity_label(self._options)!r} has {len(ends)}, from 0.",
                )
        return {index: min(max(wanted.get(index, 0), floors[index]), end) for index, end in ends.items()}
