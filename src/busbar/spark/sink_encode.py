"""Encodes record batches to messages, column by column where that is possible, with a reason for each row that cannot be
one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import pyarrow as pa

from busbar.message.compose import compose, has_message_id, with_message_id
from busbar.model.errors import BusbarError
from busbar.spark.sink_columns import TEXTS, ColumnPlan
from busbar.spark.sink_ids import hashed_id, source_id
from busbar.spark.sink_properties import PropertyColumn, milliseconds

Ids = Sequence[str | None]

UNSPEAKABLE = (ValueError, TypeError, OverflowError)
"""Raised for values that AMQP cannot carry."""

NO_ID = "it has no message id: the columns that make it are null"

_compose: Callable[..., bytes] = compose
GIVEN = -2
"""The index of the application properties in its arguments."""


@dataclass(slots=True)
class Encoded:
    """The result: `rows` has, for each message, its row in the batch; `bad` the others, each with a reason."""

    messages: list[bytes] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)


class MessageEncoder:
    """Encodes the rows of a frame. `once`: every message needs an id."""

    def __init__(self, plan: ColumnPlan, once: bool) -> None:
        self._plan = plan
        self._once = once

    def encode(self, batch: pa.RecordBatch) -> Encoded:
        return self._raw(batch) if self._plan.raw else self._composed(batch)

    # ---- messages as they are --------------------------------------------------------------------

    def _raw(self, batch: pa.RecordBatch) -> Encoded:
        made = Encoded()
        given = self._given_ids(batch)
        fallback: Ids | None = None
        for row, message in enumerate(batch.column(self._plan.fields["raw"]).to_pylist()):
            try:
                if message is None:
                    raise ValueError("its 'raw' is null")
                if given is not None:
                    message = with_message_id(message, _present(given[row]))
                elif not has_message_id(message):
                    fallback = fallback or self._source_ids(batch)
                    if fallback is not None and (self._once or fallback[row]):
                        message = with_message_id(message, _present(fallback[row]))
                    elif self._once:
                        raise ValueError("it has no message id")
            except (*UNSPEAKABLE, BusbarError) as error:
                made.bad.append((row, str(error)))
            else:
                made.messages.append(message)
                made.rows.append(row)
        return made

    # ---- messages from columns -------------------------------------------------------------------

    def _composed(self, batch: pa.RecordBatch) -> Encoded:
        count = batch.num_rows
        ids = self._ids(batch)
        lives = self._times(batch, "time_to_live")
        kinds = self._body_types(batch)
        properties = self._properties(batch)
        scheduled = self._times(batch, "scheduled_enqueue_time")
        given: Iterable[object] = repeat(None) if properties is None else map(properties.row, range(count))
        arguments: list[Iterable[Any]] = [
            self._bodies(batch),
            ids,
            *[self._texts(batch, name) for name in TEXTS[1:]],
            repeat(0) if lives is None else [life or 0 for life in lives],
            # A time before 1970 counts as not set: both are in the past.
            repeat(0) if scheduled is None else [max(0, due or 0) for due in scheduled],
            given,
            repeat(time.time_ns() // 1_000_000),
        ]
        faults = self._faults(ids, lives, kinds)
        if not faults:
            try:
                return Encoded(list(map(_compose, *arguments)), list(range(count)))
            except UNSPEAKABLE:
                pass  # one of them; which one is found below
        made = Encoded()
        arguments[GIVEN] = repeat(None)
        for row, values in enumerate(zip(*arguments, strict=False)):
            try:
                if row in faults:
                    raise ValueError(faults[row])
                message = _compose(
                    *values[:GIVEN], None if properties is None else properties.row(row), values[-1]
                )
            except UNSPEAKABLE as error:
                made.bad.append((row, str(error)))
            else:
                made.messages.append(message)
                made.rows.append(row)
        return made

    def _faults(self, ids: Ids, lives: Sequence[int | None] | None, kinds: Ids | None) -> dict[int, str]:
        """The faults, by row, that its encoding would not report."""
        found: dict[int, str] = {}
        for row, kind in enumerate(kinds or ()):
            if kind is not None and kind != "data":
                found[row] = (
                    f"its body has the form {kind!r}, which columns cannot say; set the option 'message' to 'raw'"
                )
        for row, life in enumerate(lives or ()):
            if life is not None and life <= 0:
                found[row] = f"its time_to_live is {life} ms; a message lives longer than that"
        if self._once and None in ids:
            found |= {row: NO_ID for row, id in enumerate(ids) if id is None}
        return found

    def _bodies(self, batch: pa.RecordBatch) -> Sequence[bytes]:
        column = batch.column(self._plan.fields["body"])
        if pa.types.is_string(column.type):
            column = column.cast(pa.binary())
        elif pa.types.is_large_string(column.type):
            column = column.cast(pa.large_binary())
        bodies: list[bytes | None] = column.to_pylist()
        return [body or b"" for body in bodies]

    def _texts(self, batch: pa.RecordBatch, name: str) -> Iterable[str | None]:
        index = self._plan.fields.get(name)
        return repeat(None) if index is None else _list(batch, index)

    def _times(self, batch: pa.RecordBatch, name: str) -> Sequence[int | None] | None:
        index = self._plan.fields.get(name)
        if index is None:
            return None
        column = batch.column(index)
        if pa.types.is_integer(column.type):
            found: list[int | None] = column.to_pylist()
            return found
        return milliseconds(column)

    def _body_types(self, batch: pa.RecordBatch) -> Sequence[str | None] | None:
        index = self._plan.body_type
        return None if index is None else _list(batch, index)

    def _properties(self, batch: pa.RecordBatch) -> PropertyColumn | None:
        index = self._plan.fields.get("properties")
        if index is None:
            return None
        return PropertyColumn(batch.column(index), self._plan.source_properties)

    # ---- ids -------------------------------------------------------------------------------------

    def _ids(self, batch: pa.RecordBatch) -> Ids:
        given = self._given_ids(batch)
        if given is not None:
            return given
        index = self._plan.fields.get("message_id")
        own = [None] * batch.num_rows if index is None else _list(batch, index)
        if all(own):
            return own
        others = self._source_ids(batch) or repeat(None, batch.num_rows)
        return [each or other for each, other in zip(own, others, strict=True)]

    def _given_ids(self, batch: pa.RecordBatch) -> Ids | None:
        """Ids that replace a message's own."""
        plan = self._plan
        if plan.id_columns:
            columns = [batch.column(index).to_pylist(maps_as_pydicts="strict") for index in plan.id_columns]
            return [hashed_id(values) for values in zip(*columns, strict=True)]
        return self._source_ids(batch) if plan.from_source else None

    def _source_ids(self, batch: pa.RecordBatch) -> Ids | None:
        """Ids of the messages that rows were made of; None if the frame does not have them."""
        source = self._plan.source
        if source is None:
            return None
        entities, numbers = batch.column(source[0]).to_pylist(), batch.column(source[1]).to_pylist()
        return [
            None if entity is None or number is None else source_id(entity, number)
            for entity, number in zip(entities, numbers, strict=True)
        ]


def _list(batch: pa.RecordBatch, index: int) -> list[str | None]:
    values: list[str | None] = batch.column(index).to_pylist()
    return values


def _present(message_id: str | None) -> str:
    if message_id is None:
        raise ValueError(NO_ID)
    return message_id
