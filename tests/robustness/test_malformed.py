"""What no correct client says. Each gets the condition that names the fault; the server and other clients go on."""

from __future__ import annotations

import struct

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Symbol, UByte, UInt, ULong, UShort
from harness.serving import Busbar
from tests.robustness.bystander import Bystander
from tests.robustness.wire import (
    AMQP_HEADER,
    ATTACH,
    BEGIN,
    CLOSE,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    SASL_HEADER,
    SENDER,
    TRANSFER,
    Wire,
    connected,
    frame,
    logged_in,
    message,
    performative,
)

FRAMING = {"amqp:connection:framing-error"}
DECODE = {"amqp:decode-error"}
INVALID = {"amqp:invalid-field", "amqp:decode-error"}
STATE = {"amqp:illegal-state", "amqp:not-allowed", "amqp:connection:framing-error"}

NESTED = b"\x45"
for _ in range(1_000):
    NESTED = b"\xd0" + struct.pack(">II", len(NESTED) + 4, 1) + NESTED


def raw(size: int, doff: int, kind: int = 0, channel: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">IBBH", size, doff, kind, channel) + body


def listed(code: int, content: bytes, count: int) -> bytes:
    """A performative whose list is written by hand."""
    return b"\x00\x53" + bytes((code,)) + b"\xd0" + struct.pack(">II", len(content) + 4, count) + content


BAD_TEXT = b"\xa1\x02\xc3\x28"  # a string whose two bytes are not UTF-8
CONNECTION_FAULTS = {
    "size smaller than a header": (raw(7, 2), FRAMING),
    "size of zero": (raw(0, 2), FRAMING),
    "size of two gibibytes": (raw(1 << 31, 2), FRAMING),
    "size just above the limit": (raw(65_537, 2), FRAMING),
    "offset below two": (raw(16, 1, body=b"\0" * 8), FRAMING),
    "offset beyond the frame": (raw(16, 5, body=b"\0" * 8), FRAMING),
    "unknown frame type": (raw(16, 2, 7, body=b"\0" * 8), FRAMING),
    "a SASL frame after SASL": (frame(performative(0x41, [Symbol("PLAIN")]), kind=1), FRAMING | STATE),
    "garbage for a performative": (frame(b"\xde\xad\xbe\xef" * 8), DECODE | INVALID),
    "a value that is not described": (frame(encode_value("hello")), DECODE | INVALID),
    "an unknown performative": (frame(performative(0x77, [])), DECODE | INVALID | {"amqp:not-implemented"}),
    "an unknown symbolic performative": (
        frame(encode_value(Described(Symbol("no:such:list"), []))),
        DECODE | INVALID | {"amqp:not-implemented"},
    ),
    "a performative that is a map": (frame(encode_value(Described(ULong(BEGIN), {}))), DECODE | INVALID),
    "a list longer than the frame": (
        frame(b"\x00\x53\x11\xd0\x00\x00\xff\xff\x00\x00\x00\x01\x40"),
        DECODE,
    ),
    "a list with more items than bytes": (
        frame(b"\x00\x53\x11\xd0\x00\x00\x00\x05\x7f\xff\xff\xff\x40"),
        DECODE,
    ),
    "a string that is not UTF-8": (frame(listed(ATTACH, BAD_TEXT + b"\x43\x42", 3)), DECODE),
    "values nested a thousand deep": (frame(listed(CLOSE, NESTED, 1)), DECODE),
    "an array of a billion nulls": (
        frame(listed(CLOSE, b"\xf0\x00\x00\x00\x05\x3b\x9a\xca\x00\x40", 1)),
        DECODE,
    ),
    "a map with an odd number of items": (
        frame(listed(OPEN, b"\xd1\x00\x00\x00\x05\x00\x00\x00\x01\x40", 1)),
        DECODE | INVALID,
    ),
    "a number where text belongs": (
        frame(performative(ATTACH, [UInt(7), UInt(0), False])),
        INVALID,
    ),
    "an attach without a name": (frame(performative(ATTACH, [None, UInt(0), False])), INVALID),
    "a transfer without a handle": (frame(performative(TRANSFER, [])), INVALID),
    "a second open": (frame(performative(OPEN, ["again"])), STATE),
    "a transfer on a channel without a session": (
        frame(performative(TRANSFER, [UInt(0), UInt(0), b"t"]), channel=7),
        STATE | {"amqp:not-found"},
    ),
    "an end on a channel without a session": (frame(performative(END, []), channel=9), STATE),
    "a begin on a channel in use": (
        frame(performative(BEGIN, [None, UInt(0), UInt(1), UInt(1)])),
        STATE,
    ),
    "a channel above the limit": (
        frame(performative(BEGIN, [None, UInt(0), UInt(1), UInt(1)]), channel=65_000),
        STATE | {"amqp:resource-limit-exceeded"},
    ),
}


@pytest.mark.req("U7")
@pytest.mark.parametrize("fault", CONNECTION_FAULTS)
def test_a_fault_of_the_connection_closes_it_with_its_condition(
    server: Busbar, bystander: Bystander, fault: str
) -> None:
    data, conditions = CONNECTION_FAULTS[fault]
    with logged_in(server.port, 3) as wire:
        wire.send(data)
        close = wire.until(CLOSE)
        assert close.condition in conditions
        assert wire.ended()
    bystander.works()


SESSION_FAULTS = {
    "a transfer on a handle without a link": (
        frame(performative(TRANSFER, [UInt(3), UInt(0), b"t", UInt(0)]) + message(b"x")),
        {"amqp:session:unattached-handle"},
    ),
    "a flow on a handle without a link": (
        frame(performative(FLOW, [UInt(0), UInt(9), UInt(0), UInt(9), UInt(44), UInt(0), UInt(9)])),
        {"amqp:session:unattached-handle"},
    ),
    "a handle above the limit": (
        frame(
            performative(
                ATTACH,
                [
                    "far",
                    UInt(0xFFFF_FFFF),
                    False,
                    UByte(0),
                    UByte(0),
                    Described(ULong(0x28), ["a"]),
                    Described(ULong(0x29), ["q"]),
                    None,
                    None,
                    UInt(0),
                ],
            )
        ),
        {
            "amqp:resource-limit-exceeded",
            "amqp:connection:framing-error",
            "amqp:not-allowed",
            "amqp:illegal-state",
        },
    ),
}


@pytest.mark.req("U7")
@pytest.mark.parametrize("fault", SESSION_FAULTS)
def test_a_fault_of_the_session_ends_it(server: Busbar, bystander: Bystander, fault: str) -> None:
    data, conditions = SESSION_FAULTS[fault]
    with logged_in(server.port, 3) as wire:
        wire.send(data)
        assert wire.until(END, CLOSE).condition in conditions
    bystander.works()


def test_a_handle_that_is_in_use(server: Busbar, bystander: Bystander) -> None:
    with logged_in(server.port, 3) as wire:
        wire.attach(0, SENDER, "q", name="first")
        wire.say_attach(0, SENDER, "q", name="second")
        assert wire.until(END, CLOSE).condition == "amqp:session:handle-in-use"


@pytest.mark.req("U7")
@pytest.mark.parametrize(
    "header",
    [b"AMQP\x00\x00\x09\x01", b"AMQP\x03\x02\x00\x00", b"\0" * 8, b"\xff" * 64, b"SSH-2.0-x\r\n"],
    ids=["AMQP 0-9-1", "another version", "zeros", "ones", "another protocol"],
)
def test_another_protocol_is_hung_up_on(server: Busbar, bystander: Bystander, header: bytes) -> None:
    with Wire(server.port, 3) as wire:
        wire.send(header)
        answer = b""
        try:
            while True:
                answer += wire.read(1)
        except EOFError:
            pass
        # AMQP 1.0, 2.2: the server answers with the protocol it speaks, then closes.
        assert answer in (b"", SASL_HEADER, AMQP_HEADER)


def test_sasl_faults(server: Busbar, bystander: Bystander) -> None:
    with Wire(server.port, 3) as wire:
        assert wire.sasl("SCRAM-SHA-256", b"n,,n=x") != 0
        assert wire.ended()
    with Wire(server.port, 3) as wire:
        assert wire.sasl("PLAIN", b"\0RootManageSharedAccessKey\0wrong") == 1
        assert wire.ended()
    with Wire(server.port, 3) as wire:
        assert wire.sasl("PLAIN", b"\xff\xff") == 1
        assert wire.ended()


def test_a_frame_cut_short_waits_for_its_rest_and_is_forgotten_with_the_connection(
    server: Busbar, bystander: Bystander
) -> None:
    whole = frame(performative(ATTACH, ["slow", UInt(0), False]))
    for length in (1, 4, 7, 8, 9, len(whole) - 1):
        with logged_in(server.port) as wire:
            wire.send(whole[:length])
            bystander.works()


@pytest.mark.req("U7")
def test_a_broken_message_is_rejected_and_the_link_goes_on(server: Busbar, bystander: Bystander) -> None:
    broken = {
        "nothing at all": b"",
        "no section": b"\x40\x40\x40",
        "a section that ends early": message(b"0123456789")[:-3],
        "a body longer than the message": b"\x00\x53\x75\xb0\x7f\xff\xff\xffabc",
        "sections in the wrong order": message(b"x") + performative(0x73, ["id"]),
        "an unknown section": performative(0x7F, []) + message(b"x"),
        "a batch that is none": b"",
    }
    with logged_in(server.port) as wire:
        wire.attach(0, SENDER, "other")
        for number, (what, payload) in enumerate(broken.items()):
            if what == "a batch that is none":
                fields: list[object] = [UInt(0), UInt(number), b"b", UInt(0x80013700), False, False]
                wire.say(TRANSFER, fields, message(b"\xff\xff\xff"))
                answer = wire.until(DISPOSITION)
            else:
                answer = wire.send_message(0, number, payload)
            assert answer.condition == "amqp:decode-error", what
        assert wire.send_message(0, len(broken), message(b"whole", "w")).outcome == 0x24


@pytest.mark.req("U7")
def test_every_prefix_and_single_bit_of_a_good_dialogue_leaves_the_server_standing(
    server: Busbar, bystander: Bystander
) -> None:
    """Not a search for conditions (the engine's fuzz test does that): the process and its other clients go on."""
    dialogue = (
        AMQP_HEADER
        + frame(performative(OPEN, ["wire", "localhost", UInt(65536), UShort(10)]))
        + frame(performative(BEGIN, [None, UInt(0), UInt(100), UInt(100)]))
        + frame(performative(FLOW, [UInt(0), UInt(9), UInt(0), UInt(9)]))
    )
    for position in range(0, len(dialogue), 3):
        flipped = bytearray(dialogue)
        flipped[position] ^= 1 << (position % 8)
        with Wire(server.port) as wire:
            assert wire.sasl() == 0
            wire.send(bytes(flipped))
    bystander.works()
    with connected(server.port):
        pass
