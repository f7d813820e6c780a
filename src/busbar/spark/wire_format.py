"""How a body names its schema in a registry.

- Confluent: the body begins with a zero byte and the id in 4 bytes. In Protobuf the path of the message in its file follows:
  the number of steps and each step as zigzag varints. A single zero stands for the first message.
- Azure: the content type of the message ends with the id, as in `avro/binary+ID`. The body has nothing in front.
"""

from __future__ import annotations

import struct
from typing import Final

from busbar.spark.schema_registry import AZURE, RegistryOptions

MAGIC: Final = 0
HEADER: Final = 5
MAX_DEPTH: Final = 32
"""Steps in the path of a message."""


def schema_id_of(body: bytes, content_type: str | None, registry: RegistryOptions) -> tuple[str, bytes]:
    """The id of the schema that a body names, and what follows. Raises ValueError if it names none."""
    if registry.kind == AZURE:
        kind, plus, schema_id = (content_type or "").partition("+")
        if not plus or not schema_id:
            raise ValueError(
                f"the content type {content_type!r} names no schema; it is like 'avro/binary+ID'"
            )
        if kind.strip().lower() != "avro/binary":
            raise ValueError(f"the content type {content_type!r} is not that of Avro")
        return schema_id.strip(), body
    return confluent_id_of(body)


def confluent_id_of(body: bytes) -> tuple[str, bytes]:
    """The id in front of a body, and what follows. Raises ValueError if there is none."""
    if len(body) < HEADER or body[0] != MAGIC:
        raise ValueError("the body does not begin with the id of a schema")
    return str(struct.unpack_from(">I", body, 1)[0]), body[HEADER:]


def message_path_of(body: bytes) -> tuple[tuple[int, ...], bytes]:
    """The path of a message of Protobuf in its file, and the message. Raises ValueError."""
    count, at = _varint(body, 0)
    if count == 0:
        return (0,), body[at:]
    if not 0 < count <= MAX_DEPTH:
        raise ValueError(f"the path of the message has {count} steps")
    path: list[int] = []
    for _ in range(count):
        step, at = _varint(body, at)
        path.append(step)
    return tuple(path), body[at:]


def framed(schema_id: int, payload: bytes, path: tuple[int, ...] | None = None) -> bytes:
    """A body as Confluent's serializers write it; `path`: of a message of Protobuf."""
    head = struct.pack(">bI", MAGIC, schema_id)
    if path is None:
        return head + payload
    if path == (0,):
        return head + b"\0" + payload
    return head + b"".join(map(_encode_varint, (len(path), *path))) + payload


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint, and the position behind it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise ValueError("the path of the message does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _encode_varint(value: int) -> bytes:
    rest = value << 1 if value >= 0 else ((-value) << 1) - 1
    found = bytearray()
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)
