"""The first hour of a user: a clone, `make run`, a first message, a look at it, and a dead letter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from harness.installed import made_and_served
from tools.work_tree import copy_to

LAYER = ("pyproject.toml", "constraints.txt", "hashes.txt", "tools/dependencies.py", "tools/hashes.py")


@dataclass(frozen=True)
class FirstHour:
    """A clone that `make run` serves."""

    clone: Path
    environment: dict[str, str]
    connection: str

    def run(self, *command: str) -> str:
        """The output of a command in the clone, which must succeed."""
        done = subprocess.run(
            command,
            cwd=self.clone,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def first_hour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirstHour]:
    """The clone uses the environment of this test, which has everything that `make run` installs. It compiles nothing: the
    first start is interpreted anyway, and tests/set_up tries the build beside it."""
    clone = tmp_path_factory.mktemp("first-hour") / "busbar"
    copy_to(clone)
    for name in LAYER:
        os.utime(clone / name, (0, 0))  # older than what is installed, so that make installs nothing
    (clone / ".venv").symlink_to(sys.prefix)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BUSBAR_")}
    environment = inherited | {"PYTHONPATH": str(clone / "src"), "CC": str(clone / "no-compiler")}
    with made_and_served(clone, environment) as connection:
        yield FirstHour(clone, environment, connection)


def test_from_a_clone_to_a_dead_letter(first_hour: FirstHour) -> None:
    sample = first_hour.run(".venv/bin/python", "samples/first_message.py", first_hour.connection)
    assert sample.endswith("two coffees, one croissant\n")

    with ServiceBusClient.from_connection_string(first_hour.connection) as client:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("two cofees", message_id="order-1"))
        assert "two cofees" in first_hour.run(".venv/bin/busbar", "peek", "orders")

        receiver = client.get_queue_receiver("orders")
        (message,) = receiver.receive_messages(max_wait_time=30)
        assert message.delivery_count == 0, "a look does not count as a delivery"
        receiver.dead_letter_message(message, reason="Misspelled", error_description="there are no cofees")
        assert "Misspelled" in first_hour.run(".venv/bin/busbar", "peek", "orders/$DeadLetterQueue")
