"""A message over HTTP becomes AMQP and comes back; whatever is stored can be shown."""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Int, Symbol, Timestamp, ULong
from busbar.gateway.http.runtime_batch import compose_batch, is_batch
from busbar.gateway.http.runtime_message import HttpMessage, compose, message_id_of, show
from busbar.gateway.http.runtime_properties import BrokerProperties
from busbar.message.content import with_enqueued_number
from busbar.message.decoded import DecodedMessage, encode_message
from busbar.message.parsing import parse_message
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    BusbarError,
    MalformedMessage,
    MessageSizeExceeded,
)
from busbar.model.message import Draft, Record

NOW = 1_700_000_000_000
LOCK = uuid.UUID("01000000-0000-0000-0001-735f6cf56913")


def draft_of(payload: bytes) -> Draft:
    return parse_message(payload, 0, len(payload), "fresh", 128)


def stored(payload: bytes, *, deliveries: int = 0) -> Record:
    draft = draft_of(payload)
    return Record(3, NOW, draft.ttl, 0, deliveries, len(draft.content), draft.content, None)


def shown(payload: bytes) -> HttpMessage:
    return show(stored(payload), 3, LOCK, NOW + 60_000)


def broker_of(message: HttpMessage) -> dict[str, object]:
    decoded: dict[str, object] = json.loads(message.headers["BrokerProperties"])
    return decoded


def test_a_copy_of_a_topic_shows_the_topics_number() -> None:
    payload = compose(BrokerProperties(), {}, None, b"", NOW)
    assert broker_of(shown(payload))["EnqueuedSequenceNumber"] == 0
    copy = with_enqueued_number(draft_of(payload).content, 2 << 48 | 5)
    record = Record(3, NOW, 0, 0, 0, len(copy), copy, None)
    assert broker_of(show(record, 3, LOCK, NOW))["EnqueuedSequenceNumber"] == 2 << 48 | 5


def test_everything_comes_back() -> None:
    properties = BrokerProperties("m", "c", "l", "t", "r", "rs", "s", "s", "v", 40_500, NOW, True)
    payload = compose(properties, {"Priority": "High", "n": Int(5)}, "text/plain", b"body", NOW)
    message = shown(payload)
    assert message.body == b"body"
    assert broker_of(message) == {
        "DeliveryCount": 1,
        "EnqueuedSequenceNumber": 0,
        "EnqueuedTimeUtc": "Tue, 14 Nov 2023 22:13:20 GMT",
        "SequenceNumber": 3,
        "State": "Active",
        "LockToken": str(LOCK),
        "LockedUntilUtc": "Tue, 14 Nov 2023 22:14:20 GMT",
        "TimeToLive": 40.5,
        "ExpiresAtUtc": "Tue, 14 Nov 2023 22:14:00 GMT",
        "ScheduledEnqueueTimeUtc": "Tue, 14 Nov 2023 22:13:20 GMT",
        "MessageId": "m",
        "CorrelationId": "c",
        "Label": "l",
        "To": "t",
        "ReplyTo": "r",
        "SessionId": "s",
        "ReplyToSessionId": "rs",
        "PartitionKey": "s",
        "ViaPartitionKey": "v",
        "ForcePersistence": True,
    }
    assert message.headers["Content-Type"] == "text/plain"
    assert (message.headers["Priority"], message.headers["n"]) == ('"High"', "5")


def test_an_empty_session_id_is_one_and_comes_back() -> None:
    payload = compose(BrokerProperties(session_id=""), {}, None, b"", NOW)
    assert draft_of(payload).session_id == ""
    assert broker_of(shown(payload))["SessionId"] == ""
    without = compose(BrokerProperties(), {}, None, b"", NOW)
    assert draft_of(without).session_id is None
    assert "SessionId" not in broker_of(shown(without))


def test_ids_of_bytes_are_shown_as_the_texts_that_they_are() -> None:
    message = DecodedMessage(data=b"")
    message.message_id, message.correlation_id = b"received", b"\x00\xff"
    broker = broker_of(shown(encode_message(message)))
    assert (broker["MessageId"], broker["CorrelationId"]) == ("received", "00ff")


def test_the_broker_acts_on_the_same_fields_as_over_amqp() -> None:
    draft = draft_of(
        compose(BrokerProperties(session_id="s", ttl=5, scheduled=NOW, partition_key="s"), {}, "", b"", NOW)
    )
    assert (draft.message_id, draft.session_id, draft.partition_key) == ("fresh", "s", "s")
    assert (draft.ttl, draft.scheduled) == (5, NOW)


@pytest.mark.parametrize("ttl", [1, 0xFFFFFFFE, 0xFFFFFFFF, 2**40])
def test_a_time_to_live_of_any_length_arrives(ttl: int) -> None:
    assert draft_of(compose(BrokerProperties(ttl=ttl), {}, None, b"", NOW)).ttl == ttl


def test_a_deleted_message_has_no_lock_and_a_plain_one_a_default_type() -> None:
    message = show(stored(compose(BrokerProperties(), {}, None, b"x", NOW), deliveries=4), 3, None, 0)
    assert broker_of(message).keys() == {
        "DeliveryCount",
        "EnqueuedSequenceNumber",
        "EnqueuedTimeUtc",
        "SequenceNumber",
        "State",
        "MessageId",
    }
    assert broker_of(message)["DeliveryCount"] == 5
    assert message.headers["Content-Type"] == "application/xml; charset=utf-8"


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (DecodedMessage("text"), b"text"),
        (DecodedMessage(b"raw"), b"raw"),
        (DecodedMessage(None), b""),
        (DecodedMessage({"a": 1}), encode_value({"a": 1})),
        (DecodedMessage(data=b"data"), b"data"),
    ],
)
def test_bodies_of_amqp(message: DecodedMessage, body: bytes) -> None:
    assert shown(encode_message(message)).body == body


def test_several_data_sections_are_joined_and_a_message_may_have_none() -> None:
    section = encode_value(Described(ULong(0x75), b"ab"))
    assert shown(section * 2).body == b"abab"
    assert shown(encode_value(Described(ULong(0x73), ["id"]))).body == b""


@pytest.mark.parametrize(
    ("message_id", "text"),
    [
        ("m", "m"),
        (uuid.UUID(int=1), str(uuid.UUID(int=1))),
        (ULong(12), "12"),
        (b"\x01\xff", "01ff"),
        (None, "fresh"),
    ],
)
def test_ids_of_every_type(message_id: object, text: str) -> None:
    message = DecodedMessage(data=b"")
    message.message_id = message_id
    payload = encode_message(message)
    assert broker_of(shown(payload))["MessageId"] == text
    assert message_id_of(stored(payload)) == text


def test_properties_cannot_forge_headers_of_the_answer() -> None:
    message = DecodedMessage(
        data=b"x", application_properties={"Content-Length": "0", "a\r\nb": 1, "c": "\r\nd"}
    )
    message.content_type = "text/plain\r\nX: y"
    answer = shown(encode_message(message))
    assert answer.headers.keys() == {"c", "BrokerProperties", "Content-Section", "Content-Type"}
    assert answer.headers["c"] == '"\\r\\nd"'
    assert answer.headers["Content-Type"] == "application/xml; charset=utf-8"


def test_what_cannot_be_decoded_is_left_out() -> None:
    bad_text = b"\x00\x53\x74\xc1\x07\x02\xa1\x01k\xa1\x01\xff"  # an application property that is not UTF-8
    bad_symbol = b"\x00\x53\x72\xc1\x06\x02\xa3\x01\xff\xa1\x00"
    body = encode_value(Described(ULong(0x75), b"ab"))
    answer = shown(bad_symbol + bad_text + body)
    assert answer.body.endswith(b"ab")
    assert broker_of(answer)["SequenceNumber"] == 3


@given(st.binary(max_size=200))
def test_whatever_was_accepted_can_be_shown(tail: bytes) -> None:
    for payload in (tail, b"\x00\x53\x72" + tail, b"\x00\x53\x74" + tail, b"\x00\x53\x77" + tail):
        try:
            record = stored(payload)
        except (MalformedMessage, ArgumentOutOfRange):
            continue
        show(record, 3, LOCK, NOW)


# Batches


def test_a_batch() -> None:
    document = json.dumps(
        [
            {
                "Body": "erste ü",
                "BrokerProperties": {"Label": "l", "TimeToLiveTimeSpan": "00:00:40"},
                "UserProperties": {"s": "x", "i": 5, "big": 2**40, "f": 0.5, "b": True, "none": None},
            },
            {"Body": "second"},
            {},
        ]
    ).encode()
    first, second, third = (shown(payload) for payload in compose_batch(document, NOW, 10_000))
    assert (first.body.decode(), second.body, third.body) == ("erste ü", b"second", b"")
    assert (broker_of(first)["Label"], broker_of(first)["TimeToLive"]) == ("l", 40)
    assert {name: first.headers[name] for name in ("s", "i", "big", "f", "b")} == {
        "s": '"x"',
        "i": "5",
        "big": str(2**40),
        "f": "0.5",
        "b": "true",
    }


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        b"[]",
        b"[1]",
        b"[[]]",
        b"[null]",
        b'[{"Body": 1}]',
        b'[{"Body": "a"}, {"UserProperties": []}]',
        b'[{"UserProperties": {"a": {}}}]',
        b'[{"UserProperties": {"a": [1]}}]',
        b'[{"BrokerProperties": 5}]',
        b'[{"BrokerProperties": {"SessionId": "a", "PartitionKey": "b"}}]',
        b"\xff",
        b"[" * 200_000,
        b'[{"Body": "\\ud800"}]',
    ],
)
def test_batches_that_are_none(document: bytes) -> None:
    with pytest.raises(ArgumentError):
        compose_batch(document, NOW, 10_000)


def test_an_error_names_the_message_of_the_batch() -> None:
    with pytest.raises(ArgumentOutOfRange, match="Message 1 of the batch: TimeToLive is 0"):
        compose_batch(b'[{}, {"BrokerProperties": {"TimeToLive": 0}}]', NOW, 10_000)


def test_a_batch_is_no_larger_than_a_message() -> None:
    with pytest.raises(MessageSizeExceeded):
        compose_batch(json.dumps([{"Body": "x" * 600}] * 2).encode(), NOW, 1_000)
    with pytest.raises(MessageSizeExceeded):
        compose_batch(b"[" + b"{}," * 1_000 + b"{}]", NOW, 1_000)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_batch_or_an_error_of_ours(document: bytes) -> None:
    try:
        compose_batch(document, NOW, 10_000)
    except BusbarError:
        pass


def test_the_type_of_a_batch() -> None:
    assert is_batch("application/vnd.microsoft.servicebus.json")
    assert is_batch("Application/VND.microsoft.servicebus.json; charset=utf-8")
    assert not is_batch("application/json")


def test_annotations_of_other_types_are_no_texts() -> None:
    annotations = {
        Symbol("x-opt-scheduled-enqueue-time"): Timestamp(NOW),
        Symbol("x-opt-deadletter-source"): 5,
    }
    payload = encode_value(Described(ULong(0x72), annotations)) + encode_value(Described(ULong(0x75), b""))
    assert "DeadLetterSource" not in broker_of(shown(payload))
