"""Durations as ISO 8601 writes them (PT1M, P14D, P1DT2H30.5S), in milliseconds; 0 stands for "unlimited"."""

from __future__ import annotations

import re

UNLIMITED_DAYS = 10_675_199
"""The longest time the vendor's libraries can express, P10675199DT2H48M5.4775807S, is how they write "unlimited"."""

_PATTERN = re.compile(
    r"P(?:(?P<weeks>\d{1,9})W)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)


def parse_duration(text: str) -> int:
    """Milliseconds (parts of one count as one), 0 if unlimited. Raises ValueError."""
    match = _PATTERN.fullmatch(text)
    parts = match.groupdict() if match is not None else {}
    if not any(part is not None for part in parts.values()):
        raise ValueError("it must be an ISO 8601 duration such as PT30S, PT1M, PT1H or P14D")
    days = int(parts["weeks"] or 0) * 7 + int(parts["days"] or 0)
    if days >= UNLIMITED_DAYS:
        return 0
    seconds, _, fraction = (parts["seconds"] or "0").partition(".")
    whole = ((days * 24 + int(parts["hours"] or 0)) * 60 + int(parts["minutes"] or 0)) * 60 + int(seconds)
    nanoseconds = int(fraction.ljust(9, "0")) if fraction else 0
    milliseconds = whole * 1000 + -(-nanoseconds // 1_000_000)
    if milliseconds == 0:
        raise ValueError("it must be longer than nothing")
    return milliseconds
