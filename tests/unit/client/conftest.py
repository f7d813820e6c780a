"""A scripted broker, and a client of it that does not wait long."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from busbar.client import MessagingFactory, Retry
from tests.unit.client.scripted_broker import ScriptedBroker

BRIEFLY = Retry(patience=5.0, first=0.01, longest=0.05)


@pytest_asyncio.fixture
async def scripted() -> AsyncIterator[ScriptedBroker]:
    broker = await ScriptedBroker().start()
    yield broker
    await broker.stop()


@pytest_asyncio.fixture
async def factory(scripted: ScriptedBroker) -> AsyncIterator[MessagingFactory]:
    made = await MessagingFactory.connect(scripted.connection_string, retry=BRIEFLY, operation_timeout=10.0)
    yield made
    await made.close()
