"""Messages to send, by their fields."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import datetime

from busbar.amqp.types import Timestamp
from busbar.message.compose import LONGEST_TTL, compose

_RANDOM_BITS = ~(0xC000 << 48 | 0xF000 << 64)
_VERSION = 0x8000 << 48 | 4 << 76


def new_message_id() -> str:
    """A random UUID (version 4) in hexadecimal digits, without the cost of the object."""
    return f"{random.getrandbits(128) & _RANDOM_BITS | _VERSION:032x}"


@dataclass(slots=True)
class OutgoingMessage:
    """A message to send. Times are ms; 0 means not set. Without an id it gets one when it is encoded.

    Values of application properties may have the types of `busbar.amqp.types`. A plain int is a long, a datetime a time.
    """

    body: bytes = b""
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    correlation_id: str | None = None
    subject: str | None = None
    content_type: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    time_to_live: int = 0
    scheduled_enqueue_time: int = 0
    """ms since 1970."""
    application_properties: dict[str, object] | None = None
    force_persistence: bool = False
    """Written before it is acknowledged, also if the entity is express."""


def encode(message: OutgoingMessage) -> bytes:
    """The message as AMQP bytes. Raises EncodeError (a ValueError) for a value that AMQP cannot carry.

    A message without an id gets one, so that all copies that are sent of it have the same id. Many messages are encoded
    faster by `busbar.message.compose.compose` with the fields as its arguments.
    """
    if message.message_id is None:
        message.message_id = new_message_id()
    properties = message.application_properties
    if properties and any(isinstance(value, datetime) for value in properties.values()):
        properties = {name: _amqp(value) for name, value in properties.items()}
    return compose(
        message.body,
        message.message_id,
        message.session_id,
        message.partition_key,
        message.correlation_id,
        message.subject,
        message.content_type,
        message.to,
        message.reply_to,
        message.reply_to_session_id,
        message.time_to_live,
        message.scheduled_enqueue_time,
        properties,
        time.time_ns() // 1_000_000 if message.time_to_live > LONGEST_TTL else 0,
        message.force_persistence,
    )


def _amqp(value: object) -> object:
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise ValueError(f"the time {value} has no time zone")
    return Timestamp(round(value.timestamp() * 1000))
