"""Messages decoded in full: the worked replies, byte for byte, and requests as the Python SDK encodes them."""

from __future__ import annotations

from uuid import UUID

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Array, Described, Int, Symbol, Timestamp, UInt, ULong
from busbar.message.decoded import LARGE, BinaryParts, DecodedMessage, decode_message, encode_message
from busbar.model.errors import MalformedMessage

ID = UUID("12345678-1234-1234-1234-123456789abc")

RENEWED = bytes.fromhex(
    "005373c0170640404040409812345678123412341234123456789abc005374c12904a10a737461747573436f6465"
    "71000000c8a1117374617475734465736372697074696f6ea1024f4b005377c11a02a10b65787069726174696f6e73"
    "e00a01830000019b76db9260"
)
LOCK_LOST = bytes.fromhex(
    "005373c0170640404040409812345678123412341234123456789abc005374c16106a10a737461747573436f6465"
    "710000019aa1117374617475734465736372697074696f6ea1096c6f636b206c6f7374a10e6572726f72436f6e6469"
    "74696f6ea31f636f6d2e6d6963726f736f66743a6d6573736167652d6c6f636b2d6c6f7374005377c10100"
)


def test_the_worked_renewal() -> None:
    reply = DecodedMessage({"expirations": Array(0x83, [Timestamp(1767225660000)])})
    reply.correlation_id = ID
    reply.application_properties = {"statusCode": Int(200), "statusDescription": "OK"}
    assert encode_message(reply) == RENEWED
    again = decode_message(RENEWED)
    assert again.correlation_id == ID and again.message_id is None
    assert type(again.application_properties["statusCode"]) is Int
    assert again.value == reply.value


def test_the_worked_failure() -> None:
    reply = DecodedMessage()
    reply.correlation_id = ID
    reply.application_properties = {
        "statusCode": Int(410),
        "statusDescription": "lock lost",
        "errorCondition": Symbol("com.microsoft:message-lock-lost"),
    }
    reply.value = {}
    assert encode_message(reply) == LOCK_LOST


@pytest.mark.parametrize("message_id", [ID, "text", ULong(7), ULong(2**40), b"\x01\x02"])
def test_a_correlation_id_keeps_the_type_of_the_message_id(message_id: object) -> None:
    request = DecodedMessage()
    request.message_id = message_id
    reply = DecodedMessage()
    reply.correlation_id = decode_message(encode_message(request)).message_id
    again = decode_message(encode_message(reply)).correlation_id
    assert again == message_id and type(again) is type(message_id)


def test_every_property_by_its_name() -> None:
    message = DecodedMessage(data=b"hi")
    message.message_id = "id"
    message.user_id = b"user"
    message.to = "to"
    message.subject = "subject"
    message.reply_to = "reply-to"
    message.correlation_id = "correlation"
    message.content_type = Symbol("text/plain")
    message.content_encoding = Symbol("gzip")
    message.absolute_expiry_time = Timestamp(1)
    message.creation_time = Timestamp(2)
    message.group_id = "group"
    message.group_sequence = UInt(3)
    message.reply_to_group_id = "reply-group"
    again = decode_message(encode_message(message))
    names = [name for name in dir(message) if not name.startswith("_")]
    assert len(names) == 16
    for name in names:
        assert getattr(again, name) == getattr(message, name), name
        assert type(getattr(again, name)) is type(getattr(message, name)), name


def test_bodies() -> None:
    assert decode_message(encode_message(DecodedMessage())).value is None
    assert encode_message(DecodedMessage()) == bytes.fromhex("00537740")
    assert decode_message(encode_value(Described(0x75, b"a")) * 2).data == b"aa"
    assert decode_message(encode_value(Described(0x76, [1])) * 2).value == [[1], [1]]
    nothing = decode_message(encode_value(Described(0x73, ["m"])))
    assert nothing.value is None and nothing.data is None


def test_other_descriptors_and_sections_of_no_interest() -> None:
    raw = (
        encode_value(Described(0x70, [True]))
        + encode_value(Described(0x72, {Symbol("a"): 1}))
        + b"\x00\xa3\x14amqp:properties:list"
        + encode_value(["m"])
        + b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x74"
        + encode_value({Symbol("operation"): "peek"})
        + b"\x00\xa3\x11amqp:amqp-value:*"
        + encode_value(Described(Symbol("custom"), 1))
    )
    message = decode_message(raw)
    assert message.message_id == "m"
    assert message.application_properties == {"operation": "peek"}
    assert type(next(iter(message.application_properties))) is str
    assert message.value == Described("custom", 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"AMQP",
        RENEWED[:-1],
        encode_value(Described(0x73, [None] * 14)),
        encode_value(Described(0x74, {1: 2})),
        bytes.fromhex("005374c10402404040"),
        bytes.fromhex("005377c003014040"),
    ],
)
def test_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_message(raw)


@pytest.mark.parametrize("size", [LARGE - 1, LARGE, LARGE + 1, 1 << 20])
def test_a_large_binary_value_in_a_map_is_encoded_like_any_other(size: int) -> None:
    body: dict[object, object] = {
        "rows": bytes(size),
        "count": 5,
        "nested": {"a": [1, 2]},
        "also": b"x" * size,
    }
    message = DecodedMessage(value=body, application_properties={"statusCode": 200})
    message.correlation_id = "c"
    encoded = encode_message(message)
    found = decode_message(encoded)
    assert found.value == body and found.correlation_id == "c"
    assert found.application_properties == {"statusCode": 200}
    assert encoded.endswith(encode_value(Described(ULong(0x77), body))), "byte for byte"


@pytest.mark.parametrize("parts", [[], [b"one"], [b"", b"x" * 300, b"y" * LARGE]])
def test_a_value_in_pieces_is_one_value(parts: list[bytes]) -> None:
    message = DecodedMessage(
        value={"rows": BinaryParts(parts), "count": 5}, application_properties={"statusCode": 200}
    )
    found = decode_message(encode_message(message))
    assert found.value == {"rows": b"".join(parts), "count": 5}
    assert found.application_properties == {"statusCode": 200}
