"""An independent codec as the peer: what the Azure SDK's own AMQP stack encodes, we read, and the other way round."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp._encode import encode_value as peer_encode
from azure.servicebus._pyamqp.message import Header, Properties
from azure.servicebus._pyamqp.message import Message as PeerMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.amqp.codec import decode_value, encode_value
from busbar.amqp.types import Array, Described, Int, Symbol, Timestamp, UInt
from busbar.message.decoded import DecodedMessage, decode_message, encode_message
from busbar.message.delivery import encode_delivery
from busbar.message.parsing import parse_batch, parse_message
from busbar.model.message import Record

NOW = 1767225600000


def peer_bytes(message: Any) -> bytes:
    return bytes(encode_payload(bytearray(), message))


def full_message(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "header": Header(durable=True, priority=4, ttl=60_000),
        "message_annotations": {
            b"x-opt-partition-key": "pk",
            b"x-opt-scheduled-enqueue-time": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        },
        "properties": Properties(
            message_id="m1", subject="subject", group_id="s1", content_type="text/plain"
        ),
        "application_properties": {"a": 1, "b": "two", "c": True, "d": 1.5, "e": uuid.UUID(int=5)},
        "data": [b"hello"],
    }
    fields.update(changes)
    return peer_bytes(PeerMessage(**fields))


def deliver(raw: bytes) -> Any:
    draft = parse_message(raw, 0, len(raw), "fresh", 128)
    record = Record(1, NOW, draft.ttl, 0, 2, len(draft.content), draft.content, None)
    return decode_payload(memoryview(encode_delivery(record, 1, NOW + 60_000, -1)))


def test_a_message_of_the_sdk_comes_back_to_it() -> None:
    raw = full_message()
    draft = parse_message(raw, 0, len(raw), "fresh", 128)
    assert (draft.message_id, draft.session_id, draft.partition_key) == ("m1", "s1", "pk")
    assert (draft.ttl, draft.scheduled) == (60_000, NOW)
    back = deliver(raw)
    sent = decode_payload(memoryview(raw))
    assert back.properties == sent.properties
    assert back.application_properties == sent.application_properties
    assert back.data == sent.data
    assert (back.header.durable, back.header.priority, back.header.ttl, back.header.delivery_count) == (
        True,
        4,
        60_000,
        2,
    )
    assert back.message_annotations == {
        b"x-opt-sequence-number": 1,
        b"x-opt-enqueued-time": NOW,
        b"x-opt-enqueue-sequence-number": 0,
        b"x-opt-locked-until": NOW + 60_000,
        b"x-opt-message-state": 0,
        b"x-opt-partition-key": b"pk",
        b"x-opt-scheduled-enqueue-time": NOW,
    }


def test_bodies_and_odd_places_of_the_sdk() -> None:
    assert deliver(full_message(data=None, value={"k": [1, 2]})).value == {b"k": [1, 2]}
    assert deliver(full_message(data=None, sequence=[[1, 2], [3]])).sequence == [[1, 2], [3]]
    assert deliver(full_message(data=[b"a", b"b"])).data == [b"a", b"b"]
    back = deliver(full_message(footer={b"f": 1}, delivery_annotations={b"d": 1}))
    assert back.footer == {b"f": 1} and back.delivery_annotations == {b"d": 1}
    assert deliver(full_message(properties=Properties())).properties.message_id == b"fresh"


def test_a_batch_of_the_sdk() -> None:
    inner = [
        peer_bytes(PeerMessage(properties=Properties(message_id=f"m{i}"), data=[b"x" * 300]))
        for i in range(5)
    ]
    drafts = parse_batch(full_message(data=inner), lambda: "fresh", 128)
    assert [draft.message_id for draft in drafts] == ["m0", "m1", "m2", "m3", "m4"]


def test_a_request_of_the_sdk_and_our_reply() -> None:
    raw = peer_bytes(
        PeerMessage(
            properties=Properties(message_id=uuid.UUID(int=7), reply_to="q/$management"),
            application_properties={"operation": "com.microsoft:renew-lock"},
            value={"lock-tokens": {"TYPE": "ARRAY", "VALUE": [{"TYPE": "UUID", "VALUE": uuid.UUID(int=9)}]}},
        )
    )
    request = decode_message(raw)
    assert request.application_properties == {"operation": "com.microsoft:renew-lock"}
    assert request.reply_to == "q/$management"
    assert request.value == {"lock-tokens": Array(0x98, [uuid.UUID(int=9)])}
    reply = DecodedMessage(
        {"expirations": Array(0x83, [Timestamp(NOW)]), "sequence-numbers": Array(0x81, [1, 2])}
    )
    reply.correlation_id = request.message_id
    reply.application_properties = {"statusCode": Int(200), "errorCondition": Symbol("x")}
    seen = decode_payload(memoryview(encode_message(reply)))
    assert seen.properties is not None
    assert seen.properties.correlation_id == uuid.UUID(int=7)
    assert seen.application_properties == {b"statusCode": 200, b"errorCondition": b"x"}
    assert seen.value == {b"expirations": [NOW], b"sequence-numbers": [1, 2]}


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1)  # the peer has no long without being told
    | st.floats(allow_nan=False)
    | st.uuids()
    | st.binary(max_size=300)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4)
    ),
)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_values_that_the_sdk_encodes_are_read(value: Any) -> None:
    output = bytearray()
    peer_encode(output, {"TYPE": None, "VALUE": value})
    raw = bytes(output)
    seen, pos = decode_value(raw, 0, len(raw))
    assert pos == len(raw)
    assert seen == value


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_values_that_we_encode_are_read_by_the_sdk(value: Any) -> None:
    raw = encode_value(Described(0x77, value))
    assert decode_payload(memoryview(raw)).value == as_peer(value)


def as_peer(value: Any) -> Any:
    """The SDK's stack leaves text as bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [as_peer(item) for item in value]
    if isinstance(value, dict):
        return {as_peer(key): as_peer(item) for key, item in value.items()}
    return value


def test_a_uint_of_any_size_for_the_sdk() -> None:
    for number in (0, 255, 256, 2**32 - 1):
        assert decode_payload(memoryview(encode_value(Described(0x77, UInt(number))))).value == number
