"""Options of the `busbar` format for reading. Names are not case-sensitive; an unknown one is an error.

Source: `entity` (or load("orders")) is a queue or a subscription ("orders/Subscriptions/audit"). `subQueue` is "" or
"deadletter"; an entity that ends with "/$DeadLetterQueue" means the same. `entities` is a list with commas, and
`entityPattern` patterns (entity_names.py), for a read of several. `stream` is messages or events. One option names the place
of the connection string (secrets.py).

Reading of a stream: `mode`
  tap      what a tap has not passed; receivers are not disturbed
  consume  messages are deleted when their batch is committed, and no client can receive meanwhile
`tap` is its name; a stream without one creates a tap, and its checkpoint has the name. stream_tap.py has the rules for
`owner` and `takeOver`. `tapMaxAge`, `tapMaxSize` and `lease` are limits for a tap that is created.

Beginning: `startingPosition`, and end of a batch: `endingPosition`. Each is one of
  earliest, latest          everything that is there; only later messages
  2026-01-31T12:00:00Z      the enqueued time; without a zone it is UTC
  {"0": 1200, "1": 900}     a sequence number for each fragment; missing ones count from the earliest
The beginning is included, the end is not. They apply when a stream creates its tap. An existing tap decides by its
position, and a checkpoint has precedence over both.

Less to read: `columns` are the columns of the result. read_filter.py has the conditions on rows.

Bodies: body_options.py has the options that decode them.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from busbar.model.duration import plain_duration
from busbar.spark.body_options import OPTIONS as BODY_OPTIONS
from busbar.spark.body_options import BodyOptions, parse_body
from busbar.spark.entity_names import DEAD_LETTER, entity_of, label_of
from busbar.spark.errors import OptionError
from busbar.spark.read_filter import ReadFilter, parse_filter
from busbar.spark.secrets import OPTIONS as SECRET_OPTIONS
from busbar.spark.secrets import Secret

MESSAGES: Final = "messages"
EVENTS: Final = "events"
TAP: Final = "tap"
CONSUME: Final = "consume"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

NUMBER_MASK: Final = (1 << 48) - 1
PAGE_BYTES: Final = 4 * 1024 * 1024

_NAMES: Final = (
    *SECRET_OPTIONS,
    "entity",
    "entities",
    "entityPattern",
    "path",
    "subQueue",
    "stream",
    "mode",
    "tap",
    "owner",
    "takeOver",
    "tapMaxAge",
    "tapMaxSize",
    "lease",
    "startingPosition",
    "endingPosition",
    "maxMessagesPerTrigger",
    "maxPartitions",
    "columns",
    "fragments",
    "states",
    "sessions",
    "subjects",
    "properties",
    "includeBody",
    *BODY_OPTIONS,
    "failOnDataLoss",
    "waitForBroker",
)
_STREAM_ONLY: Final = ("owner", "takeOver", "tapMaxAge", "tapMaxSize", "lease", "maxMessagesPerTrigger")


@dataclass(frozen=True, slots=True)
class Position:
    """Where reading begins or ends: a word, a time (ms since 1970), or a number for each fragment."""

    word: str = ""
    time: int | None = None
    numbers: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, option: str, text: str) -> Position:
        text = text.strip()
        if text.lower() in (EARLIEST, LATEST):
            return cls(word=text.lower())
        if text.startswith("{"):
            return cls(numbers=_numbers(option, text))
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise OptionError(
                option,
                f"is {text!r}; it can be 'earliest', 'latest', a time such as '2026-01-31T12:00:00Z', or sequence "
                "numbers by fragment such as '{\"0\": 1200}'.",
            ) from None
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return cls(time=int(time.timestamp() * 1000))


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options. Times are ms, sizes bytes; None means that the option was not given.

    A read of several entities has `entities` or `patterns`; `of` returns the options for each of its entities.
    """

    secret: Secret
    entity: str
    sub_queue: str
    entities: tuple[str, ...]
    """Labels: paths of entities and of dead-letter queues."""
    patterns: tuple[str, ...]
    stream: str
    consume: bool
    tap: str
    owner: str
    take_over: bool
    tap_max_age: int | None
    tap_max_size: int | None
    lease: int | None
    start: Position
    end: Position
    max_messages: int | None
    max_partitions: int
    bodies: bool
    body: BodyOptions | None
    """How bodies are decoded; None if they are not."""
    filter: ReadFilter
    fail_on_loss: bool
    wait: float
    """How long to wait for a broker that does not answer, in seconds."""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Parse options. Raises OptionError."""
        options = known_options(given)
        _check_names(options, streaming)
        consume = options.choice("mode", (TAP, CONSUME)) == CONSUME
        stream = options.choice("stream", (MESSAGES, EVENTS))
        if consume:
            _check_consume(streaming, stream)
        sub_queue = options.choice("subQueue", ("", DEAD_LETTER))
        entities = _labels(options, "entities", sub_queue)
        patterns = _labels(options, "entityPattern", sub_queue)
        entity, sub_queue = ("", "") if entities or patterns else _only_entity(options, sub_queue)
        start = Position.parse(
            "startingPosition", options.get("startingPosition") or (LATEST if streaming else EARLIEST)
        )
        _check_places(options, "entities" if entities else "entityPattern" if patterns else "")
        if stream == EVENTS and start.time is not None:
            raise OptionError(
                "startingPosition", "is a time; events begin at 'earliest', 'latest' or numbers."
            )
        return cls(
            secret=Secret.from_options(options.lowered),
            entity=entity,
            sub_queue=sub_queue,
            entities=entities,
            patterns=patterns,
            stream=stream,
            consume=consume,
            tap=options.get("tap") or "",
            owner=options.get("owner") or "",
            take_over=options.flag("takeOver", False),
            tap_max_age=options.milliseconds("tapMaxAge"),
            tap_max_size=options.number("tapMaxSize"),
            lease=options.milliseconds("lease"),
            start=start,
            end=Position.parse("endingPosition", options.get("endingPosition") or LATEST),
            max_messages=options.number("maxMessagesPerTrigger"),
            max_partitions=options.number("maxPartitions") or len(os.sched_getaffinity(0)),
            bodies=options.flag("includeBody", True),
            body=_body(options, stream),
            filter=parse_filter(options.lowered, events=stream == EVENTS, consume=consume),
            fail_on_loss=options.flag("failOnDataLoss", True),
            wait=(300_000 if (wait := options.milliseconds("waitForBroker")) is None else wait) / 1000,
        )

    @property
    def several(self) -> bool:
        return bool(self.entities or self.patterns)

    def of(self, label: str) -> SourceOptions:
        """The options for one of several entities."""
        entity, sub_queue = entity_of(label)
        return replace(self, entity=entity, sub_queue=sub_queue, entities=(), patterns=())


def _only_entity(options: Given, sub_queue: str) -> tuple[str, str]:
    """The entity and sub-queue of a read of one entity."""
    entity = (options.get("entity") or options.get("path") or "").strip("/")
    if not entity:
        raise OptionError(
            "entity",
            "is missing: the path of a queue, or of a subscription ('topic/Subscriptions/name'). 'entities' and "
            "'entityPattern' name several.",
        )
    entity, dead_letters = entity_of(entity)
    return entity, dead_letters or sub_queue


def _body(options: Given, stream: str) -> BodyOptions | None:
    """How bodies are decoded. Raises OptionError if there are none."""
    found = parse_body(options)
    if found is not None and stream == EVENTS:
        raise OptionError("bodyFormat", "is for messages; events have no body.")
    if found is not None and not options.flag("includeBody", True):
        raise OptionError("bodyFormat", "needs bodies, which 'includeBody' leaves out.")
    return found


def _labels(options: Given, name: str, sub_queue: str) -> tuple[str, ...]:
    """The labels of a list with commas, each once, in any spelling."""
    value = options.get(name)
    if value is None:
        return ()
    found: dict[str, str] = {}
    for text in filter(None, (each.strip().strip("/") for each in value.split(","))):
        entity, dead_letters = entity_of(text)
        label = label_of(entity, dead_letters or sub_queue)
        found.setdefault(label.lower(), label)
    if not found:
        raise OptionError(name, f"is {value!r}; it is a list of paths with commas between them.")
    return tuple(found.values())


def _check_places(options: Given, several: str) -> None:
    """Raise OptionError for options that do not fit a read of several entities."""
    if not several:
        return
    for other in ("entity", "path", "entities", "entityPattern"):
        if other != several and options.get(other):
            shown = "load(...)" if other == "path" else repr(other)
            raise OptionError(
                several, f"cannot be given together with {shown}: one of them selects what is read."
            )
    for position in ("startingPosition", "endingPosition"):
        if (options.get(position) or "").strip().startswith("{"):
            raise OptionError(
                position, f"has numbers of fragments, which do not fit the several entities of {several!r}."
            )


def known_options(given: Mapping[str, str]) -> Given:
    """The options for reading. Raises OptionError for one that is not known."""
    return Given(given, _NAMES, "reading")


def stream_option(options: Given) -> str:
    """The first option that only streams have; empty if there is none."""
    return next((name for name in _STREAM_ONLY if options.get(name) is not None), "")


def _check_names(options: Given, streaming: bool) -> None:
    """Raise OptionError for an option that only streams have, or only batches."""
    if not streaming:
        name = stream_option(options)
        if name:
            raise OptionError(name, "is for streams; a batch reads without moving a tap.")
    elif options.get("endingPosition") is not None:
        raise OptionError("endingPosition", "is for batches; a stream has no end.")


def _check_consume(streaming: bool, stream: str) -> None:
    """Raise OptionError for what cannot be consumed."""
    if not streaming:
        raise OptionError("mode", "is 'consume', which needs a stream: its checkpoint says what was taken.")
    if stream == EVENTS:
        raise OptionError("mode", "is 'consume'; events cannot be consumed, only messages.")


class Given:
    """Options as they were given, by lower-case name. Raises OptionError for one that is not among `names`."""

    def __init__(self, given: Mapping[str, str], names: tuple[str, ...], doing: str) -> None:
        known = {name.lower(): name for name in names}
        self.lowered = {name.lower(): value for name, value in given.items()}
        for name in self.lowered:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"Did you mean {known[near[0]]!r}?" if near else f"There are: {', '.join(names)}."
                raise OptionError(name, f"is not known for {doing}. {hint}")

    def get(self, name: str) -> str | None:
        return self.lowered.get(name.lower())

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self.get(name)
        if value is None:
            return allowed[0]
        if value.lower() not in allowed:
            raise OptionError(name, f"is {value!r}; it can be {' or '.join(repr(word) for word in allowed)}.")
        return value.lower()

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError(name, f"is {value!r}; it can be 'true' or 'false'.")
        return value.lower() == "true"

    def number(self, name: str) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if not re.fullmatch(r"\d{1,18}", value.strip()) or int(value) == 0:
            raise OptionError(name, f"is {value!r}; it is a whole number above 0.")
        return int(value)

    def milliseconds(self, name: str) -> int | None:
        """A duration; seconds if it has no unit."""
        value = self.get(name)
        if value is None:
            return None
        try:
            return plain_duration(value)
        except ValueError:
            raise OptionError(
                name,
                f"is {value!r}; it is a duration such as '30s', '5m', '12h' or '7d' (seconds, if it has no unit).",
            ) from None


def _numbers(option: str, text: str) -> tuple[tuple[int, int], ...]:
    try:
        document = json.loads(text)
        numbers = {int(index): int(number) for index, number in document.items()}
    except (ValueError, TypeError):
        raise OptionError(
            option, f"is {text!r}; sequence numbers by fragment look like '{{\"0\": 1200}}'."
        ) from None
    if any(index < 0 or number < 0 for index, number in numbers.items()):
        raise OptionError(option, f"is {text!r}; fragments and sequence numbers are not negative.")
    # A sequence number of a client has the fragment's index in its upper bits.
    return tuple(sorted((index, number & NUMBER_MASK) for index, number in numbers.items()))
