"""`busbar replay`: sends messages of an archive, or of a dead-letter queue, to an entity.

    replay("archive/", "orders-again", where="subject = 'refund'", edits={"subject": "'again'"})

- The source is a directory that `busbar capture` wrote (or any Parquet with its columns), or the dead-letter queue of a
  queue or subscription (`orders/$deadletterqueue`). A replay only reads it. The target is a queue or a topic.
- `where` is a condition of Spark SQL over the columns of the source, `edits` are changes (edits.py). `since` and `until`
  limit the enqueued time.
- Source, target and rights are checked before Spark starts.
- A message arrives as it was sent, under an id that follows from its source (resending.py). Its own id is in the application
  property `original-message-id`. With ids="message" it keeps its own id: ids have to be unique then.
- A repetition sends nothing twice, whichever process was killed at any time. The writer's name follows from source, target,
  condition, edits and ids. Messages that are new in the source are sent. `run` gives a repetition a name of its own.
- The broker remembers the ids of a replay. `forget` declares afterwards that it is done for good: the memory is freed, and
  the same replay is refused for seven days.
- Order: "key" keeps the order of every session and of every partition key; "all" that of all messages by their enqueued time
  (one task sends them); "none" needs no shuffle.
- If the target refuses a message because of its content, it is counted as refused, and the others continue.
- A time to live starts again.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from busbar.client.sender import Writer
from busbar.jobs.edits import FieldEdit, parse_edits, shown_value
from busbar.jobs.reaching import Notice, no_notice
from busbar.jobs.replay_source import (
    ReadEstimate,
    ReplayError,
    hours_there,
    identity_of,
    in_short,
    kind_in,
    selected,
    spark_session,
)
from busbar.jobs.resending import ResendResult, TargetRefused, check_target, writer_name
from busbar.jobs.time_span import TimeSpan
from busbar.model.commands import MAX_BATCH
from busbar.model.names import key_of, parent_and_name, without_dead_letters
from busbar.operations.rewriting import PARTITION_KEY
from busbar.spark.secrets import Secret

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ORDERS: Final = ("key", "all", "none")
IDS: Final = ("source", "message")
LEAST_PER_TASK: Final = 1_000
PER_TASK: Final = 10_000
MOST_TASKS: Final = 1_000
POLL_SECONDS: Final = 0.5

# The columns that a replay uses, beside those of its condition and edits.
PLACE: Final = ("entity", "fragment", "sequence_number", "enqueued_time")
SENT: Final = (*PLACE, "raw", "expires_at", "message_id", "session_id", "partition_key")
COUNTED: Final = ("entity", "enqueued_time")
SAMPLED: Final = ("entity", "sequence_number", "enqueued_time", "message_id", "session_id", "subject", "body")


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """The progress of a job. `sent` counts messages of finished tasks, and never falls."""

    total: int
    sent: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The result: `found` messages matched the condition; the target accepted `sent`, now or in an earlier run."""

    source: str
    target: str
    writer: str
    dry_run: bool
    found: int
    sent: int
    refused: int
    seconds: float
    examples: list[str] = field(default_factory=list)
    """Of refused messages."""
    entities: dict[str, int] = field(default_factory=dict)
    first: str | None = None
    """The enqueued time of the oldest one."""
    last: str | None = None
    sample: list[dict[str, Any]] = field(default_factory=list)
    """Of a dry run."""
    there: list[str] = field(default_factory=list)
    """If nothing was found: what the source has, a line for each span of time."""
    added: int | None = None
    """How many of the sent ones the target did not have before, by its answers. None: the broker does not report that."""
    known: int | None = None
    """How many the target had before and dropped: an earlier run sent them, or its duplicate detection remembers them."""
    unsure: int = 0
    """How many the target dropped when they were repeated after a failure in this run. This run may have added them."""
    read: str = ""
    """What a read of an archive takes: files and bytes."""


def replay(
    source: str | Path,
    target: str,
    *,
    connection: Secret | str | None = None,
    where: str = "",
    since: str = "",
    until: str = "",
    edits: Iterable[str] | Mapping[str, str] = (),
    order: str = "key",
    ids: str = "source",
    rate: float = 0,
    run: str = "",
    dry_run: bool = False,
    sample: int = 5,
    forget: bool = False,
    wait: float = 300.0,
    session: SparkSession | None = None,
    master: str | None = None,
    on_progress: Callable[[ReplayProgress], None] | None = None,
    on_notice: Notice = no_notice,
) -> ReplayReport:
    """Send the messages of a source to a target, each once.

    `since` and `until` are times like 2026-01-31T12:00:00Z: of the first message, and behind the last one.
    `connection` is a connection string, or the place of one (the variable BUSBAR_CONNECTION_STRING). `rate` is the maximum
    number of messages a second, `wait` how long a broker may be unreachable, in seconds. Without a `session`, and if there
    is none, one is opened on `master` (all cores of this machine, or that of spark-submit) and stopped afterwards. Raises
    ReplayError, ValueRefused, EditError, BusbarClientError.
    """
    _check(order, ids, rate, target)
    span = TimeSpan.parse(since, until)
    began = time.monotonic()
    with _failures_of_spark():
        from busbar.jobs.launch import connection_of, described, reach_broker

        secret = connection_of(connection)
        reach_broker(secret, wait, on_notice)
        job = _Replay(str(source), target.strip("/"), secret, where, span, parse_edits(edits), ids, run, wait)
        job.check_target(dry_run, on_notice)
        with (
            spark_session(session, "busbar-replay", master, on_notice) as spark,
            described(spark, f"busbar replay: {job.source} → {job.target}"),
        ):
            on_notice("counting")
            selection = job.select(spark, (*SAMPLED, *PLACE) if dry_run else SENT)
            found = job.count(spark)
            done = ResendResult()
            if found.messages and not dry_run:
                on_notice(f"sending; {found.read}" if found.read else "sending")
                done = job.send(spark, selection, found.messages, order, rate, on_progress)
            there = [] if found.messages else job.there(spark)
            shown = job.sample(selection, sample) if dry_run else []
        if forget and not dry_run:
            job.forget()
    seconds = round(time.monotonic() - began, 3)
    return job.report(dry_run, found, done, seconds, sample=shown, there=there)


@contextmanager
def _failures_of_spark() -> Iterator[None]:
    """Raise failures of Spark as a ReplayError."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise ReplayError(in_short(error), kind_in(error)) from error


def _check(order: str, ids: str, rate: float, target: str) -> None:
    if order not in ORDERS:
        raise ReplayError(f"the order is {order!r}; it can be {', '.join(ORDERS)}")
    if ids not in IDS:
        raise ReplayError(f"ids is {ids!r}; it can be {' or '.join(IDS)}")
    if rate < 0:
        raise ReplayError(f"the rate is {rate}; it is a number of messages a second, or 0 for no limit")
    if not target.strip("/"):
        raise ReplayError("the target is missing: the name of a queue or a topic")
    topic, _ = parent_and_name(target.strip("/"))
    if topic:
        raise ReplayError(f"nothing can be sent to the subscription {target!r}; its topic is {topic!r}")
    if without_dead_letters(target.rstrip("/"))[1]:
        raise ReplayError(f"nothing can be sent to the dead-letter queue {target!r}")


class _Found(NamedTuple):
    """How many messages meet the condition, of which entities, and when the first and the last were enqueued."""

    messages: int
    entities: dict[str, int]
    first: str | None
    last: str | None
    read: str = ""
    """What a replay reads of an archive."""


class _Replay:
    """One replay. Its writer's name follows from what it does."""

    def __init__(
        self,
        source: str,
        target: str,
        secret: Secret,
        where: str,
        span: TimeSpan,
        edits: tuple[FieldEdit, ...],
        ids: str,
        run: str,
        wait: float,
    ) -> None:
        self.source = source
        self.target = target
        self._secret = secret
        self._where = where
        self._span = span
        self._edits = edits
        self._own_ids = ids == "message"
        self._wait = wait
        said: list[object] = [where, [[edit.field, edit.expression] for edit in edits], ids, run]
        if span.is_limited:
            said.append(span.texts())
        identity = identity_of(source, secret, wait)
        self.writer = writer_name("replay", identity, key_of(target), json.dumps(said))

    def check_target(self, dry_run: bool, on_notice: Notice) -> None:
        from busbar.spark.connection import client_of_process

        try:
            check_target(client_of_process(self._secret, self._wait), self.target, dry_run, on_notice)
        except TargetRefused as error:
            raise ReplayError(str(error), error.kind) from None

    # ---- what is sent ----------------------------------------------------------------------------

    def select(self, spark: SparkSession, uses: Sequence[str]) -> DataFrame:
        return selected(
            spark, self.source, self._secret, self._where, self._edits, self._wait, self._span, uses
        )

    def there(self, spark: SparkSession) -> list[str]:
        """What the source has, whatever the condition is."""
        hours = hours_there(self.source)
        if hours:
            return hours
        every = _counted(selected(spark, self.source, self._secret, "", (), self._wait, uses=COUNTED))
        if not every.messages:
            return ["no messages"]
        return [f"{every.messages:,} messages, enqueued {every.first} to {every.last}"]

    def count(self, spark: SparkSession) -> _Found:
        """Count the messages, without reading more of them, and find what sending them will read."""
        from busbar.jobs.archive_scan import ScanFigures

        with TemporaryDirectory(prefix="busbar-replay-") as directory:
            figures = Path(directory) / "figures"
            texts = [edit.expression for edit in self._edits]
            selection = selected(
                spark,
                self.source,
                self._secret,
                self._where,
                (),
                self._wait,
                self._span,
                COUNTED,
                ReadEstimate(figures, SENT, texts),
            )
            found = _counted(selection)
            read = ScanFigures.load(figures)
        return found._replace(read="" if read is None else str(read))

    def sample(self, selection: DataFrame, count: int) -> list[dict[str, Any]]:
        """Some messages, and the result of the edits on them."""
        from busbar.jobs.replay_task import EDIT

        columns = [*SAMPLED, *[f"{EDIT}{index}" for index in range(len(self._edits))]]
        shown = []
        for row in selection.orderBy("entity", "fragment", "sequence_number").select(*columns).take(count):
            about = {name: shown_value(row[name]) for name in SAMPLED}
            changes = {
                edit.field: shown_value(row[f"{EDIT}{index}"]) for index, edit in enumerate(self._edits)
            }
            shown.append({**about, "edits": changes} if changes else about)
        return shown

    def _check_unique(self, selection: DataFrame) -> None:
        """Raise ReplayError if two messages have the same id: the target would accept one of them."""
        from pyspark.sql import functions as F

        twice = selection.groupBy("message_id").count().where(F.col("count") > 1)
        found = twice.orderBy(F.desc("count")).take(1)
        if found:
            raise ReplayError(
                f"{found[0]['count']} messages have the id {found[0]['message_id']!r}; the target would take one of them. "
                "Replay them under ids that follow from their source"
            )

    # ---- sending ---------------------------------------------------------------------------------

    def report(
        self, dry_run: bool, found: _Found, done: ResendResult, seconds: float, **others: Any
    ) -> ReplayReport:
        return ReplayReport(
            source=self.source,
            target=self.target,
            writer=self.writer,
            dry_run=dry_run,
            found=found.messages,
            sent=done.sent,
            refused=done.refused,
            seconds=seconds,
            examples=done.examples,
            entities=found.entities,
            first=found.first,
            last=found.last,
            added=None if dry_run else done.added,
            known=None if dry_run or done.added is None else done.known,
            unsure=done.unsure,
            read=found.read,
            **others,
        )

    def send(
        self,
        spark: SparkSession,
        selection: DataFrame,
        found: int,
        order: str,
        rate: float,
        on_progress: Callable[[ReplayProgress], None] | None,
    ) -> ResendResult:
        """Send the selection."""
        from pyspark.sql import functions as F

        from busbar.jobs.replay_task import COLUMNS, EDIT, RESULT, Task, result_of

        if self._own_ids:
            self._check_unique(selection)
        ordered, together = self._in_order(selection, found, order, spark.sparkContext.defaultParallelism)
        task = Task(
            self._secret,
            self._wait,
            self.target,
            Writer(self.writer, 0),
            rate / together,
            self._own_ids,
            tuple(edit.field for edit in self._edits),
        )
        expires = F.col("expires_at") if "expires_at" in selection.columns else F.lit(None).cast("timestamp")
        edits = [F.col(f"{EDIT}{index}") for index in range(len(self._edits))]
        rows = ordered.withColumn("expires_at", expires).select(*COLUMNS, *edits)
        done = ResendResult()
        with _Watch(spark, found, on_progress) as watch:
            counter = watch.counter

            def send_all(batches: Iterator[Any]) -> Iterator[Any]:
                for result in task(batches):
                    counter.add(result.column(0)[0].as_py() + result.column(1)[0].as_py())
                    yield result

            for row in rows.mapInArrow(send_all, RESULT).collect():
                done.add(result_of(row))
        return done

    def _in_order(self, selection: DataFrame, found: int, order: str, cores: int) -> tuple[DataFrame, int]:
        """The messages, divided among tasks as their order asks, and how many tasks send at a time."""
        if order == "all":
            by_time = selection.repartition(1).sortWithinPartitions(
                "enqueued_time", "entity", "fragment", "sequence_number"
            )
            return by_time, 1
        if order == "key":
            # A task has its price, and a report comes when one is done.
            tasks = max(min(cores, -(-found // LEAST_PER_TASK)), min(MOST_TASKS, -(-found // PER_TASK)))
            by_key = selection.repartition(tasks, self._key()).sortWithinPartitions(
                "entity", "fragment", "sequence_number"
            )
            return by_key, min(tasks, cores)
        return selection, cores

    def _key(self) -> Column:
        """The common value of messages whose order counts: their session, else their key, after the edits. The others are
        spread."""
        from pyspark.sql import functions as F

        from busbar.jobs.replay_task import EDIT

        edited = {edit.field: F.col(f"{EDIT}{index}") for index, edit in enumerate(self._edits)}
        session = edited.get("session_id", F.col("session_id")).cast("string")
        key = edited.get(PARTITION_KEY, F.col("partition_key")).cast("string")
        return F.coalesce(session, key, F.concat_ws(":", "entity", "sequence_number"))

    def forget(self) -> None:
        from busbar.spark.connection import client_of_process

        client_of_process(self._secret, self._wait).taps(self.target).commit_writes(self.writer, MAX_BATCH)


def _counted(selection: DataFrame) -> _Found:
    """The number of messages, by entity, and the times of the first and the last."""
    from pyspark.sql import functions as F

    rows = (
        selection.groupBy("entity")
        .agg(
            F.count("*").alias("messages"),
            F.min("enqueued_time").cast("string").alias("first"),
            F.max("enqueued_time").cast("string").alias("last"),
        )
        .collect()
    )
    entities = {row["entity"]: row["messages"] for row in sorted(rows, key=lambda row: str(row["entity"]))}
    return _Found(
        sum(entities.values()),
        entities,
        min((row["first"] for row in rows), default=None),
        max((row["last"] for row in rows), default=None),
    )


class _Watch:
    """Reports the progress of tasks while a block runs. Tasks add what they have sent to the counter, which Spark passes on
    when a task ends."""

    def __init__(
        self, spark: SparkSession, total: int, on_progress: Callable[[ReplayProgress], None] | None
    ) -> None:
        self.counter = spark.sparkContext.accumulator(0)
        self._total = total
        self._on_progress = on_progress
        self._over = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="busbar-progress", daemon=True)

    def __enter__(self) -> _Watch:
        if self._on_progress is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: object, *_exc: object) -> None:
        self._over.set()
        if self._on_progress is not None and kind is None:
            self._thread.join()
            self._report(self._total)

    def _run(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            # A task that is repeated counts again.
            self._report(min(int(self.counter.value), self._total))

    def _report(self, sent: int) -> None:
        assert self._on_progress is not None
        self._on_progress(ReplayProgress(self._total, sent, time.monotonic() - self._began))


# ---- spark-submit ------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry for spark-submit: `spark-submit .../busbar/jobs/replay.py SOURCE TARGET ...`. Prints the report as JSON."""
    from busbar.jobs.job_run import JobRun, program
    from busbar.jobs.launch import add_connection, given_connection

    parser = argparse.ArgumentParser(
        "replay", description="Send messages of a source to an entity, each once."
    )
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--where", default="", metavar="EXPRESSION")
    parser.add_argument("--from", dest="since", default="", metavar="TIME")
    parser.add_argument("--to", dest="until", default="", metavar="TIME")
    parser.add_argument("--set", dest="edits", action="append", default=[], metavar="FIELD=EXPRESSION")
    parser.add_argument("--order", choices=ORDERS, default="key")
    parser.add_argument("--ids", choices=IDS, default="source")
    parser.add_argument("--rate", type=float, default=0, metavar="N")
    parser.add_argument("--run", default="", metavar="NAME")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--forget", action="store_true")
    parser.add_argument("--master")
    add_connection(parser)
    given = parser.parse_args(arguments)

    def run(job: JobRun) -> int:
        report = replay(
            given.source,
            given.target,
            connection=given_connection(given),
            where=given.where,
            since=given.since,
            until=given.until,
            edits=given.edits,
            order=given.order,
            ids=given.ids,
            rate=given.rate,
            run=given.run,
            dry_run=given.dry_run,
            forget=given.forget,
            master=given.master,
            on_notice=job.notice,
        )
        sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
        return 4 if report.refused else 0

    return program("replay", run, then="the same command sends the rest, and nothing twice")


if __name__ == "__main__":
    sys.exit(main())
