"""Every suite of ports and of stores runs over each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from busbar.model.api import BrokerApi
from busbar.store.contract import Store
from tests.conformance.port_process import fragments
from tests.conformance.ports import other_process
from tests.conformance.stores import PLACES, Open


@pytest.fixture(params=["same process", "stores over a channel", "other process"])
async def port(request: pytest.FixtureRequest) -> AsyncIterator[BrokerApi]:
    if request.param != "other process":
        async with fragments(over_channel=request.param == "stores over a channel") as local:
            yield local
    else:
        async with other_process() as (remote, _):
            yield remote


@pytest.fixture(params=PLACES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return PLACES[request.param](tmp_path)


@pytest.fixture
def store(open_store: Open) -> Iterator[Store]:
    store = open_store()
    store.claim()
    yield store
    store.close()
