"""Spans of messages on their way through the gateway, along the messaging conventions of OpenTelemetry.

Rules
1. A message belongs to the trace that its sender names, in the application property `traceparent`, or `Diagnostic-Id` of
   earlier Azure SDKs. A message without them, or whose trace is not sampled by its sender, has no spans.
2. A message has two kinds of spans, both children of the span that its sender named. `enqueue` lasts from the arrival of the
   message until its sender is answered. `deliver` lasts from its enqueuing until a receiver gets it.
3. Of the traces that are sampled by their senders, a part can be chosen (`ratio`). The trace id decides, so all processes
   choose the same ones.
4. Spans go to the exporter (trace_export.py), which has a thread of its own. If it does not keep up, spans are dropped.
5. Messages over HTTP and in transactions have no `enqueue` spans.
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
from busbar.model.errors import BusbarError
from busbar.model.message import Record

CONTEXT: Final = re.compile(
    rb"(?:traceparent|Diagnostic-Id)[\xa0\xa1\xa3]\x37[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})"
)
"""A property and its value, as AMQP encodes them: a binary, a string or a symbol of 55 bytes (W3C Trace Context)."""
MAX_CONTEXTS: Final = 100
"""Of one delivery: a batch has one for each message."""
SAMPLED: Final = 1
ENQUEUE: Final = "enqueue"
DELIVER: Final = "deliver"


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


class Tracer:
    def __init__(
        self,
        export: Callable[[MessageSpan], None],
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

    def new_id(self) -> str:
        return f"{self._random.getrandbits(64) or 1:016x}"

    def delivered(self, entity: str, records: Iterable[Record], now: int) -> None:
        """Export a span for each message that a receiver gets now (ms since 1970)."""
        for record in records:
            content = record.content
            if content is None:
                continue
            for trace_id, parent in self.contexts(content):
                begin, end = record.enqueued * 1_000_000, now * 1_000_000
                message_id = read_draft(content).message_id
                count = record.deliveries + 1
                self.export(
                    MessageSpan(
                        trace_id,
                        self.new_id(),
                        parent,
                        DELIVER,
                        entity,
                        min(begin, end),
                        end,
                        message_id,
                        "",
                        count,
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
    if delivery.format != message_format_batch:
        payload = delivery.payload
        with suppress(BusbarError):
            return parse_incoming(payload, 0, len(payload), str, 1 << 16, 1 << 20).message_id
    return ""
