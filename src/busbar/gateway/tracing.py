"""Spans of messages on their way through the gateway, along the messaging conventions of OpenTelemetry.

Rules
1. A message belongs to the trace that its sender names, in the application property `traceparent`, or `Diagnostic-Id` of
   earlier Azure SDKs. A message without them, or whose trace is not sampled by its sender, has no spans.
2. A message has three kinds of spans, all children of the span that its sender named. `enqueue` lasts from the arrival of
   the message until its sender is answered. `deliver` lasts from its enqueuing until a receiver gets it. A settlement
   (`complete`, `abandon` and so on) lasts from its arrival until it is answered, and is linked to the `deliver` before it.
3. Of the traces that are sampled by their senders, a part can be chosen (`ratio`). The trace id decides, so all processes
   choose the same ones.
4. Spans go to the exporter (trace_export.py), which has a thread of its own. If it does not keep up, spans are dropped.
5. What belongs to a transaction has no spans of its own, but `deliver`. Settlements over HTTP and by requests to a
   management node name no message, so they have none.
6. A request over HTTP whose header `traceparent` names a sampled trace has a span of its own (http/request_spans.py).
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from busbar.amqp.events import Delivery
from busbar.message.parsing import message_format_batch, parse_incoming, read_draft
from busbar.model.commands import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE
from busbar.model.errors import BusbarError
from busbar.model.message import Record

CONTEXT: Final = re.compile(
    rb"(?:traceparent|Diagnostic-Id)[\xa0\xa1\xa3]\x37[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})"
)
"""A property and its value, as AMQP encodes them: a binary, a string or a symbol of 55 bytes (W3C Trace Context)."""
HEADER: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
MAX_CONTEXTS: Final = 100
"""Of one delivery: a batch has one for each message."""
SAMPLED: Final = 1
ENQUEUE: Final = "enqueue"
DELIVER: Final = "deliver"
SETTLEMENTS: Final = {
    COMPLETE: "complete",
    ABANDON: "abandon",
    DEFER: "defer",
    DEAD_LETTER: "dead_letter",
    RELEASE: "release",
}
"""The operations of settlements, by their numbers in commands."""


class MessageSpan(NamedTuple):
    """A piece of work that is over. Times in ns since 1970."""

    trace_id: str
    span_id: str
    parent: str
    operation: str
    entity: str
    begin: int
    end: int
    message_id: str = ""
    failure: str = ""
    """The condition of the error with which it ended."""
    delivery_count: int = 0
    linked: str = ""
    """The id of another span of the trace, with which this one is linked."""


class RequestSpan(NamedTuple):
    """A request over HTTP that was answered. Times in ns since 1970."""

    trace_id: str
    span_id: str
    parent: str
    method: str
    route: str
    """Its path without names: "/{entity}/messages"."""
    path: str
    status: int
    begin: int
    end: int


Span = MessageSpan | RequestSpan


class DeliveredContext(NamedTuple):
    """A trace that a delivered message belongs to."""

    trace_id: str
    parent: str
    span_id: str
    """Of the span of the delivery."""
    message_id: str


class Tracer:
    def __init__(
        self,
        export: Callable[[Span], None],
        ratio: float = 1.0,
        close: Callable[[], None] | None = None,
    ) -> None:
        """`export` takes a span and does not wait. `close` exports what is left."""
        self.export = export
        self._bound = int(ratio * (1 << 64))
        self._random = random.Random()
        self.close = close if close is not None else lambda: None

    def contexts(self, content: bytes) -> list[tuple[str, str]]:
        """Trace and parent of the messages in these bytes that are sampled, each once."""
        found: dict[tuple[str, str], None] = {}
        for trace_id, parent, flags in CONTEXT.findall(content):
            if int(flags, 16) & SAMPLED and int(trace_id[16:], 16) < self._bound:
                found[trace_id.decode(), parent.decode()] = None
                if len(found) == MAX_CONTEXTS:
                    break
        return list(found)

    def header_contexts(self, header: str) -> list[tuple[str, str]]:
        """Trace and parent of a header of HTTP, if it is sampled; at most one."""
        found = HEADER.fullmatch(header)
        if found is None or not int(found[3], 16) & SAMPLED or int(found[1][16:], 16) >= self._bound:
            return []
        return [(found[1], found[2])]

    def new_id(self) -> str:
        return f"{self._random.getrandbits(64) or 1:016x}"

    def delivered(self, entity: str, record: Record, now: int) -> list[DeliveredContext]:
        """Export the spans of a message that a receiver gets now (ms since 1970)."""
        content = record.content
        found = self.contexts(content) if content is not None else []
        if content is None or not found:
            return []
        begin, end = record.enqueued * 1_000_000, now * 1_000_000
        message_id = read_draft(content).message_id
        contexts = [DeliveredContext(*one, self.new_id(), message_id) for one in found]
        for one in contexts:
            self.export(
                MessageSpan(
                    one.trace_id,
                    one.span_id,
                    one.parent,
                    DELIVER,
                    entity,
                    min(begin, end),
                    end,
                    message_id,
                    "",
                    record.deliveries + 1,
                )
            )
        return contexts

    def sent(self, entity: str, contents: Iterable[bytes], begin: int, failure: str = "") -> None:
        """Export the spans of messages that came together, and are answered now. `begin` is in ns since 1970."""
        end = time.time_ns()
        for content in contents:
            for trace_id, parent in self.contexts(content):
                message_id = _id_in(content)
                self.export(
                    MessageSpan(
                        trace_id, self.new_id(), parent, ENQUEUE, entity, begin, end, message_id, failure
                    )
                )


class SettleSpans:
    """The messages that one link has delivered and whose settlement is not answered yet. The link bounds their number."""

    def __init__(self, tracer: Tracer, entity: str, settles: bool) -> None:
        """`settles`: the client settles its messages. Otherwise they are over when they are delivered."""
        self._tracer = tracer
        self._entity = entity
        self._settles = settles
        self._delivered: dict[bytes, list[DeliveredContext]] = {}
        self._open: dict[int, tuple[int, str, list[DeliveredContext]]] = {}

    def delivered(self, tags: Iterable[bytes], records: Iterable[Record], now: int) -> None:
        for tag, record in zip(tags, records, strict=True):
            contexts = self._tracer.delivered(self._entity, record, now)
            if contexts and self._settles:
                self._delivered[tag] = contexts

    def begin(self, ids: Iterable[int], tags: Iterable[bytes], action: int) -> None:
        """Deliveries are settled now. `action` is the number of the settlement."""
        if not self._delivered:
            return
        now = time.time_ns()
        for delivery_id, tag in zip(ids, tags, strict=True):
            contexts = self._delivered.pop(tag, None)
            if contexts is not None:
                self._open[delivery_id] = now, SETTLEMENTS[action], contexts

    def forget(self, tags: Iterable[bytes]) -> None:
        """Deliveries are settled in another way."""
        for tag in tags:
            self._delivered.pop(tag, None)

    def end(self, ids: Iterable[int], failure: str = "") -> None:
        """Export the spans of settlements that are answered now."""
        if not self._open:
            return
        tracer, now = self._tracer, time.time_ns()
        for delivery_id in ids:
            begin, operation, contexts = self._open.pop(delivery_id, (0, "", []))
            for one in contexts:
                tracer.export(
                    MessageSpan(
                        one.trace_id,
                        tracer.new_id(),
                        one.parent,
                        operation,
                        self._entity,
                        begin,
                        now,
                        one.message_id,
                        failure,
                        0,
                        one.span_id,
                    )
                )


class SendSpans:
    """The messages of one link that were not answered yet. Credit bounds their number."""

    def __init__(self, tracer: Tracer, entity: str) -> None:
        self._tracer = tracer
        self._entity = entity
        self._open: dict[int, tuple[int, str, list[tuple[str, str]]]] = {}

    def begin(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.settled or delivery.txn is not None:
                continue
            contexts = self._tracer.contexts(delivery.payload)
            if contexts:
                self._open[delivery.id] = time.time_ns(), _message_id(delivery), contexts

    def end(self, ids: Iterable[int], failure: str = "") -> None:
        """Export the spans of deliveries that are answered now."""
        if not self._open:
            return
        tracer, now = self._tracer, time.time_ns()
        for delivery_id in ids:
            found = self._open.pop(delivery_id, None)
            if found is not None:
                begin, message_id, contexts = found
                for trace_id, parent in contexts:
                    span_id = tracer.new_id()
                    tracer.export(
                        MessageSpan(
                            trace_id, span_id, parent, ENQUEUE, self._entity, begin, now, message_id, failure
                        )
                    )


def _message_id(delivery: Delivery) -> str:
    """The id of a message; none for a batch."""
    return "" if delivery.format == message_format_batch else _id_in(delivery.payload)


def _id_in(payload: bytes) -> str:
    with suppress(BusbarError):
        return parse_incoming(payload, 0, len(payload), str, 1 << 16, 1 << 20).message_id
    return ""
