"""The servers and shims that modules of tests ask for by a mark, each defined once.

    pytestmark = pytest.mark.server({"q": {}}, {"token_timeout": 1_000}, key="secret")

A mark takes what `harness.serving.serving` takes. `server` is one running Busbar for all tests of a module, `own_server` one
for each test. A suite can say in its conftest what modules without a mark get, by its own `server_mark`. Where `server` is
parametrized, the parameter is the number of its brokers.

    pytestmark = pytest.mark.shim("slow_sync")

`shim` is the library of harness/faults with that name, built once for a module.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.faults.shims import build_shim
from harness.serving import Busbar, serving


@pytest.fixture(scope="session")
def server_mark() -> pytest.Mark | None:
    """What `server` serves in modules that have no mark of their own."""
    return None


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, server_mark: pytest.Mark | None) -> Iterator[Busbar]:
    """One for a module: that it still serves after every test of it is part of what is shown."""
    mark = request.node.get_closest_marker("server") or server_mark
    assert mark is not None, f"{request.node.nodeid} uses `server` and has no pytest.mark.server"
    options = dict(mark.kwargs)
    if hasattr(request, "param"):
        options["arguments"] = (*options.get("arguments", ()), "--brokers", request.param)
    with serving(*mark.args, **options) as running:
        yield running


@pytest.fixture
def server_environment() -> dict[str, str]:
    """Variables for `own_server`; a module that preloads a shim into it overrides them."""
    return {}


@pytest.fixture
def own_server(request: pytest.FixtureRequest, server_environment: dict[str, str]) -> Iterator[Busbar]:
    """One for each test, for tests that stop it or change its stores."""
    mark = request.node.get_closest_marker("server")
    assert mark is not None, f"{request.node.nodeid} uses `own_server` and has no pytest.mark.server"
    with serving(*mark.args, **mark.kwargs, environment=server_environment) as running:
        yield running


@pytest.fixture(scope="module")
def shim(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    mark = request.node.get_closest_marker("shim")
    assert mark is not None, f"{request.node.nodeid} uses `shim` and has no pytest.mark.shim"
    (name,) = mark.args
    return build_shim(name, tmp_path_factory.mktemp("shim"))
