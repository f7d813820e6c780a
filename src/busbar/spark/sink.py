"""Writes the `busbar` format: batches and streams of rows that become messages.

Exactly once. All tasks of a batch send as one writer (client.Writer). Its name and batch number follow from what Spark
itself keeps. For a stream they are the query's id and the number of the micro-batch. For a batch the name is that of the
user, or the driver generates one when it plans the write. If the broker has had a message id from that batch of that writer,
it drops the message, however often and wherever its row is sent again. When Spark commits a batch, the broker gets a commit
too. It then forgets the ids of earlier batches and refuses sends for them, for example of an abandoned task that still runs.
The ids of the batch itself stay until the next one is committed, because Spark may have died before it recorded its commit.

A batch is visible as it is written. If it fails, its stored messages stay visible until it is written again: a broker has no
transaction over all tasks.

A task does this: rows → messages (sink_encode.py) → sender. While one chunk is being sent, the next one is encoded. A task
succeeds when all its messages are durable. It reports what it has written (sink_metrics.py).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from busbar.client import (
    BatchOver,
    BusbarClientError,
    MessageTooLarge,
    NotFound,
    SendFailed,
    Unauthorized,
)
from busbar.client.blocking import BlockingSender
from busbar.client.sender import OF_ONE_MESSAGE, Writer
from busbar.model.commands import MAX_BATCH
from busbar.spark.bad_rows import BadRows, publish
from busbar.spark.connection import client_of_process, log
from busbar.spark.errors import SinkError, errors_in_short
from busbar.spark.sink_columns import ColumnPlan, plan_of
from busbar.spark.sink_encode import Encoded, MessageEncoder
from busbar.spark.sink_metrics import SinkMetrics, keep_metrics, total
from busbar.spark.sink_options import SinkOptions

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a stream."""
QUERY_PREFIX = "spark-query-"

ABORT_WAIT = 5.0
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Create the writer of a batch. Raises OptionError, SinkError."""
    parsed = SinkOptions.parse(options, streaming=False)
    _refuse_overwriting(overwrite, "Use mode('append').")
    return BatchWriter(parsed, plan_of(schema, parsed))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Create the writer of a stream. Raises OptionError, SinkError."""
    parsed = SinkOptions.parse(options, streaming=True)
    _refuse_overwriting(overwrite, "Use outputMode('append') or outputMode('update').")
    return StreamWriter(parsed, plan_of(schema, parsed))


def _refuse_overwriting(overwrite: bool, hint: str) -> None:
    if overwrite:
        raise SinkError("BUSBAR_SINK_MODE", f"Messages that were sent cannot be overwritten. {hint}")


@dataclass
class TaskCommit(WriterCommitMessage):
    """The result of a task: its writer, the number of bad rows, their file, and what it has written."""

    writer: str
    batch: int
    bad: int
    staged: str = field(default="")
    metrics: SinkMetrics = field(default_factory=SinkMetrics)


class BatchWriter(DataSourceArrowWriter):
    """The writer of one batch. The driver creates it; tasks get it with its writer's name."""

    def __init__(self, options: SinkOptions, plan: ColumnPlan) -> None:
        self._options = options
        self._plan = plan
        self._writer = options.writer or f"spark-batch-{uuid.uuid4().hex}"

    @errors_in_short()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        return _write(self._options, self._plan, Writer(self._writer, self._options.batch), iterator)

    @errors_in_short()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _report(self._options, messages)
        publish(self._options.bad_rows, self._writer, self._options.batch, _staged_files(messages))
        # A generated name is used for this write only, so its ids can be deleted. A given name may be used again.
        batch = self._options.batch if self._options.writer else MAX_BATCH
        if self._options.once:
            _commit(self._options, self._writer, batch, self._options.wait)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave sent messages. Tasks that still run are refused, unless the name may be used again."""
        if self._options.writer or not self._options.once:
            return
        try:
            _commit(self._options, self._writer, MAX_BATCH, ABORT_WAIT)
        except SinkError as error:
            log.warning("The writer %s could not be ended: %s", self._writer, error)


class StreamWriter(DataSourceStreamArrowWriter):
    """Created for each micro-batch, in the tasks and on the driver."""

    def __init__(self, options: SinkOptions, plan: ColumnPlan) -> None:
        self._options = options
        self._plan = plan

    @errors_in_short()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        return _write(self._options, self._plan, _writer_of_query(), iterator)

    @errors_in_short()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _report(self._options, messages)
        # Spark does not pass the query to the driver here, but to the tasks. A batch without tasks has nothing to commit.
        for writer in {message.writer for message in messages if isinstance(message, TaskCommit)}:
            publish(self._options.bad_rows, writer, batchId, _staged_files(messages))
            if self._options.once:
                _commit(self._options, writer, batchId, self._options.wait)
            metrics = total(message.metrics for message in messages if isinstance(message, TaskCommit))
            keep_metrics(writer.removeprefix(QUERY_PREFIX), batchId, self._options.entity, metrics)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: sent messages stay, and are recognized when the batch is written again."""


def _writer_of_query() -> Writer:
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context is not None else None
    batch = context.getLocalProperty(BATCH_ID) if context is not None else None
    if not query or batch is None:
        raise SinkError(
            "BUSBAR_SINK_NO_QUERY", "Spark did not tell the task which query and batch it belongs to."
        )
    return Writer(f"{QUERY_PREFIX}{query}", int(batch))


def _commit(options: SinkOptions, writer: str, batch: int, wait: float) -> None:
    try:
        client_of_process(options.secret, wait).taps(options.entity).commit_writes(writer, batch)
    except BusbarClientError as error:
        raise translated(error, options) from None


def _staged_files(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    return [message.staged for message in messages if isinstance(message, TaskCommit) and message.staged]


def _report(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    tasks = [message for message in messages if isinstance(message, TaskCommit)]
    written = total(task.metrics for task in tasks)
    log.info("Wrote to %r: %s", options.entity, written.to_json())
    bad = sum(task.bad for task in tasks)
    if bad:
        log.warning("%d rows could not be messages of %r (badRows=%s)", bad, options.entity, options.bad_rows)


# ---- tasks -------------------------------------------------------------------------------------------


def _write(
    options: SinkOptions, plan: ColumnPlan, writer: Writer, batches: Iterator[pa.RecordBatch]
) -> TaskCommit:
    encoder = MessageEncoder(plan, options.once)
    bad = BadRows(options.bad_rows, options.entity)
    sent = SentTotals()
    duplicates: int | None = 0
    try:
        factory = client_of_process(options.secret, options.wait)
        with (
            factory.sender(options.entity, writer=writer if options.once else None) as sender,
            ThreadPoolExecutor(1, "busbar-sink") as ahead,
        ):
            under_way: Future[None] | None = None
            for batch in batches:
                encoded = encoder.encode(batch)
                if under_way is not None:
                    under_way.result()
                bad.add(batch, encoded.bad)
                under_way = ahead.submit(_send, sender, options, batch, encoded, bad, sent)
            if under_way is not None:
                under_way.result()
                duplicates = sender.duplicates
        bad.close()
    except BusbarClientError as error:
        raise translated(error, options) from None
    metrics = SinkMetrics(sent.messages, sent.bytes, bad.count, duplicates, sent.seconds)
    return TaskCommit(writer.name, writer.batch, bad.count, bad.staged, metrics)


@dataclass(slots=True)
class SentTotals:
    """What a task has sent, and how long it has waited for answers."""

    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0


def _send(
    sender: BlockingSender,
    options: SinkOptions,
    batch: pa.RecordBatch,
    encoded: Encoded,
    bad: BadRows,
    sent: SentTotals,
) -> None:
    """Send the messages of a batch, and add them to what was sent."""
    began = time.monotonic()
    refused = _send_all(sender, options, batch, encoded, bad)
    sent.seconds += time.monotonic() - began
    sent.messages += len(encoded.messages) - len(refused)
    sent.bytes += sum(len(message) for message in encoded.messages) - sum(refused)


def _send_all(
    sender: BlockingSender, options: SinkOptions, batch: pa.RecordBatch, encoded: Encoded, bad: BadRows
) -> list[int]:
    """Send the messages of a batch. If the broker refuses a message because of its content, it becomes a bad row. Returns
    the sizes of these."""
    messages, rows = encoded.messages, encoded.rows
    sizes: list[int] = []
    until: float | None = None
    pause = FIRST_PAUSE
    while messages:
        try:
            sender.send(messages)
            return sizes
        except SendFailed as error:
            refused = [
                index for index, (condition, _text) in error.failed.items() if condition in OF_ONE_MESSAGE
            ]
            bad.add(batch, [(rows[index], error.failed[index][1]) for index in refused])
            sizes += [len(messages[index]) for index in refused]
            others = sorted({*error.failed, *error.unknown}.difference(refused))
            if not others:
                return sizes
            # With ids the sender has retried for as long as it may. Without them this function retries.
            left = {index: error.failed[index] for index in others if index in error.failed}
            if options.once or not SendFailed(error.text, failed=left).retryable:
                raise
            messages, rows = [messages[index] for index in others], [rows[index] for index in others]
            failure: BusbarClientError = error
        except BusbarClientError as error:
            if options.once or not error.retryable:
                raise
            failure = error
        now = time.monotonic()
        until = until or now + options.wait
        if now + pause > until:
            raise failure
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    return sizes


def translated(error: BusbarClientError, options: SinkOptions) -> SinkError:
    """An error of the client in Spark's terms."""
    where = f"entity {options.entity!r}"
    conditions = {error.condition}
    if isinstance(error, SendFailed):
        conditions |= {condition for condition, _text in error.failed.values()}
    if BatchOver.default_condition in conditions:
        return SinkError(
            "BUSBAR_SINK_BATCH_OVER",
            f"A later batch of the same writer is committed in the {where}: this task is a leftover, or an old checkpoint "
            f"is written again. It has stored nothing since. {error.text}",
        )
    if isinstance(error, NotFound) or conditions & {"amqp:not-found", "amqp:resource-deleted"}:
        return SinkError(
            "BUSBAR_NOT_FOUND",
            f"The {where} (option 'entity') is not there, or was deleted while it was written to: {error.text}",
        )
    if isinstance(error, Unauthorized) or Unauthorized.default_condition in conditions:
        return SinkError(
            "BUSBAR_UNAUTHORIZED",
            f"The connection string does not give the right to send to the {where} (Send): {error.text}",
        )
    if isinstance(error, MessageTooLarge):
        return SinkError("BUSBAR_SINK_BAD_ROW", error.text)
    if error.retryable:
        return SinkError(
            "BUSBAR_UNAVAILABLE",
            f"The broker of the {where} did not answer for {options.wait:g} s (option 'waitForBroker'): {error.text}",
        )
    return SinkError("BUSBAR_REFUSED", f"The broker refused messages for the {where}: {error}")
