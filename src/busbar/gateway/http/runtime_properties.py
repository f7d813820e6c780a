"""The BrokerProperties of a message: a JSON object, in a header of its own or in an entry of a batch.

Keys are those of the reference, recognized in any case. A null is the same as no key, and unknown keys are ignored, because
clients send received properties back. Numbers are accepted where a text is expected, as in the service. If SessionId and
PartitionKey are both given, they must be equal: messages of one session are in one fragment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import msgspec

from busbar.gateway.http.runtime_dates import UNLIMITED, read_date, read_time_span
from busbar.model.errors import ArgumentError, ArgumentOutOfRange

_TEXTS = {
    "messageid": "message_id",
    "correlationid": "correlation_id",
    "label": "label",
    "to": "to",
    "replyto": "reply_to",
    "replytosessionid": "reply_to_session_id",
    "sessionid": "session_id",
    "partitionkey": "partition_key",
    "viapartitionkey": "via_partition_key",
}
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class BrokerProperties:
    """What a sender specifies of a message beside its body. Times in ms; 0: not set."""

    message_id: str | None = None
    correlation_id: str | None = None
    label: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    via_partition_key: str | None = None
    ttl: int = 0
    scheduled: int = 0
    force_persistence: bool = False


def parse_broker_properties(header: str | None) -> BrokerProperties:
    """The properties in a header. Raises ArgumentError."""
    if header is None or not header.strip():
        return BrokerProperties()
    try:
        value = msgspec.json.decode(header.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ArgumentError(f"The BrokerProperties header is not JSON: {error}") from None
    return read_broker_properties(value)


def read_broker_properties(value: object) -> BrokerProperties:
    """The properties in a decoded JSON value. Raises ArgumentError, ArgumentOutOfRange."""
    if value is None:
        return BrokerProperties()
    if not isinstance(value, dict):
        raise ArgumentError(f"BrokerProperties is {_kind(value)}; it has to be a JSON object.")
    found = BrokerProperties()
    for key, item in value.items():
        lowered = key.lower()
        if item is None:
            continue
        if lowered in _TEXTS:
            found = replace(found, **{_TEXTS[lowered]: _text(key, item)})  # type: ignore[arg-type]  # fields of text
        elif lowered in ("timetolive", "timetolivetimespan"):
            found = replace(found, ttl=_ttl(key, item))
        elif lowered == "scheduledenqueuetimeutc":
            found = replace(found, scheduled=_date(key, item))
        elif lowered == "forcepersistence":
            if not isinstance(item, bool):
                raise ArgumentError(f"{key} is {_kind(item)}; it has to be true or false.")
            found = replace(found, force_persistence=item)
    session, partition = found.session_id, found.partition_key
    if session is not None and partition and session != partition:
        raise ArgumentError(
            f"SessionId is '{session[:_SHOWN]}' and PartitionKey is '{partition[:_SHOWN]}'; "
            "if both are set they must be equal."
        )
    return found


def _text(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ArgumentError(f"{key} is {_kind(value)}; it has to be a string.")


def _ttl(key: str, value: object) -> int:
    """Milliseconds; 0 if it is long enough to mean "for ever"."""
    ms: int | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        ms = math.ceil(max(-1, min(value, UNLIMITED / 1000)) * 1000)
    elif isinstance(value, str):
        ms = read_time_span(value)
    if ms is None:
        raise ArgumentError(
            f"{key} is {_format(value)}; it has to be a number of seconds or a text like '00:00:40'."
        )
    if ms <= 0:
        raise ArgumentOutOfRange(f"{key} is {_format(value)}; it has to be above zero.")
    return 0 if ms >= UNLIMITED else ms


def _date(key: str, value: object) -> int:
    time = read_date(value) if isinstance(value, str) else None
    if time is None:
        raise ArgumentError(
            f"{key} is {_format(value)}; it has to be a date like 'Sun, 06 Nov 1994 08:49:37 GMT' "
            "or '1994-11-06T08:49:37Z'."
        )
    return time


def _format(value: object) -> str:
    return f"'{value[:_SHOWN]}'" if isinstance(value, str) else str(value)[:_SHOWN]


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
