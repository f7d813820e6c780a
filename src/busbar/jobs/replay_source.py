"""Selects the rows of a replay: from an archive, Parquet files with its columns, or a dead-letter queue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from busbar.jobs.edits import FieldEdit, check_type
from busbar.model.names import without_dead_letters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from busbar.spark.secrets import Secret

DEAD_LETTERS: Final = "/$deadletterqueue"


class ReplayError(Exception):
    """A replay cannot be done as requested."""


def identity_of(source: str, secret: Secret, wait: float) -> str:
    """The identity of a source, independent of its name: a moved archive is the same, a re-created queue another."""
    entity = dead_letter_queue(source)
    if entity is not None:
        from busbar.spark.connection import client_of_process

        found = client_of_process(secret, wait).taps(entity).ends()
        return f"{found.entity}{DEAD_LETTERS} {found.incarnation}"
    from busbar.jobs.archive import ArchiveError, identity

    try:
        archive = identity(source)
    except ArchiveError:
        return source if "://" in source else str(Path(source).resolve())
    if archive.stream != "messages":
        raise ReplayError(f"{source} is an archive of {archive.stream}; only messages can be sent")
    return archive.id


def selected(
    spark: SparkSession, source: str, secret: Secret, where: str, edits: tuple[FieldEdit, ...], wait: float
) -> DataFrame:
    """The messages of a source that match a condition, with a column for each edit. Raises ReplayError, EditError."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

    from busbar.jobs.replay_task import EDIT

    frame = _frame(spark, source, secret, wait)
    missing = {"raw", "entity", "fragment", "sequence_number", "enqueued_time"}.difference(frame.columns)
    if missing:
        raise ReplayError(
            f"{source} has no messages to send: it lacks the columns {', '.join(sorted(missing))}"
        )
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


def _frame(spark: SparkSession, source: str, secret: Secret, wait: float) -> DataFrame:
    entity = dead_letter_queue(source)
    if entity is not None:
        options = {"entity": entity, "subQueue": "deadletter", "waitForBroker": f"{int(wait * 1000)}ms"}
        return spark.read.format("busbar").options(**secret.options(), **options).load()
    from busbar.jobs import archive

    try:
        archive.identity(source)
    except archive.ArchiveError:
        return spark.read.parquet(source)
    return archive.read(spark, source)


@contextmanager
def spark_session(session: SparkSession | None, name: str, master: str | None) -> Iterator[SparkSession]:
    """The given session, the existing one, or else one for the time of the block."""
    from pyspark.sql import SparkSession

    from busbar.jobs.launch import job_session

    there = session or SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    made = job_session(name, master)
    try:
        yield made
    finally:
        made.stop()


def evaluate(
    source: str,
    connection: Secret,
    where: str,
    edits: tuple[FieldEdit, ...],
    wait: float,
    session: SparkSession | None,
    master: str | None,
) -> dict[int, dict[str, object]]:
    """The sequence numbers of the messages of an entity that match a condition, and the values of the edits on each."""
    from pyspark.errors import PySparkException

    from busbar.jobs.replay_task import EDIT

    columns = [f"{EDIT}{index}" for index in range(len(edits))]
    try:
        with spark_session(session, "busbar-redrive", master) as spark:
            frame = selected(spark, source, connection, where, edits, wait)
            rows = frame.select("sequence_number", *columns).collect()
    except PySparkException as error:
        raise ReplayError(in_short(error)) from error
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
        f"{source!r} is neither a directory nor a dead-letter queue, whose name ends with {DEAD_LETTERS}"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def in_short(error: Exception) -> str:
    """The error message of a task, without the stack of its worker."""
    text = str(error).strip()
    found = re.search(r"\[(BUSBAR_\w+)\] ([^\n]+)", text)
    if found is None:
        return _first_line(error)
    if found.group(1) == "BUSBAR_SINK_BATCH_OVER":
        return "this replay was finished for good (`forget`); give it a name with `run` to do it once more"
    return found.group(2)
