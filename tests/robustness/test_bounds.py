"""Whatever a client asks for or keeps open, it can hold only so much of the server."""

from __future__ import annotations

import time

from busbar.amqp.types import UInt
from harness.peers.process import tree_seconds
from harness.serving import Busbar
from tests.robustness.bystander import Bystander
from tests.robustness.wire import (
    ACCEPTED,
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    RECEIVER,
    SENDER,
    TRANSFER,
    Frame,
    Wire,
    connected,
    frame,
    logged_in,
    message,
    performative,
)

MEGABYTE = 1024 * 1024


def push(wire: Wire, data: bytes) -> bool:
    """Send, also when the server stops reading or hangs up; whether all of it was taken."""
    wire.socket.settimeout(1.0)
    try:
        wire.socket.sendall(data)
    except (TimeoutError, ConnectionError):
        return False
    return True


def test_a_message_that_never_ends_is_bounded(server: Busbar, bystander: Bystander) -> None:
    """40 MB in frames of one delivery: not kept, refused as too large when it ends, or the client is told earlier."""
    before = server.resident_bytes()
    with logged_in(server.port) as wire:
        wire.attach(0, SENDER, "other")
        chunk = b"\0" * 60_000
        for number in range(700):
            wire.transfer(0, 0, chunk, more=True)
            if number % 100 == 0:
                bystander.works()
        assert server.resident_bytes() - before < 8 * MEGABYTE
        wire.transfer(0, 0, chunk, more=False)
        assert wire.until(DISPOSITION, DETACH).condition == "amqp:link:message-size-exceeded"


def test_many_unfinished_messages_are_bounded_together(server: Busbar, bystander: Bystander) -> None:
    """200 links with half a message of 200 KB each are 40 MB that the server must not be made to keep."""
    before = server.resident_bytes()
    with logged_in(server.port, 3) as wire:
        answers: list[Frame] = []
        for handle in range(200):
            wire.say_attach(handle, SENDER, "other")
        for _ in range(200):
            answers.append(wire.until(ATTACH))
        for handle in range(200):
            for part in range(4):
                if not push(wire, _transfer(handle, handle, b"\0" * 50_000, first=part == 0)):
                    break
        bystander.works(3)
        assert server.resident_bytes() - before < 16 * MEGABYTE


def _transfer(handle: int, delivery: int, payload: bytes, *, first: bool) -> bytes:
    opening: list[object] = [UInt(delivery), delivery.to_bytes(4, "big"), UInt(0)] if first else [None] * 3
    return frame(performative(TRANSFER, [UInt(handle), *opening, False, True]) + payload)


def test_five_thousand_links(server: Busbar, bystander: Bystander) -> None:
    """More links than a connection may have, over twenty sessions: the surplus is refused one by one."""
    before = server.resident_bytes()
    given = refused = 0
    with logged_in(server.port, 5) as wire:
        condition = ""
        for channel in range(1, 21):
            wire.begin(channel)
            for handle in range(250):
                wire.say_attach(handle, SENDER, "other", channel=channel)
                heard = wire.until(ATTACH, CLOSE)
                if heard.code == ATTACH and heard.field(6) is not None:
                    given += 1
                    continue
                if heard.code == ATTACH:
                    heard = wire.until(DETACH)
                refused += 1
                assert heard.condition == "amqp:resource-limit-exceeded"
                if heard.code == CLOSE:
                    condition = heard.condition
                    break
            if condition:
                break
        # The first surplus links are refused one by one; who goes on regardless is hung up on.
        assert given <= 256 and refused
        assert server.resident_bytes() - before < 8 * MEGABYTE


def test_five_thousand_sessions(server: Busbar, bystander: Bystander) -> None:
    before = server.resident_bytes()
    with logged_in(server.port, 5) as wire:
        given = 0
        for channel in range(1, 5_000):
            if not push(wire, _begin(channel)):
                break
        condition = ""
        while not condition:
            heard = wire.until(BEGIN, END, CLOSE)
            if heard.code == BEGIN:
                given += 1
            else:
                condition = heard.condition
        assert given <= 256
        assert condition in (
            "amqp:resource-limit-exceeded",
            "amqp:connection:framing-error",
            "amqp:not-allowed",
        )
        assert server.resident_bytes() - before < 8 * MEGABYTE


def _begin(channel: int) -> bytes:
    return frame(performative(BEGIN, [None, UInt(0), UInt(9), UInt(9)]), channel=channel)


def test_dispositions_of_everything(server: Busbar, bystander: Bystander) -> None:
    """Ranges over all delivery ids are clamped to what is there; 200 of them cost nothing."""
    with logged_in(server.port) as wire:
        wire.attach(0, SENDER, "other")
        wire.attach(1, RECEIVER, "other")
        for number in range(3):
            assert wire.send_message(0, number, message(b"d", f"d{number}")).outcome == ACCEPTED
        spent = tree_seconds(server.pid)
        for _ in range(200):
            wire.dispose(0, 0xFFFF_FFFF, ACCEPTED)
            wire.dispose(5, 4, ACCEPTED)
            wire.dispose(0x8000_0000, 0x7FFF_FFFF, ACCEPTED)
        bystander.works()
        assert tree_seconds(server.pid) - spent < 0.5
        wire.grant(1, 3)
        for _ in range(3):
            last = int(str(wire.until(TRANSFER).field(1)))
        wire.dispose((last - 0x7FFF_0000) & 0xFFFF_FFFF, (last + 1_000) & 0xFFFF_FFFF, ACCEPTED)
        confirmed = 0
        while confirmed < 3:
            heard = wire.until(DISPOSITION)
            assert heard.outcome == ACCEPTED
            confirmed += heard.count
        assert confirmed == 3


def test_many_connections_without_a_token_are_bounded(server: Busbar, bystander: Bystander) -> None:
    """1,100 connections that never prove themselves: some are turned away, and those with a token go on."""
    wires = []
    try:
        for _ in range(1_100):
            wires.append(Wire(server.port, 5))
        bystander.works()
    finally:
        for wire in wires:
            wire.socket.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            with connected(server.port, 1):
                return
        except (EOFError, TimeoutError, AssertionError):
            time.sleep(0.05)
    raise AssertionError("no new connection is accepted any more")
