"""What clients with the right Listen can cost beyond the messages that they receive."""

from __future__ import annotations

import asyncio

from bench.load import connect
from busbar.amqp.types import Described, UInt, ULong
from tests.robustness.bystander import Bystander
from tests.robustness.wire import ACCEPTED, DISPOSITION, RECEIVER, TRANSFER, frame, logged_in, performative
from tests.serving import Busbar

MEGABYTE = 1024 * 1024
RECEIVED = 0x23


def fill(server: Busbar, queue: str, count: int) -> None:
    async def send() -> None:
        connection = await connect(server.port)
        sender = await connection.sender(queue, in_flight=500, body=b"x")
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
