"""Conditions on rows that the source meets itself, so that other messages are neither sent nor decoded.

They come from options (`fragments`, `states`, `sessions`, `subjects`, `properties`), and in a batch also from filters that
Spark pushes (pushdown.py). All have to hold. Ranges of numbers, fragments and entities decide what is requested. The broker
checks the others for each message.

Times also narrow the range of numbers, because enqueued times rise with numbers. A broker's clock may have been set back. So
the range includes the messages of CLOCK_STEP_MS before and after, which the broker then checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from busbar.client import TapSelection
from busbar.client.tap_selection import PropertyValue
from busbar.spark.errors import OptionError

STATES: Final = ("active", "dead-lettered", "deferred", "dead-lettered-deferred", "done")
CLOCK_STEP_MS: Final = 600_000
NUMBER_BITS: Final = 48
MAX_NUMBER: Final = (1 << NUMBER_BITS) - 1

PropertyValues = tuple[PropertyValue, ...]


@dataclass(frozen=True, slots=True)
class ReadFilter:
    """Conditions on rows. None is no condition; a tuple holds the accepted values; bounds are included."""

    entities: tuple[str, ...] | None = None
    sub_queues: tuple[str, ...] | None = None
    fragments: tuple[int, ...] | None = None
    first_number: int | None = None
    """A sequence number as clients see it, with the index of its fragment."""
    last_number: int | None = None
    since: int | None = None
    """An enqueued time in ms."""
    until: int | None = None
    states: tuple[str, ...] | None = None
    sessions: tuple[str, ...] | None = None
    subjects: tuple[str, ...] | None = None
    properties: tuple[tuple[str, PropertyValues], ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether no message can meet the conditions."""
        lists = (self.entities, self.sub_queues, self.fragments, self.states, self.sessions, self.subjects)
        if any(each == () for each in lists) or any(values == () for _, values in self.properties):
            return True
        return _is_empty(self.first_number, self.last_number) or _is_empty(self.since, self.until)

    def and_(self, other: ReadFilter) -> ReadFilter:
        """The conditions of both."""
        changes: dict[str, object] = {}
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if each.name == "properties":
                changes[each.name] = _and_properties(mine, theirs)
            elif mine is None or theirs is None:
                changes[each.name] = theirs if mine is None else mine
            elif isinstance(mine, tuple):
                changes[each.name] = tuple(value for value in mine if value in theirs)
            elif each.name in ("first_number", "since"):
                changes[each.name] = max(mine, theirs)
            else:
                changes[each.name] = min(mine, theirs)
        return replace(self, **changes)  # type: ignore[arg-type]

    def has_entity(self, entity: str, sub_queue: str) -> bool:
        return (self.entities is None or entity in self.entities) and (
            self.sub_queues is None or sub_queue in self.sub_queues
        )

    def numbers_in(self, fragment: int) -> tuple[int, int]:
        """The positions of a fragment among which messages can be: the one after which they begin, and the last."""
        if self.fragments is not None and fragment not in self.fragments:
            return 0, 0
        base = fragment << NUMBER_BITS
        first = 1 if self.first_number is None else min(max(1, self.first_number - base), MAX_NUMBER + 1)
        last = MAX_NUMBER if self.last_number is None else min(max(0, self.last_number - base), MAX_NUMBER)
        return first - 1, max(first - 1, last)

    def selection(self, *, bodies: bool, application_properties: bool) -> TapSelection | None:
        """What the broker checks for each message, and which parts it sends; None for everything."""
        found = TapSelection(
            bodies,
            application_properties,
            self.states,
            self.since,
            self.until,
            self.sessions,
            self.subjects,
            dict(self.properties),
        )
        return None if found.is_everything else found


def _is_empty(first: int | None, last: int | None) -> bool:
    return first is not None and last is not None and first > last


def _and_properties(
    mine: tuple[tuple[str, PropertyValues], ...], theirs: tuple[tuple[str, PropertyValues], ...]
) -> tuple[tuple[str, PropertyValues], ...]:
    found = dict(mine)
    for name, values in theirs:
        found[name] = tuple(value for value in found[name] if value in values) if name in found else values
    return tuple(sorted(found.items()))


def parse_filter(options: Mapping[str, str], *, events: bool, consume: bool) -> ReadFilter:
    """The conditions in options with lower-case names. Raises OptionError."""
    names = ("fragments", "states", "sessions", "subjects", "properties")
    given = [name for name in names if options.get(name) is not None]
    if consume and given:
        raise OptionError(
            given[0], "does not fit the mode 'consume', which would delete the messages that it leaves out."
        )
    if events and given and given != ["fragments"]:
        name = next(name for name in given if name != "fragments")
        raise OptionError(name, "is for messages; events have no such condition.")
    return ReadFilter(
        fragments=_fragments(options.get("fragments")),
        states=_states(options.get("states")),
        sessions=_texts("sessions", options.get("sessions")),
        subjects=_texts("subjects", options.get("subjects")),
        properties=_properties(options.get("properties")),
    )


def _fragments(text: str | None) -> tuple[int, ...] | None:
    values = _texts("fragments", text)
    if values is None:
        return None
    if not all(value.isdigit() and int(value) < 1 << 15 for value in values):
        raise OptionError("fragments", f"is {text!r}; it is a list of indexes such as '0,3'.")
    return tuple(int(value) for value in values)


def _states(text: str | None) -> tuple[str, ...] | None:
    values = _texts("states", text)
    for value in values or ():
        if value not in STATES:
            raise OptionError("states", f"has {value!r}; it can have {', '.join(STATES)}.")
    return values


def _texts(name: str, text: str | None) -> tuple[str, ...] | None:
    """Texts with commas between them, or a JSON list for texts that contain commas."""
    if text is None:
        return None
    values: object = [each.strip() for each in text.split(",") if each.strip()]
    if text.strip().startswith("["):
        try:
            values = json.loads(text)
        except ValueError:
            values = None
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise OptionError(
            name,
            f"is {text!r}; it is a list with commas, such as 'a,b', or in JSON, such as '[\"a\", \"b\"]'.",
        )
    return tuple(dict.fromkeys(values))


def _properties(text: str | None) -> tuple[tuple[str, PropertyValues], ...]:
    if text is None:
        return ()
    wrong = OptionError(
        "properties",
        f"is {text!r}; it is a JSON object with a value or a list of values for each property, such as "
        '\'{"region": ["eu", "us"], "urgent": true}\'.',
    )
    try:
        document = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(document, dict) or not document:
        raise wrong
    found: list[tuple[str, PropertyValues]] = []
    for name, given in document.items():
        values = given if isinstance(given, list) else [given]
        if not values or not all(value is None or isinstance(value, str | int | float) for value in values):
            raise wrong
        found.append((name, tuple(values)))
    return tuple(sorted(found))
