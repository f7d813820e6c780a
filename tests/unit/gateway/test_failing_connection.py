"""A mistake of ours in a connection that gets effects: the connection ends, so that its client connects again, and what it
was given goes to others at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from busbar.catalogue.local_broker import LocalBroker
from busbar.gateway.amqp.connection import GatewayConnection
from busbar.gateway.authority import Authority
from busbar.gateway.gateway import Gateway
from busbar.model.effects import Delivered, Effect, Sent
from busbar.model.limits import Limits
from busbar.model.sas import SasRule
from harness.amqp_driver import ConnectionOver, connect
from harness.waiting import until
from tests.conformance.port_process import fragments
from tests.interop.http_runtime import Http

KEY = "SAS_KEY_VALUE"


class Mistake:
    """Raised by the next connection that gets an effect of a kind, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind: type[Effect] | None = None
        effects = GatewayConnection.effects

        def failing(connection: GatewayConnection, batch: list[Effect]) -> None:
            if self.kind is not None and any(isinstance(effect, self.kind) for effect in batch):
                self.kind = None
                raise ZeroDivisionError("a mistake of ours")
            effects(connection, batch)

        monkeypatch.setattr(GatewayConnection, "effects", failing)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[LocalBroker, int]]:
    async with fragments() as port:
        rule = SasRule("RootManageSharedAccessKey", (KEY,), frozenset(("Manage", "Send", "Listen")))
        gateway = Gateway(port, Authority([rule], lambda path: ()), Limits(), None)
        await gateway.start()
        try:
            yield port, await gateway.listen("127.0.0.1", 0)
        finally:
            await gateway.stop()


async def test_a_send_that_is_not_answered_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = Mistake(monkeypatch)
    async with served() as (port, number):
        before = len(port._sinks)
        client = await connect(number)
        sender = await client.sender("orders", in_flight=1)
        mistake.kind = Sent
        with pytest.raises(ConnectionOver):
            await asyncio.wait_for(sender.send(1), 10)
        await until(lambda: len(port._sinks) == before)


async def test_messages_of_a_connection_that_failed_go_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = Mistake(monkeypatch)
    async with served() as (_, number):
        first, second = await connect(number), await connect(number)
        sender = await second.sender("orders", in_flight=10)
        mistake.kind = Delivered
        receiver = await first.receiver("orders", credit=100)
        await sender.send(3)
        with pytest.raises(ConnectionOver):
            await asyncio.wait_for(receiver.settled(3), 10)
        other = await second.receiver("orders", credit=100)
        await asyncio.wait_for(other.settled(3), 10)  # long before the lock of a minute ends
        await second.close()


async def test_an_http_request_that_is_not_answered_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as (port, number):
        client = Http(number, KEY)
        assert (await client.send("orders", b"m")).status == 201
        (origin,) = [one for one in port._sinks if one]

        def failing(batch: list[Effect]) -> None:
            raise ZeroDivisionError("a mistake of ours")

        port._sinks[origin] = failing
        with pytest.raises(Exception, match=r"disconnected|reset|closed"):
            await asyncio.wait_for(client.send("orders", b"m"), 10)
        assert origin not in port._sinks
        await client.close()
