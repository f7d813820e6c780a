"""A running Busbar for each worker, queues to take from, and the clients that the tests look through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator

import pytest
import pytest_asyncio

from tests.interop.azure_sdk import Azure, Farewells, Stock
from tests.interop.http_runtime import Http
from tests.interop.plain_amqp import PlainAmqp
from tests.interop.queue_pool import LIMITS, QueuePool, pool_queues
from tests.serving import Busbar, serving


@pytest.fixture(scope="session")
def broker() -> Iterator[Busbar]:
    with serving(pool_queues(), LIMITS) as server:
        yield server
        assert "Traceback" not in server.error_text, server.error_text


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the server said."""
    report = yield
    server = getattr(item, "funcargs", {}).get("broker")
    if report.failed and server is not None and server.error_text:
        report.sections.append(("busbar serve", server.error_text[-4000:]))
    return report


@pytest.fixture(scope="session")
def queues() -> QueuePool:
    return QueuePool()


@pytest.fixture
def queue(request: pytest.FixtureRequest, queues: QueuePool) -> str:
    """A plain queue that no other test uses."""
    if "azure" in request.fixturenames:
        sdk: Azure = request.getfixturevalue("azure")
        return sdk.queue
    return queues.take("plain")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def farewells() -> AsyncIterator[Farewells]:
    """Closing an SDK handler takes up to a second (its keep-alive sleeps that long): tests do not wait for it."""
    pending = Farewells()
    yield pending
    await pending.finish()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stocks(broker: Busbar, queues: QueuePool, farewells: Farewells) -> AsyncIterator[dict[str, Stock]]:
    by_client = {
        "sync": Stock(Azure(broker.connection_string, farewells, asynchronous=False), queues),
        "async": Stock(Azure(broker.connection_string, farewells, asynchronous=True), queues),
    }
    yield by_client
    for stock in by_client.values():
        stock.clear()


@pytest_asyncio.fixture(params=["sync", "async"], loop_scope="session")
async def azure(
    request: pytest.FixtureRequest, broker: Busbar, farewells: Farewells, stocks: dict[str, Stock]
) -> AsyncIterator[Azure]:
    """The vendor's SDK: each test that takes this runs with the synchronous and with the asynchronous client."""
    sdk = Azure(broker.connection_string, farewells, asynchronous=request.param == "async")
    if "queue" in request.fixturenames:
        stocks[request.param].give(sdk)
    yield sdk
    sdk.leave()
    await asyncio.sleep(0)


@pytest_asyncio.fixture(loop_scope="session")
async def azure_async(broker: Busbar, farewells: Farewells) -> AsyncIterator[Azure]:
    """The asynchronous SDK alone, where the SDK is only the other end of what a test is about."""
    sdk = Azure(broker.connection_string, farewells, asynchronous=True)
    yield sdk
    sdk.leave()
    await asyncio.sleep(0)


@pytest.fixture
def plain(broker: Busbar) -> Iterator[PlainAmqp]:
    """Qpid Proton, a client that knows nothing of this broker, authenticated with SASL PLAIN."""
    client = PlainAmqp(broker.port, broker.key)
    yield client
    client.close()


@pytest_asyncio.fixture(loop_scope="session")
async def http(broker: Busbar) -> AsyncIterator[Http]:
    """A program that knows HTTP and the namespace's key."""
    client = Http(broker.port, broker.key)
    yield client
    await client.close()
