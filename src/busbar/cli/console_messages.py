"""The messages of entities, for the web console: what busbar.operations does, in the console's values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

from busbar.cli import values
from busbar.cli.console_client import messages, moment, readable_time
from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.console.messages import (
    GROUPED,
    CopyChanges,
    DeadLetterSummary,
    Lane,
    MessageDetail,
    MessageRange,
    MessageSummary,
    PurgeProgress,
    Selected,
    TriageResult,
    TypedMessage,
)
from busbar.console.namespace import Address, FailureKind, NamespaceFailure
from busbar.model.duration import read_duration
from busbar.operations import purging, triage
from busbar.operations.browsing import MessageKind, browse, find, place_of
from busbar.operations.composing import properties_of, time_of
from busbar.operations.rewriting import DEAD_LETTER_PROPERTIES, PROPERTY
from busbar.operations.views import (
    BodyForm,
    MessageView,
    body_text,
    fields_of,
    hex_text,
    text_of,
    view_of,
)

if TYPE_CHECKING:
    from busbar.client.blocking import BlockingFactory
    from busbar.client.message import OutgoingMessage

PREVIEW = 120
SHOWN_BYTES = 256 * 1024
"""Of a body; a browser is slow with more."""
TIMES = frozenset(("Locked until", "Enqueued", "Scheduled for", "Expires"))
TEXTS = ("subject", "content_type", "correlation_id", "to", "reply_to", "session_id", "partition_key")


class RunningMessages:
    def __init__(self, where: ConnectionOptions) -> None:
        self._where = where

    def range(
        self, address: Address, lane: Lane, start: int, session: str | None, limit: int
    ) -> MessageRange:
        with self._client() as factory:
            found = browse(
                factory,
                address.path,
                kind=MessageKind(lane.value),
                start=start,
                session_id=session,
                at_once=limit + 1,
            )
            views = [view_of(message) for message in islice(found, limit + 1)]
        following = views[limit].sequence_number if len(views) > limit else None
        return MessageRange([_summary(view) for view in views[:limit]], following)

    def get(self, address: Address, lane: Lane, number: int) -> MessageDetail:
        with self._client() as factory:
            found = find(factory, address.path, number, kind=MessageKind(lane.value))
        if found is None:
            raise NamespaceFailure(
                f"The {address.kind} '{address.name}' has no {lane} message {number} any more.",
                FailureKind.NOT_FOUND,
            )
        return _detail(view_of(found))

    def send(self, address: Address, message: TypedMessage) -> None:
        with self._client() as factory, factory.message_sender(address.path) as sender:
            made = _composed(message)
            if message.schedule:
                sender.schedule_messages(made, time_of(message.schedule, datetime.now(UTC)))
            else:
                sender.send_messages(made)

    def groups(self, address: Address, lane: Lane) -> Sequence[DeadLetterSummary]:
        with self._client() as factory:
            found = triage.groups(factory, _dead_letters(address, lane), most=GROUPED)
        return [
            DeadLetterSummary(
                group.reason,
                group.source,
                group.count,
                moment(group.oldest),
                moment(group.newest),
                group.description,
            )
            for group in found
        ]

    def resubmit(
        self, address: Address, lane: Lane, selected: Selected, changes: CopyChanges
    ) -> TriageResult:
        with self._client() as factory:
            before: Mapping[str, object] = {}
            if "properties" in changes.fields:
                (number,) = selected.numbers
                found = find(factory, address.path, number, kind=MessageKind(lane.value))
                before = view_of(found).properties if found is not None else {}
            report = triage.resubmit(
                factory,
                _dead_letters(address, lane),
                _selection(selected),
                target=changes.target,
                changes=_changes(changes.fields, before),
                message_id=changes.message_id or None,
                keep_id=changes.keeps_id,
            )
        return TriageResult(report.found, report.done, report.refused, report.examples)

    def delete(self, address: Address, lane: Lane, selected: Selected) -> TriageResult:
        with self._client() as factory:
            report = triage.delete(factory, _dead_letters(address, lane), _selection(selected))
        return TriageResult(report.found, report.done, report.refused, report.examples)

    def purge(
        self, address: Address, lanes: Sequence[Lane], session: str | None, on_progress: PurgeProgress
    ) -> int:
        with self._client() as factory:
            report = purging.purge(
                factory,
                address.path,
                [MessageKind(lane.value) for lane in lanes],
                session_id=session,
                on_progress=lambda kind, deleted: on_progress(Lane(kind.value), deleted),
            )
        return report.left

    @contextmanager
    def _client(self) -> Iterator[BlockingFactory]:
        with messages(self._where) as factory:
            yield factory


def _dead_letters(address: Address, lane: Lane) -> str:
    return str(place_of(address.path, MessageKind(lane.value)))


def _selection(selected: Selected) -> triage.DeadLetterSelection:
    return triage.DeadLetterSelection(selected.numbers, selected.reasons)


def _summary(view: MessageView) -> MessageSummary:
    text = view.problem or view.body[: 4 * PREVIEW].decode("utf-8", "backslashreplace")
    return MessageSummary(
        view.sequence_number,
        moment(view.enqueued),
        "Locked" if view.locked_until else view.state,
        view.delivery_count,
        view.message_id or "",
        view.session_id or "",
        view.subject or "",
        view.dead_letter_reason or "",
        text if len(text) <= PREVIEW else f"{text[:PREVIEW]}…",
    )


def _detail(view: MessageView) -> MessageDetail:
    body = view.body[:SHOWN_BYTES]
    cut = "" if len(view.body) <= SHOWN_BYTES else f"\n… {len(view.body) - SHOWN_BYTES:,} bytes more"
    own = {name: value for name, value in view.properties.items() if name not in DEAD_LETTER_PROPERTIES}
    text = text_of(view.body)
    return MessageDetail(
        view.sequence_number,
        {
            name: readable_time(value, exact=True) if name in TIMES else value
            for name, value in fields_of(view).items()
            if value
        },
        {name: _text(value) for name, value in own.items()},
        {name: _text(value) for name, value in view.annotations.items()},
        len(view.body),
        body_text(body, BodyForm.AUTO) + cut,
        hex_text(body) + cut,
        text is not None,
        TypedMessage(
            text if text is not None and not cut else "",
            message_id=view.message_id or "",
            session_id=view.session_id or "",
            partition_key=view.partition_key or "",
            subject=view.subject or "",
            content_type=view.content_type or "",
            correlation_id=view.correlation_id or "",
            to=view.to or "",
            reply_to=view.reply_to or "",
            properties="\n".join(f"{name}={_pair(value)}" for name, value in own.items()),
        ),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _pair(value: object) -> str:
    """The value of a property, written so that `properties_of` reads the same one again."""
    text = _text(value)
    is_other = isinstance(value, str) and properties_of([f"x={text}"])["x"] != text
    return f'"{text}"' if is_other else text


def _composed(message: TypedMessage) -> OutgoingMessage:
    """The message to send. Raises CommandFailure, OperationRefused."""
    from busbar.client.message import OutgoingMessage

    made = OutgoingMessage(message.body.encode() if message.content is None else message.content)
    for name in ("message_id", *TEXTS):
        if text := getattr(message, name):
            setattr(made, name, text)
    if message.time_to_live:
        try:
            made.time_to_live = read_duration(values.duration(message.time_to_live))
        except ValueError as error:
            raise CommandFailure(f"Time to live: {error}.", ExitCode.USAGE) from None
    properties = properties_of(_lines(message.properties))
    made.application_properties = properties or None
    return made


def _changes(fields: Mapping[str, str], before: Mapping[str, object]) -> dict[str, object]:
    """The changes of a copy as busbar.operations takes them; `before` are the properties that the message has."""
    found: dict[str, object] = {name: fields[name] or None for name in TEXTS if name in fields}
    if "body" in fields:
        found["body"] = fields["body"]
    if "properties" in fields:
        now = properties_of(_lines(fields["properties"]))
        gone = dict.fromkeys(name for name in before if name not in (*now, *DEAD_LETTER_PROPERTIES))
        changed = {name: value for name, value in now.items() if name not in before or before[name] != value}
        found |= {f"{PROPERTY}{name}": value for name, value in {**gone, **changed}.items()}
    return found


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]
