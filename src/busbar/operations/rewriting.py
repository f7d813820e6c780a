"""A copy of a message with some fields changed, and everything else as it was.

    session_id, partition_key, correlation_id, subject, content_type, to, reply_to, reply_to_session_id   a text
    body                      binary or text; it becomes one data section
    time_to_live              milliseconds
    scheduled_enqueue_time    a timestamp
    properties.NAME           text, boolean, integer (a long), float (a double), timestamp, binary

None removes a field. A message cannot have a partition key that differs from its session. So if a change sets only the
session, the key is removed.

Only the sections that a change touches are encoded again. The others, above all the body, are copied byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from busbar.amqp.codec import decode_value, encode_value
from busbar.amqp.types import Described, Symbol, Timestamp, UInt, ULong
from busbar.message.compose import LONGEST_TTL
from busbar.message.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    find_sections,
    value_of,
)

TEXTS: Final = {
    "to": 2,
    "subject": 3,
    "reply_to": 4,
    "correlation_id": 5,
    "content_type": 6,
    "session_id": 10,
    "reply_to_session_id": 12,
}
"""Fields of the properties section, and their index in it (AMQP 1.0, part 3, section 3.2.4)."""
PARTITION_KEY: Final = "partition_key"
SCHEDULED: Final = "scheduled_enqueue_time"
TIME_TO_LIVE: Final = "time_to_live"
BODY: Final = "body"
FIELDS: Final = (*TEXTS, PARTITION_KEY, SCHEDULED, TIME_TO_LIVE, BODY)
PROPERTY: Final = "properties."

ORIGINAL_ID: Final = "original-message-id"
"""The application property with the id that a message had before it was sent again under another one."""
DEAD_LETTER_PROPERTIES: Final = ("DeadLetterReason", "DeadLetterErrorDescription")

_PARTITION_KEY: Final = Symbol("x-opt-partition-key")
_SCHEDULED: Final = Symbol("x-opt-scheduled-enqueue-time")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Changes = Mapping[str, object]
"""The new values of fields, by their names; None removes one."""


class EditError(ValueError):
    """An edit that cannot be performed."""


def rewritten(
    message: bytes,
    changes: Changes,
    *,
    message_id: str | None = None,
    time_to_live: int = 0,
    without: Sequence[str] = (),
) -> bytes:
    """An encoded message with these changes.

    With `message_id` that becomes its id; the old one is in the property ORIGINAL_ID, unless there is one already. A message
    without a time to live gets `time_to_live` (ms). The application properties `without` are removed. What only a broker
    sets (the delivery count) is left out. Raises MalformedMessage, EncodeError, EditError.
    """
    found = find_sections(message, 0, len(message))
    header = _list(message, found.header, found.delivery_annotations, found.end)
    fields = _list(message, found.properties, found.application, found.end)
    properties: dict[object, object] = dict.fromkeys(without)
    for name, value in changes.items():
        if name.startswith(PROPERTY):
            properties[name[len(PROPERTY) :]] = _value(name, value)
    before = None
    if message_id is not None:
        before = fields[0] if fields else None
        _put(fields, 0, message_id)
    texts = [(index, changes[name]) for name, index in TEXTS.items() if name in changes]
    for index, text in texts:
        _put(fields, index, text)
    parts = [_header(header, changes, time_to_live)]
    parts.append(_annotations(message[found.annotations : found.properties], changes))
    if texts or message_id is not None:
        parts.append(_section(PROPERTIES, fields) if fields else b"")
    else:
        parts.append(message[found.properties : found.application])
    parts.append(_application(message[found.application : found.body], properties, before))
    if BODY in changes:
        parts.append(_section(DATA, _binary(changes[BODY])))
    else:
        parts.append(message[found.body : found.footer])
    parts.append(message[found.footer : found.end])
    return b"".join(parts)


def _header(fields: list[object], changes: Changes, time_to_live: int) -> bytes:
    """Durable, priority and the time to live; other fields of a header are between a broker and its receiver."""
    said = [*fields[:3], None, None, None][:3]
    if TIME_TO_LIVE in changes:
        time_to_live = _positive(changes[TIME_TO_LIVE])
        said[2] = None
    if said[2] is None and time_to_live:
        if time_to_live > LONGEST_TTL:
            if TIME_TO_LIVE in changes:
                raise EditError(f"a time to live of {time_to_live} ms is longer than {LONGEST_TTL}")
        else:
            said[2] = UInt(time_to_live)
    while said and (said[-1] is None or said[-1] is False):
        said.pop()
    return _section(HEADER, said) if said else b""


def _annotations(section: bytes, changes: Changes) -> bytes:
    keyless = "session_id" in changes and PARTITION_KEY not in changes
    if not keyless and PARTITION_KEY not in changes and SCHEDULED not in changes:
        return section
    pairs = _map(section)
    if keyless:
        pairs.pop(_PARTITION_KEY, None)
    if PARTITION_KEY in changes:
        _set(pairs, _PARTITION_KEY, changes[PARTITION_KEY])
    if SCHEDULED in changes:
        _set(pairs, _SCHEDULED, _value(SCHEDULED, changes[SCHEDULED]))
    return _section(MESSAGE_ANNOTATIONS, pairs) if pairs else b""


def _application(section: bytes, changes: dict[object, object], original_id: object) -> bytes:
    if not changes and original_id is None:
        return section
    pairs = _map(section)
    if original_id is not None and ORIGINAL_ID not in pairs:
        changes = {ORIGINAL_ID: original_id} | changes
    changes = {name: value for name, value in changes.items() if value is not None or name in pairs}
    if not changes:
        return section
    for name, value in changes.items():
        _set(pairs, name, value)
    return _section(APPLICATION_PROPERTIES, pairs) if pairs else b""


def _set(pairs: dict[object, object], name: object, value: object) -> None:
    if value is None:
        pairs.pop(name, None)
    else:
        pairs[name] = value


def _put(fields: list[object], index: int, value: object) -> None:
    if len(fields) <= index:
        fields.extend([None] * (index + 1 - len(fields)))
    fields[index] = Symbol(value) if index == TEXTS["content_type"] and isinstance(value, str) else value


def _value(name: str, value: object) -> object:
    """A value of Spark as one of AMQP."""
    if isinstance(value, datetime):
        aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return Timestamp((aware - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, bytearray):
        return bytes(value)
    if value is None or isinstance(value, (str, bool, int, float, bytes)):
        return value
    raise EditError(f"{name!r} cannot be a {type(value).__name__}")


def _positive(value: object) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or value <= 0:
        raise EditError(f"a time to live of {value!r} ms; it is longer than 0, or null")
    return int(value)


def _binary(value: object) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise EditError(f"a body cannot be a {type(value).__name__}")


def _section(code: int, value: object) -> bytes:
    return encode_value(Described(ULong(code), value))


def _list(message: bytes, start: int, stop: int, end: int) -> list[object]:
    if start == stop:
        return []
    value, _ = decode_value(message, value_of(message, start, end), stop)
    return list(value) if isinstance(value, list) else []


def _map(section: bytes) -> dict[object, object]:
    if not section:
        return {}
    value, _ = decode_value(section, value_of(section, 0, len(section)), len(section))
    return dict(value) if isinstance(value, dict) else {}
