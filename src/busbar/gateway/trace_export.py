"""Exports spans to an OpenTelemetry collector: OTLP over HTTP, as JSON.

A thread of its own collects spans for a moment and posts them together. At most MAX_WAITING spans wait. What comes
beyond, and what the collector does not take, is dropped and counted. A warning is logged once a minute.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from busbar import __version__
from busbar.gateway.tracing import DELIVER, ENQUEUE, MessageSpan, RequestSpan, Span

MAX_WAITING = 10_000
MAX_BATCH = 512
PAUSE = 1.0
TIMEOUT = 10.0
LOGGED_EVERY = 60.0
SERVER, PRODUCER = 2, 4
"""Kinds of spans: who answers a sender, and who hands a message out."""
ERROR = 2
OPERATION_TYPES = {ENQUEUE: "send", DELIVER: "receive"}
"""The type of an operation; all others are settlements."""

_log = logging.getLogger(__name__)


class TraceExporter:
    def __init__(self, url: str, headers: Mapping[str, str], service: str, instance: str) -> None:
        """`url` takes the spans; `service` and `instance` are what traces show of this process."""
        self._url = url
        self._headers = {"Content-Type": "application/json", **headers}
        self._resource = {"service.name": service, "service.version": __version__}
        if instance:
            self._resource["service.instance.id"] = instance
        self._waiting: deque[Span] = deque()
        self._woken = threading.Event()
        self._ending = False
        self.dropped = 0
        self._logged_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="busbar-traces", daemon=True)
        self._thread.start()

    def add(self, span: Span) -> None:
        """Export a span soon. Never waits."""
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
        else:
            self._waiting.append(span)

    def close(self) -> None:
        """Export what waits, and end."""
        self._ending = True
        self._woken.set()
        self._thread.join(TIMEOUT)

    def _run(self) -> None:
        while not self._ending:
            self._woken.wait(PAUSE)
            self._export_all()
        self._export_all()

    def _export_all(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            try:
                self._post(batch)
            except Exception as error:  # whatever it is, it must not end the thread
                self.dropped += len(batch)
                self._report(error)
                return

    def _post(self, batch: Sequence[Span]) -> None:
        body = json.dumps(request_of(batch, self._resource)).encode()
        request = urllib.request.Request(self._url, body, self._headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            answer.read()

    def _report(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._logged_at >= LOGGED_EVERY:
            self._logged_at = now
            host = urlsplit(self._url).hostname  # the rest of the address may have a secret
            _log.warning("traces are not taken at %s, %d spans are lost: %s", host, self.dropped, error)


def request_of(batch: Sequence[Span], resource: Mapping[str, str]) -> dict[str, object]:
    """An ExportTraceServiceRequest. Numbers of 64 bits are strings, as in the JSON of Protocol Buffers."""
    scope = {"name": "busbar", "version": __version__}
    spans = [_request_span(span) if isinstance(span, RequestSpan) else _message_span(span) for span in batch]
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": scope, "spans": spans}],
            }
        ]
    }


def _message_span(span: MessageSpan) -> dict[str, object]:
    attributes: dict[str, str | int] = {
        "messaging.system": "servicebus",
        "messaging.operation.name": span.operation,
        "messaging.operation.type": OPERATION_TYPES.get(span.operation, "settle"),
        "messaging.destination.name": span.entity,
    }
    if span.message_id:
        attributes["messaging.message.id"] = span.message_id
    if span.delivery_count:
        attributes["messaging.servicebus.message.delivery_count"] = span.delivery_count
    if span.operation not in OPERATION_TYPES:
        attributes["messaging.servicebus.disposition_status"] = span.operation
    kind = PRODUCER if span.operation == DELIVER else SERVER
    shown = _span(span, f"{span.operation} {span.entity}", kind, attributes, span.failure)
    if span.linked:
        shown["links"] = [{"traceId": span.trace_id, "spanId": span.linked}]
    return shown


def _request_span(span: RequestSpan) -> dict[str, object]:
    attributes: dict[str, str | int] = {
        "http.request.method": span.method,
        "http.route": span.route,
        "url.path": span.path,
        "http.response.status_code": span.status,
    }
    failure = str(span.status) if span.status >= 500 else ""
    return _span(span, f"{span.method} {span.route}", SERVER, attributes, failure)


def _span(
    span: Span, name: str, kind: int, attributes: dict[str, str | int], failure: str
) -> dict[str, object]:
    if failure:
        attributes["error.type"] = failure
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(span.begin),
        "endTimeUnixNano": str(span.end),
        "attributes": _attributes(attributes),
        "status": {"code": ERROR, "message": failure} if failure else {},
    }


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, object]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]
