"""Dates and durations of the runtime operations, as text; inside they are milliseconds (since 1970 UTC).

written     RFC 1123, to the second: Sun, 06 Nov 1994 08:49:37 GMT
read        the same, or ISO 8601 (without a zone it is UTC)
durations   seconds, with fractions; or a .NET TimeSpan: [-][days.]hours:minutes:seconds[.fraction]
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

UNLIMITED = 10_675_199 * 86_400_000
"""The longest TimeSpan, in whole days. It means "for ever"."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_FIRST = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MILLISECOND
_LAST = (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - _EPOCH) // _MILLISECOND
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_RFC_1123 = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), (\d\d) ("
    + "|".join(_MONTHS)
    + r") (\d{4}) (\d\d):(\d\d):(\d\d) (?:GMT|UTC)",
    re.ASCII,
)
_TIME_SPAN = re.compile(r"(-?)(?:(\d{1,8})\.)?(\d\d?):([0-5]\d):([0-5]\d)(?:\.(\d{1,7}))?", re.ASCII)
_MAX_DATE_LENGTH = 40


def date_text(time: int) -> str:
    """The time in RFC 1123. If no calendar has it, the nearest time that a calendar has."""
    shown = _EPOCH + timedelta(milliseconds=max(_FIRST, min(time, _LAST)))
    return format_datetime(shown, usegmt=True)


def is_date(time: int) -> bool:
    return _FIRST <= time <= _LAST


def read_date(text: str) -> int | None:
    """Milliseconds since 1970, or None if the text is not a date."""
    found = read_rfc_1123(text)
    if found is not None or len(text) > _MAX_DATE_LENGTH:
        return found
    try:
        time = datetime.fromisoformat(text.strip())
        return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND
    except (ValueError, OverflowError):
        return None


def read_rfc_1123(text: str) -> int | None:
    found = _RFC_1123.fullmatch(text)
    if found is None:
        return None
    day, month, year, hour, minute, second = found.groups()
    try:
        time = datetime(
            int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second), tzinfo=UTC
        )
    except ValueError:
        return None
    return (time - _EPOCH) // _MILLISECOND


def read_time_span(text: str) -> int | None:
    """Milliseconds, or None if the text is not a TimeSpan."""
    found = _TIME_SPAN.fullmatch(text.strip())
    if found is None:
        return None
    sign, days, hours, minutes, seconds, fraction = found.groups()
    whole = (int(days or 0) * 24 + int(hours)) * 3600 + int(minutes) * 60 + int(seconds)
    # Rounded up: a duration above zero must not become none.
    return (whole * 1000 + -(-int((fraction or "0").ljust(7, "0")) // 10_000)) * (-1 if sign else 1)


def seconds_text(ms: int) -> int | float:
    """Seconds as JSON writes them: a whole number if it is one."""
    return ms // 1000 if ms % 1000 == 0 else ms / 1000
