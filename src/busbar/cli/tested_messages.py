"""The messages for `busbar rule test`: described by flags, read from a file, or found behind a topic.

A topic keeps no messages. What is found are the copies that its subscriptions have, or that their taps keep. If an action
changed a copy, the copy is not what was sent. So it is used only if there is no other one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.amqp.codec import EncodeError
from busbar.amqp.types import Described, Symbol, Timestamp
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.message.compose import compose
from busbar.message.content import application_properties, kept_annotations
from busbar.message.parsing import parse_message, read_draft
from busbar.model.errors import BusbarError
from busbar.model.limits import Limits
from busbar.pages.rows import decode_messages
from busbar.rules.subscription_report import PublishedMessage
from busbar.rules.topic_message import RULE_NAME

if TYPE_CHECKING:
    from busbar.client.blocking import BlockingFactory, BlockingTaps
    from busbar.client.taps import TapView
    from busbar.model.entities import TypedText

FIRST_WINDOW = 1_000
"""Numbers of a fragment that are read at first; then more and more."""
NO_ID = "(none)"
FIELDS = {
    "messageid": "message_id",
    "sessionid": "session_id",
    "partitionkey": "partition_key",
    "correlationid": "correlation_id",
    "subject": "subject",
    "label": "subject",
    "contenttype": "content_type",
    "to": "to",
    "replyto": "reply_to",
    "replytosessionid": "reply_to_session_id",
}
"""Keys of a described message, in lower case, and what they are for `compose`."""


@dataclass(frozen=True, slots=True)
class TestedMessage:
    message: PublishedMessage
    found_in: str
    """The subscription whose copy it is; empty: it was described."""
    changed_by: str = ""
    """The rule whose action changed the copy."""

    @property
    def message_id(self) -> str:
        return read_draft(self.message.content).message_id or NO_ID


# ---- described ----


def described(
    fields: Mapping[str, str], properties: Mapping[str, object], body: bytes = b""
) -> TestedMessage:
    """A message with these fields (keys of FIELDS) and application properties. Raises CommandFailure."""
    given: dict[str, str] = {FIELDS[key.lower()]: text for key, text in fields.items()}
    now = int(time.time() * 1000)
    try:
        raw = compose(body, **given, application_properties=dict(properties))  # type: ignore[arg-type]  # all are texts
        draft = parse_message(raw, 0, len(raw), NO_ID, Limits().max_id_length)
    except (BusbarError, EncodeError, OverflowError) as error:
        raise CommandFailure(f"this cannot be a message: {error}", ExitCode.USAGE) from None
    return TestedMessage(PublishedMessage(draft.content, 1, now, 0), "")


def typed(value: TypedText) -> object:
    """A property with its type, as AMQP has it. Raises ValueError."""
    from busbar.model.duration import read_duration
    from busbar.rules.values import read_instant

    match value.type:
        case "int" | "long":
            return int(value.text)
        case "double":
            return float(value.text)
        case "boolean":
            if value.text.lower() not in ("true", "false"):
                raise ValueError(f"'{value.text}' is neither true nor false")
            return value.text.lower() == "true"
        case "dateTime":
            return Timestamp(read_instant(value.text))
        case "duration":
            return Described(Symbol("com.microsoft:timespan"), read_duration(value.text) * 10_000)
    return value.text


def from_file(path: Path) -> list[TestedMessage]:
    """The messages of a JSON file, as `busbar peek -o json` and `busbar receive -o json` write them. `-` is standard
    input. Raises CommandFailure."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise CommandFailure(f"{path} cannot be read as JSON: {error}.", ExitCode.USAGE) from None
    entries = found if isinstance(found, list) else [found]
    return [_from_json(entry, f"{path}, message {number}") for number, entry in enumerate(entries, 1)]


def _from_json(entry: object, where: str) -> TestedMessage:
    if not isinstance(entry, dict):
        raise CommandFailure(f"{where} is not an object with the properties of a message.", ExitCode.USAGE)
    broker = entry.get("brokerProperties")
    named = {**entry, **(broker if isinstance(broker, dict) else {})}
    fields = {key: str(value) for key, value in named.items() if key.lower() in FIELDS and value is not None}
    properties = entry.get("properties") or {}
    if not isinstance(properties, dict):
        raise CommandFailure(f"'properties' of {where} is not an object.", ExitCode.USAGE)
    for name, value in properties.items():
        if not isinstance(value, str | int | float | bool | None):
            raise CommandFailure(
                f"the property '{name}' of {where} is neither a text, a number, a truth value nor null.",
                ExitCode.USAGE,
            )
    body = entry.get("body")
    return described(fields, properties, body.encode() if isinstance(body, str) else b"")


# ---- found behind a topic ----


def found_behind(
    factory: BlockingFactory, subscriptions: Mapping[str, str], message_id: str | None, last: int
) -> list[TestedMessage]:
    """The message of that id, or the last ones, from the copies of subscriptions, given by name with their paths."""
    best: dict[int, TestedMessage] = {}
    for name, path in subscriptions.items():
        taps = factory.taps(path)
        for one in _copies(taps, name, last if message_id is None else None, message_id):
            known = best.get(one.message.number)
            if known is None or (known.changed_by and not one.changed_by):
                best[one.message.number] = one
        if message_id is not None and any(not one.changed_by for one in best.values()):
            break
    newest = sorted(best.values(), key=lambda one: (one.message.enqueued, one.message.number))
    return newest[-last:] if message_id is None else newest


def _copies(
    taps: BlockingTaps, name: str, limit: int | None, message_id: str | None
) -> Iterator[TestedMessage]:
    """The newest copies of a subscription, in each of its fragments."""
    tap = _widest(taps.list())
    for index, end in taps.ends().ends.items():
        passed = {fragment.index: fragment.position for fragment in tap.fragments} if tap is not None else {}
        position = passed.get(index, end)
        kept = _backwards(taps, tap.name, index, position, end) if tap is not None else ()
        count = 0
        # What came before the tap is there until it is settled.
        for one in chain(kept, _backwards(taps, None, index, 0, position)):
            tested = _tested(one, name)
            if message_id is None or tested.message_id == message_id:
                yield tested
                count += 1
                if limit is not None and count >= limit:
                    break


def _widest(taps: Sequence[TapView]) -> TapView | None:
    """The tap that keeps most: none that consumes, was truncated, or has a fragment in an unavailable store."""
    usable = [
        tap
        for tap in taps
        if not tap.consumes
        and not tap.truncated
        and not tap.dead_letter
        and all(fragment.available for fragment in tap.fragments)
    ]
    return min(usable, key=lambda tap: sum(fragment.position for fragment in tap.fragments), default=None)


def _backwards(
    taps: BlockingTaps, tap: str | None, fragment: int, after: int, end: int
) -> Iterator[PublishedMessage]:
    """The messages of a fragment between two positions, the newest first."""
    window = FIRST_WINDOW
    while end > after:
        start = max(after, end - window)
        rows = [row for page in taps.pages(tap, fragment, start, end) for row in decode_messages(page.rows)]
        for row in reversed(rows):
            number = kept_annotations(row.content).get("x-opt-enqueue-sequence-number")
            yield PublishedMessage(
                row.content, number if isinstance(number, int) else row.n, row.enqueued, row.ttl
            )
        end, window = start, window * 2


def _tested(message: PublishedMessage, subscription: str) -> TestedMessage:
    rule = application_properties(message.content).get(RULE_NAME)
    return TestedMessage(message, subscription, rule if isinstance(rule, str) else "")
