"""Fixtures for tests of busbar.client's administration client, asynchronous and blocking. A module names those that it uses:

    admin, name = fixtures.admin, fixtures.name

Its mark is `fixtures.SERVER`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from busbar.client import AdministrationClient, BlockingAdministrationClient
from harness.serving import Busbar
from tests.interop.administration import Administration
from tests.interop.azure_sdk import in_thread

PAGED = 205
"""More queues than one page of a list has."""
LISTENER = {"Name": "listener", "Rights": ["Listen"], "PrimaryKey": "first key", "SecondaryKey": "second key"}
SERVER = pytest.mark.server(
    {f"page-{index:03d}": {} for index in range(PAGED)}, rules=[LISTENER], checked=True
)


class Face:
    """Either client: its methods are awaited, its lists are lists."""

    def __init__(self, raw: AdministrationClient | BlockingAdministrationClient) -> None:
        self.raw = raw

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.raw, name)

        async def call(*args: Any, **options: Any) -> Any:
            if isinstance(self.raw, BlockingAdministrationClient):
                result = await in_thread(method, *args, **options)
                return await in_thread(lambda: list(result)) if name.startswith("list_") else result
            if name.startswith("list_"):
                return [item async for item in method(*args, **options)]
            return await method(*args, **options)

        return call


@pytest_asyncio.fixture(params=["async", "blocking"], loop_scope="session")
async def admin(request: pytest.FixtureRequest, server: Busbar) -> AsyncIterator[Face]:
    kind = AdministrationClient if request.param == "async" else BlockingAdministrationClient
    face = Face(kind.from_connection_string(server.connection_string))
    yield face
    await face.close()


@pytest_asyncio.fixture(loop_scope="session")
async def azure(server: Busbar) -> AsyncIterator[Administration]:
    client = Administration(server, asynchronous=True)
    yield client
    await client.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return "".join(char if char.isalnum() else "-" for char in request.node.name).strip("-")
