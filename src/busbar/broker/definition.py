"""An entity as it is written down: in the catalogue of a store, and on its way to a gateway of another process.

JSON, so that anyone can read a catalogue. Unknown fields are ignored and missing ones take their defaults: definitions of
an older or a newer version can be read.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from busbar.model.entities import EntityDescription, QueueDescription, TopicDescription
from busbar.model.port import EntityView


class _Definition(msgspec.Struct):
    kind: Literal["queue", "topic"]
    path: str
    fragments: tuple[int, ...]
    description: msgspec.Raw


_definitions = msgspec.json.Decoder(_Definition)
_queues = msgspec.json.Decoder(QueueDescription)
_topics = msgspec.json.Decoder(TopicDescription)


def encode_definition(view: EntityView) -> bytes:
    kind: Literal["queue", "topic"] = "queue" if isinstance(view.description, QueueDescription) else "topic"
    description = msgspec.Raw(msgspec.json.encode(view.description))
    return msgspec.json.encode(_Definition(kind, view.path, view.fragments, description))


def decode_definition(encoded: bytes) -> EntityView:
    """Raises msgspec.ValidationError or msgspec.DecodeError if it is not a definition."""
    definition = _definitions.decode(encoded)
    description: EntityDescription
    if definition.kind == "queue":
        description = _queues.decode(definition.description)
    else:
        description = _topics.decode(definition.description)
    return EntityView(definition.path, description, definition.fragments)
