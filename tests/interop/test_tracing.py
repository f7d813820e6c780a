"""Traces of a program of the Azure SDK: the broker's spans are children of those that the program made."""

from __future__ import annotations

import http.client
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from azure.core.settings import settings
from azure.core.tracing import SpanKind
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
)
from azure.servicebus.exceptions import ServiceBusError

from busbar.model.sas import sign
from harness.serving import PATIENCE, Busbar, serving
from harness.trace_collector import TraceCollector, collecting
from harness.waiting import eventually

pytestmark = pytest.mark.timeout(60)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class ProgramSpan:
    """The spans of a program, for the SDK (azure.core.tracing.AbstractSpan), all of one trace."""

    made: list[ProgramSpan]
    sampled = True

    def __init__(self, span: object = None, name: str = "span", **arguments: Any) -> None:
        self.name = name
        self.id = secrets.token_hex(8)
        self.kind: SpanKind | None = arguments.get("kind")
        ProgramSpan.made.append(self)

    def __enter__(self) -> ProgramSpan:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def to_header(self) -> dict[str, str]:
        return {"traceparent": f"00-{TRACE}-{self.id}-{'01' if ProgramSpan.sampled else '00'}"}

    def add_attribute(self, key: str, value: object) -> None:
        pass

    @classmethod
    def link_from_headers(cls, headers: object, attributes: object = None) -> None:
        pass


@pytest.fixture
def program() -> Iterator[type[ProgramSpan]]:
    ProgramSpan.made, ProgramSpan.sampled = [], True
    settings.tracing_implementation.set_value(cast(Any, ProgramSpan))
    yield ProgramSpan
    settings.tracing_implementation.unset_value()


@pytest.fixture(scope="module")
def collector() -> Iterator[TraceCollector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def traced(collector: TraceCollector) -> Iterator[Busbar]:
    arguments = ("--brokers", "2", "--otlp", collector.url)
    environment = {"OTEL_SERVICE_NAME": "shop", "OTEL_EXPORTER_OTLP_HEADERS": "api-key=s%20cret"}
    queues: dict[str, dict[str, object]] = {"orders": {}, "once": {"RequiresSession": True}}
    limits: dict[str, object] = {**PATIENCE}
    with serving(queues, limits, arguments=arguments, environment=environment) as server:
        yield server


@pytest.mark.req("U28")
def test_spans_of_the_broker_are_children_of_the_program(
    traced: Busbar, collector: TraceCollector, program: type[ProgramSpan]
) -> None:
    with ServiceBusClient.from_connection_string(traced.connection_string) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage(b"x", message_id="m1"))
            batch = sender.create_message_batch()
            for n in (2, 3):
                batch.add_message(ServiceBusMessage(b"x", message_id=f"m{n}"))
            sender.send_messages(batch)
        messages = [span.id for span in program.made if span.name == "ServiceBus.message"]
        assert len(messages) == 3, "the SDK made a span for each message"
        with client.get_queue_receiver("orders", max_wait_time=5) as receiver:
            got = 0
            while got < 3:
                for message in receiver.receive_messages(max_message_count=3, max_wait_time=5):
                    receiver.complete_message(message)
                    got += 1
    eventually(lambda: len(collector.spans) >= 9)
    spans = collector.spans
    assert {span["traceId"] for span in spans} == {TRACE}
    for operation, kind in (("enqueue", 2), ("deliver", 4)):
        found = [span for span in spans if span["name"] == f"{operation} orders"]
        assert sorted(span["parentSpanId"] for span in found) == sorted(messages)
        assert {span["kind"] for span in found} == {kind}
        assert all(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) for span in found)
        assert {span["attributes"]["messaging.destination.name"] for span in found} == {"orders"}
        assert {span["attributes"]["messaging.system"] for span in found} == {"servicebus"}
        ids = {span["attributes"].get("messaging.message.id") for span in found}
        assert ids == ({"m1", None} if operation == "enqueue" else {"m1", "m2", "m3"})
    deliveries = {
        span["attributes"]["messaging.message.id"]: span for span in spans if span["name"] == "deliver orders"
    }
    settled = [span for span in spans if span["name"] == "complete orders"]
    assert len(settled) == 3 and {span["kind"] for span in settled} == {2}
    for span in settled:
        delivery = deliveries[span["attributes"]["messaging.message.id"]]
        assert span["links"] == [{"traceId": TRACE, "spanId": delivery["spanId"]}]
        assert span["parentSpanId"] == delivery["parentSpanId"]
        assert span["attributes"]["messaging.operation.type"] == "settle"
        assert span["attributes"]["messaging.servicebus.disposition_status"] == "complete"
    assert len({span["spanId"] for span in spans}) == len(spans)
    assert {span["resource"]["service.name"] for span in spans} == {"shop"}
    assert {headers["api-key"] for headers in collector.headers} == {"s cret"}


def test_a_refusal_is_a_failed_span_and_what_is_not_sampled_is_none(
    traced: Busbar, collector: TraceCollector, program: type[ProgramSpan]
) -> None:
    with ServiceBusClient.from_connection_string(traced.connection_string, retry_total=0) as client:
        program.sampled = False
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage(b"x"))
        unsampled = {span.id for span in program.made}
        program.sampled = True
        with client.get_queue_sender("once") as sender, pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage(b"no session"))
    eventually(lambda: any(span["name"] == "enqueue once" for span in collector.spans))
    (refused,) = [span for span in collector.spans if span["name"] == "enqueue once"]
    assert refused["status"]["code"] == 2
    assert refused["attributes"]["error.type"] == "amqp:not-allowed"
    assert not unsampled & {span["parentSpanId"] for span in collector.spans}


@pytest.mark.req("U28")
def test_settlements_that_fail_and_those_of_a_session(
    traced: Busbar, collector: TraceCollector, program: type[ProgramSpan]
) -> None:
    def named(name: str) -> list[dict[str, Any]]:
        return [span for span in collector.spans if span["name"] == name]

    with ServiceBusClient.from_connection_string(traced.connection_string) as client:
        with client.get_queue_sender("once") as sender:
            sender.send_messages([ServiceBusMessage(b"x", session_id="s") for _ in range(2)])
        with client.get_queue_receiver("once", session_id="s", max_wait_time=5) as receiver:
            first, second = _two(receiver)
            receiver.dead_letter_message(first, reason="it is the first")
            receiver.abandon_message(second)
    eventually(lambda: named("dead_letter once") and named("abandon once"))
    assert all("error.type" not in span["attributes"] for span in named("dead_letter once"))


def _two(receiver: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
    got: list[ServiceBusReceivedMessage] = []
    while len(got) < 2:
        got += receiver.receive_messages(max_message_count=2 - len(got), max_wait_time=5)
    return got


@pytest.mark.req("U28")
def test_requests_over_http_have_spans(traced: Busbar, collector: TraceCollector) -> None:
    client, message = secrets.token_hex(8), secrets.token_hex(8)
    token = {"Authorization": token_for(traced, f"http://127.0.0.1:{traced.port}/orders")}
    headers = {**token, "traceparent": f"00-{TRACE}-{client}-01"}
    carried = {"Diagnostic-Id": json.dumps(f"00-{TRACE}-{message}-01")}
    assert post(traced, "/orders/messages", {**headers, **carried}) == 201
    assert post(traced, "/orders/messages", {**token, "traceparent": f"00-{TRACE}-{client}-00"}) == 201
    assert post(traced, "/orders/messages", {**headers, "BrokerProperties": "{"}) == 400
    eventually(lambda: len(_of(collector, client)) >= 2 and len(_of(collector, message)) >= 1)
    stored, refused = sorted(
        _of(collector, client), key=lambda span: int(span["attributes"]["http.response.status_code"])
    )
    assert stored["name"] == refused["name"] == "POST /{entity}/messages"
    assert int(stored["attributes"]["http.response.status_code"]) == 201
    assert int(refused["attributes"]["http.response.status_code"]) == 400
    assert stored["attributes"]["url.path"] == "/orders/messages" and stored["kind"] == 2
    (enqueued,) = _of(collector, message)
    assert enqueued["name"] == "enqueue orders" and enqueued["kind"] == 2


def _of(collector: TraceCollector, parent: str) -> list[dict[str, Any]]:
    return [span for span in collector.spans if span["parentSpanId"] == parent]


def post(server: Busbar, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", path, b"x", headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def token_for(server: Busbar, resource: str) -> str:
    return sign(resource, "RootManageSharedAccessKey", server.key, int(time.time()) + 300)


def test_a_collector_that_is_gone_costs_nothing_but_its_spans(program: type[ProgramSpan]) -> None:
    with collecting() as gone:
        url = gone.url
    with serving({"q": {}}, arguments=("--brokers", "1", "--otlp", url)) as server:
        with ServiceBusClient.from_connection_string(server.connection_string) as client:
            with client.get_queue_sender("q") as sender:
                sender.send_messages(ServiceBusMessage(b"x"))
            with client.get_queue_receiver("q", max_wait_time=5) as receiver:
                assert len(receiver.receive_messages(max_wait_time=5)) == 1
        eventually(lambda: "traces are not taken at 127.0.0.1" in server.error_text)


def test_a_wrong_address_is_refused_at_the_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "busbar", "serve", "--data", str(tmp_path), "--otlp", "localhost:4318"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert ended.returncode == 2 and "'localhost:4318/v1/traces'; it must begin with http" in ended.stderr
