"""Selects the rows of a replay: from an archive, Parquet files with its columns, or a dead-letter queue.

Only what a job uses is read: the columns that it names, and those in the texts of its condition and edits. The condition and
the limits of time are met where the messages are (archive_scan.py, busbar.spark.pushdown), so others are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from busbar.jobs.edits import FieldEdit, check_type
from busbar.jobs.failure_text import BATCH_OVER, JobError, JobFailureKind, condition_of, kind_of, sentence_of
from busbar.jobs.reaching import Notice, no_notice
from busbar.jobs.time_span import TimeSpan
from busbar.model.names import without_dead_letters
from busbar.spark.entity_names import DEAD_LETTERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from busbar.spark.secrets import Secret

NEEDED: Final = frozenset({"raw", "entity", "fragment", "sequence_number", "enqueued_time"})
MOST_SPANS: Final = 12


class ReplayError(JobError):
    """A replay cannot be done as requested."""


@dataclass(frozen=True, slots=True)
class ReadEstimate:
    """A file for what a later read of the same rows will take of an archive: the columns that it uses, and the texts of its
    other expressions."""

    path: Path
    uses: Sequence[str]
    texts: Sequence[str]


def identity_of(source: str, secret: Secret, wait: float) -> str:
    """The identity of a source, independent of its name: a moved archive is the same, a re-created queue another."""
    entity = dead_letter_queue(source)
    if entity is not None:
        from busbar.spark.connection import client_of_process

        found = client_of_process(secret, wait).taps(entity).ends()
        return f"{found.entity}{DEAD_LETTERS} {found.incarnation}"
    from busbar.jobs.archive import identity, is_archive

    if not is_archive(source):
        if "://" in source:
            return source
        _check_parquet(source)
        return str(Path(source).resolve())
    archive = identity(source)
    if archive.stream != "messages":
        raise ReplayError(f"{source} is an archive of {archive.stream}; only messages can be sent")
    return archive.id


def _check_parquet(source: str) -> None:
    """Raise ReplayError if a directory has no Parquet files, or files without messages, before Spark is started for it."""
    import pyarrow.parquet as pq

    first = next(Path(source).rglob("*.parquet"), None)
    if first is None:
        raise ReplayError(
            f"{source} is neither an archive nor a directory with Parquet files", JobFailureKind.NOT_FOUND
        )
    partitions = {part.partition("=")[0] for part in first.relative_to(source).parts[:-1] if "=" in part}
    _check_columns(source, {*pq.read_schema(first).names, *partitions})


def _check_columns(source: str, names: set[str]) -> None:
    missing = NEEDED.difference(names)
    if missing:
        raise ReplayError(
            f"{source} has no messages to send: it lacks the columns {', '.join(sorted(missing))}"
        )


def hours_there(source: str) -> list[str]:
    """What an archive holds, by entity: spans of hours, with their messages. Empty for other sources."""
    from busbar.jobs import archive

    if not archive.is_archive(source):
        return []
    hours: dict[str, dict[datetime, int]] = {}
    for file in archive.archived(source):
        _entity, date, hour = (part.partition("=")[2] for part in file.hour.split("/"))
        begin = datetime.fromisoformat(date) + timedelta(hours=int(hour))
        of_entity = hours.setdefault(archive.entity_of(file), {})
        of_entity[begin] = of_entity.get(begin, 0) + file.rows
    return [line for entity in sorted(hours) for line in _spans(entity, hours[entity])]


def _spans(entity: str, hours: Mapping[datetime, int]) -> list[str]:
    """A line for each run of hours without a gap."""
    runs: list[tuple[datetime, datetime, int]] = []
    for begin, rows in sorted(hours.items()):
        if runs and runs[-1][1] == begin:
            runs[-1] = (runs[-1][0], begin + timedelta(hours=1), runs[-1][2] + rows)
        else:
            runs.append((begin, begin + timedelta(hours=1), rows))
    lines = [
        f"{entity}: {begin:%Y-%m-%dT%H:%M}Z to {end:%Y-%m-%dT%H:%M}Z, {rows:,} messages"
        for begin, end, rows in runs[-MOST_SPANS:]
    ]
    if len(runs) > MOST_SPANS:
        lines.insert(0, f"{entity}: {len(runs) - MOST_SPANS} earlier spans")
    return lines


def selected(
    spark: SparkSession,
    source: str,
    secret: Secret,
    where: str,
    edits: tuple[FieldEdit, ...],
    wait: float,
    span: TimeSpan | None = None,
    uses: Sequence[str] = (),
    estimate: ReadEstimate | None = None,
) -> DataFrame:
    """The messages of a source that match a condition, with a column for each edit. Raises ReplayError, EditError.

    `uses` are the columns that the job needs of them (all, if none is named).
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

    from busbar.jobs.replay_task import EDIT

    texts = [where, *[edit.expression for edit in edits]]
    frame = _frame(spark, source, secret, wait, uses, texts, span or TimeSpan(), estimate)
    if span is not None:
        frame = span.applied(frame)
    try:
        if where:
            frame = frame.where(F.expr(where))
        # All see the original message, independently of other edits.
        frame = frame.select(
            "*", *[F.expr(edit.expression).alias(f"{EDIT}{i}") for i, edit in enumerate(edits)]
        )
    except (AnalysisException, ParseException) as error:
        raise ReplayError(f"an expression cannot be understood: {_first_line(error)}") from None
    for index, edit in enumerate(edits):
        check_type(edit, frame.schema[f"{EDIT}{index}"].dataType.simpleString())
    return frame


def columns_used(uses: Sequence[str], texts: Iterable[str], names: Sequence[str]) -> list[str]:
    """The columns that a job uses, of those that there are, in their order: the named ones, and each whose name is a word of
    an expression. A column that an expression uses is one of its words, unless the expression has a star."""
    said = " ".join(texts)
    if not uses or "*" in said:
        return list(names)
    words = {word.lower() for word in re.findall(r"\w+", said)} | set(uses)
    return [name for name in names if name.lower() in words]


def _frame(
    spark: SparkSession,
    source: str,
    secret: Secret,
    wait: float,
    uses: Sequence[str],
    texts: Sequence[str],
    span: TimeSpan,
    estimate: ReadEstimate | None,
) -> DataFrame:
    from busbar.spark.schema import schema_of

    entity = dead_letter_queue(source)
    if entity is not None:
        options = {"entity": entity, "subQueue": "deadletter", "waitForBroker": f"{int(wait * 1000)}ms"}
        options["columns"] = ",".join(columns_used(uses, texts, schema_of("messages").fieldNames()))
        return spark.read.format("busbar").options(**secret.options(), **options).load()
    from busbar.jobs import archive
    from busbar.jobs.archive_scan import archive_frame

    if not archive.is_archive(source):
        frame = spark.read.parquet(source)
        _check_columns(source, set(frame.columns))
        return frame
    names = [*schema_of("messages").fieldNames(), "date", "hour"]
    columns = columns_used(uses, texts, names)
    figures, counted = None, []
    if estimate is not None:
        figures, counted = estimate.path, columns_used(estimate.uses, [*texts, *estimate.texts], names)
    return archive_frame(
        spark,
        source,
        columns=columns,
        since=span.since,
        until=span.until,
        figures=figures,
        counted=counted,
    )


@contextmanager
def spark_session(
    session: SparkSession | None, name: str, master: str | None, on_notice: Notice = no_notice
) -> Iterator[SparkSession]:
    """A session as launch.py opens it, imported where it is needed."""
    from busbar.jobs.launch import session_of

    with session_of(session, name, master, on_notice) as spark:
        yield spark


def evaluate(
    source: str,
    connection: Secret,
    where: str,
    edits: tuple[FieldEdit, ...],
    wait: float,
    session: SparkSession | None,
    master: str | None,
    on_notice: Notice = no_notice,
) -> dict[int, dict[str, object]]:
    """The sequence numbers of the messages of an entity that match a condition, and the values of the edits on each."""
    from pyspark.errors import PySparkException

    from busbar.jobs.launch import described
    from busbar.jobs.replay_task import EDIT

    columns = [f"{EDIT}{index}" for index in range(len(edits))]
    try:
        with (
            spark_session(session, "busbar-redrive", master, on_notice) as spark,
            described(spark, f"busbar redrive: {source}"),
        ):
            on_notice("selecting")
            frame = selected(spark, source, connection, where, edits, wait, uses=["sequence_number"])
            rows = frame.select("sequence_number", *columns).collect()
    except PySparkException as error:
        raise ReplayError(in_short(error), kind_in(error)) from error
    fields = [edit.field for edit in edits]
    return {row["sequence_number"]: dict(zip(fields, row[1:], strict=True)) for row in rows}


def dead_letter_queue(source: str) -> str | None:
    """The entity of the dead-letter queue that a source names; None for a directory. Raises ReplayError for neither."""
    entity, dead_letters = without_dead_letters(source.rstrip("/"))
    if dead_letters:
        return entity.strip("/")
    if "://" in source or Path(source).is_dir():
        return None
    raise ReplayError(
        f"{source!r} is neither a directory nor a dead-letter queue, whose name ends with {DEAD_LETTERS}",
        JobFailureKind.NOT_FOUND,
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def in_short(error: Exception) -> str:
    """The error message of a task, without the stack of its worker."""
    own = condition_of(str(error))
    if own is not None and own[0] == BATCH_OVER:
        return "this replay was finished for good (`forget`); give it a name with `run` to do it once more"
    return sentence_of(error)


def kind_in(error: Exception) -> JobFailureKind | None:
    """The kind of failure that an error of Spark reports; None if it has no condition of Busbar."""
    return None if condition_of(str(error)) is None else kind_of(error)
