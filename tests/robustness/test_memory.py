"""A slow consumer or a flood of sends never grows the server's memory without bound, and others go on meanwhile."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Int, ULong
from harness.amqp_driver import connect
from harness.serving import Busbar, serving
from tests.robustness.bystander import Bystander
from tests.robustness.wire import (
    ATTACH,
    RECEIVER,
    SENDER,
    TRANSFER,
    Wire,
    frame,
    logged_in,
    message,
    performative,
)

MEGABYTE = 1024 * 1024
BACKLOG = 100 * MEGABYTE
BODY = 250_000


@pytest.fixture(scope="module")
def full() -> Iterator[Busbar]:
    """A server with 100 MB in a queue."""
    with serving({"deep": {}, "flood": {}, "bystander": {}}) as server:

        async def fill() -> None:
            connection = await connect(server.port)
            sender = await connection.sender("deep", in_flight=20, body=b"b" * BODY)
            await sender.send(BACKLOG // BODY)
            assert not sender.refused
            await connection.close()

        asyncio.run(fill())
        yield server


def watch(server: Busbar, bystander: Bystander, seconds: float) -> int:
    """The most memory that is used in the next seconds, while another client works."""
    most = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        bystander.works()
        most = max(most, server.resident_bytes())
        time.sleep(0.02)
    return most


def small_buffer(wire: Wire) -> Wire:
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return wire


@pytest.mark.req("U10")
def test_receivers_that_do_not_read(full: Busbar) -> None:
    """Ten clients ask for 100,000 messages each and never read one."""
    with Bystander(full.port) as bystander:
        bystander.works(20)
        before = full.resident_bytes()
        slow = []
        for _ in range(10):
            wire = small_buffer(logged_in(full.port))
            wire.attach(1, RECEIVER, "deep")
            wire.grant(1, 100_000)
            slow.append(wire)
        grown = watch(full, bystander, 2) - before
        print(
            f"ten slow readers of {BACKLOG >> 20} MB: {grown >> 10} KB more, slowest cycle {bystander.slowest:.3f} s"
        )
        assert grown < 60 * MEGABYTE
        one = (full.resident_bytes() - before) // len(slow)
        assert one < 6 * MEGABYTE, "a slow reader costs about a slice and a socket's buffers"
        assert bystander.slowest < 2
        for wire in slow:
            wire.vanish()
        watch(full, bystander, 0.5)
        assert full.resident_bytes() - before < 40 * MEGABYTE, "what they held is free again"


@pytest.mark.req("U10")
def test_a_receiver_that_reads_a_little_and_never_settles(full: Busbar) -> None:
    with Bystander(full.port) as bystander, logged_in(full.port) as wire:
        before = full.resident_bytes()
        wire.attach(1, RECEIVER, "deep")
        wire.grant(1, 100_000)
        for _ in range(40):
            wire.until(TRANSFER)
        assert watch(full, bystander, 1) - before < 30 * MEGABYTE


@pytest.mark.req("U10")
def test_a_flood_of_sends_that_ignores_credit_and_answers(full: Busbar) -> None:
    """150 MB as fast as the socket takes them, beyond all credit, while no answer is ever read. Up to 64 MB of them are
    pending between the journal and its index."""
    with Bystander(full.port) as bystander:
        bystander.works(20)
        before = full.resident_bytes()
        floods = [small_buffer(logged_in(full.port)) for _ in range(3)]
        taken = [0] * len(floods)

        def flood(index: int) -> None:
            wire = floods[index]
            payload = message(b"f" * 2_000)
            wire.socket.settimeout(1)
            try:
                for number in range(25_000):
                    wire.transfer(0, number, payload)
                    taken[index] += 1
            except OSError:
                pass  # the server stopped reading, or hung up: both bound it

        for wire in floods:
            wire.say_attach(0, SENDER, "flood")
            wire.until(ATTACH)
        threads = [threading.Thread(target=flood, args=(index,)) for index in range(len(floods))]
        for thread in threads:
            thread.start()
        grown = watch(full, bystander, 3) - before
        print(
            f"flood: {taken} messages taken, {grown >> 10} KB more, slowest cycle {bystander.slowest:.3f} s"
        )
        assert grown < (64 + 45) * MEGABYTE
        for wire in floods:
            wire.vanish()
        for thread in threads:
            thread.join(5)
        assert bystander.slowest < 5, "others wait for their turn, not for the end of the flood"


@pytest.mark.req("U10")
def test_a_flood_of_requests_whose_answers_are_never_read(full: Busbar) -> None:
    """Peeks of 256 KB each, asked without end: answers without a reader are not piled up."""
    with Bystander(full.port) as bystander:
        before = full.resident_bytes()
        wire = small_buffer(logged_in(full.port))
        wire.attach(0, SENDER, "deep/$management", name="ask")
        wire.attach(1, RECEIVER, "deep/$management", name="answers")
        wire.grant(1, 100_000)
        ask = _peek()
        wire.socket.settimeout(0.5)
        try:
            for number in range(3_000):
                wire.transfer(0, number, ask, settled=True)
        except OSError:
            pass
        grown = watch(full, bystander, 1) - before
        print(f"peeks: {grown >> 10} KB more")
        assert grown < 60 * MEGABYTE
        wire.vanish()


def _peek() -> bytes:
    properties = performative(0x73, ["p"])
    operation = encode_value(Described(ULong(0x74), {"operation": "com.microsoft:peek-message"}))
    value = {"from-sequence-number": 1, "message-count": Int(250)}
    return properties + operation + encode_value(Described(ULong(0x77), value))


def test_a_frame_that_comes_byte_by_byte(full: Busbar) -> None:
    """Slow bytes cost the server nothing but time of its own choosing."""
    with Bystander(full.port) as bystander, logged_in(full.port) as wire:
        wire.attach(0, SENDER, "flood")
        before = full.resident_bytes()
        for byte in frame(performative(TRANSFER, []) + b"\0" * 60_000)[:2_000]:
            wire.send(bytes((byte,)))
        bystander.works()
        assert full.resident_bytes() - before < 4 * MEGABYTE


def test_connections_that_come_and_go_leave_nothing(full: Busbar) -> None:
    """A thousand of them, one after the other, each with a few links and a request."""

    def visit(count: int) -> None:
        for _ in range(count):
            with logged_in(full.port) as wire:
                wire.say_attach(0, SENDER, "flood/$management", name="ask")
                wire.say_attach(1, RECEIVER, "flood/$management", name="answers")
                wire.say_attach(2, RECEIVER, "flood", name="receiver")
                wire.grant(1, 10)
                wire.transfer(0, 0, _peek())
                wire.until(TRANSFER)

    with Bystander(full.port) as bystander:
        visit(200)
        before = full.resident_bytes()
        visit(1_000)
        bystander.works()
        grown = full.resident_bytes() - before
        print(f"1,000 connections: {grown >> 10} KB more")
        assert grown < 15 * MEGABYTE
