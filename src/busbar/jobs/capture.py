"""Capture: writes every message of an entity, once, to an archive that any program can read (archive.py).

    capture(["orders"], "/data/orders", connection=Secret(variable="ORDERS_CONNECTION"), available_now=True)
    busbar capture orders --output /data/orders --available-now
    busbar capture orders --output s3://bucket/orders --format delta
    spark-submit …/busbar/jobs/capture.py orders --output /data/orders --available-now

The same call continues where the last one stopped or was killed. Each entity has a query and a checkpoint of its own, so
that others can be added. docs/capture.md is for users.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from busbar.jobs.archive import EVENTS, MESSAGES
from busbar.jobs.archive_identity import FORMATS
from busbar.jobs.archive_writer import ArchiveWriter
from busbar.jobs.capture_query import CaptureQuery, Source, source_of
from busbar.jobs.compaction import closed_before, compact
from busbar.jobs.failure_text import JobError, condition_of, sentence_of
from busbar.jobs.interruption import JobInterrupted
from busbar.jobs.intervals import interval_ms
from busbar.jobs.job_run import JobRun, program
from busbar.jobs.launch import add_connection, connection_of, given_connection, reach_broker, session_of
from busbar.jobs.progress import BatchProgress, Display, display_for
from busbar.jobs.reaching import BrokerWatch, Notice, no_notice
from busbar.spark.options import SourceOptions
from busbar.spark.secrets import Secret
from busbar.spark.session import register_format

INTERVAL = "10s"
POLL_SECONDS = 0.2
STOP_SECONDS = 18.0
"""Time for the batch under way when the caller of `capture` stops it. A signal gives it less (interruption.py)."""
COMPACT_SECONDS = 60.0

log = logging.getLogger("busbar.jobs")


class CaptureFailed(JobError):
    """A capture cannot continue. The text states why."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a capture, by the label of each source."""

    rows: Mapping[str, int]


def capture(
    entities: Sequence[str],
    output: str | Path,
    *,
    connection: Secret | str | None = None,
    events: str | Path | None = None,
    table_format: str | None = None,
    available_now: bool = False,
    interval: str = INTERVAL,
    session: SparkSession | None = None,
    master: str | None = None,
    options: Mapping[str, str] | None = None,
    compacting: bool = True,
    on_progress: Callable[[BatchProgress], None] | None = None,
    on_notice: Notice = no_notice,
    stop: threading.Event | None = None,
) -> Summary:
    """Capture until `stop` is set, or, with `available_now`, what is there now.

    `output` is the directory or URL of the archive, `events` that of a second one for what happens to messages. The driver
    and all workers must reach both under the same name. `table_format` is parquet or delta; without it, the archive keeps
    its format, and a new one is of Parquet files. `options` are those of the source (docs/spark.md). `interval` is a
    duration such as 10s. Raises CaptureFailed, ArchiveError, and what the source raises for wrong options.
    """
    secret = connection_of(connection)
    pause = None if available_now else interval_ms("interval", interval)
    given = {**(options or {}), **secret.options(), "entity": "".join(entities[:1])}
    wait = SourceOptions.parse(given, streaming=True).wait
    reach_broker(secret, wait, on_notice)
    watch = BrokerWatch(secret.reveal(), wait, on_notice, secret.authorities())
    owns_spark = session is None and SparkSession.getActiveSession() is None
    job = _CaptureJob(on_progress or (lambda _progress: None), stop or threading.Event(), owns_spark, watch)
    with ExitStack() as exits:
        for directory, stream in ((output, MESSAGES), (events, EVENTS)):
            if directory is not None:
                writer = ArchiveWriter.open(directory, stream, table_format=table_format)
                exits.callback(writer.close)
                sources = [source_of(entity, stream) for entity in entities]
                job.add(writer, sources, secret, options or {})
        if job.stopping:
            return job.summary()
        starting = session_of(session, "busbar capture", master, on_notice, ends_soon=available_now)
        spark = exits.enter_context(starting)
        job.run(_own_settings(spark), pause, compacting, on_notice)
        return job.summary()


def _own_settings(spark: SparkSession) -> SparkSession:
    """A session on the same Spark with the job's own settings."""
    own = spark.newSession()
    register_format(own)
    own.conf.set("spark.sql.session.timeZone", "UTC")
    own.conf.set("spark.sql.streaming.stopTimeout", "5s")
    own.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    own.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
    own.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(64 * 1024 * 1024))
    return own


class _CaptureJob:
    """The queries of a capture, and the work beside them."""

    def __init__(
        self,
        on_progress: Callable[[BatchProgress], None],
        stop: threading.Event,
        owns_spark: bool,
        watch: BrokerWatch,
    ) -> None:
        self._watch = watch
        self._owns_spark = owns_spark
        self._queries: list[CaptureQuery] = []
        self._writers: list[ArchiveWriter] = []
        self._on_progress = on_progress
        self._stop = stop
        self._rows: dict[str, int] = {}

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def summary(self) -> Summary:
        return Summary(dict(self._rows))

    def add(
        self, writer: ArchiveWriter, sources: Sequence[Source], secret: Secret, options: Mapping[str, str]
    ) -> None:
        self._writers.append(writer)
        for source in sources:
            query = CaptureQuery(writer, source, secret, options)
            if query.tap not in {other.tap for other in self._queries}:
                query.prepare()
                self._queries.append(query)
                self._rows[query.source.label] = 0

    def run(self, spark: SparkSession, pause: int | None, compacting: bool, on_notice: Notice) -> None:
        """Run the queries. If a signal ends the job, batches under way get a moment; Spark is left as it is."""
        over = threading.Event()
        compactor = threading.Thread(
            target=self._compact, args=(over,), name="busbar-compaction", daemon=True
        )
        try:
            for query in self._queries:
                if not self.stopping:
                    on_notice(f"starting to read {query.source.label}")
                    query.start(spark, pause)
            on_notice("waiting for the first batch")
            if compacting:
                compactor.start()
            while not self._stop.wait(POLL_SECONDS) and any(query.active for query in self._queries):
                self._follow()
                self._check()
                self._watch.check(self._queries[0].source.entity)
            if not self._stop.is_set():
                self._check()
        except JobInterrupted as interrupted:
            over.set()
            self._abandon(interrupted.batch_deadline)
            raise
        except BaseException:
            self._end(spark, over, compactor)
            raise
        self._end(spark, over, compactor)
        if compacting and not self.stopping:
            self._compact_closed()

    def _end(self, spark: SparkSession, over: threading.Event, compactor: threading.Thread) -> None:
        over.set()
        self._finish(spark)
        if compactor.ident is not None:
            compactor.join()

    def _abandon(self, deadline: float) -> None:
        """Let no batch begin any more. What is committed by the deadline counts; the next start repeats the rest."""
        for query in self._queries:
            query.finish_batch(deadline)
        self._follow()

    def _follow(self) -> None:
        for query in self._queries:
            progress = query.follow()
            if progress is not None and progress.batch >= 0:
                self._rows[progress.name] = progress.total
                self._on_progress(progress)

    def _check(self) -> None:
        for query in self._queries:
            error = query.failure()
            if error is not None:
                raise CaptureFailed(f"{query.source.label}: {_describe(error)}") from error

    def _finish(self, spark: SparkSession) -> None:
        """End the queries: batches under way are finished, if they do not take too long."""
        deadline = time.monotonic() + STOP_SECONDS
        running = [query for query in self._queries if query.active]
        for query in running:
            query.finish_batch(deadline)
        if running and self._owns_spark:
            # A batch that begins now is refused, and the next start repeats it. This is not logged as an error.
            spark.sparkContext.setLogLevel("OFF")
        for query in running:
            query.stop()
        self._follow()

    def _compact(self, over: threading.Event) -> None:
        while True:
            try:
                self._compact_closed(over)
            except Exception:
                log.exception("Compaction failed; it is tried again.")
            if over.wait(COMPACT_SECONDS):
                return

    def _compact_closed(self, over: threading.Event | None = None) -> None:
        for writer in self._writers:
            compact(
                writer,
                closed_before(datetime.now(UTC)),
                lambda: self.stopping or (over is not None and over.is_set()),
            )


def _describe(error: Exception) -> str:
    """The message of a failed query, without Spark's stack traces; one of the source has its condition."""
    own = condition_of(str(error))
    return sentence_of(error) if own is None else f"[{own[0]}] {own[1]}"


# ---- as a program --------------------------------------------------------------------------------


class CaptureDisplay:
    """Shows the progress of a capture on standard error, and remembers what each entity has."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._display: Display = display_for(sys.stderr, table=not run.verbose)
        self.rows: dict[str, int] = {}

    def show(self, progress: BatchProgress) -> None:
        self.rows[progress.name] = progress.total
        self._run.log.trim()
        self._display.show(progress)

    def notice(self, text: str) -> None:
        self._display.notice(text)

    def __enter__(self) -> CaptureDisplay:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._display.close()


def print_summary(rows: Mapping[str, int]) -> None:
    for name, count in rows.items():
        sys.stdout.write(f"{name}: {count:,} captured\n")


def run_capture(run: JobRun, work: Callable[[CaptureDisplay], Summary]) -> None:
    """Run a capture with its progress on standard error, and print what it captured, also after a signal."""
    display = CaptureDisplay(run)
    try:
        with display:
            rows = work(display).rows
    except JobInterrupted:
        print_summary(display.rows)
        raise
    print_summary(rows)


def main(arguments: list[str] | None = None) -> int:
    """The program for spark-submit; returns the exit code."""
    parser = argparse.ArgumentParser("capture", description="Capture messages to Parquet files.")
    parser.add_argument("entities", nargs="+", metavar="ENTITY")
    parser.add_argument("--output", required=True, metavar="ARCHIVE", help="a directory or a URL")
    parser.add_argument("--events", metavar="ARCHIVE", help="an archive for what happens to messages")
    parser.add_argument("--format", choices=FORMATS, help="the format of a new archive")
    parser.add_argument("--available-now", action="store_true", help="what is there now, then end")
    parser.add_argument("--interval", default=INTERVAL, help="how often files are written")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the source")
    add_connection(parser)
    given = parser.parse_args(arguments)

    def work(display: CaptureDisplay) -> Summary:
        return capture(
            given.entities,
            given.output,
            connection=given_connection(given),
            events=given.events,
            table_format=given.format,
            available_now=given.available_now,
            interval=given.interval,
            options=dict(option.split("=", 1) for option in given.option),
            on_progress=display.show,
            on_notice=display.notice,
        )

    def run(job: JobRun) -> int:
        run_capture(job, work)
        return 0

    return program(
        "capture", run, then="the same command continues there", is_success=not given.available_now
    )


if __name__ == "__main__":
    sys.exit(main())
