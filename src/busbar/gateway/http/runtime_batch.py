"""A batch of messages in one request: a JSON array. Each element is:

    {"Body": "text", "BrokerProperties": {...}, "UserProperties": {...}}

The types of user properties are those of JSON. A batch is stored as a whole or not at all. Its size in AMQP is at most that
of one message.
"""

from __future__ import annotations

import msgspec

from busbar.gateway.http.runtime_headers import integer
from busbar.gateway.http.runtime_message import compose
from busbar.gateway.http.runtime_properties import read_broker_properties
from busbar.model.errors import ArgumentError, BusbarError, MessageSizeExceeded

BATCH_TYPE = "application/vnd.microsoft.servicebus.json"
_FRAMING = 8
"""Bytes that a message takes in a batch beside its own."""
_KEYS = {"body": "Body", "brokerproperties": "BrokerProperties", "userproperties": "UserProperties"}


def is_batch(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == BATCH_TYPE


def compose_batch(document: bytes, now: int, max_size: int) -> list[bytes]:
    """Return the messages in AMQP's encoding. Raises ArgumentError, ArgumentOutOfRange, MessageSizeExceeded."""
    try:
        entries = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ArgumentError(f"The batch is not JSON: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise ArgumentError("A batch is a JSON array with at least one message.")
    payloads: list[bytes] = []
    size = 0
    for index, entry in enumerate(entries):
        try:
            payload = _message(entry, now)
        except BusbarError as error:
            raise type(error)(f"Message {index} of the batch: {error.text}") from None
        size += len(payload) + _FRAMING
        if size > max_size:
            raise MessageSizeExceeded(
                f"The batch has more than {max_size} bytes after {index + 1} of {len(entries)} messages."
            )
        payloads.append(payload)
    return payloads


def _message(entry: object, now: int) -> bytes:
    if not isinstance(entry, dict):
        raise ArgumentError("it is no JSON object.")
    named = {_KEYS.get(key.lower(), key): value for key, value in entry.items()}
    body = named.get("Body")
    if body is not None and not isinstance(body, str):
        raise ArgumentError("Body has to be a string.")
    properties = read_broker_properties(named.get("BrokerProperties"))
    custom = _user_properties(named.get("UserProperties"))
    return compose(properties, custom, None, (body or "").encode(), now)


def _user_properties(value: object) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ArgumentError("UserProperties has to be a JSON object.")
    found: dict[str, object] = {}
    for name, item in value.items():
        if isinstance(item, list | dict):
            raise ArgumentError(
                f"the user property '{name[:60]}' has to be a string, a number, a boolean or null."
            )
        found[name] = integer(item) if isinstance(item, int) and not isinstance(item, bool) else item
    return found
