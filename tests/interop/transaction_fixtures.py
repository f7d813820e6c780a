"""Fixtures for tests of transactions with busbar.client. A module that uses them names them:

    names, regular, factory = fixtures.names, fixtures.regular, fixtures.factory

Its server has the entities of tests/interop/transactions.py, so its mark is `fixtures.SERVER`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from busbar.client import MessagingFactory
from harness.serving import Busbar
from tests.interop.partitioned_queues import Names
from tests.interop.transactions import LIMITS, queue_table, topic_table

SERVER = pytest.mark.server(queue_table(), LIMITS, topics=topic_table(), checked=True)
KEY = "the key"


@pytest.fixture(scope="module")
def names(server: Busbar) -> Names:
    """The names of its entities; each server has all of them."""
    return Names()


@pytest.fixture(params=["regular", "partitioned"])
def either(request: pytest.FixtureRequest, names: Names) -> str:
    """A queue of each kind that no other test uses."""
    return names.take(request.param)


@pytest.fixture
def regular(names: Names) -> str:
    return names.take("regular")


@pytest.fixture
def partitioned(names: Names) -> str:
    return names.take("partitioned")


@pytest_asyncio.fixture(loop_scope="session")
async def factory(server: Busbar) -> AsyncIterator[MessagingFactory]:
    async with await MessagingFactory.connect(server.connection_string) as made:
        yield made
