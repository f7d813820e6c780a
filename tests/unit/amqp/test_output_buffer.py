"""What a connection writes: little of it in one piece, long payloads as they are."""

from __future__ import annotations

from busbar.amqp.output_buffer import LONG_PAYLOAD, OutputBuffer


def test_a_long_payload_is_not_copied() -> None:
    wire = OutputBuffer(True, 1 << 30, 1 << 30)
    payload = bytes(range(256)) * (LONG_PAYLOAD // 128)
    wire.out.write(b"head")
    wire.payload(payload, 0, LONG_PAYLOAD)
    wire.out.write(b"next")
    wire.payload(payload, LONG_PAYLOAD, len(payload))
    wire.out.write(b"last")
    parts = wire.take_parts()
    assert parts is not None
    assert [part.obj is payload for part in parts if isinstance(part, memoryview)] == [True, True]
    assert b"".join(parts) == b"head" + payload[:LONG_PAYLOAD] + b"next" + payload[LONG_PAYLOAD:] + b"last"
    assert wire.take_parts() is None and wire.take_bytes() == b""


def test_parts_and_bytes_are_the_same() -> None:
    written = []
    for _ in range(2):
        wire = OutputBuffer(True, 1 << 30, 1 << 30)
        wire.out.write(b"head")
        wire.payload(b"x" * (3 * LONG_PAYLOAD), 1, 2 * LONG_PAYLOAD)
        wire.payload(b"short", 1, 4)
        written.append(wire)
    assert b"".join(written[0].take_parts() or ()) == written[1].take_bytes()


def test_little_is_one_piece() -> None:
    wire = OutputBuffer(True, 1 << 30, 1 << 30)
    wire.payload(b"a short one", 2, 7)
    assert wire.take_parts() is None
    assert wire.take_bytes() == b"short"
