"""A message decoded in full, for the nodes that answer requests ($cbs and $management).

Fields keep their AMQP types: a reply must carry the request's message-id as its correlation-id in the same type, or
SDKs drop it. Entities never decode messages this way; they keep the bytes (__init__.py).
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from busbar.amqp.codec import DecodeError, decode_value, encode_value, write_value
from busbar.amqp.types import Described, ULong
from busbar.message.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    PROPERTIES,
    VALUE,
    Sections,
    data_sections,
    find_sections,
    value_of,
)
from busbar.model.errors import MalformedMessage

_FIELDS: Final = 13
LARGE: Final = 16 * 1024


@final
class DecodedMessage:
    """Properties by name (None: not set), application properties and a body.

    `value` is the amqp-value, or the list of amqp-sequence sections; `data` is the joined data sections, or None when
    the body is a value. A message whose `data` is None is encoded with an amqp-value section.
    """

    def __init__(
        self,
        value: object = None,
        data: bytes | None = None,
        application_properties: dict[str, object] | None = None,
    ) -> None:
        self.message_id: object = None
        self.user_id: object = None
        self.to: object = None
        self.subject: object = None
        self.reply_to: object = None
        self.correlation_id: object = None
        self.content_type: object = None
        self.content_encoding: object = None
        self.absolute_expiry_time: object = None
        self.creation_time: object = None
        self.group_id: object = None
        self.group_sequence: object = None
        self.reply_to_group_id: object = None
        self.application_properties: dict[str, object] = (
            {} if application_properties is None else application_properties
        )
        self.value: object = value
        self.data: bytes | None = data


def decode_message(payload: bytes, most: i64 = 0) -> DecodedMessage:
    """Decode a message. Raises MalformedMessage. `most`: the maximum number of elements in the compounds of a section; 0 for
    no limit."""
    found = find_sections(payload, 0, len(payload))
    message = DecodedMessage()
    try:
        _read_properties(payload, found, message, most)
        _read_application_properties(payload, found, message, most)
        _read_body(payload, found, message, most)
    except DecodeError as error:
        raise MalformedMessage(str(error)) from None
    return message


@final
class BinaryParts:
    """A binary value in consecutive pieces, in a map that is a message's body. Joining them first would cost one
    more copy."""

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts

    def size(self) -> int:
        size: i64 = 0
        for part in self.parts:
            size += len(part)
        return size


def encode_message(message: DecodedMessage) -> bytes:
    """Encode properties (without trailing nulls), application properties, and the body."""
    w = BytesWriter()
    fields = [
        message.message_id,
        message.user_id,
        message.to,
        message.subject,
        message.reply_to,
        message.correlation_id,
        message.content_type,
        message.content_encoding,
        message.absolute_expiry_time,
        message.creation_time,
        message.group_id,
        message.group_sequence,
        message.reply_to_group_id,
    ]
    while fields and fields[-1] is None:
        fields.pop()
    if fields:
        write_value(w, Described(ULong(PROPERTIES), fields))
    if message.application_properties:
        write_value(w, Described(ULong(APPLICATION_PROPERTIES), message.application_properties))
    if message.data is not None:
        write_value(w, Described(ULong(DATA), message.data))
        return w.getvalue()
    value = message.value
    if isinstance(value, dict):
        for item in value.values():
            if isinstance(item, BinaryParts) or (isinstance(item, bytes) and len(item) >= LARGE):
                return _with_large_map(w.getvalue(), value)
    write_value(w, Described(ULong(VALUE), value))
    return w.getvalue()


def _with_large_map(front: bytes, value: dict[object, object]) -> bytes:
    """The sections in front, and that of a map with a large binary value. That value is copied once: `write_value` would
    copy it for each compound around it, through buffers that grow."""
    parts: list[bytes] = [front, b""]
    for key, item in value.items():
        parts.append(encode_value(key))
        if isinstance(item, BinaryParts):
            parts.append(b"\xb0" + item.size().to_bytes(4, "big"))
            parts.extend(item.parts)
        elif isinstance(item, bytes) and len(item) >= LARGE:
            parts.append(b"\xb0" + len(item).to_bytes(4, "big"))
            parts.append(item)
        else:
            parts.append(encode_value(item))
    size = 4 - len(front)
    for part in parts:
        size += len(part)
    parts[1] = b"\x00\x53\x77\xd1" + size.to_bytes(4, "big") + (2 * len(value)).to_bytes(4, "big")
    return b"".join(parts)


def _read_properties(payload: bytes, found: Sections, message: DecodedMessage, most: i64) -> None:
    if found.properties == found.application:
        return
    decoded, _ = decode_value(
        payload, value_of(payload, found.properties, found.end), found.application, most
    )
    fields = decoded if isinstance(decoded, list) else []
    if len(fields) > _FIELDS:
        raise MalformedMessage(f"the properties have {len(fields)} fields, not at most {_FIELDS}")
    fields += [None] * (_FIELDS - len(fields))
    message.message_id = fields[0]
    message.user_id = fields[1]
    message.to = fields[2]
    message.subject = fields[3]
    message.reply_to = fields[4]
    message.correlation_id = fields[5]
    message.content_type = fields[6]
    message.content_encoding = fields[7]
    message.absolute_expiry_time = fields[8]
    message.creation_time = fields[9]
    message.group_id = fields[10]
    message.group_sequence = fields[11]
    message.reply_to_group_id = fields[12]


def _read_application_properties(payload: bytes, found: Sections, message: DecodedMessage, most: i64) -> None:
    if found.application == found.body:
        return
    decoded, _ = decode_value(payload, value_of(payload, found.application, found.end), found.body, most)
    entries = decoded if isinstance(decoded, dict) else {}
    for key, value in entries.items():
        if not isinstance(key, str):
            raise MalformedMessage(f"the name of an application property is not a string: {key!r}")
        message.application_properties[str(key)] = value


def _read_body(payload: bytes, found: Sections, message: DecodedMessage, most: i64) -> None:
    if found.body_code == VALUE:
        message.value = decode_value(payload, value_of(payload, found.body, found.end), found.footer, most)[0]
    elif found.body_code == DATA:
        message.data = b"".join([payload[start:end] for start, end in data_sections(payload, found)])
    elif found.body < found.footer:
        rows: list[object] = []
        pos: int = found.body
        while pos < found.footer:
            row, pos = decode_value(payload, value_of(payload, pos, found.end), found.footer, most)
            rows.append(row)
        message.value = rows
