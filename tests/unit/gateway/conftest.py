"""A gateway on a scripted broker, a client of it, and the coordinator of the client's transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from harness.amqp_driver import LoadConnection, connect
from harness.transaction_driver import Coordinator, WireSession
from tests.unit.gateway.transactional_port import ENTITIES, TransactionalPort, gateway_on


@pytest.fixture
def broker() -> TransactionalPort:
    return TransactionalPort(*ENTITIES)


@pytest.fixture
async def client(broker: TransactionalPort) -> AsyncIterator[LoadConnection]:
    async with gateway_on(broker) as (_gateway, port):
        connection = await connect(port)
        yield connection
        await connection.close()


@pytest.fixture
async def coordinator(client: LoadConnection) -> Coordinator:
    """On an AMQP session of its own, as .NET has it."""
    return await WireSession(client, new=True).coordinator()


@pytest.fixture
def wire(client: LoadConnection) -> WireSession:
    return WireSession(client)
