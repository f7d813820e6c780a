"""What clients without a token can cost. Each of these once stalled every client, or filled the memory of the broker."""

from __future__ import annotations

import contextlib

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, UByte, UInt, ULong
from harness.serving import Busbar
from tests.robustness.attacks import (
    attach_with,
    colliding_map,
    compound,
    empty_lists,
    large_transfer,
    token_request,
)
from tests.robustness.attacks import server as server  # the fixture
from tests.robustness.bystander import Bystander
from tests.robustness.wire import (
    ATTACH,
    CLOSE,
    DISPOSITION,
    OPEN,
    RECEIVER,
    SENDER,
    TRANSFER,
    Wire,
    connected,
    frame,
    logged_in,
    performative,
)

LARGE_FRAME = 65_000
MEGABYTE = 1024 * 1024


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


def test_a_performative_with_too_many_elements_is_refused(server: Busbar, bystander: Bystander) -> None:
    with connected(server.port) as wire:
        wire.send(attach_with(0, empty_lists(60_000)))
        assert wire.until(ATTACH, CLOSE).condition == "amqp:decode-error"


def test_a_request_with_too_many_elements_is_refused(server: Busbar, bystander: Bystander) -> None:
    with logged_in(server.port) as wire:
        wire.attach(0, SENDER, "q/$management")
        many = empty_lists(70_000)
        wire.transfer(0, 0, performative(0x73, ["m"]) + b"\x00\x53\x77" + many[:60_000], more=True)
        wire.transfer(0, 0, many[60_000:])
        refused = wire.until(DISPOSITION)
        assert refused.condition


def test_nothing_of_an_attach_is_kept_that_nobody_reads(server: Busbar, bystander: Bystander) -> None:
    """255 links, each with properties that would take 256 KB of memory."""
    with connected(server.port) as wire:
        bystander.works(5)
        before = server.resident_bytes()
        for handle in range(255):
            wire.send(attach_with(handle, empty_lists(4_000)))
            assert wire.until(ATTACH, CLOSE).code == ATTACH
        grown = server.resident_bytes() - before
        print(f"255 links of 4 KB: {grown >> 10} KB more")
        assert grown < 20 * MEGABYTE


def test_nothing_of_an_open_is_kept_that_nobody_reads(server: Busbar, bystander: Bystander) -> None:
    wires = []
    before = server.resident_bytes()
    for _ in range(100):
        wire = Wire(server.port)
        assert wire.sasl() == 0
        wire.send(b"AMQP\x00\x01\x00\x00")
        fields = [encode_value(field) for field in ("c", "h", *[None] * 7)]
        content = b"".join(fields) + empty_lists(4_000)
        wire.send(frame(b"\x00\x53\x10" + compound(0xD0, content, 10)))
        assert wire.read(8) == b"AMQP\x00\x01\x00\x00"
        assert wire.until(OPEN, CLOSE).code == OPEN
        wires.append(wire)
    grown = server.resident_bytes() - before
    print(f"100 connections of 4 KB: {grown >> 10} KB more")
    assert grown < 15 * MEGABYTE
    for wire in wires:
        wire.socket.close()


def test_an_address_is_not_longer_than_any_name(server: Busbar, bystander: Bystander) -> None:
    with connected(server.port) as wire:
        wire.say_attach(0, SENDER, "$cbs", name="n" * 1_024)
        assert wire.until(ATTACH).field(6) is not None
        fields: list[object] = ["long", UInt(1), SENDER, UByte(0), UByte(0)]
        fields += [Described(ULong(0x28), ["h" * 50_000]), Described(ULong(0x29), ["$cbs"])]
        wire.say(ATTACH, [*fields, None, None, UInt(0)])
        assert wire.until(ATTACH).field(6) is None


def test_replies_that_nobody_takes_are_bounded_in_bytes(server: Busbar, bystander: Bystander) -> None:
    """Each reply repeats its request's id, and none has credit. A token changes nothing about it, but gives the time."""
    with logged_in(server.port) as wire:
        for pair in range(3):
            wire.attach(2 * pair, SENDER, "$cbs", name=f"ask-{pair}")
            wire.attach(2 * pair + 1, RECEIVER, "$cbs", name=f"answer-{pair}")
        before = server.resident_bytes()
        with contextlib.suppress(OSError):  # it is closed meanwhile
            for number in range(240):
                pair = number % 3
                request = token_request("i" * 60_000, "none", f"answer-{pair}-end")
                large_transfer(wire, 2 * pair, number // 3, request)
        try:
            assert wire.until(CLOSE).condition == "amqp:resource-limit-exceeded"
        except EOFError:
            pass  # what came after the close reset the connection before that could be read
        bystander.works()
        assert server.resident_bytes() - before < 20 * MEGABYTE


def test_what_a_client_said_comes_back_cut(server: Busbar, bystander: Bystander) -> None:
    with connected(server.port) as wire:
        wire.attach(0, SENDER, "$cbs", name="ask")
        wire.attach(1, RECEIVER, "$cbs", name="answer")
        wire.grant(1, 10)
        large_transfer(wire, 0, 0, token_request("m", "\U000e0001" * 15_000))
        assert len(wire.until(TRANSFER).payload) < 1_000
