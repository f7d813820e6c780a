"""Durations and times as users of jobs write them, on the command line and in Python."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from busbar.jobs.failure_text import JobError, JobFailureKind

_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([a-z]+)\s*", re.ASCII)
_UNITS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}


class ValueRefused(JobError):
    """A value that a user gave is not in its form. The text names the value and a right one."""

    kind = JobFailureKind.USAGE


def interval_ms(name: str, text: str) -> int:
    """Milliseconds of a duration like 200ms, 10s, 1m30s or 1h. The words of Spark (10 seconds) mean the same. Raises
    ValueRefused."""
    given = text.strip().lower()
    at, total = 0, 0.0
    while at < len(given):
        part = _PART.match(given, at)
        if part is None or part[2] not in _UNITS:
            break
        total += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    if not given or at < len(given):
        raise ValueRefused(f"{name} is {text!r}; it is a duration like 200ms, 10s, 1m or 1h")
    return round(total)


def moment(name: str, text: str) -> datetime:
    """A time like 2026-01-31, 2026-01-31T12:00 or 2026-01-31T12:00:00Z; without a zone it is UTC. Raises ValueRefused."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueRefused(
            f"{name} is {text!r}; it is a time like 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
