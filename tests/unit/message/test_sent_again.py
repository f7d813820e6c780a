"""A received message that is sent again as it is: SDKs write some of it in another type than they received it in."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from busbar.amqp.codec import decode_value, encode_value
from busbar.amqp.types import Described, Int, Symbol, Timestamp, UInt, ULong
from busbar.message.delivery import encode_delivery
from busbar.message.parsing import parse_message
from busbar.model.errors import ArgumentOutOfRange, MalformedMessage
from busbar.model.message import Draft, Record
from tests.unit.message.delivered import delivered

NOW = 1767225600000
ID = encode_value(Described(0x73, ["m"]))
BODY = encode_value(Described(0x75, b"hi"))
KEYS = ("x-opt-partition-key", "x-opt-via-partition-key")
NAMES = (
    *("message_id", "session_id", "partition_key", "correlation_id", "subject", "content_type", "reply_to"),
    *("reply_to_session_id", "to", "application_properties", "scheduled_enqueue_time_utc", "lock_token"),
)
SCHEDULED = "x-opt-scheduled-enqueue-time"


def parse(raw: bytes) -> Draft:
    return parse_message(raw, 0, len(raw), "fresh", 128)


def annotated(pairs: dict[object, object]) -> Draft:
    return parse(encode_value(Described(0x72, pairs)) + ID + BODY)


def shown(draft: Draft) -> dict[object, object]:
    raw = encode_delivery(Record(5, NOW, 0, 0, 0, 1, draft.content, None), 5, 0, -1)
    pos = 0
    while pos < len(raw):
        value, pos = decode_value(raw, pos, len(raw))
        if isinstance(value, Described) and value.descriptor == 0x72 and isinstance(value.value, dict):
            return value.value
    raise AssertionError("no annotations")


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("value", ["schlüssel", b"schl\xc3\xbcssel", "x" * 128, b"x" * 128])
@pytest.mark.parametrize("key", [Symbol, str])
def test_a_key_may_come_as_bytes_and_is_delivered_as_a_string(
    key: Any, value: str | bytes, name: str
) -> None:
    text = value if isinstance(value, str) else value.decode()
    draft = annotated({Symbol("before"): 1, key(name): value, Symbol("behind"): 2})
    assert draft.partition_key == (text if name == KEYS[0] else None)
    found = shown(draft)
    assert found[name] == text and type(found[name]) is str
    assert type(next(key for key in found if key == name)) is Symbol
    assert (found["before"], found["behind"]) == (1, 2)


def test_a_symbol_is_a_text_too() -> None:
    draft = annotated({Symbol(KEYS[0]): Symbol("key")})
    assert draft.partition_key == "key" and type(shown(draft)[KEYS[0]]) is str


@pytest.mark.parametrize("name", KEYS)
def test_a_key_that_is_no_text_is_refused_by_name(name: str) -> None:
    for wrong in (b"\xff\xfe", Described(Symbol("x"), b"k"), 5):
        with pytest.raises(MalformedMessage, match=f"{name} .*not (UTF-8|a string)"):
            annotated({Symbol(name): wrong})
    with pytest.raises(ArgumentOutOfRange, match=f"{name} has 129 characters"):
        annotated({Symbol(name): b"x" * 129})


@pytest.mark.parametrize("key", [Symbol, str])
@pytest.mark.parametrize(
    ("value", "time"),
    [
        (Timestamp(NOW), NOW),
        (NOW, NOW),
        (ULong(NOW), NOW),
        (Int(5), 5),
        (UInt(7), 7),
        (ULong(2**64 - 1), 253_402_300_799_999),
    ],
)
def test_a_scheduled_time_may_be_any_integer_and_is_delivered_as_a_timestamp(
    key: Any, value: int, time: int
) -> None:
    draft = annotated({key(SCHEDULED): value})
    assert draft.scheduled == time
    assert shown(draft)[SCHEDULED] == time and type(shown(draft)[SCHEDULED]) is Timestamp


def test_nothing_stays_nothing() -> None:
    draft = annotated({KEYS[0]: None, KEYS[1]: None, SCHEDULED: None})
    assert (draft.partition_key, draft.scheduled) == (None, 0)
    found = shown(draft)
    assert [found[name] for name in (*KEYS, SCHEDULED)] == [None] * 3


def test_annotations_in_their_own_types_keep_their_bytes() -> None:
    sent: dict[object, object] = {
        Symbol(KEYS[0]): "k",
        Symbol(KEYS[1]): "k",
        Symbol(SCHEDULED): Timestamp(NOW),
    }
    pairs = b"".join(encode_value(key) + encode_value(value) for key, value in sent.items())
    assert annotated(sent).content[8:].startswith(pairs)


def bytes_of(message: Any) -> bytes:
    outgoing = PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message)
    return bytes(encode_payload(bytearray(), outgoing))


def received(draft: Draft) -> Any:
    record = Record(5, NOW, draft.ttl, 0, 0, 1, draft.content, None)
    tags, payloads = delivered([record], 7, 0, 99, NOW, 3)
    frame: Any = [None, None, tags[0]]
    return ServiceBusReceivedMessage(decode_payload(memoryview(payloads[0])), receiver=None, frame=frame)


def test_a_message_of_the_sdk_goes_through_it_twice() -> None:
    message = ServiceBusMessage(
        "body",
        message_id="id",
        session_id="key",
        partition_key="key",
        correlation_id="c",
        subject="subject",
        content_type="text/plain",
        reply_to="r",
        reply_to_session_id="rs",
        to="t",
        application_properties={"a": 1, b"b": b"x"},
        scheduled_enqueue_time_utc=datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC),
    )
    first = parse(bytes_of(message))
    again = received(first)
    again.scheduled_enqueue_time_utc = (
        again.scheduled_enqueue_time_utc
    )  # the SDK cannot encode what it received
    second = parse(bytes_of(again))
    assert (second.message_id, second.session_id, second.partition_key) == ("id", "key", "key")
    assert (second.scheduled, second.ttl) == (first.scheduled, first.ttl)
    assert shown(second) == shown(first)
    last = received(second)
    for name in [
        "message_id",
        "session_id",
        "partition_key",
        "correlation_id",
        "subject",
        "content_type",
        "reply_to",
        "reply_to_session_id",
        "to",
        "application_properties",
        "scheduled_enqueue_time_utc",
        "lock_token",
    ]:
        assert getattr(last, name) == getattr(received(first), name), name
    assert str(last) == "body"
