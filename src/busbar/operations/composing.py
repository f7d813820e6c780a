"""A message from what a person gives: texts, KEY=VALUE pairs, a time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from busbar.operations.paths import OperationRefused
from busbar.operations.rewriting import BODY, PARTITION_KEY, PROPERTY, TEXTS

_NUMBER: Final = re.compile(r"-?\d{1,18}", re.ASCII)
_FRACTION: Final = re.compile(r"-?\d{1,15}\.\d{1,15}", re.ASCII)
EDITABLE: Final = (*TEXTS, PARTITION_KEY, BODY)
"""Fields that are set to a text."""
LONGEST_DELAY: Final = 10
"""Characters of +SECONDS."""
_TRUTH: Final = {"true": True, "false": False}


def properties_of(pairs: Iterable[str]) -> dict[str, object]:
    """Application properties from KEY=VALUE. Numbers, true and false are what they look like; a value in double quotes is a
    text. Raises OperationRefused."""
    found: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise OperationRefused(f"the property '{pair}' is not KEY=VALUE")
        found[key] = value_of(value)
    return found


def value_of(text: str) -> object:
    """The value that a text stands for: a truth value, a long, a double, or a text."""
    if text in _TRUTH:
        return _TRUTH[text]
    if _NUMBER.fullmatch(text):
        return int(text)
    if _FRACTION.fullmatch(text):
        return float(text)
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1]
    return text


def time_of(text: str, now: datetime) -> datetime:
    """A time from ISO 8601, in UTC if it names no zone, or +SECONDS from now. Raises OperationRefused."""
    if text.startswith("+") and text[1:].isdigit() and len(text) <= LONGEST_DELAY:
        return now + timedelta(seconds=int(text[1:]))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise OperationRefused(
            f"'{text}' is not a time like 2026-01-31T12:00:00Z, or +60 (seconds from now)"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def changes_of(edits: Iterable[str]) -> dict[str, object]:
    """Changes for rewriting.py from FIELD=VALUE; an empty VALUE removes a field. Raises OperationRefused."""
    found: dict[str, object] = {}
    for edit in edits:
        name, equals, value = edit.partition("=")
        field = name if name.startswith(PROPERTY) else name.lower().replace("-", "_")
        if not equals or field == PROPERTY or not (field in EDITABLE or field.startswith(PROPERTY)):
            known = ", ".join((*EDITABLE, f"{PROPERTY}NAME"))
            raise OperationRefused(f"'{edit}' is not FIELD=VALUE with a FIELD of {known}")
        if not value:
            found[field] = None
        elif field.startswith(PROPERTY):
            found[field] = value_of(value)
        else:
            found[field] = value
    return found
