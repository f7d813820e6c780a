"""The offset of a stream: what Spark keeps in the checkpoint of a query.

An offset identifies its query, so that it cannot be used for another. It has a version, the entity (as the broker spells
it), the sub-queue, the stream, the tap and its owner. It has the incarnation of the entity, which changes when the entity is
deleted and created again. For each fragment it has the position of the last message that was read. It contains no secret.

A query of several entities has an offset of version 2: such an offset for each entity, under `entities`. A query of one
entity has version 1, as before. A query of several entities accepts the checkpoint of a query that read one of them.

Two fields are optional:

- `initial`: the query has not read from an entity yet. A checkpoint has it only if no entity matches the pattern.
- `from`: where the batch that ends here begins, if that is not where the one before ended. This is the case for the first
  batch (Spark does not keep its beginning), and for one that continues behind a loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from busbar.model.names import key_of
from busbar.spark.entity_names import is_selected, label_of
from busbar.spark.errors import SourceError
from busbar.spark.options import SourceOptions

VERSION: Final = 1
SEVERAL: Final = 2
"""The version of an offset of several entities."""

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

    @property
    def key(self) -> str:
        """The entity or dead-letter queue that it belongs to, in one spelling."""
        return key_of(label_of(self.entity, self.sub_queue))

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
    if options.several:
        return {"busbar": SEVERAL, "initial": True}
    return {"busbar": VERSION, "entity": options.entity, "subQueue": options.sub_queue, "initial": True}


def is_initial(document: Mapping[str, Any]) -> bool:
    return document.get("initial") is True


def document_of(offsets: Iterable[Offset], options: SourceOptions) -> Json:
    """The offset of a query, from those of its entities."""
    found = sorted(offsets, key=lambda offset: offset.key)
    if not options.several:
        (only,) = found
        return only.to_json()
    return {
        "busbar": SEVERAL,
        "entities": {label_of(offset.entity, offset.sub_queue): offset.to_json() for offset in found},
    }


def parse_all(document: Mapping[str, Any]) -> list[Offset]:
    """Parse the offset of a query: an offset for each entity. Raises SourceError if this version did not write it."""
    if _version(document) < SEVERAL:
        return [parse(document)]
    entities = document.get("entities")
    if not isinstance(entities, Mapping) or not all(isinstance(each, Mapping) for each in entities.values()):
        raise SourceError("BUSBAR_CHECKPOINT", "The checkpoint holds a damaged offset: it has no entities.")
    return [parse(each) for each in entities.values()]


def _version(document: Mapping[str, Any]) -> int:
    version = document.get("busbar")
    if not isinstance(version, int):
        raise SourceError(
            "BUSBAR_CHECKPOINT", "The checkpoint holds an offset that is not of the busbar format."
        )
    if version > SEVERAL:
        raise SourceError(
            "BUSBAR_CHECKPOINT_NEWER",
            f"The checkpoint was written by a newer Busbar (offsets of version {version}; this one reads {SEVERAL}). "
            "Install that version, or begin with another checkpoint.",
        )
    return version


def parse(document: Mapping[str, Any]) -> Offset:
    """Parse the offset of one entity. Raises SourceError if this version did not write it."""
    _version(document)
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


def checked_all(document: Mapping[str, Any], options: SourceOptions) -> dict[str, Offset]:
    """The offsets of a query by the keys of their entities, if they belong to a query with these options."""
    found = parse_all(document)
    if not options.several and len(found) != 1:
        names = ", ".join(repr(label_of(offset.entity, offset.sub_queue)) for offset in found)
        raise _mismatch("entities", names, "entity", repr(options.entity))
    return {offset.key: _check(offset, options) for offset in found}


def _check(offset: Offset, options: SourceOptions) -> Offset:
    if options.several:
        label = label_of(offset.entity, offset.sub_queue)
        if not is_selected(label, options.entities, options.patterns):
            given = ", ".join([*options.entities, *options.patterns])
            raise _mismatch(
                "entity", repr(label), "entityPattern" if options.patterns else "entities", repr(given)
            )
        pairs = {}
    else:
        same = key_of(offset.entity) == key_of(options.entity)
        pairs = {
            "entity": (offset.entity, offset.entity if same else options.entity),
            "subQueue": (offset.sub_queue, options.sub_queue),
        }
    pairs |= {
        "stream": (offset.stream, options.stream),
        "tap": (offset.tap, options.tap or offset.tap),
        "owner": (offset.owner, options.owner or offset.owner),
    }
    for name, (kept, given) in pairs.items():
        if kept != given:
            raise _mismatch(name, repr(kept), name, repr(given))
    return offset


def _mismatch(field: str, kept: str, option: str, given: str) -> SourceError:
    return SourceError(
        "BUSBAR_CHECKPOINT_MISMATCH",
        f"The checkpoint belongs to a query with {field} {kept}, but the option {option!r} says {given}. "
        "Use the option as it was, or begin with another checkpoint.",
    )


def _written(positions: Mapping[int, int]) -> dict[str, int]:
    # In a fixed order: Spark compares offsets as text.
    return {str(index): positions[index] for index in sorted(positions)}


def _read(document: Mapping[str, Any]) -> dict[int, int]:
    return {int(index): int(position) for index, position in document.items()}
