"""The offset of a stream: what Spark keeps in the checkpoint of a query.

An offset identifies its query, so that it cannot be used for another. It has a version, the entity (as the broker spells
it), the sub-queue, the stream, the tap and its owner. It has the incarnation of the entity, which changes when the entity is
deleted and created again. For each fragment it has the position of the last message that was read. It contains no secret.

Two fields are optional:

- `initial`: the query has not called the broker yet. Spark writes none of these into a checkpoint.
- `from`: where the batch that ends here begins, if that is not where the one before ended. This is the case for the first
  batch (Spark does not keep its beginning), and for one that continues behind a loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from busbar.model.names import key_of
from busbar.spark.errors import SourceError
from busbar.spark.options import SourceOptions

VERSION: Final = 1

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a batch."""

    entity: str
    sub_queue: str
    stream: str
    incarnation: str
    tap: str
    owner: str
    positions: Mapping[int, int]
    begins: Mapping[int, int] | None = None

    def to_json(self) -> Json:
        document: Json = {
            "busbar": VERSION,
            "entity": self.entity,
            "subQueue": self.sub_queue,
            "stream": self.stream,
            "incarnation": self.incarnation,
            "tap": self.tap,
            "owner": self.owner,
            "positions": _written(self.positions),
        }
        if self.begins is not None:
            document["from"] = _written(self.begins)
        return document


def initial(options: SourceOptions) -> Json:
    """The offset of a query that has not begun."""
    return {"busbar": VERSION, "entity": options.entity, "subQueue": options.sub_queue, "initial": True}


def is_initial(document: Mapping[str, Any]) -> bool:
    return document.get("initial") is True


def parse(document: Mapping[str, Any]) -> Offset:
    """Parse an offset. Raises SourceError if this version did not write it."""
    version = document.get("busbar")
    if not isinstance(version, int):
        raise SourceError(
            "BUSBAR_CHECKPOINT", "The checkpoint holds an offset that is not of the busbar format."
        )
    if version > VERSION:
        raise SourceError(
            "BUSBAR_CHECKPOINT_NEWER",
            f"The checkpoint was written by a newer Busbar (offsets of version {version}; this one reads {VERSION}). "
            "Install that version, or begin with another checkpoint.",
        )
    try:
        begins = document.get("from")
        return Offset(
            entity=str(document["entity"]),
            sub_queue=str(document["subQueue"]),
            stream=str(document["stream"]),
            incarnation=str(document["incarnation"]),
            tap=str(document["tap"]),
            owner=str(document["owner"]),
            positions=_read(document["positions"]),
            begins=None if begins is None else _read(begins),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError("BUSBAR_CHECKPOINT", f"The checkpoint holds a damaged offset: {error!r}.") from None


def checked(document: Mapping[str, Any], options: SourceOptions) -> Offset:
    """The offset, if it belongs to a query with these options."""
    offset = parse(document)
    same = key_of(offset.entity) == key_of(options.entity)
    said = {
        "entity": (offset.entity, offset.entity if same else options.entity),
        "subQueue": (offset.sub_queue, options.sub_queue),
        "stream": (offset.stream, options.stream),
        "tap": (offset.tap, options.tap or offset.tap),
        "owner": (offset.owner, options.owner or offset.owner),
    }
    for name, (kept, given) in said.items():
        if kept != given:
            raise SourceError(
                "BUSBAR_CHECKPOINT_MISMATCH",
                f"The checkpoint belongs to a query with {name} {kept!r}, but the option {name!r} says {given!r}. "
                "Use the option as it was, or begin with another checkpoint.",
            )
    return offset


def _written(positions: Mapping[int, int]) -> dict[str, int]:
    # In a fixed order: Spark compares offsets as text.
    return {str(index): positions[index] for index in sorted(positions)}


def _read(document: Mapping[str, Any]) -> dict[int, int]:
    return {int(index): int(position) for index, position in document.items()}
