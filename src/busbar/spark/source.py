"""Reads the `busbar` format: batches of what is there now, and streams that follow a tap.

A batch with the option `tap` reads what the tap has not passed, kept messages included, without advancing it. Without `tap`
it reads what the entity holds. A stream always has a tap (stream_tap.py). reading.py runs in the tasks.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from busbar.client import Ends, NotFound, TapView
from busbar.client.blocking import BlockingTaps
from busbar.spark import offsets
from busbar.spark.connection import client_errors, data_loss, entity_label, taps_of
from busbar.spark.errors import OptionError, SourceError
from busbar.spark.offsets import Json, Offset
from busbar.spark.options import EVENTS, LATEST, Position, SourceOptions
from busbar.spark.planning import Ranges, limit_batch, pack_tasks
from busbar.spark.reading import read_ranges
from busbar.spark.stream_tap import POLL_SECONDS, StreamPosition, StreamTap

Positions = dict[int, int]


class BatchReader(DataSourceReader):
    """The reader of spark.read."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        if options.stream == EVENTS and not options.tap:
            raise OptionError("tap", "is missing: events are recorded for a tap that was made with events.")
        with client_errors(options):
            taps = taps_of(options)
            entity, floors, ends = self._bounds_of_tap(taps) if options.tap else self._bounds(taps)
            begins = self._resolved(taps, options.start, floors, ends)
            stops = self._resolved(taps, options.end, floors, ends)
        plan = pack_tasks(begins, stops, options.max_partitions)
        return [Ranges(entity, options.tap or None, "", ranges) for ranges in plan]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_ranges(self._options, partition)

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
            return ends
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


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of spark.readStream.

    Spark calls latestOffset, writes the offset log, reports which batch is committed, and requests partitions. When it
    starts again after a failure, it first requests the partitions of the batch that was under way.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._tap = StreamTap(options)
        self._target: Positions | None = None  # of an AvailableNow run
        self._seen: Offset | None = None  # the end of all there was, when last asked
        self._known = False  # the tap was looked at since the query started

    def initialOffset(self) -> Json:
        return offsets.initial(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_messages
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._tap.ends()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        begins: Mapping[int, int] | None = None
        if offsets.is_initial(start):
            standing = self._tap.start()
            begins = standing.positions
        else:
            offset = offsets.checked(start, self._options)
            standing = self._tap.resume(offset)
            if standing.positions != offset.positions:
                begins = standing.positions
            # The start offset of Spark is committed, so the broker may forget everything before it.
            self._tap.advance(self._offset(standing, standing.positions))
        self._known = True
        ends = self._limit_to_target(standing)
        self._seen = self._offset(standing, ends)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        stops = limit_batch(standing.positions, ends, most)
        if most is not None and sum(ends.values()) > sum(stops.values()):
            stops = limit_batch(self._without_gaps(standing, ends), ends, most)
        positions = {**standing.positions, **stops}
        if begins is None and positions == standing.positions:
            return start
        return self._offset(standing, positions, begins).to_json()

    def reportLatestOffset(self) -> Json | None:
        return None if self._seen is None else self._seen.to_json()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        stop = offsets.checked(end, self._options)
        if stop.begins is not None:
            begins = stop.begins
        elif offsets.is_initial(start):
            raise SourceError("BUSBAR_CHECKPOINT", "The checkpoint lacks the beginning of its first batch.")
        else:
            begins = offsets.checked(start, self._options).positions
        if not self._known:
            # A batch is repeated: check that everything it read still exists, in the same entity.
            self._known = True
            if not self._repeatable(stop, begins):
                return []
        plan = pack_tasks(begins, stop.positions, self._options.max_partitions)
        return [Ranges(stop.entity, stop.tap, stop.owner, ranges) for ranges in plan]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_ranges(self._options, partition)

    def commit(self, end: Json) -> None:
        if not offsets.is_initial(end):
            self._tap.advance(offsets.checked(end, self._options))

    # ----------------------------------------------------------------------------------------------

    def _offset(
        self, standing: StreamPosition, positions: Mapping[int, int], begins: Mapping[int, int] | None = None
    ) -> Offset:
        options = self._options
        return Offset(
            standing.entity,
            options.sub_queue,
            options.stream,
            standing.incarnation,
            standing.tap,
            standing.owner,
            positions,
            begins,
        )

    def _limit_to_target(self, standing: StreamPosition) -> Positions:
        """The ends, and in an AvailableNow run at most its target."""
        if self._target is None:
            return dict(standing.ends)
        return {
            index: max(standing.positions.get(index, 0), min(end, self._target.get(index, end)))
            for index, end in standing.ends.items()
        }

    def _without_gaps(self, standing: StreamPosition, ends: Mapping[int, int]) -> Positions:
        """Positions moved up to the first existing message: a limit should count messages, and an old queue may begin with
        millions of unused numbers."""
        taps = taps_of(self._options)
        events = self._options.stream == EVENTS
        moved: Positions = {}
        for index, end in ends.items():
            position = standing.positions.get(index, 0)
            moved[index] = position
            if end <= position:
                continue
            with client_errors(self._options):
                page = taps.read(standing.tap, index, position, end, stream=self._options.stream, count=1)
            if page.count == 0:
                moved[index] = max(position, min(page.upto, end))
                continue
            number, dead = struct.unpack_from(">qq", page.rows, 4)
            first = dead if self._options.sub_queue and not events else number
            moved[index] = max(position, first - 1)
        return moved

    def _repeatable(self, stop: Offset, begins: Mapping[int, int]) -> bool:
        """Whether a batch can be read again. Raises SourceError if a part of it is gone, unless losses are accepted."""
        before = replace(stop, positions=begins, begins=None)
        return self._tap.resume(before).incarnation == stop.incarnation
