"""What clients without a token have sent to cost a broker time or memory, as bytes on the wire."""

from __future__ import annotations

from uuid import UUID

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, UByte, UInt, ULong
from harness.serving import Busbar
from tests.robustness.wire import SENDER, Wire, frame, performative

HASH_MODULUS = (1 << 61) - 1


def compound(code: int, content: bytes, count: int) -> bytes:
    return bytes((code,)) + (len(content) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + content


def colliding_map(size: int) -> bytes:
    """A map of about `size` bytes whose keys have the same hash in every Python."""
    keys = [UUID(int=7 + number * HASH_MODULUS) for number in range(size // 18)]
    return compound(0xD1, b"".join(b"\x98" + key.bytes + b"\x40" for key in keys), 2 * len(keys))


def attach_with(handle: int, properties: bytes) -> bytes:
    """An attach to `$cbs`, which needs no token, with these link properties."""
    fields: list[object] = [f"link-{handle}", UInt(handle), SENDER, UByte(0), UByte(0)]
    fields += [Described(ULong(0x28), ["here"]), Described(ULong(0x29), ["$cbs"]), None, None, UInt(0)]
    fields += [None, None, None]
    content = b"".join(encode_value(field) for field in fields) + properties
    return frame(b"\x00\x53\x12" + compound(0xD0, content, len(fields) + 1))


def empty_lists(count: int) -> bytes:
    """A map with a list of empty lists, each of which is one byte here and 64 in memory."""
    return compound(0xD1, b"\xa3\x01a" + compound(0xD0, b"\x45" * count, count), 2)


def token_request(message_id: str, operation: str, reply_to: str | None = None) -> bytes:
    properties = performative(0x73, [message_id, None, None, None, reply_to])
    return properties + encode_value(Described(ULong(0x74), {"operation": operation}))


def large_transfer(wire: Wire, handle: int, delivery: int, payload: bytes) -> None:
    half = len(payload) // 2
    wire.transfer(handle, delivery, payload[:half], more=True, settled=True)
    wire.transfer(handle, delivery, payload[half:], settled=True)


@pytest.fixture(scope="module")
def server(attacked: Busbar) -> Busbar:
    """For modules whose attacks share the servers of the suite: they import it, and it stands for their own."""
    return attacked
