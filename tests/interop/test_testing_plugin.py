"""`busbar.testing`: namespaces for the tests of others, with pytest and without."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from azure.servicebus.aio import ServiceBusClient

from busbar.client import MessagingFactory, OutgoingMessage
from busbar.client.blocking_administration import BlockingAdministrationClient
from busbar.testing import NamespaceServer, ServedNamespace, ServingFailed
from busbar.testing.process import MEMORY

ROOT = Path(__file__).resolve().parents[2]
ORDERS = {"UserConfig": {"Namespaces": [{"Name": "shop", "Queues": [{"Name": "orders"}]}]}}


@pytest.fixture(scope="module")
def namespaces() -> Iterator[NamespaceServer]:
    with NamespaceServer() as started:
        yield started


def queues(namespace: ServedNamespace) -> list[str]:
    with BlockingAdministrationClient.from_connection_string(namespace.connection_string) as administration:
        return [queue.name for queue in administration.list_queues()]


async def test_namespaces_beside_each_other_share_nothing(namespaces: NamespaceServer) -> None:
    with namespaces.namespace(ORDERS) as one, namespaces.namespace(ORDERS, in_memory=True) as other:
        assert one.port != other.port
        async with MessagingFactory(one.connection_string) as factory:
            await factory.message_sender("orders").send_messages(OutgoingMessage(b"tea"))
        async with (
            ServiceBusClient.from_connection_string(other.connection_string) as client,
            client.get_queue_receiver("orders") as receiver,
        ):
            assert await receiver.receive_messages(max_wait_time=0.5) == []
        async with MessagingFactory(one.connection_string) as factory:
            (message,) = await factory.message_receiver("orders").receive_messages(1)
            assert message.body == b"tea"


def test_what_a_namespace_has_stored_goes_with_it(namespaces: NamespaceServer) -> None:
    with namespaces.namespace() as namespace:
        assert queues(namespace) == []
        with BlockingAdministrationClient.from_connection_string(namespace.connection_string) as created:
            created.create_queue("orders")
    with namespaces.namespace() as namespace:
        assert queues(namespace) == []


@pytest.mark.skipif(not MEMORY.is_dir(), reason="this system has no file system in memory")
def test_a_namespace_in_memory_is_not_on_a_disk() -> None:
    with NamespaceServer() as server:
        with server.namespace(ORDERS, in_memory=True):
            assert server._process is not None
            files = Path(f"/proc/{server._process.pid}/fd").iterdir()
            opened = [Path(os.readlink(file)) for file in files]
            (directory,) = {path.parents[1] for path in opened if path.name.startswith("store-0.db")}
            assert directory.parent == MEMORY
        assert not directory.exists()


def test_a_configuration_that_cannot_be_used_is_named_and_the_next_one_is_served(
    namespaces: NamespaceServer, tmp_path: Path
) -> None:
    wrong = {"UserConfig": {"Namespaces": [{"Name": "shop", "Queues": [{"Name": "a b?"}]}]}}
    with pytest.raises(ServingFailed, match=r"a b\?"):
        namespaces.start(wrong)
    with pytest.raises(ServingFailed, match=r"missing\.json"):
        namespaces.start(tmp_path / "missing.json")
    with namespaces.namespace(ORDERS) as namespace:
        assert queues(namespace) == ["orders"]


def test_a_process_that_was_killed_is_named_and_another_one_is_started() -> None:
    with NamespaceServer() as server:
        server.start()
        assert server._process is not None
        server._process.kill()
        with pytest.raises(ServingFailed, match="has ended"):
            server.start()
        with server.namespace(ORDERS) as namespace:
            assert queues(namespace) == ["orders"]


def test_a_second_namespace_takes_well_under_a_second(namespaces: NamespaceServer) -> None:
    """As a ratio to the first one, for which the process is started."""

    def seconds(server: NamespaceServer) -> float:
        began = time.perf_counter()
        with server.namespace(ORDERS, in_memory=True):
            return time.perf_counter() - began

    with NamespaceServer() as fresh:
        first = seconds(fresh)
        assert min(seconds(fresh) for _ in range(5)) < first / 3


def run_tests(directory: Path, *options: str) -> str:
    """What pytest prints in a directory of tests."""
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "ignore",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            *options,
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
    )
    return done.stdout + done.stderr


def test_pytest_finds_the_plugin() -> None:
    assert [found.value for found in entry_points(group="pytest11", name="busbar")] == [
        "busbar.testing.plugin"
    ]


def test_the_sample_project_runs_as_it_stands(tmp_path: Path) -> None:
    sample = shutil.copytree(ROOT / "samples" / "testing", tmp_path / "shop")
    assert re.search(r"^2 passed", run_tests(sample), re.MULTILINE)


def test_marks_and_a_failing_configuration(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "test_marks.py").write_text(
        f"""
import pytest
from busbar.client.blocking_administration import BlockingAdministrationClient

@pytest.mark.busbar(config={ORDERS!r}, in_memory=True)
def test_marked(busbar_namespace):
    with BlockingAdministrationClient.from_connection_string(busbar_namespace.connection_string) as client:
        assert [queue.name for queue in client.list_queues()] == ["orders"]

@pytest.mark.busbar(config="missing.json")
def test_missing(busbar_namespace):
    raise AssertionError("not reached")
"""
    )
    printed = run_tests(tmp_path)
    assert "1 passed, 1 error" in printed
    assert "no namespace for this test: the configuration missing.json cannot be read" in printed
