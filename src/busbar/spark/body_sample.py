"""Infers the type of JSON bodies from a sample of the messages that a batch would read.

The sample has the first messages of each fragment from `startingPosition`, at most `bodySampleSize` of all, and at most
PAGE_BYTES of each fragment. So it is the same as long as these messages are there.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import DataType, StructType

from busbar.spark.batch_reader import EntityBatch
from busbar.spark.body_columns import BYTES
from busbar.spark.body_options import BodyOptions
from busbar.spark.body_schema import is_framed
from busbar.spark.connection import client_errors, entity_label, taps_of
from busbar.spark.decode import PageDecoder
from busbar.spark.entity_discovery import entities_of
from busbar.spark.errors import OptionError
from busbar.spark.json_bodies import infer_type
from busbar.spark.options import PAGE_BYTES, SourceOptions
from busbar.spark.schema import MESSAGES
from busbar.spark.wire_format import confluent_id_of


def infer_body_type(options: SourceOptions, body: BodyOptions) -> DataType:
    """The type of the bodies of a sample. Raises OptionError if there are none, SourceError."""
    bodies = list(_sample(options, body))
    found = infer_type(bodies)
    if found is None:
        where = ", ".join(options.entities or options.patterns) or entity_label(options)
        raise OptionError(
            "bodySchema",
            f"is missing, and it cannot be inferred: of the first {len(bodies)} messages of {where!r} none is JSON.",
        )
    return found


def _sample(options: SourceOptions, body: BodyOptions) -> Iterator[bytes]:
    decoder = PageDecoder(StructType([MESSAGES["body"], MESSAGES["body_type"]]))
    left = body.sample_size
    for each in entities_of(options):
        part, begins, ends = EntityBatch(each).bounds()
        for index, end in ends.items():
            after = begins[index]
            if left == 0 or end <= after:
                continue
            with client_errors(each):
                page = taps_of(each).read(part.tap, index, after, end, count=left, max_bytes=PAGE_BYTES)
            left -= page.count
            rows = decoder.batch(part.entity, part.sub_queue, index, page.rows)
            for content, kind in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                if content is not None and kind in BYTES:
                    yield _without_id(content, body)


def _without_id(content: bytes, body: BodyOptions) -> bytes:
    if not is_framed(body.registry):
        return content
    try:
        return confluent_id_of(content)[1]
    except ValueError:
        return b""
