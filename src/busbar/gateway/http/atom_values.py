"""Reads and writes values as ATOM has them. Reading raises ValueError with a text that states what would be right.

    duration     see model/duration.py
    time         ISO 8601 in UTC with its zone (the Go SDK is strict about it); inside ms since 1970, 0 means never
    boolean      true, false; 1 and 0 are read as well
    any value    of a filter's parameters: a text and the name of its XML schema type
    api-version  a month such as 2024-05; without one the newest is meant. A wrong one raises ArgumentError

1. Partitioned entities need api-version 2013-10 or later. An older client would misread them, so it is refused.
2. MaxMessageSizeInKilobytes is shown from api-version 2021-05 on.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from busbar.model.entities import Description, PropertyValue, QueueDescription, TopicDescription, TypedText
from busbar.model.errors import ArgumentError

NEVER = "0001-01-01T00:00:00Z"
NEWEST = "2024-05"
PARTITIONING = "2013-10"
MESSAGE_SIZE = "2021-05"

_VERSION = re.compile(r"\d{4}-\d{2}(?:-\d{2})?(?:-preview)?", re.ASCII | re.IGNORECASE)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_INTEGER_TYPES = frozenset(
    (
        "int",
        "long",
        "short",
        "byte",
        "integer",
        "unsignedInt",
        "unsignedLong",
        "unsignedShort",
        "unsignedByte",
    )
)
_REAL_TYPES = frozenset(("double", "float", "decimal"))
_TEXT_TYPES = frozenset(("dateTime", "duration", "guid", "anyURI", "char", "date", "time"))


def write_time(milliseconds: int) -> str:
    if milliseconds <= 0:
        return NEVER
    text = (_EPOCH + timedelta(milliseconds=milliseconds)).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return f"{text[:-3]}Z"


def read_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("true", "1"):
        return True
    if lowered in ("false", "0"):
        return False
    raise ValueError("it must be true or false")


def write_boolean(value: bool) -> str:
    return "true" if value else "false"


def read_integer(text: str) -> int:
    value = int(text) if _INTEGER.fullmatch(text) else None
    if value is None or not -(2**63) <= value < 2**63:
        raise ValueError("it must be a whole number of at most 64 bits")
    return value


def read_any(type_name: str, text: str) -> PropertyValue | TypedText:
    """A value by the local name of its XML schema type."""
    if type_name == "string":
        return text
    text = text.strip()
    if type_name in _INTEGER_TYPES:
        return read_integer(text)
    if type_name in _REAL_TYPES:
        return _read_real(text)
    if type_name == "boolean":
        return read_boolean(text)
    if type_name in _TEXT_TYPES:
        return TypedText(type_name, text)
    raise ValueError(
        f"the type '{type_name[:40]}' is not one of string, int, long, double, boolean, dateTime, duration"
    )


def write_any(value: PropertyValue | TypedText) -> tuple[str, str]:
    """Type name and text. Small integers are `int`: the JavaScript SDK cannot read `long`."""
    if isinstance(value, TypedText):
        return value.type, value.text
    if isinstance(value, bool):  # before int: a bool is one
        return "boolean", write_boolean(value)
    if isinstance(value, int):
        return ("int" if -(2**31) <= value < 2**31 else "long"), str(value)
    if isinstance(value, float):
        return "double", _write_real(value)
    return "string", value


def _read_real(text: str) -> float:
    special = {"INF": math.inf, "-INF": -math.inf, "NaN": math.nan}
    if text in special:
        return special[text]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or "_" in text:
        raise ValueError("it must be a number")
    return value


def _write_real(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "INF" if value > 0 else "-INF"
    return repr(value)


def read_version(text: str | None) -> str:
    """The version as text, which sorts by time. Raises ArgumentError."""
    if not text:
        return NEWEST
    if not _VERSION.fullmatch(text):
        raise ArgumentError(f"The api-version '{text[:40]}' is not a month such as {NEWEST}.")
    return text.lower()


def is_partitioned(description: Description) -> bool:
    return isinstance(description, QueueDescription | TopicDescription) and description.enable_partitioning


def check_partitioning(path: str, partitioned: bool, version: str) -> None:
    """Check that the API version of the request supports partitioned entities. Raises ArgumentError."""
    if partitioned and version < PARTITIONING:
        raise ArgumentError(
            f"The entity '{path}' is partitioned: api-version {version} does not know partitioned entities; "
            f"use {PARTITIONING} or later."
        )
