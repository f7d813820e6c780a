"""The pytest plugin: a namespace for each test that asks for one.

    busbar_namespace   a namespace of the test alone, stopped and deleted after it
    busbar_config      what it contains: override it, or use the mark `busbar`, or the option `busbar_config` of the ini file
    busbar_server      the process that serves them, for tests that need several namespaces

The options `busbar_config` (a Config.json, relative to the ini file) and `busbar_in_memory` (true: no disk is used) hold
for all tests; the mark `@pytest.mark.busbar(config=..., in_memory=...)` for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from busbar.testing.server import Config, NamespaceServer, ServedNamespace, ServingFailed

_MARK = (
    "busbar(config=None, in_memory=None): what the `busbar_namespace` of this test has, and where it keeps it"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("busbar_config", "the Config.json of all namespaces for tests", "paths", default=[])
    parser.addini("busbar_in_memory", "whether namespaces for tests use no disk", "bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)


@pytest.fixture(scope="session")
def busbar_server() -> Iterator[NamespaceServer]:
    """The process that serves the namespaces of all tests."""
    with NamespaceServer() as server:
        yield server


@pytest.fixture
def busbar_config(request: pytest.FixtureRequest) -> Config:
    """The entities of `busbar_namespace`: the document of a Config.json, or its path."""
    given: Config = _marked(request, "config")
    files: list[Path] = request.config.getini("busbar_config")
    if given is not None or not files:
        return given
    if len(files) > 1:
        raise pytest.UsageError(f"busbar_config names {len(files)} files; a namespace has one")
    return files[0]


@pytest.fixture
def busbar_namespace(
    request: pytest.FixtureRequest, busbar_server: NamespaceServer, busbar_config: Config
) -> Iterator[ServedNamespace]:
    """A namespace of this test alone."""
    in_memory = _marked(request, "in_memory")
    if in_memory is None:
        in_memory = request.config.getini("busbar_in_memory")
    try:
        served = busbar_server.start(busbar_config, in_memory=in_memory)
    except ServingFailed as error:
        pytest.fail(f"no namespace for this test: {error}", pytrace=False)
    yield served
    busbar_server.stop(served)


def _marked(request: pytest.FixtureRequest, name: str) -> Any:
    mark = request.node.get_closest_marker("busbar")
    return None if mark is None else mark.kwargs.get(name)
