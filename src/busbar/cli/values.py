"""Values as people write them on a command line, made into what the management API takes."""

from __future__ import annotations

import re

from busbar.model.duration import UNLIMITED, read_duration

_SHORT = re.compile(
    r"(?:(?P<d>\d{1,9})d)?(?:(?P<h>\d{1,9})h)?(?:(?P<m>\d{1,9})m)?(?:(?P<s>\d{1,9}(?:\.\d{1,3})?)s)?",
    re.ASCII,
)
_TRUE = frozenset(("true", "t", "yes", "y", "on", "1"))
_FALSE = frozenset(("false", "f", "no", "n", "off", "0"))


def boolean(text: str) -> str:
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return "true"
    if lowered in _FALSE:
        return "false"
    raise ValueError(f"'{text}' is neither true nor false")


def integer(text: str) -> str:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ValueError(f"'{text}' is not a whole number")
    return str(int(text))


def duration(text: str) -> str:
    """ISO 8601 text, from that (PT1M) or from 30s, 5m, 1h30m, 14d, unlimited."""
    lowered = text.strip().lower()
    if lowered in ("unlimited", "max", "never"):
        return UNLIMITED
    iso = text.strip().upper()
    match = _SHORT.fullmatch(lowered)
    if lowered and match is not None:
        days, hours, minutes, seconds = match.group("d", "h", "m", "s")
        time = "".join(
            f"{number}{unit}" for number, unit in ((hours, "H"), (minutes, "M"), (seconds, "S")) if number
        )
        iso = f"P{days + 'D' if days else ''}{'T' + time if time else ''}"
    try:
        read_duration(iso)
    except ValueError:
        raise ValueError(
            f"'{text}' is not a duration like 30s, 5m, 1h, 14d, PT1M, P14D or 'unlimited'"
        ) from None
    return iso


def short_duration(iso: str) -> str:
    """The shortest form that `duration` reads: 90s, 1h30m, 14d, unlimited."""
    milliseconds = read_duration(iso)
    if milliseconds == 0:
        return "unlimited"
    found, left = "", milliseconds / 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        whole, left = divmod(left, length)
        found += f"{whole:g}{unit}" if whole else ""
    return found + (f"{left:g}s" if left else "")


def is_unlimited(iso: str) -> bool:
    return read_duration(iso) == 0


def seconds(text: str) -> int:
    """A time span as whole seconds; a bare number is seconds."""
    iso = duration(f"{text}s" if text.isdigit() else text)
    milliseconds = read_duration(iso)
    if milliseconds == 0:
        raise ValueError("a limit is needed here")
    return max(1, milliseconds // 1000)


_UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"(\d{1,15}) ?(b|kib|mib|gib|tib)?", re.ASCII | re.IGNORECASE)


def size(text: str) -> int:
    """Bytes, from a number of them or from 512KiB, 100MiB, 2GiB; `unlimited` is 0."""
    lowered = text.strip().lower()
    if lowered == "unlimited":
        return 0
    match = _SIZE.fullmatch(lowered)
    if match is None:
        raise ValueError(f"'{text}' is not a size like 512KiB, 100MiB, 2GiB or 'unlimited'")
    return int(match[1]) * _UNITS[match[2] or "b"]


STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")


def status(text: str) -> str:
    for known in STATUSES:
        if text.strip().lower() == known.lower():
            return known
    raise ValueError(f"'{text}' is not one of {', '.join(STATUSES)}")


def plain(text: str) -> str:
    """Any text that XML can hold."""
    from busbar.model.atom import UNPRINTABLE

    if found := UNPRINTABLE.search(text):
        raise ValueError(f"the character {found[0]!r} is not allowed")
    return text
