"""Writers that may repeat themselves: who they are, as links and requests say it.

A sender link with the properties WRITER and BATCH sends messages of that writer's batch, all with a message id. What the
fragment does with them stands in model/commands.py. Since a message that is sent again has to meet its first copy, one
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


def writer_of(name: object, batch: object) -> WriterBatch:
    """Raises ArgumentError for what is no writer or no batch of one."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise ArgumentError(f"A writer is a text of 1 to {LONGEST_NAME} characters, not {name!r:.80}.")
    if not isinstance(batch, int) or isinstance(batch, bool) or not 0 <= batch <= MAX_BATCH:
        raise ArgumentError(f"The batch of a writer is a number from 0 to {MAX_BATCH}, not {batch!r:.80}.")
    return WriterBatch(str(name), int(batch))


def writer_of_link(properties: Mapping[object, object]) -> WriterBatch | None:
    """The writer that a link's properties name; None if they name none. Raises ArgumentError."""
    if WRITER not in properties and BATCH not in properties:
        return None
    return writer_of(properties.get(WRITER), properties.get(BATCH))
