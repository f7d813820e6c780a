"""What clients with the right Listen can cost beyond the messages that they receive."""

from __future__ import annotations

import asyncio
import time

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Int, UInt, ULong
from harness.amqp_driver import connect
from harness.serving import Busbar
from tests.robustness.attacks import server as server  # the fixture
from tests.robustness.bystander import Bystander
from tests.robustness.wire import (
    ACCEPTED,
    DISPOSITION,
    RECEIVER,
    SENDER,
    TRANSFER,
    frame,
    logged_in,
    performative,
)

MEGABYTE = 1024 * 1024
RECEIVED = 0x23


def fill(server: Busbar, queue: str, count: int, body: bytes = b"x") -> None:
    async def send() -> None:
        connection = await connect(server.port)
        sender = await connection.sender(queue, in_flight=500, body=body)
        await sender.send(count)
        assert not sender.refused
        await connection.close()

    asyncio.run(send())


def test_ranges_that_name_everything_again_and_again(server: Busbar, bystander: Bystander) -> None:
    """Twelve kilobytes of dispositions, each about all unsettled deliveries."""
    count = 5_000
    fill(server, "other", count)
    with logged_in(server.port, 30) as wire:
        wire.attach(0, RECEIVER, "other")
        wire.grant(0, count)
        for _ in range(count):
            wire.until(TRANSFER)
        before = server.resident_bytes()
        for outcome in (RECEIVED, ACCEPTED):
            fields: list[object] = [True, UInt(0), UInt(0x7FFFFFFF), False, Described(ULong(outcome), [])]
            wire.send(frame(performative(DISPOSITION, fields)) * 400)
            bystander.works()
        confirmed = 0
        while confirmed < count:
            heard = wire.until(DISPOSITION)
            assert heard.outcome == ACCEPTED, "the first word about a delivery stands"
            confirmed += heard.count
        grown = server.resident_bytes() - before
        print(f"800 ranges of {count}: {grown >> 10} KB more, slowest cycle {bystander.slowest:.3f} s")
        assert confirmed == count
        assert grown < 30 * MEGABYTE


def peek(server: Busbar, credit: int, window: int, asked: int = 100) -> int:
    """Ask for large replies on twenty pairs of links that take none; how much memory that takes."""
    with logged_in(server.port, 30) as wire:
        wire.begin(1, window)
        for pair in range(20):
            wire.attach(2 * pair, SENDER, "q/$management", name=f"ask-{pair}", channel=1)
            wire.attach(2 * pair + 1, RECEIVER, "q/$management", name=f"answer-{pair}", channel=1)
            if credit:
                wire.grant(2 * pair + 1, credit, channel=1, window=window)
        before = server.resident_bytes()
        operation = encode_value(Described(ULong(0x74), {"operation": "com.microsoft:peek-message"}))
        value = {"from-sequence-number": 1, "message-count": Int(250)}
        ask = performative(0x73, ["p"]) + operation + encode_value(Described(ULong(0x77), value))
        for number in range(asked):
            wire.transfer(2 * (number % 20), number // 20, ask, channel=1, settled=True)
        most = 0
        for _ in range(20):
            time.sleep(0.05)
            most = max(most, server.resident_bytes())
        return most - before


@pytest.mark.parametrize(("credit", "window"), [(0, 1_000_000), (1_000, 0)])
def test_large_replies_that_nobody_takes_are_not_made(
    server: Busbar, bystander: Bystander, credit: int, window: int
) -> None:
    fill(server, "q", 4, b"b" * 60_000)
    grown = peek(server, credit, window)
    print(f"100 peeks of 240 KB, with credit {credit} and window {window}: {grown >> 10} KB more")
    assert grown < 10 * MEGABYTE
