"""Three running Busbars for each worker that needs them, queues to take from, and the clients that the tests look through.

`broker` has queues of every kind, `session_broker` those with message sessions, `partitioned_server` the partitioned ones:
sixteen fragments each, so few of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Mapping

import pytest
import pytest_asyncio

from harness.serving import Busbar, Properties, serving
from tests.interop import partitioned_queues
from tests.interop.azure_sdk import Azure, Farewells, Stock
from tests.interop.http_runtime import Http
from tests.interop.plain_amqp import PlainAmqp
from tests.interop.queue_pool import LIMITS, QueuePool, pool_queues
from tests.interop.session_queues import LIMITS as SESSION_LIMITS
from tests.interop.session_queues import WAYS, SessionQueues, World


def running(queues: Mapping[str, Properties], limits: Mapping[str, object]) -> Iterator[Busbar]:
    """A server for all tests of a worker, which must not fail over any of them."""
    with serving(queues, limits, checked=True) as server:
        yield server


def proton(server: Busbar) -> Iterator[PlainAmqp]:
    """Qpid Proton, a client that knows nothing of this broker, authenticated with SASL PLAIN."""
    client = PlainAmqp(server.port, server.key)
    yield client
    client.close()


async def leave(*clients: Azure) -> None:
    for client in clients:
        client.leave()
    await asyncio.sleep(0)


@pytest.fixture(scope="session")
def broker() -> Iterator[Busbar]:
    yield from running(pool_queues(), LIMITS)


@pytest.fixture(scope="session")
def session_broker() -> Iterator[Busbar]:
    """One whose session-aware queues come as tests ask for them."""
    yield from running({"plain": {}, "requests": {}}, SESSION_LIMITS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the server said."""
    report = yield
    for name, server in getattr(item, "funcargs", {}).items():
        if report.failed and isinstance(server, Busbar) and server.error_text:
            report.sections.append((f"busbar serve ({name})", server.error_text[-4000:]))
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
    await leave(sdk)


@pytest_asyncio.fixture(loop_scope="session")
async def azure_async(broker: Busbar, farewells: Farewells) -> AsyncIterator[Azure]:
    """The asynchronous SDK alone, where the SDK is only the other end of what a test is about."""
    sdk = Azure(broker.connection_string, farewells, asynchronous=True)
    yield sdk
    await leave(sdk)


@pytest.fixture
def plain(broker: Busbar) -> Iterator[PlainAmqp]:
    """Qpid Proton."""
    yield from proton(broker)


@pytest_asyncio.fixture(loop_scope="session")
async def http(broker: Busbar) -> AsyncIterator[Http]:
    """A program that knows HTTP and the namespace's key."""
    client = Http(broker.port, broker.key)
    yield client
    await client.close()


@pytest.fixture(scope="session")
def session_pool(session_broker: Busbar) -> SessionQueues:
    return SessionQueues(session_broker)


@pytest_asyncio.fixture(loop_scope="session")
async def worlds(
    session_broker: Busbar, session_pool: SessionQueues, farewells: Farewells
) -> AsyncIterator[list[World]]:
    """The vendor's SDK on session-aware queues: both clients, regular and partitioned (`every_way` gives them to a test)."""
    sdks = [
        Azure(session_broker.connection_string, farewells, asynchronous=client == "async")
        for client, _ in WAYS
    ]
    yield [World(sdk, client, place, session_pool) for sdk, (client, place) in zip(sdks, WAYS, strict=True)]
    await leave(*sdks)


@pytest.fixture
def plain_sessions(session_broker: Busbar) -> Iterator[PlainAmqp]:
    """Qpid Proton on the server of the session-aware queues."""
    yield from proton(session_broker)


@pytest.fixture(params=["regular", "partitioned"])
def session_queue(request: pytest.FixtureRequest, session_pool: SessionQueues) -> str:
    """A session-aware queue of each kind."""
    return session_pool.take(request.param)


@pytest.fixture(scope="session")
def partitioned_server() -> Iterator[Busbar]:
    yield from running(partitioned_queues.queue_table(), partitioned_queues.LIMITS)


@pytest.fixture(scope="session")
def partitioned_names() -> partitioned_queues.Names:
    return partitioned_queues.Names()


@pytest.fixture
def partitioned(partitioned_names: partitioned_queues.Names) -> str:
    """A partitioned queue that no other test uses."""
    return partitioned_names.take("partitioned")


@pytest.fixture(params=["regular", "partitioned"])
def either(request: pytest.FixtureRequest, partitioned_names: partitioned_queues.Names) -> str:
    """A queue of each kind: the test is the same for both."""
    return partitioned_names.take(request.param)


@pytest_asyncio.fixture(loop_scope="session")
async def partitioned_azure(partitioned_server: Busbar, farewells: Farewells) -> AsyncIterator[Azure]:
    """The asynchronous SDK at that server."""
    client = Azure(partitioned_server.connection_string, farewells, asynchronous=True)
    yield client
    await leave(client)


@pytest.fixture
def partitioned_plain(partitioned_server: Busbar) -> Iterator[PlainAmqp]:
    """Qpid Proton at that server."""
    yield from proton(partitioned_server)
