"""Reads from links and requests which writer sends, for writers that may send a batch again.

A sender link with the properties WRITER and BATCH sends messages of that writer's batch, all with a message id. Send in
model/commands.py describes what the fragment does with them. A message that is sent again has to meet its first copy. So one
without a key goes to the fragment of its message id, and never to another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from busbar.model.commands import MAX_BATCH
from busbar.model.errors import ArgumentError
from busbar.partitions.sends import WriterBatch

WRITER: Final = "busbar:writer"
BATCH: Final = "busbar:batch"
LONGEST_NAME: Final = 256
MARK_PREFIX: Final = "\0"
"""Names of the broker's own begin so: the marks of messages that were moved."""


def writer_of(name: object, batch: object) -> WriterBatch:
    """Read a writer and its batch. Raises ArgumentError for what is none."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise ArgumentError(f"A writer is a text of 1 to {LONGEST_NAME} characters, not {name!r:.80}.")
    if name.startswith(MARK_PREFIX):
        raise ArgumentError(
            f"The name of a writer does not begin with the character NUL, as {name!r:.80} does."
        )
    if not isinstance(batch, int) or isinstance(batch, bool) or not 0 <= batch <= MAX_BATCH:
        raise ArgumentError(f"The batch of a writer is a number from 0 to {MAX_BATCH}, not {batch!r:.80}.")
    return WriterBatch(str(name), int(batch))


def writer_of_link(properties: Mapping[object, object]) -> WriterBatch | None:
    """The writer that a link's properties name; None if they name none. Raises ArgumentError."""
    if WRITER not in properties and BATCH not in properties:
        return None
    return writer_of(properties.get(WRITER), properties.get(BATCH))
