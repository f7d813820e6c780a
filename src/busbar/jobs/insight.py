"""`busbar insight`: measures throughput, latency and skew of entities, and advises which settings to change.

From a tap with events of each entity (insight_sources.py), or from archives of `busbar capture`:

    report = insight(["orders"], connection=Secret(variable="ORDERS_CONNECTION"))
    report = insight(archives=["/data/archive", "/data/archive-events"])
    Path("insight.html").write_text(render(report))

and as an entry for spark-submit, which prints JSON and writes the report for people into a new file:

    spark-submit …/busbar/jobs/insight.py orders --report insight.html
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from busbar.client.advice import GOALS
from busbar.jobs import insight_sources as sources
from busbar.jobs.failure_text import JobError, JobFailureKind
from busbar.jobs.insight_advice import Clients, EntitySettings, advise_all
from busbar.jobs.insight_archives import archived_history
from busbar.jobs.insight_figures import EntityFigures, Report
from busbar.jobs.insight_html import render
from busbar.jobs.insight_measures import measure
from busbar.jobs.intervals import interval_ms
from busbar.jobs.job_run import JobRun, program
from busbar.jobs.launch import (
    add_connection,
    connection_of,
    described,
    given_connection,
    reach_broker,
    session_of,
)
from busbar.jobs.message_selection import MessageSelection
from busbar.jobs.report_files import report_path, write_report
from busbar.jobs.time_span import TimeSpan
from busbar.spark.secrets import Secret

__all__ = ["Clients", "EntitySettings", "Report", "insight", "main", "render"]

NAME = "busbar insight"
WAIT_SECONDS = 60.0
pause = time.sleep
"""Waits while taps record."""
Progress = Callable[[str], None]


class InsightError(JobError):
    """A report cannot be made as requested."""

    kind = JobFailureKind.USAGE


def insight(
    entities: Sequence[str] = (),
    *,
    connection: Secret | str | None = None,
    archives: Sequence[str | Path] = (),
    tap: str = "insight",
    watch: float | None = None,
    advance: bool = False,
    where: str = "",
    since: str = "",
    until: str = "",
    clients: Clients | None = None,
    settings: Mapping[str, EntitySettings] | Callable[[], Mapping[str, EntitySettings]] | None = None,
    session: SparkSession | None = None,
    master: str | None = None,
    wait: float = WAIT_SECONDS,
    on_progress: Progress = lambda text: None,
) -> Report:
    """Report on entities of a namespace, or on those of archives (all of them, unless some are named).

    `watch`: measure the next so many seconds, with taps that are deleted afterwards. `advance`: the next report begins where
    this one ends. `where`, `since` and `until` select messages, as those of a replay do. `clients` and `settings` are what
    the figures do not contain (insight_advice.py). If `settings` is a function, it is called when the broker answers.
    `wait`: how many seconds the broker may be unreachable before the job begins. Raises InsightError, ValueRefused, and what
    the client and Spark raise.
    """
    if archives and (connection is not None or watch is not None or advance):
        raise InsightError(
            "An archive is not a namespace: it needs no connection, and has nothing to watch or advance."
        )
    selection = _selection(where, since, until, watch, advance)
    names = list(dict.fromkeys(entity.strip("/") for entity in entities))
    if not archives and not names:
        raise InsightError("Insight needs the name of an entity.")
    if not archives:
        reach_broker(connection_of(connection), wait, on_progress)
    known = settings() if callable(settings) else settings or {}
    if archives:
        with session_of(session, NAME, master, on_progress) as spark:
            figures = _of_archives(spark, [str(each) for each in archives], names, selection, on_progress)
    else:
        tapping = _Tapping(connection_of(connection), names, selection, session, master, on_progress)
        figures = tapping.recorded(tap, advance=advance) if watch is None else tapping.watched(watch)
    reports = advise_all(figures, clients or Clients(), known)
    return Report(int(time.time() * 1000), reports)


def _selection(where: str, since: str, until: str, watch: float | None, advance: bool) -> MessageSelection:
    selection = MessageSelection(TimeSpan.parse(since, until), where)
    if advance and selection.is_limited:
        raise InsightError(
            "A report on a selection does not advance the tap: the next one would lack the rest."
        )
    if watch is not None and selection.span.is_limited:
        raise InsightError("The times are those of records; what is watched comes from now on.")
    return selection


def _of_archives(
    spark: SparkSession,
    archives: Sequence[str],
    names: Sequence[str],
    selection: MessageSelection,
    on_progress: Progress,
) -> list[EntityFigures]:
    on_progress("measuring")
    with described(spark, f"busbar insight: {', '.join(str(each) for each in archives)}"):
        history, subjects = archived_history(spark, archives, names, selection)
        return measure([sources.limited(each, selection) for each in subjects], history)


@dataclass(frozen=True, slots=True)
class _Tapping:
    """A report on what taps of entities have recorded."""

    connection: Secret
    names: Sequence[str]
    selection: MessageSelection
    session: SparkSession | None
    master: str | None
    on_progress: Progress

    def recorded(self, tap: str, *, advance: bool = False) -> list[EntityFigures]:
        """Choose the spans of taps before Spark starts: problems with them are reported at once, and missing taps
        are created."""
        counted = not self.selection.is_limited
        tapped = [sources.look(self.connection, name, tap, counted=counted) for name in self.names]
        with (
            session_of(self.session, NAME, self.master, self.on_progress) as spark,
            described(spark, f"busbar insight: {', '.join(self.names)}"),
        ):
            self.on_progress("measuring")
            history = sources.tapped_history(spark, self.connection, tapped, self.selection)
            figures = measure([sources.limited(each.subject, self.selection) for each in tapped], history)
        if advance:
            for each in tapped:
                sources.advance(self.connection, each)
        return figures

    def watched(self, seconds: float) -> list[EntityFigures]:
        """Record from now on, with taps of their own."""
        tap = f"insight-{uuid.uuid4().hex[:12]}"
        try:
            for name in self.names:
                sources.begin(self.connection, name, tap)
            self.on_progress(f"watching for {seconds:g} s")
            pause(seconds)
            return self.recorded(tap)
        finally:
            for name in self.names:
                sources.end(self.connection, name, tap)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program for spark-submit; returns the exit code."""
    parser = argparse.ArgumentParser("insight", description="Report on entities, or on archives.")
    parser.add_argument("entities", nargs="*", metavar="ENTITY")
    parser.add_argument(
        "--archive", action="append", default=[], metavar="DIR", help="of messages or of events"
    )
    parser.add_argument("--tap", default="insight", metavar="NAME")
    parser.add_argument("--watch", metavar="DURATION", help="what happens from now on, for so long")
    parser.add_argument("--advance", action="store_true", help="the next report begins where this one ends")
    parser.add_argument("--where", default="", metavar="EXPRESSION")
    parser.add_argument("--from", dest="since", default="", metavar="TIME")
    parser.add_argument("--to", dest="until", default="", metavar="TIME")
    parser.add_argument("--senders", type=int, metavar="N")
    parser.add_argument("--receivers", type=int, metavar="N")
    parser.add_argument("--subscriptions", type=int, metavar="N")
    parser.add_argument("--goal", choices=[goal for goal in GOALS if goal], default="")
    parser.add_argument("--report", type=Path, metavar="FILE", help="HTML, for people")
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --report")
    add_connection(parser)
    given = parser.parse_args(arguments)

    def work(run: JobRun) -> int:
        if given.report is not None:
            report_path(given.report, "insight", overwrite=given.overwrite)
        report = insight(
            given.entities,
            connection=None if given.archive else given_connection(given),
            archives=given.archive,
            tap=given.tap,
            watch=None if given.watch is None else interval_ms("--watch", given.watch) / 1000,
            advance=given.advance,
            where=given.where,
            since=given.since,
            until=given.until,
            clients=Clients(given.senders, given.receivers, given.subscriptions, given.goal),
            on_progress=run.notice,
        )
        if given.report is not None:
            write_report(given.report, render(report), overwrite=given.overwrite)
        sys.stdout.write(json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n")
        return 0

    return program("insight", work)


if __name__ == "__main__":
    sys.exit(main())
