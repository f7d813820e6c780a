"""The first hour of a user: a clone, `make run`, a first message, its page, a dead letter that is mended and sent again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from playwright.sync_api import Browser, Page, expect

from harness.installed import made_and_served
from tests.console.console_process import console_for
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


@pytest.fixture
def page(first_hour: FirstHour, chromium: Browser) -> Iterator[Page]:
    """A browser at the console of the namespace, signed in by the printed address."""
    with console_for(first_hour.clone / ".busbar") as console:
        context = chromium.new_context(base_url=console.base)
        opened = context.new_page()
        opened.goto(console.sign_in)
        opened.wait_for_url(f"{console.base}/")
        yield opened
        context.close()


@pytest.mark.req("U27")
def test_from_a_clone_to_a_mended_message(first_hour: FirstHour, page: Page) -> None:
    sample = first_hour.run(".venv/bin/python", "samples/first_message.py", first_hour.connection)
    assert sample.endswith("two coffees, one croissant\n")

    with ServiceBusClient.from_connection_string(first_hour.connection) as client:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("two cofees", message_id="order-1"))
        page.get_by_role("link", name="orders", exact=True).click()
        page.get_by_role("link", name="Messages", exact=True).click()
        page.locator("tbody").get_by_role("link").first.click()
        expect(page.get_by_label("Body", exact=True)).to_have_text("two cofees")

        receiver = client.get_queue_receiver("orders")
        (message,) = receiver.receive_messages(max_wait_time=30)
        assert message.delivery_count == 0, "a look does not count as a delivery"
        receiver.dead_letter_message(message, reason="Misspelled", error_description="there are no cofees")

        page.get_by_role("link", name="orders", exact=True).click()
        page.get_by_role("link", name="Dead letters").click()
        expect(page.locator("tbody").first).to_contain_text("Misspelled")
        page.get_by_role("link", name="Edit and resubmit").click()
        page.get_by_label("Body", exact=True).fill("two coffees")
        page.get_by_label("Message id of the copy").select_option("The same")
        page.get_by_role("button", name="Send the copy").click()
        expect(page.get_by_role("status")).to_have_text("1 of 1 dead letters resubmitted.")

        (mended,) = receiver.receive_messages(max_wait_time=30)
        assert (mended.message_id, str(mended)) == ("order-1", "two coffees")
        receiver.complete_message(mended)


def test_the_same_on_the_command_line(first_hour: FirstHour) -> None:
    """Each line as a user of the clone types it; commands find the namespace by its data directory."""
    busbar = ".venv/bin/busbar"
    with ServiceBusClient.from_connection_string(first_hour.connection) as client:
        first_hour.run(busbar, "send", "payments", "10 euross", "--message-id", "payment-1")
        assert "10 euross" in first_hour.run(busbar, "peek", "payments")
        receiver = client.get_queue_receiver("payments")
        (message,) = receiver.receive_messages(max_wait_time=30)
        receiver.dead_letter_message(message, reason="Misspelled")
        assert "Misspelled" in first_hour.run(busbar, "dead-letters", "list", "payments")
        (first_hour.clone / "body.txt").write_text("10 euros")
        mending = ("--reason", "Misspelled", "--body-file", "body.txt", "--keep-id")
        first_hour.run(busbar, "dead-letters", "resubmit", "payments", *mending)
        assert first_hour.run(busbar, "receive", "payments") == "10 euros"
        assert "Misspelled" not in first_hour.run(busbar, "dead-letters", "list", "payments")
