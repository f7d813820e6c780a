"""A message as plain values, for a table, a page or JSON; its body as text, JSON or hexadecimal digits.

1. Nothing is lost. A value that has no plain form is shown as its text. A message that cannot be decoded is shown with the
   reason and its bytes, because a person who looks for a fault looks for that message.
2. Texts are as they came. The command or the page that shows them escapes what acts on a terminal or in a page.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from busbar.amqp.codec import DecodeError
from busbar.amqp.types import Array, Described, Timestamp
from busbar.client.received import PeekedMessage
from busbar.message.sections import DATA, VALUE
from busbar.model.errors import MalformedMessage

OWN_ANNOTATIONS: Final = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-scheduled-enqueue-time",
        "x-opt-partition-key",
        "x-opt-deadletter-source",
    }
)
"""Annotations that have a field of their own in a view."""
HEX_WIDTH: Final = 16
LATEST: Final = 253_402_300_799_000
"""The end of the year 9999 in ms: times behind it have no date."""


class BodyForm(StrEnum):
    """How a body is written. AUTO is JSON or text where the body is one, else hexadecimal digits."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class MessageView:
    """Times are ms since 1970; 0 means that there is none."""

    sequence_number: int
    state: str
    """Active, Deferred or Scheduled."""
    locked_until: int
    enqueued: int
    scheduled: int
    expires: int
    delivery_count: int
    time_to_live: int
    body: bytes
    """The data of the message, or the text of its AMQP value."""
    body_kind: str
    """data, value or sequence."""
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    correlation_id: str | None = None
    subject: str | None = None
    content_type: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None
    dead_letter_source: str | None = None
    properties: dict[str, object] = field(default_factory=dict)
    """Application properties as plain values."""
    annotations: dict[str, object] = field(default_factory=dict)
    """Message annotations that no other field has, as plain values."""
    problem: str = ""
    """Why the message cannot be decoded; `body` is then the whole message as it came."""


def view_of(message: PeekedMessage) -> MessageView:
    """The view of a message that was peeked or received."""
    try:
        return _view(message)
    except (MalformedMessage, DecodeError) as error:
        return _undecoded(message, str(error))


def _view(message: PeekedMessage) -> MessageView:
    decoded = message.decode()
    body, kind = _body(message, decoded.data, decoded.value)
    annotations = {str(key): value for key, value in message.annotations.items()}
    return MessageView(
        sequence_number=message.sequence_number,
        state=message.state.capitalize(),
        locked_until=message.locked_until,
        enqueued=message.enqueued_time,
        scheduled=message.scheduled_enqueue_time,
        expires=_expires(message, decoded.absolute_expiry_time),
        delivery_count=message.delivery_count,
        time_to_live=message.time_to_live,
        body=body,
        body_kind=kind,
        message_id=message.message_id,
        session_id=message.session_id,
        partition_key=message.partition_key,
        correlation_id=message.correlation_id,
        subject=message.subject,
        content_type=message.content_type,
        to=message.to,
        reply_to=message.reply_to,
        reply_to_session_id=message.reply_to_session_id,
        dead_letter_reason=message.dead_letter_reason,
        dead_letter_description=message.dead_letter_error_description,
        dead_letter_source=message.dead_letter_source,
        properties={name: plain(value) for name, value in decoded.application_properties.items()},
        annotations={
            name: plain(value) for name, value in annotations.items() if name not in OWN_ANNOTATIONS
        },
    )


def _undecoded(message: PeekedMessage, problem: str) -> MessageView:
    """What the broker itself wrote in front of the message can still be read."""
    return MessageView(
        sequence_number=message.sequence_number,
        state=message.state.capitalize(),
        locked_until=message.locked_until,
        enqueued=message.enqueued_time,
        scheduled=message.scheduled_enqueue_time,
        expires=0,
        delivery_count=message.delivery_count,
        time_to_live=message.time_to_live,
        body=message.payload,
        body_kind="data",
        problem=problem,
    )


def _body(message: PeekedMessage, data: bytes | None, value: object) -> tuple[bytes, str]:
    code = message.sections.body_code
    if code == DATA or data is not None:
        return data or b"", "data"
    kind = "value" if code == VALUE else "sequence"
    if isinstance(value, bytes):
        return value, kind
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass"), kind
    if value is None:
        return b"", kind
    return json.dumps(plain(value), ensure_ascii=False).encode("utf-8", "surrogatepass"), kind


def _expires(message: PeekedMessage, absolute: object) -> int:
    if message.dead_letter_reason is not None:
        return 0  # nothing expires in a dead-letter queue
    if isinstance(absolute, int) and not message.time_to_live:
        return int(absolute)
    return message.enqueued_time + message.time_to_live if message.time_to_live else 0


def plain(value: object) -> object:
    """A value of AMQP as one of JSON."""
    if isinstance(value, Timestamp):
        return time_text(int(value))
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Array):
        return [plain(item) for item in value.items]
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, Described):
        return plain(value.value)
    return str(value)


def time_text(ms: int) -> str:
    """A time as text, like 2026-01-31T12:00:00.000Z; empty for 0."""
    if not ms:
        return ""
    if not 0 < ms <= LATEST:
        return str(ms)
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def body_text(body: bytes, form: BodyForm = BodyForm.AUTO) -> str:
    """A body as text. Bytes that are no text are escaped. JSON is indented; a body that is no JSON is shown as text."""
    if form is BodyForm.HEX:
        return hex_text(body)
    found = text_of(body)
    if form is BodyForm.TEXT:
        return body.decode("utf-8", "backslashreplace") if found is None else found
    if found is None:
        return hex_text(body) if form is BodyForm.AUTO else body.decode("utf-8", "backslashreplace")
    return _indented(found)


def text_of(body: bytes) -> str | None:
    """The text of a body; None if it is not UTF-8, or has the NUL character."""
    try:
        found = body.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in found else found


def _indented(text: str) -> str:
    """JSON with indents, if the text is an object or an array; else the text."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _spaced(text)


_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def _spaced(text: str) -> str:
    """JSON in lines. Each token stays as it was written: no number loses digits, and no key that is there twice is lost."""
    parts: list[str] = []
    depth = 0
    previous = ""
    for token in _TOKEN.findall(text):
        if token in "}]":
            depth -= 1
            if previous not in ("{", "["):
                parts.append("\n" + "  " * depth)
        elif previous in ("{", "[", ","):
            parts.append("\n" + "  " * depth)
        elif previous == ":":
            parts.append(" ")
        parts.append(token)
        if token in ("{", "["):
            depth += 1
        previous = token
    return "".join(parts)


def hex_text(body: bytes) -> str:
    """Bytes in lines of 16: where the line begins, the digits, and the characters."""
    lines = []
    for start in range(0, len(body), HEX_WIDTH):
        part = body[start : start + HEX_WIDTH]
        digits = part.hex(" ")
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {digits:<{3 * HEX_WIDTH - 1}}  {characters}")
    return "\n".join(lines)


def as_json(view: MessageView) -> dict[str, object]:
    """A view as a value of JSON. All keys are always there."""
    return {
        "sequenceNumber": view.sequence_number,
        "state": view.state,
        "enqueuedTimeUtc": time_text(view.enqueued),
        "scheduledEnqueueTimeUtc": time_text(view.scheduled) or None,
        "expiresAtUtc": time_text(view.expires) or None,
        "lockedUntilUtc": time_text(view.locked_until) or None,
        "deliveryCount": view.delivery_count,
        "timeToLiveMs": view.time_to_live or None,
        "messageId": view.message_id,
        "sessionId": view.session_id,
        "partitionKey": view.partition_key,
        "correlationId": view.correlation_id,
        "subject": view.subject,
        "contentType": view.content_type,
        "to": view.to,
        "replyTo": view.reply_to,
        "replyToSessionId": view.reply_to_session_id,
        "deadLetterReason": view.dead_letter_reason,
        "deadLetterErrorDescription": view.dead_letter_description,
        "deadLetterSource": view.dead_letter_source,
        "properties": view.properties,
        "annotations": view.annotations,
        "body": text_of(view.body),
        "bodyKind": view.body_kind,
        "bodyBase64": base64.b64encode(view.body).decode("ascii"),
        "problem": view.problem or None,
    }


def fields_of(message: MessageView) -> dict[str, str]:
    """The fields of a message as texts with their names for people; empty where it has none."""
    return {
        "Message id": message.message_id or "",
        "State": message.state,
        "Locked until": time_text(message.locked_until),
        "Enqueued": time_text(message.enqueued),
        "Scheduled for": time_text(message.scheduled),
        "Expires": time_text(message.expires),
        "Deliveries": str(message.delivery_count),
        "Session id": message.session_id or "",
        "Partition key": message.partition_key or "",
        "Correlation id": message.correlation_id or "",
        "Subject": message.subject or "",
        "Content type": message.content_type or "",
        "To": message.to or "",
        "Reply to": message.reply_to or "",
        "Reply to session": message.reply_to_session_id or "",
        "Dead-letter reason": message.dead_letter_reason or "",
        "Description": message.dead_letter_description or "",
        "Dead-letter source": message.dead_letter_source or "",
        "Problem": message.problem,
        "Body": f"{len(message.body):,} bytes ({message.body_kind})",
    }
