"""Captures one entity into an archive: a tap, a checkpoint, and a Spark query between them.

The order of a batch, so that every message gets into the archive once, whenever the process ends:

1. Spark records the span of positions of the batch. The tap keeps that span: every read returns the same messages.
2. The batch is written, and committed to the manifest with its number. If Spark repeats it, the manifest has it already.
3. Spark records that the batch is committed.
4. The tap is advanced to what Spark has committed: only now may the broker delete it.

The name of the tap, its owner and the place of the checkpoint follow from the archive and the entity. If a checkpoint is
lost, nothing else is: the archive has its own progress.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from busbar.client import BusbarClientError, TapView
from busbar.client.blocking import BlockingTaps
from busbar.jobs.archive import EVENTS, MESSAGES
from busbar.jobs.archive_writer import ArchiveWriter
from busbar.jobs.fault_points import reached, reached_when_written
from busbar.jobs.manifest import BatchMark
from busbar.jobs.parquet_files import RESULT_COLUMNS, write_task
from busbar.jobs.progress import BatchProgress
from busbar.jobs.staged_files import StagedFile
from busbar.spark.connection import client_errors, client_of_process, log
from busbar.spark.entity_names import entity_of, label_of
from busbar.spark.listener import committed_offsets
from busbar.spark.offsets import Offset, parse
from busbar.spark.options import SourceOptions
from busbar.spark.secrets import Secret
from busbar.spark.stream_tap import StreamTap

MOST_MESSAGES = 200_000
"""Messages of a batch, unless maxMessagesPerTrigger is set: this bounds what is repeated after a crash."""
COMMIT_SECONDS = 5.0
BEGIN_SECONDS = 60.0
ATTEMPTS = 3
LONGEST_READER = 1_000
"""Characters of the text that lists of taps show."""
INITIALIZING = "Initializing"


class Stopping(Exception):
    """A batch began after the job was stopped; the next start handles it."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is captured: a queue, a subscription or the dead-letter queue of one, its messages or its events."""

    entity: str
    sub_queue: str
    stream: str

    @property
    def name(self) -> str:
        return label_of(self.entity, self.sub_queue)

    @property
    def label(self) -> str:
        return self.name if self.stream == MESSAGES else f"{self.name} ({self.stream})"


def source_of(text: str, stream: str) -> Source:
    """Parse an entity as users write it."""
    return Source(*entity_of(text.strip("/")), stream)


class CaptureQuery:
    """The capture of one entity. Its tap is created before Spark starts, so that messages completed meanwhile are kept."""

    def __init__(
        self, writer: ArchiveWriter, source: Source, secret: Secret, options: Mapping[str, str]
    ) -> None:
        self._writer = writer
        self._secret = secret
        self._options = {
            "maxMessagesPerTrigger": str(MOST_MESSAGES),
            **options,
            **secret.options(),
            "stream": source.stream,
        }
        self.source = self._canonical(source)
        key = f"{writer.identity.id}\n{self.source.name}\n{source.stream}"
        self.tap = f"capture-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"
        self.checkpoint = writer.checkpoint_of(self.tap)
        self._options |= {
            "entity": self.source.entity,
            "subQueue": self.source.sub_queue,
            "tap": self.tap,
            "owner": f"capture-{writer.identity.id}",
        }
        self._query: StreamingQuery | None = None
        self._busy = threading.Lock()
        self._stopping = False
        self._advanced: Mapping[int, int] | None = None
        self._last = (-1, 0, 0.0)  # batch, rows and seconds, when it was published
        self._total = 0

    # ---- before Spark ----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Acquire the tap, and advance it to what the last run has committed. Raises SourceError."""
        if committed_offsets(self.checkpoint):
            self.follow()
            self._name_reader()
            return
        if "startingPosition" not in self._options:
            self._options["startingPosition"] = self._beginning()
        if not (self.checkpoint / "offsets").is_dir():
            StreamTap(self._parsed()).start()
            self._name_reader()

    def _name_reader(self) -> None:
        """Let lists of taps show this job and its archive. The owner is a text for programs."""
        text = f"capture job to {self._writer.location.name} on {os.uname().nodename}"
        with suppress(BusbarClientError):  # if the tap is gone or has another owner, the query reports it
            self._taps(self.source).own(self.tap, self._options["owner"], reader=text[:LONGEST_READER])

    def _canonical(self, source: Source) -> Source:
        """The entity as the broker spells it: two spellings are not two entities."""
        self._options |= {"entity": source.entity, "subQueue": source.sub_queue}
        with client_errors(self._parsed()):
            return Source(self._taps(source).ends().entity, source.sub_queue, source.stream)

    def _beginning(self) -> str:
        """The position behind what the archive holds of this entity; the earliest, if it holds nothing."""
        with client_errors(self._parsed()):
            ends = self._taps(self.source).ends()
        positions = self._writer.progress(self.source.name, ends.incarnation, ends.fragments)
        if positions is None:
            return "earliest"
        return json.dumps({str(index): position + 1 for index, position in positions.items()})

    # ---- running ---------------------------------------------------------------------------------

    def start(self, spark: SparkSession, pause: int | None) -> None:
        """Start the query: with a pause (ms) between batches until it is stopped, without one to the end of what is there
        now."""
        options = {"maxPartitions": str(spark.sparkContext.defaultParallelism), **self._options}
        frame = spark.readStream.format("busbar").options(**options).load()
        writer = (
            frame.writeStream.foreachBatch(self._write)
            .queryName(f"capture {self.source.label}")
            .option("checkpointLocation", str(self.checkpoint))
        )
        if pause is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{pause} milliseconds")
        for attempt in range(ATTEMPTS):
            self._query = writer.start()
            if self._begun() or attempt == ATTEMPTS - 1:
                return
            log.warning(
                "Spark did not start a Python process for %s in time; trying again.", self.source.label
            )

    def _begun(self) -> bool:
        """Whether the query runs, or failed for a reason of its own. On a busy machine Spark may abandon the process of a
        source. So queries begin one after the other, and such a failure does not count."""
        query = self._query
        assert query is not None
        until = time.monotonic() + BEGIN_SECONDS
        while query.isActive and time.monotonic() < until:
            if not str(query.status["message"]).startswith(INITIALIZING):
                return True
            time.sleep(0.02)
        return "failed to connect back" not in str(query.exception())

    @property
    def active(self) -> bool:
        return self._query is not None and bool(self._query.isActive)

    def failure(self) -> Exception | None:
        """The error that ended the query."""
        return None if self._query is None else self._query.exception()

    def finish_batch(self, deadline: float) -> None:
        """Let no batch begin any more, and wait for the one under way until the deadline (of time.monotonic)."""
        self._stopping = True
        if self._busy.acquire(timeout=max(0.0, deadline - time.monotonic())):
            self._busy.release()
            until = min(deadline, time.monotonic() + COMMIT_SECONDS)
            while self.active and not self._is_committed(self._last[0]) and time.monotonic() < until:
                time.sleep(0.02)

    def stop(self) -> None:
        """Stop the query and ignore errors of Spark: the process is about to end, and an unfinished batch is repeated."""
        if self._query is not None:
            try:
                self._query.stop()
            except Exception as error:
                log.warning(
                    "The query of %s was not stopped in time: %s", self.source.label, type(error).__name__
                )

    def follow(self) -> BatchProgress | None:
        """Advance the tap to what Spark has committed since the last call; None if there is nothing new."""
        offsets = committed_offsets(self.checkpoint)
        if not offsets or offsets[0].positions == self._advanced:
            return None
        offset = offsets[0]
        reached("before-advance")
        try:
            lag = self._advance(offset)
        except BusbarClientError as error:
            # Nothing is lost by it. If it lasts, the source of the query reports it.
            log.warning("The tap %r of %s could not be advanced: %s", self.tap, self.source.label, error)
            return None
        self._advanced = offset.positions
        batch, rows, seconds = self._last
        return BatchProgress(self.source.label, batch, rows, seconds, self._total, lag)

    # ----------------------------------------------------------------------------------------------

    def _write(self, frame: DataFrame, batch: int) -> None:
        with self._busy:
            if self._stopping:
                raise Stopping("The capture is stopping; this batch is left to the next start.")
            reached("after-offset-log")
            query = str(json.loads((self.checkpoint / "metadata").read_bytes())["id"]).replace("-", "")
            offset = self._offset(batch)
            mark = BatchMark(query, batch, self.source.name, offset.incarnation, offset.positions)
            began = time.monotonic()
            rows = 0
            if not self._writer.has(mark):
                staged = self._stage(frame)
                self._writer.publish(staged, mark)
                rows = sum(file.rows for file in staged)
            self._total += rows
            self._last = (batch, rows, time.monotonic() - began)

    def _stage(self, frame: DataFrame) -> list[StagedFile]:
        staging = self._writer.stage(self.source.name)
        watch = reached_when_written("mid-write", staging.has_data)
        write = partial(write_task, staging=staging, stream=self.source.stream)
        found = frame.mapInArrow(write, RESULT_COLUMNS).collect()
        if watch is not None:
            watch.join(1)
        return [StagedFile(*row) for row in found]

    def _offset(self, batch: int) -> Offset:
        """Where a batch ends, as Spark has written it down."""
        lines = (self.checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").split("\n")
        return parse(json.loads(lines[2]))

    def _is_committed(self, batch: int) -> bool:
        return batch < 0 or (self.checkpoint / "commits" / str(batch)).exists()

    def _advance(self, offset: Offset) -> int:
        """Advance the tap; returns how much is behind the offset."""
        taps = self._taps(self.source)
        view = taps.show(self.tap)
        if view.incarnation != offset.incarnation:
            return 0  # the source of the query will report what happened to its entity
        taps.advance(self.tap, offset.owner, offset.positions, stream=self.source.stream)
        if self.source.stream == EVENTS:
            # A tap for events keeps messages as well, which are not read here.
            ends = {each.index: each.end for each in view.fragments if each.available}
            taps.advance(self.tap, offset.owner, ends, stream=MESSAGES)
        return sum(max(0, end - offset.positions.get(index, 0)) for index, end in self._ends(view).items())

    def _ends(self, view: TapView) -> dict[int, int]:
        events = self.source.stream == EVENTS
        return {
            each.index: each.event_end if events else each.end for each in view.fragments if each.available
        }

    def _taps(self, source: Source) -> BlockingTaps:
        return client_of_process(self._secret, self._parsed().wait).taps(
            source.entity, sub_queue=source.sub_queue
        )

    def _parsed(self) -> SourceOptions:
        return SourceOptions.parse(self._options, streaming=True)
