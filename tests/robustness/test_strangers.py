"""What clients without a token can cost. Each of these once stalled every client, or filled the memory of the broker."""

from __future__ import annotations

from uuid import UUID

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, UByte, UInt, ULong
from tests.robustness.bystander import Bystander
from tests.robustness.wire import (
    ATTACH,
    CLOSE,
    DISPOSITION,
    SENDER,
    connected,
    frame,
    logged_in,
    performative,
)
from tests.serving import Busbar

HASH_MODULUS = (1 << 61) - 1
LARGE_FRAME = 65_000


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


def test_link_properties_whose_keys_collide_are_refused(server: Busbar, bystander: Bystander) -> None:
    with connected(server.port) as wire:
        wire.send(attach_with(0, colliding_map(LARGE_FRAME)))
        assert wire.until(ATTACH, CLOSE).condition == "amqp:decode-error"


def test_a_request_whose_keys_collide_is_refused(server: Busbar, bystander: Bystander) -> None:
    with logged_in(server.port) as wire:
        wire.attach(0, SENDER, "q/$management")
        operation = encode_value(Described(ULong(0x74), {"operation": "com.microsoft:peek-message"}))
        payload = performative(0x73, ["m"]) + operation + b"\x00\x53\x77" + colliding_map(60_000)
        refused = wire.send_message(0, 0, payload)
        assert refused.code == DISPOSITION and refused.condition
