"""Runs in a task of a replay: rows of messages → encoded messages → the target, in the order of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

from busbar.amqp.codec import EncodeError
from busbar.client import BusbarClientError
from busbar.client.sender import Writer
from busbar.jobs.resending import MOST_EXAMPLES, Pace, Resender, ResendMessage, ResendResult, source_id
from busbar.model.errors import BusbarError
from busbar.operations.rewriting import EditError, rewritten
from busbar.spark.connection import client_of_process
from busbar.spark.secrets import Secret
from busbar.spark.sink import translated
from busbar.spark.sink_options import SinkOptions

COLUMNS: Final = ("raw", "entity", "sequence_number", "enqueued_time", "expires_at")
EDIT: Final = "edit"
"""Behind these columns are those of the edits: edit0, edit1, ..."""
RESULT: Final = "sent LONG, refused LONG, examples ARRAY<STRING>, known LONG, unsure LONG, is_counted BOOLEAN"
RESULT_ARROW: Final = pa.schema(
    [
        ("sent", pa.int64()),
        ("refused", pa.int64()),
        ("examples", pa.list_(pa.string())),
        ("known", pa.int64()),
        ("unsure", pa.int64()),
        ("is_counted", pa.bool_()),
    ]
)


def result_of(row: Any) -> ResendResult:
    """The result of a task, from its row."""
    return ResendResult(
        row["sent"], row["refused"], list(row["examples"]), row["known"], row["unsure"], row["is_counted"]
    )


@dataclass(frozen=True, slots=True)
class Task:
    """What tasks need; the same for all of them."""

    secret: Secret
    wait: float
    target: str
    writer: Writer
    rate: float
    """The rate of one task."""
    own_ids: bool
    """Messages keep their ids."""
    fields: tuple[str, ...]
    """The fields that the edits set, in their order."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = ResendResult()
        resender: Resender | None = None
        try:
            for batch in batches:
                if resender is None:
                    factory = client_of_process(self.secret, self.wait)
                    resender = Resender(factory, self.target, self.writer, Pace(self.rate))
                done.add(self._resend(resender, batch))
            if resender is not None:
                done.add(resender.dropped(repeats=_is_repeated()))
        except BusbarClientError as error:
            raise translated(error, self._sink_options()) from None
        finally:
            if resender is not None:
                resender.close()
        result = (done.sent, done.refused, done.examples, done.known, done.unsure, done.is_counted)
        columns = [[value] for value in result]
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, field.type) for values, field in zip(columns, RESULT_ARROW, strict=True)],
            schema=RESULT_ARROW,
        )

    def _resend(self, resender: Resender, batch: pa.RecordBatch) -> ResendResult:
        done = ResendResult()
        outgoing: list[ResendMessage] = []
        for name, made in self.messages(batch):
            if isinstance(made, bytes):
                outgoing.append(ResendMessage(made, name))
            else:
                done.add(ResendResult(0, 1, [f"{name}: {made}"]))
        refused = resender.send(outgoing)
        done.add(ResendResult(len(outgoing) - len(refused), len(refused), resender.told[:MOST_EXAMPLES]))
        return done

    def messages(self, batch: pa.RecordBatch) -> Iterator[tuple[str, bytes | Exception]]:
        """Each message of a batch, or the reason why it cannot be one."""
        raw, entities, numbers = (batch.column(index).to_pylist() for index in range(3))
        enqueued, expires = (_milliseconds(batch.column(index)) for index in (3, 4))
        edits = [batch.column(len(COLUMNS) + index).to_pylist() for index in range(len(self.fields))]
        for row, message in enumerate(raw):
            since, until = enqueued[row] or 0, expires[row]
            name = source_id(entities[row], numbers[row], since)
            try:
                if message is None:
                    raise ValueError("its 'raw' is null; it was archived without bodies")
                changes = {field: values[row] for field, values in zip(self.fields, edits, strict=True)}
                yield (
                    name,
                    rewritten(
                        message,
                        changes,
                        message_id=None if self.own_ids else name,
                        time_to_live=0 if until is None else max(0, until - since),
                    ),
                )
            except (EditError, EncodeError, ValueError, BusbarError) as error:
                yield name, error

    def _sink_options(self) -> SinkOptions:
        options = {
            **self.secret.options(),
            "entity": self.target,
            "waitForBroker": f"{int(self.wait * 1000)}ms",
        }
        return SinkOptions.parse(options, streaming=False)


def _is_repeated() -> bool:
    """Whether an earlier attempt of this task may have sent its messages."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def _milliseconds(column: pa.Array) -> list[int | None]:
    return [None if time is None else time // 1000 for time in column.cast(pa.int64()).to_pylist()]
