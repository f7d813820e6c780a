"""Every suite of ports runs over each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from busbar.model.port import NamespacePort
from tests.conformance.port_process import fragments
from tests.conformance.ports import other_process


@pytest.fixture(params=["same process", "other process"])
async def port(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NamespacePort]:
    if request.param == "same process":
        async with fragments() as local:
            yield local
    else:
        async with other_process(tmp_path) as remote:
            yield remote
