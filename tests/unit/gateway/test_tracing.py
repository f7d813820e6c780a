"""Which traces messages name, and which of them are exported."""

from __future__ import annotations

import json

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Symbol, ULong
from busbar.app.config import ConfigError
from busbar.app.trace_settings import make_tracer, traces_url
from busbar.gateway.http.request_spans import route_of
from busbar.gateway.trace_export import request_of
from busbar.gateway.tracing import MAX_CONTEXTS, MessageSpan, SettleSpans, Span, Tracer
from busbar.message.parsing import parse_message
from busbar.model.commands import ABANDON, COMPLETE
from busbar.model.message import Record

PARENT = "00f067aa0ba902b7"
OTHER = "b7ad6b7169203331"


def trace(number: int) -> str:
    return f"{1:016x}{number:016x}"


def message(key: object, value: object) -> bytes:
    """A message with one application property."""
    return encode_value(Described(ULong(0x74), {key: value}))


def contexts(content: bytes, ratio: float = 1.0) -> list[tuple[str, str]]:
    return Tracer(lambda span: None, ratio).contexts(content)


@pytest.mark.parametrize("key", ["traceparent", "Diagnostic-Id"])
@pytest.mark.parametrize("kind", [str, lambda text: text.encode(), Symbol])
def test_both_properties_count_however_they_are_encoded(key: str, kind: type[str]) -> None:
    value = f"00-{trace(7)}-{PARENT}-01"
    assert contexts(message(key, kind(value))) == [(trace(7), PARENT)]
    both = message("traceparent", value) + message("Diagnostic-Id", value)
    assert contexts(both) == [(trace(7), PARENT)], "each once"


@pytest.mark.parametrize(
    "value",
    [
        f"00-{trace(7)}-{PARENT}-00",
        f"00-{trace(7).upper()}-{PARENT}-01"[:54] + "x",
        f"00-{trace(7)}-{PARENT}-01-more",
        f"00-{trace(7)}-{PARENT[:-1]}-01",
        "",
        7,
    ],
)
def test_other_values_are_no_trace(value: object) -> None:
    assert contexts(message("traceparent", value)) == []


def test_a_ratio_chooses_by_the_trace() -> None:
    low, high = f"{'0' * 32}", f"{'f' * 32}"
    content = b"".join(message("traceparent", f"00-{one}-{PARENT}-01") for one in (low, high))
    assert [one for one, _ in contexts(content, 0.5)] == [low]
    assert contexts(content, 0.0) == [] and len(contexts(content, 1.0)) == 2


def test_a_batch_has_a_bounded_number() -> None:
    content = b"".join(message("traceparent", f"00-{trace(n)}-{PARENT}-01") for n in range(MAX_CONTEXTS + 20))
    assert len(contexts(content)) == MAX_CONTEXTS


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/orders/messages", "/{entity}/messages"),
        ("/a/b/Messages/Head", "/{entity}/messages/head"),
        (
            "/news/subscriptions/all/messages/7/5f2b7f0e-63bf-4d53-8f35-2a1f9c7d0a4e",
            "/{entity}/messages/{id}/{lock token}",
        ),
        ("/orders", "/{entity}"),
        ("/$busbar/fragments/orders", "/$busbar/fragments"),
        ("/metrics", "/metrics"),
        ("/", "/{entity}"),
    ],
)
def test_routes_name_no_entities(path: str, route: str) -> None:
    assert route_of(path) == route


def test_headers_of_requests_are_sampled_like_messages() -> None:
    tracer = Tracer(lambda span: None, 0.5)
    low, high = "0" * 32, "f" * 32
    assert tracer.header_contexts(f"00-{low}-{PARENT}-01") == [(low, PARENT)]
    for other in (f"00-{low}-{PARENT}-00", f"00-{high}-{PARENT}-01", f"00-{low}-{PARENT}-01-x", "", "\n"):
        assert tracer.header_contexts(other) == []


def test_a_settlement_is_over_with_its_answer() -> None:
    exported: list[Span] = []
    spans = SettleSpans(Tracer(exported.append), "orders", settles=True)
    sent = message("traceparent", f"00-{trace(7)}-{PARENT}-01")
    content = parse_message(sent, 0, len(sent), "m", 128, 10_000).content
    tags = [bytes([number]) for number in range(3)]
    records = [Record(number, 1, 0, 0, 0, len(content), content, None) for number in range(3)]
    spans.delivered(tags, records, 5)
    assert len(exported) == 3
    spans.begin([10], tags[:1], COMPLETE)
    spans.forget(tags[1:2])
    spans.begin([11, 12], tags[1:], ABANDON)
    assert len(exported) == 3
    spans.end([10, 11, 12, 13], "amqp:gone")
    spans.end([10, 12])
    settled = [one for one in exported[3:] if isinstance(one, MessageSpan)]
    assert [one.operation for one in settled] == ["complete", "abandon"]
    assert [one.linked for one in settled] == [exported[0].span_id, exported[2].span_id]


def test_the_request_is_that_of_otlp() -> None:
    span = MessageSpan(trace(1), OTHER, PARENT, "deliver", "orders", 5, 2**60, "m1", "", 2)
    (resource,) = json.loads(json.dumps(request_of([span], {"service.name": "busbar"})))["resourceSpans"]
    assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "busbar"}}]
    (found,) = resource["scopeSpans"][0]["spans"]
    assert (found["traceId"], found["spanId"], found["parentSpanId"]) == (trace(1), OTHER, PARENT)
    assert (found["startTimeUnixNano"], found["endTimeUnixNano"]) == ("5", str(2**60))
    count = {"key": "messaging.servicebus.message.delivery_count", "value": {"intValue": "2"}}
    assert count in found["attributes"]


def test_addresses_are_those_of_the_standard() -> None:
    assert traces_url({}) == "" and make_tracer({}) is None
    assert traces_url({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1/"}) == "http://a:1/v1/traces"
    both = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://b/in"}
    assert traces_url(both) == "https://b/in"
    for wrong in ("localhost:4318", "ftp://a", "http://"):
        with pytest.raises(ConfigError, match="must begin with http"):
            traces_url({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": wrong})
    for ratio in ("2", "-1", "often", "nan"):
        with pytest.raises(ConfigError, match="0 to 1"):
            make_tracer({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_TRACES_SAMPLER_ARG": ratio})
