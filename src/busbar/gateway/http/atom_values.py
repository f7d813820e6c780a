"""Values as ATOM writes them, in both directions. Reading raises ValueError with what would be right.

duration    ISO 8601 (PT1M, P14D); ms inside, 0 stands for unlimited, which is written as the longest time that .NET
            can express. Whatever is that long or longer is read as unlimited; libraries round it differently.
time        ISO 8601 in UTC with its zone (Go is strict about it); ms since 1970 inside, 0 stands for never
boolean     true, false; 1 and 0 are read as well
any value   of a filter's parameters: a text and the name of its XML schema type
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from busbar.model.entities import PropertyValue, TypedText

UNLIMITED = "P10675199DT2H48M5.4775807S"
NEVER = "0001-01-01T00:00:00Z"
UNLIMITED_DAYS = 10_675_199

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION = re.compile(
    r"P(?:(?P<years>\d{1,9})Y)?(?:(?P<months>\d{1,9})M)?(?:(?P<weeks>\d{1,9})W)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,12}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)
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


def read_duration(text: str) -> int:
    match = _DURATION.fullmatch(text)
    parts = match.groupdict() if match is not None else {}
    if not any(part is not None for part in parts.values()):
        raise ValueError("it must be an ISO 8601 duration such as PT30S, PT1M, PT1H or P14D")
    # Years and months have the lengths that .NET gives them.
    days = (
        int(parts["years"] or 0) * 365
        + int(parts["months"] or 0) * 30
        + int(parts["weeks"] or 0) * 7
        + int(parts["days"] or 0)
    )
    seconds, _, fraction = (parts["seconds"] or "0").partition(".")
    whole = ((days * 24 + int(parts["hours"] or 0)) * 60 + int(parts["minutes"] or 0)) * 60 + int(seconds)
    if whole >= UNLIMITED_DAYS * 86_400:
        return 0
    # A part of a millisecond counts as one: what is not nothing must not become it.
    milliseconds = whole * 1000 + (-(-int(fraction.ljust(9, "0")) // 1_000_000) if fraction else 0)
    if milliseconds == 0:
        raise ValueError("it must be longer than nothing")
    return milliseconds


def write_duration(milliseconds: int) -> str:
    if milliseconds == 0:
        return UNLIMITED
    seconds, rest = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    date = f"{days}D" if days else ""
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if seconds or rest:
        time += f"{seconds}" + (f".{rest:03d}".rstrip("0") if rest else "") + "S"
    return f"P{date}" + (f"T{time}" if time else "")


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
