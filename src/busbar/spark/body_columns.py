"""Adds the decoded bodies to batches of rows: a column `value`, and on request `body_error`.

A body that does not fit concerns its own row alone. A message without a body, or with a body of other AMQP types than bytes
and text, does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from busbar.spark.body_options import DROP, FAIL, BodyOptions
from busbar.spark.body_schema import ERROR, VALUE, BodyDecoder
from busbar.spark.connection import log
from busbar.spark.decode import PageDecoder
from busbar.spark.entity_names import label_of
from busbar.spark.errors import OptionError, SourceError
from busbar.spark.schema import MESSAGES

BYTES: Final = ("data", "string", "binary")
"""Types of bodies that are the sender's own bytes or text; others are in the encoding of AMQP."""
MAX_REASON: Final = 500
"""Characters of a reason."""

Decoded = tuple[Any, str | None]
"""A value, and the reason why there is none."""


class BodyColumns:
    """Decodes the bodies of batches."""

    def __init__(self, decoder: BodyDecoder, wanted: StructType, bad: str) -> None:
        self._decoder = decoder
        self._bad = bad
        self._names = wanted.fieldNames()
        # If a program asks for the errors alone, bodies are decoded all the same.
        value = wanted[VALUE] if VALUE in self._names else StructField(VALUE, decoder.type)
        fields = StructType([value, StructField(ERROR, StringType())])
        self._fields = {field.name: field for field in to_arrow_schema(fields, timezone="UTC")}
        self._kind: pa.DataType = self._fields[VALUE].type

    def add(self, batch: pa.RecordBatch, label: str) -> pa.RecordBatch:
        """The batch with the columns that are wanted. Raises SourceError if a body does not fit and that fails the read."""
        decoded = self._decode(batch)
        values, reasons = self._convert(decoded)
        bad = [index for index, reason in enumerate(reasons) if reason is not None]
        if bad and self._bad == FAIL:
            raise _bad_body(batch, bad[0], reasons[bad[0]] or "", label)
        own = {VALUE: values, ERROR: pa.array(reasons, pa.string())}
        made = pa.RecordBatch.from_arrays(
            [own[name] if name in own else batch.column(name) for name in self._names],
            schema=pa.schema([self._fields.get(name) or batch.schema.field(name) for name in self._names]),
        )
        if bad and self._bad == DROP:
            log.warning("Left out %d messages of %r whose bodies do not fit.", len(bad), label)
            made = made.filter(pa.array([reason is None for reason in reasons], pa.bool_()))
        return made

    def _decode(self, batch: pa.RecordBatch) -> list[Decoded]:
        names = batch.schema.names
        bodies = batch.column("body").to_pylist()
        nothing: list[None] = [None] * len(bodies)
        types = batch.column("body_type").to_pylist() if "body_type" in names else nothing
        contents = batch.column("content_type").to_pylist() if "content_type" in names else nothing
        return [
            self._decode_one(body, kind, content)
            for body, kind, content in zip(bodies, types, contents, strict=True)
        ]

    def _decode_one(self, body: bytes | None, kind: str | None, content: str | None) -> Decoded:
        if body is None:
            return None, "the message has no body"
        if kind is not None and kind not in BYTES:
            return None, f"the body is an AMQP {kind}, not bytes or text"
        try:
            return self._decoder.decode(body, content), None
        except (SourceError, OptionError):
            raise  # the registry failed, which is no fault of the body
        except Exception as error:  # bytes of another format can raise any exception
            return None, _reason(error)

    def _convert(self, decoded: Sequence[Decoded]) -> tuple[pa.Array, list[str | None]]:
        """The values as an array. A value that Arrow cannot hold, such as a decimal with too many digits, does not fit."""
        values = [value for value, _ in decoded]
        reasons = [reason for _, reason in decoded]
        try:
            return pa.array(values, self._kind), reasons
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            pass
        for index, value in enumerate(values):
            try:
                pa.array([value], self._kind)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                values[index], reasons[index] = None, _reason(error)
        return pa.array(values, self._kind), reasons


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 3] + "..."


def _bad_body(batch: pa.RecordBatch, index: int, reason: str, label: str) -> SourceError:
    names = batch.schema.names
    number = batch.column("sequence_number")[index].as_py() if "sequence_number" in names else None
    which = "A body" if number is None else f"The body of message {number}"
    return SourceError(
        "BUSBAR_BAD_BODY",
        f"{which} of {label!r} does not fit the schema: {reason}. The option 'badBodies' can be 'column', 'null' or 'drop'.",
    )


class BodyPageDecoder(PageDecoder):
    """Decodes pages to batches that also have the columns of decoded bodies."""

    def __init__(self, wanted: StructType, decoder: BodyDecoder, options: BodyOptions) -> None:
        own = [field for field in wanted.fields if field.name not in (VALUE, ERROR)]
        there = {field.name for field in own}
        needed = ("sequence_number", "body", "body_type", "content_type")
        super().__init__(StructType([*own, *(MESSAGES[name] for name in needed if name not in there)]))
        self._bodies = BodyColumns(decoder, wanted, options.bad)

    def batch(self, entity: str, sub_queue: str, index: int, rows: bytes) -> pa.RecordBatch:
        return self._bodies.add(super().batch(entity, sub_queue, index, rows), label_of(entity, sub_queue))
