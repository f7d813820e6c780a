"""Durations in ISO 8601 (PT1M, P14D, P1DT2H30.5S), in milliseconds; 0 means "unlimited".

Unlimited is written as the longest time of .NET. Every duration of that length or longer is read as unlimited, since
libraries round it differently. Reading raises ValueError, which states what would be right.
"""

from __future__ import annotations

import re

UNLIMITED = "P10675199DT2H48M5.4775807S"
UNLIMITED_DAYS = 10_675_199

_PART = re.compile(r"(\d{1,12}(?:\.\d{1,3})?)\s*([a-z]+)\s*", re.ASCII)
_UNITS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_DURATION = re.compile(
    r"P(?:(?P<years>\d{1,9})Y)?(?:(?P<months>\d{1,9})M)?(?:(?P<weeks>\d{1,9})W)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,12}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)


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
    # A part of a millisecond counts as one: a duration above zero must not become zero.
    milliseconds = whole * 1000 + (-(-int(fraction.ljust(9, "0")) // 1_000_000) if fraction else 0)
    if milliseconds == 0:
        raise ValueError("it must be longer than nothing")
    return milliseconds


def plain_duration(text: str) -> int:
    """Milliseconds of a duration as people write it: 200ms, 10s, 1h30m, 10 seconds or PT10S. A bare number is seconds."""
    given = text.strip().lower()
    if given.startswith("p"):
        found = read_duration(given.upper())
        if found == 0:
            raise ValueError("it must have an end")
        return found
    if given.isascii() and given.isdigit():
        given += "s"
    at, total = 0, 0.0
    while at < len(given):
        part = _PART.match(given, at)
        if part is None or part[2] not in _UNITS:
            raise ValueError("it must be a duration such as 200ms, 10s, 1h30m or PT10S")
        total += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    if not given:
        raise ValueError("it must not be empty")
    return round(total)


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
