"""Reads from a request which messages of a tap page a client needs, and which parts of them.

The map `select` has any of these keys:

    bodies, application-properties    false: the messages come without them
    states                            names of STATES
    since, until                      enqueued times, both included
    sessions, subjects                lists of texts
    properties                        for each application property a list of values: text, number, boolean or null (absent)
"""

from __future__ import annotations

from typing import Final

from busbar.gateway.amqp.management_request import RequestBody
from busbar.model.errors import ArgumentError, ArgumentOutOfRange
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, DEFERRED, KEPT, KEPT_DEAD
from busbar.pages.selection import (
    MAX_PROPERTIES,
    SESSION,
    SUBJECT,
    FieldCondition,
    PageSelector,
    PropertyCondition,
)

STATES: Final = {
    "active": 1 << ACTIVE,
    "dead-lettered": 1 << DEAD,
    "deferred": 1 << DEFERRED,
    "dead-lettered-deferred": 1 << DEAD_DEFERRED,
    "done": 1 << KEPT | 1 << KEPT_DEAD,
}
KEYS: Final = (
    "bodies",
    "application-properties",
    "states",
    "since",
    "until",
    "sessions",
    "subjects",
    "properties",
)
MAX_VALUES: Final = 1_000
"""Values that all conditions together may have."""
_LATEST: Final = (1 << 63) - 1


def selector_of(body: RequestBody) -> PageSelector | None:
    """The selector for one page; None if the client needs all of it. Raises ArgumentError."""
    if body.get("select") is None:
        return None
    given = body.mapping("select")
    for key in given:
        if str(key) not in KEYS:
            raise ArgumentError(f"'select' has the key '{key}'; it can have {', '.join(KEYS)}.")
    select = RequestBody("busbar:read-tap", given)
    fields = [
        FieldCondition(field, _texts(select, key))
        for key, field in (("sessions", SESSION), ("subjects", SUBJECT))
        if select.has(key)
    ]
    properties = [_condition(name, values) for name, values in select.mapping("properties").items()]
    total = sum(len(each.texts) for each in fields) + sum(
        len(each.texts) + len(each.integers) + len(each.doubles) for each in properties
    )
    if len(properties) > MAX_PROPERTIES:
        raise ArgumentOutOfRange(
            f"'properties' has {len(properties)} names; at most {MAX_PROPERTIES} are allowed."
        )
    if total > MAX_VALUES:
        raise ArgumentOutOfRange(f"'select' has {total} values; at most {MAX_VALUES} are allowed.")
    return PageSelector(
        not select.has("bodies") or select.flag("bodies"),
        not select.has("application-properties") or select.flag("application-properties"),
        _lanes(select),
        select.integer("since") if select.has("since") else 0,
        select.integer("until") if select.has("until") else _LATEST,
        fields,
        properties,
    )


def _lanes(select: RequestBody) -> int:
    lanes = 0
    if select.has("states"):
        for name in select.items("states"):
            if str(name) not in STATES:
                raise ArgumentError(f"'states' has '{name}'; it can have {', '.join(STATES)}.")
            lanes |= STATES[str(name)]
    return lanes


def _texts(select: RequestBody, key: str) -> set[bytes]:
    found: set[bytes] = set()
    for item in select.items(key):
        if not isinstance(item, str):
            raise ArgumentError(f"'{key}' has a {type(item).__name__}; it is a list of strings.")
        found.add(item.encode("utf-8", "replace"))
    return found


def _condition(name: object, values: object) -> PropertyCondition:
    if not isinstance(values, list):
        raise ArgumentError(f"'properties' has a {type(values).__name__} for '{name}'; it has to be a list.")
    texts: set[bytes] = set()
    integers: set[int] = set()
    doubles: set[float] = set()
    booleans = 0
    for value in values:
        if isinstance(value, bool):
            booleans |= 2 if value else 1
        elif isinstance(value, int):
            integers.add(int(value))
            if abs(value) <= 1 << 53:
                doubles.add(float(value))
        elif isinstance(value, float):
            doubles.add(value)
            if value.is_integer():
                integers.add(int(value))
        elif isinstance(value, str):
            texts.add(value.encode("utf-8", "replace"))
        elif value is not None:
            raise ArgumentError(
                f"'properties' has a {type(value).__name__} for '{name}'; a value is a text, a number, a boolean or null."
            )
    return PropertyCondition(str(name), texts, integers, doubles, booleans, None in values)
