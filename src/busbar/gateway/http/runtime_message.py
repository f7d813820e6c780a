"""Converts a message between HTTP and AMQP, so that everything behind it is the same.

    HTTP                                        AMQP
    body                                        one data section (several are joined; a text value is its UTF-8)
    Content-Section (answers only)              the kind of the body: data, amqp-value or amqp-sequence
    Content-Type                                properties.content-type
    BrokerProperties: MessageId, To, ReplyTo,   properties: message-id, to, reply-to, correlation-id, subject, group-id,
      CorrelationId, Label, SessionId,            reply-to-group-id
      ReplyToSessionId
    PartitionKey, ViaPartitionKey,              message annotations x-opt-partition-key, x-opt-via-partition-key,
      ScheduledEnqueueTimeUtc                     x-opt-scheduled-enqueue-time
    TimeToLive, ForcePersistence                header.ttl (or the two times of the properties), header.durable
    other headers                               application properties

A stored message may have come over AMQP with anything in it that can be skipped. Parts that HTTP cannot show are left out,
and showing a message never fails. In an answer DeliveryCount counts this delivery too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from uuid import UUID

from busbar.amqp.codec import DecodeError, EncodeError, decode_value, encode_value
from busbar.amqp.types import Described, Symbol, Timestamp, UInt, ULong
from busbar.gateway.http.runtime_dates import date_text, seconds_text
from busbar.gateway.http.runtime_headers import headers_of
from busbar.gateway.http.runtime_properties import BrokerProperties
from busbar.message.decoded import DecodedMessage, decode_message, encode_message
from busbar.message.delivery import encode_delivery
from busbar.message.parsing import binary_id
from busbar.message.sections import (
    HEADER,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    VALUE,
    Sections,
    find_sections,
    value_of,
)
from busbar.model.errors import ArgumentError, MalformedMessage
from busbar.model.message import Record

DEFAULT_TYPE = "application/xml; charset=utf-8"
_SECTIONS = {VALUE: "amqp-value", SEQUENCE: "amqp-sequence"}
_FOREVER = 0xFFFFFFFF
_LAST_DATE = 253_402_300_799_999
_HEADER_TEXT = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_PARTITION_KEY = Symbol("x-opt-partition-key")
_VIA_PARTITION_KEY = Symbol("x-opt-via-partition-key")
_SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
_ENQUEUED_NUMBER = "x-opt-enqueue-sequence-number"
_DEAD_LETTER_SOURCE = "x-opt-deadletter-source"


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """A message in the form of an HTTP answer."""

    headers: dict[str, str]
    body: bytes


def compose(
    properties: BrokerProperties,
    custom: dict[str, object],
    content_type: str | None,
    body: bytes,
    now: int,
) -> bytes:
    """Return the message in AMQP's encoding. Raises ArgumentError for parts that AMQP cannot carry."""
    message = DecodedMessage(data=body, application_properties=custom)
    message.message_id = properties.message_id
    message.to = properties.to
    message.subject = properties.label
    message.reply_to = properties.reply_to
    message.correlation_id = properties.correlation_id
    message.content_type = Symbol(content_type) if content_type and content_type.isascii() else None
    message.group_id = properties.session_id
    message.reply_to_group_id = properties.reply_to_session_id
    ttl = properties.ttl
    if ttl >= _FOREVER:
        message.creation_time = Timestamp(now)
        message.absolute_expiry_time = Timestamp(min(now + ttl, _LAST_DATE))
        ttl = 0
    annotations: dict[object, object] = {}
    if properties.partition_key:
        annotations[_PARTITION_KEY] = properties.partition_key
    if properties.via_partition_key:
        annotations[_VIA_PARTITION_KEY] = properties.via_partition_key
    if properties.scheduled:
        annotations[_SCHEDULED] = Timestamp(properties.scheduled)
    front = b""
    try:
        if properties.force_persistence or ttl:
            header = [True if properties.force_persistence else None, None, UInt(ttl) if ttl else None]
            front += encode_value(Described(ULong(HEADER), header))
        if annotations:
            front += encode_value(Described(ULong(MESSAGE_ANNOTATIONS), annotations))
        return front + encode_message(message)
    except (EncodeError, UnicodeError) as error:
        raise ArgumentError(f"A property of the message cannot be stored: {error}") from None


def show(record: Record, number: int, lock: UUID | None, until: int) -> HttpMessage:
    """Return the delivered message; `lock` is None if the delivery has deleted it."""
    payload = encode_delivery(record, number, 0, -1)
    found = find_sections(payload, 0, len(payload))
    message = _decoded(payload, found)
    annotations = _annotations(payload, found)
    broker: dict[str, object] = {
        "DeliveryCount": record.deliveries + 1,
        "EnqueuedSequenceNumber": annotations.get(_ENQUEUED_NUMBER, 0),
        "EnqueuedTimeUtc": date_text(record.enqueued),
        "SequenceNumber": number,
        "State": "Active",
    }
    if lock is not None:
        broker["LockToken"] = str(lock)
        broker["LockedUntilUtc"] = date_text(until)
    if record.ttl:
        broker["TimeToLive"] = seconds_text(record.ttl)
        broker["ExpiresAtUtc"] = date_text(record.enqueued + record.ttl)
    scheduled = annotations.get(_SCHEDULED)
    if isinstance(scheduled, int) and scheduled:
        broker["ScheduledEnqueueTimeUtc"] = date_text(scheduled)
    for key, value in (
        ("MessageId", message.message_id),
        ("CorrelationId", message.correlation_id),
        ("Label", message.subject),
        ("To", message.to),
        ("ReplyTo", message.reply_to),
        ("SessionId", message.group_id),
        ("ReplyToSessionId", message.reply_to_group_id),
        ("PartitionKey", annotations.get(_PARTITION_KEY)),
        ("ViaPartitionKey", annotations.get(_VIA_PARTITION_KEY)),
        ("DeadLetterSource", annotations.get(_DEAD_LETTER_SOURCE)),
    ):
        text = _id_text(value)
        if text is not None:
            broker[key] = text
    if record.content is not None and record.content[0] & 1:
        broker["ForcePersistence"] = True
    headers = headers_of(message.application_properties)
    headers["BrokerProperties"] = json.dumps(broker)
    kind = message.content_type
    shown = isinstance(kind, str) and _HEADER_TEXT.fullmatch(kind) is not None
    headers["Content-Type"] = str(kind) if shown else DEFAULT_TYPE
    headers["Content-Section"] = _SECTIONS.get(found.body_code, "data")
    return HttpMessage(headers, _body(message))


def message_id_of(record: Record) -> str | None:
    """The message's id as in BrokerProperties."""
    payload = encode_delivery(record, record.n, 0, -1)
    return _id_text(_decoded(payload, find_sections(payload, 0, len(payload))).message_id)


def _decoded(payload: bytes, found: Sections) -> DecodedMessage:
    try:
        return decode_message(payload)
    except MalformedMessage:
        return DecodedMessage(data=payload[found.body : found.footer])


def _annotations(payload: bytes, found: Sections) -> dict[object, object]:
    try:
        decoded, _ = decode_value(payload, value_of(payload, found.annotations, found.end), found.properties)
    except DecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _id_text(value: object) -> str | None:
    """The text of an id, which has four types in AMQP: the same text that the broker compares."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return binary_id(value)
    if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    return None


def _body(message: DecodedMessage) -> bytes:
    if message.data is not None:
        return message.data
    value = message.value
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, bytes):
        return value
    return encode_value(value)
