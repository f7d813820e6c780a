"""What a connection held is free when it ends, at once: no collector has to find it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from busbar.gateway.amqp.connection import GatewayConnection
from harness.amqp_driver import connect
from harness.waiting import until
from tests.robustness.wire import DETACH, RECEIVER, SENDER, TRANSFER, logged_in, performative
from tests.unit.gateway.test_failing_connection import served


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[GatewayConnection]]]:
    """Every connection that is made, while no collector runs."""
    made: list[weakref.ref[GatewayConnection]] = []
    begin = GatewayConnection.__init__

    def noted(self: GatewayConnection, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]
        made.append(weakref.ref(self))

    monkeypatch.setattr(GatewayConnection, "__init__", noted)
    gc.collect()
    gc.disable()
    try:
        yield made
    finally:
        gc.enable()


async def gone(made: list[weakref.ref[GatewayConnection]]) -> None:
    await until(lambda: all(one() is None for one in made))


async def test_one_that_sent_and_received(connections: list[weakref.ref[GatewayConnection]]) -> None:
    async with served() as (_, port):
        client = await connect(port)
        sender = await client.sender("orders", in_flight=10)
        await sender.send(20)
        receiver = await client.receiver("orders", credit=10)
        await asyncio.wait_for(receiver.settled(20), 10)
        await client.close()
        assert connections
        await gone(connections)


async def test_one_that_is_cut_off_with_links_and_messages(
    connections: list[weakref.ref[GatewayConnection]],
) -> None:
    async with served() as (_, port):
        client = await connect(port)
        sender = await client.sender("orders", in_flight=10)
        await sender.send(20)
        await client.receiver("orders", credit=10)
        connection = connections[0]()
        assert connection is not None and connection._transport is not None
        connection._transport.abort()
        del connection
        await gone(connections)


def manage(port: int, detach: bool) -> None:
    """Ask the management of a queue and `$cbs`, and leave."""
    with logged_in(port) as wire:
        for base, node in ((0, "orders/$management"), (2, "$cbs")):
            wire.attach(base, SENDER, node, name=f"ask-{base}")
            wire.attach(base + 1, RECEIVER, node, name=f"answer-{base}")
            wire.grant(base + 1, 10)
            wire.transfer(base, 0, performative(0x73, ["m"]))
            assert wire.until(TRANSFER).payload
        wire.attach(4, SENDER, "no-such-queue")
        wire.attach(5, RECEIVER, "orders")
        if detach:
            for handle in range(6):
                wire.say(DETACH, [handle, True])
            wire.until(DETACH)


@pytest.mark.parametrize("detach", [False, True])
async def test_one_that_asked_management(
    connections: list[weakref.ref[GatewayConnection]], detach: bool
) -> None:
    async with served() as (_, port):
        await asyncio.to_thread(manage, port, detach)
        assert connections
        await gone(connections)
