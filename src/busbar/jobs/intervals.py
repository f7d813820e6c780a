"""Durations and times as users of jobs write them, on the command line and in Python."""

from __future__ import annotations

from datetime import UTC, datetime

from busbar.jobs.failure_text import JobError, JobFailureKind
from busbar.model.duration import plain_duration


class ValueRefused(JobError):
    """A value that a user gave is not in its form. The text names the value and a right one."""

    kind = JobFailureKind.USAGE


def interval_ms(name: str, text: str) -> int:
    """Milliseconds of a duration like 200ms, 10s, 1m30s or PT1H. The words of Spark (10 seconds) mean the same, and a bare
    number is seconds. Raises ValueRefused."""
    try:
        return plain_duration(text)
    except ValueError:
        raise ValueRefused(f"{name} is {text!r}; it is a duration like 200ms, 10s, 1m or 1h") from None


def moment(name: str, text: str) -> datetime:
    """A time like 2026-01-31, 2026-01-31T12:00 or 2026-01-31T12:00:00Z; without a zone it is UTC. Raises ValueRefused."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueRefused(
            f"{name} is {text!r}; it is a time like 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
