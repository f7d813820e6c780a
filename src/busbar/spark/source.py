"""Reads streams of the `busbar` format, each of which follows a tap of each of its entities.

batch_reader.py reads batches, stream_tap.py has the rules for taps, and reading.py runs in the tasks.

A stream of several entities has a tap of the same name and owner in each. An entity that begins to match a pattern while the
stream runs joins it with the next batch. Such an entity is read from its earliest message, because it may be older than the
list of entities that the stream used before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from busbar.model.names import key_of
from busbar.spark import offsets
from busbar.spark.connection import entity_label, log
from busbar.spark.entity_discovery import EntityWatch
from busbar.spark.entity_names import is_selected, label_of
from busbar.spark.errors import SourceError, errors_in_short
from busbar.spark.gaps import first_positions, skip_gaps
from busbar.spark.lag import LagMeter, StreamLag, with_lag
from busbar.spark.offsets import Json, Offset
from busbar.spark.options import EARLIEST, Position, SourceOptions
from busbar.spark.planning import Bounds, EntityRanges, limit_batch, plan_tasks
from busbar.spark.read_schema import decoder_of
from busbar.spark.reading import read_ranges
from busbar.spark.stream_tap import StreamPosition, StreamTap, new_owner, new_tap_name

Positions = dict[int, int]
FragmentKey = tuple[str, int]
"""The key of an entity, and the index of a fragment."""


class StreamEntity:
    """One entity of a stream, in a reader: its options, and its tap."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.tap = StreamTap(options)
        self.lag = LagMeter(options)

    def offset(
        self, standing: StreamPosition, positions: Mapping[int, int], begins: Mapping[int, int] | None = None
    ) -> Offset:
        options = self.options
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


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of spark.readStream.

    Spark calls latestOffset, writes the offset log, reports which batch is committed, and requests partitions. When it
    starts again after a failure, it first requests the partitions of the batch that was under way.
    """

    def __init__(self, options: SourceOptions, schema: StructType | None = None) -> None:
        self._options = options
        self._decoder = decoder_of(options, schema, streaming=True)
        self._watch = EntityWatch(options)
        self._entities: dict[str, StreamEntity] = {}
        self._target: dict[FragmentKey, int] | None = None  # of an AvailableNow run
        self._seen: Json | None = None  # the end of all there was, and the lag, when last asked
        self._checked: set[str] = set()  # entities whose taps were looked at since the query started
        self._began = False  # a first list of entities was used

    @errors_in_short()
    def initialOffset(self) -> Json:
        return offsets.initial(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_messages
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @errors_in_short()
    def prepareForTriggerAvailableNow(self) -> None:
        self._watch.freeze()
        self._target = {}
        for key, entity in self._named().items():
            self._target |= {(key, index): end for index, end in entity.tap.ends().items()}

    @errors_in_short()
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        known = {} if offsets.is_initial(start) else offsets.checked_all(start, self._options)
        begins: dict[str, Mapping[int, int]] = {}
        standings = self._standings(known, begins)
        if not standings:
            return start
        ends = self._limit_to_target(standings)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        stops = self._stops(standings, ends, most)
        self._seen = with_lag(self._document(standings, ends, {}), self._lags(standings, stops))
        changed = begins or any(stops[key] != dict(standing.positions) for key, standing in standings.items())
        if not changed and set(standings) == set(known):
            return start
        return self._document(standings, stops, begins)

    def reportLatestOffset(self) -> Json | None:
        return self._seen

    @errors_in_short()
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        if offsets.is_initial(end):
            return []  # no entity matches the pattern so far
        starts = {} if offsets.is_initial(start) else offsets.checked_all(start, self._options)
        bounds: list[Bounds] = []
        for key, stop in offsets.checked_all(end, self._options).items():
            if stop.begins is not None:
                begins = stop.begins
            elif key not in starts:
                raise SourceError(
                    "BUSBAR_CHECKPOINT", "The checkpoint lacks the beginning of its first batch."
                )
            else:
                begins = starts[key].positions
            if key not in self._checked:
                # A batch is repeated: check that everything it read still exists, in the same entity.
                self._checked.add(key)
                if not self._is_repeatable(stop, begins):
                    continue
            part = EntityRanges(stop.entity, stop.sub_queue, stop.tap, stop.owner)
            ends = {
                index: position
                for index, position in stop.positions.items()
                if self._options.filter.fragments is None or index in self._options.filter.fragments
            }
            bounds.append((part, begins, ends))
        return plan_tasks(skip_gaps(self._options, bounds), self._options.max_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with errors_in_short():
            yield from read_ranges(self._options, partition, self._decoder)

    @errors_in_short()
    def commit(self, end: Json) -> None:
        if not offsets.is_initial(end):
            for key, offset in offsets.checked_all(end, self._options).items():
                self._entity(key, offset).tap.advance(offset)

    # ---- entities --------------------------------------------------------------------------------

    def _named(self) -> dict[str, StreamEntity]:
        """The entities that the options select now, by key."""
        options = self._options
        labels = self._watch.labels() if options.several else [entity_label(options)]
        for label in labels:
            key = key_of(label)
            if key not in self._entities:
                self._entities[key] = StreamEntity(options.of(label) if options.several else options)
        return {key_of(label): self._entities[key_of(label)] for label in labels}

    def _entity(self, key: str, offset: Offset) -> StreamEntity:
        """The entity of an offset. One that no pattern finds any more is read by its own name."""
        if key not in self._entities:
            label = label_of(offset.entity, offset.sub_queue)
            self._entities[key] = StreamEntity(
                self._options.of(label) if self._options.several else self._options
            )
        return self._entities[key]

    def _standings(
        self, known: Mapping[str, Offset], begins: dict[str, Mapping[int, int]]
    ) -> dict[str, StreamPosition]:
        """The position in each entity. `begins` gets those of entities that do not begin where the last batch ended."""
        self._began = self._began or bool(known)
        named = self._named()
        standings: dict[str, StreamPosition] = {}
        for key, offset in known.items():
            entity = self._entity(key, offset)
            resumed = self._resume(entity, offset)
            if resumed is None:
                continue
            standings[key] = resumed
            if resumed.positions != offset.positions:
                begins[key] = resumed.positions
            # The start offset of Spark is committed, so the broker may forget everything before it.
            entity.tap.advance(entity.offset(resumed, resumed.positions))
        # Entities of one query have the same tap name and owner.
        example = next(iter(known.values()), None)
        name, owner = (new_tap_name(), new_owner()) if example is None else (example.tap, example.owner)
        for key, entity in named.items():
            if key not in known:
                standings[key] = self._join(key, entity, name, owner)
                begins[key] = standings[key].positions
        self._began = True
        self._checked |= set(standings)
        return standings

    def _join(self, key: str, entity: StreamEntity, name: str, owner: str) -> StreamPosition:
        """Begin with an entity that no batch has read. If it began to match a pattern after the stream began, it is read
        from its earliest message."""
        if self._began and not is_selected(key, self._options.entities, ()):
            entity = StreamEntity(replace(entity.options, start=Position(word=EARLIEST)))
            self._entities[key] = entity
        return entity.tap.start(name, owner)

    def _resume(self, entity: StreamEntity, offset: Offset) -> StreamPosition | None:
        """The position after an offset. None: a pattern matched the entity, it is gone, and losses are accepted."""
        try:
            return entity.tap.resume(offset)
        except SourceError as error:
            if (
                error.condition != "BUSBAR_NOT_FOUND"
                or not self._options.patterns
                or self._options.fail_on_loss
            ):
                raise
            log.warning("%s Going on, as failOnDataLoss is false.", error)
            return None

    # ---- positions -------------------------------------------------------------------------------

    def _document(
        self,
        standings: Mapping[str, StreamPosition],
        positions: Mapping[str, Mapping[int, int]],
        begins: Mapping[str, Mapping[int, int]],
    ) -> Json:
        found = [
            self._entities[key].offset(standing, positions[key], begins.get(key))
            for key, standing in standings.items()
        ]
        return offsets.document_of(found, self._options)

    def _lags(
        self, standings: Mapping[str, StreamPosition], stops: Mapping[str, Positions]
    ) -> dict[str, StreamLag]:
        """How far each entity is behind, by label."""
        found: dict[str, StreamLag] = {}
        for key, standing in standings.items():
            entity = self._entities[key]
            label = label_of(standing.entity, entity.options.sub_queue)
            found[label] = entity.lag.measure(standing, stops[key])
        return found

    def _limit_to_target(self, standings: Mapping[str, StreamPosition]) -> dict[str, Positions]:
        """The ends, and in an AvailableNow run at most its target."""
        found: dict[str, Positions] = {}
        for key, standing in standings.items():
            found[key] = dict(standing.ends)
            if self._target is not None:
                found[key] = {
                    index: max(
                        standing.positions.get(index, 0), min(end, self._target.get((key, index), end))
                    )
                    for index, end in standing.ends.items()
                }
        return found

    def _stops(
        self, standings: Mapping[str, StreamPosition], ends: Mapping[str, Positions], most: int | None
    ) -> dict[str, Positions]:
        """The ends of a batch with at most so many messages."""
        begins = _flat({key: standing.positions for key, standing in standings.items()})
        wanted = _flat(ends)
        stops = limit_batch(begins, wanted, most)
        if most is not None and sum(wanted.values()) > sum(stops.values()):
            first = {
                key: first_positions(self._entities[key].options, standing.tap, standing.positions, ends[key])
                for key, standing in standings.items()
            }
            stops = limit_batch(_flat(first), wanted, most)
        found = {key: dict(standing.positions) for key, standing in standings.items()}
        for (key, index), stop in stops.items():
            found[key][index] = stop
        return found

    def _is_repeatable(self, stop: Offset, begins: Mapping[int, int]) -> bool:
        """Whether a batch can be read again. Raises SourceError if a part of it is gone, unless losses are accepted."""
        before = replace(stop, positions=begins, begins=None)
        standing = self._resume(self._entity(stop.key, stop), before)
        return standing is not None and standing.incarnation == stop.incarnation


def _flat(positions: Mapping[str, Mapping[int, int]]) -> dict[FragmentKey, int]:
    return {(key, index): position for key, each in positions.items() for index, position in each.items()}
