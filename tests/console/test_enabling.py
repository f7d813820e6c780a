"""What is ticked in the web console is what programs find; and the other ways to the same.

Queues are created as a person would, in a real browser by the labels on the page, and then used through the Azure SDK.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient
from playwright.sync_api import Page, expect

from harness.serving import Busbar
from tests.console.walking import create_queue

pytestmark = pytest.mark.timeout(120)
FRAGMENTS = 16


def by_code(name: str, admin: ServiceBusAdministrationClient, server: Busbar, page: Page) -> None:
    admin.create_queue(name, enable_partitioning=True)


def by_command(name: str, admin: ServiceBusAdministrationClient, server: Busbar, page: Page) -> None:
    command = [sys.executable, "-m", "busbar", "queue", "create", name, "--enable-partitioning", "true"]
    done = subprocess.run(
        [*command, "--data", str(server.data), "-o", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["enablePartitioning"] is True


def by_check_box(name: str, admin: ServiceBusAdministrationClient, server: Busbar, page: Page) -> None:
    create_queue(page, name, "Enable partitioning")


@pytest.mark.req("P13")
@pytest.mark.parametrize("create", [by_code, by_command, by_check_box], ids=lambda way: way.__name__)
def test_partitioning_is_switched_on(
    create: Callable[[str, ServiceBusAdministrationClient, Busbar, Page], None],
    admin: ServiceBusAdministrationClient,
    server: Busbar,
    page: Page,
) -> None:
    name = f"spread-{create.__name__}"
    create(name, admin, server, page)
    assert admin.get_queue(name).enable_partitioning is True

    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_queue_sender(name) as sender:
            for number in range(2 * FRAGMENTS):
                sender.send_messages(ServiceBusMessage(str(number)))
        with client.get_queue_receiver(name) as receiver:
            messages = receiver.peek_messages(4 * FRAGMENTS)
    # The upper bits of a sequence number are the fragment's.
    assert {(message.sequence_number or 0) >> 48 for message in messages} == set(range(FRAGMENTS))

    page.goto(f"/queue?name={name}")
    expect(page.get_by_text("partitioned", exact=True)).to_be_visible()
    bars = page.locator(".fragments li")
    expect(bars).to_have_count(FRAGMENTS)
    held = [int(bar.get_attribute("data-held") or 0) for bar in bars.all()]
    assert sum(held) == 2 * FRAGMENTS and min(held) > 0
    height = bars.first.locator("rect.messages").bounding_box()
    assert height is not None and height["height"] > 0


def test_a_box_that_is_not_ticked_is_off(page: Page, admin: ServiceBusAdministrationClient) -> None:
    create_queue(page, "regular")
    found = admin.get_queue("regular")
    assert not found.enable_partitioning
    assert not found.requires_session
    assert not found.requires_duplicate_detection
    assert not found.dead_lettering_on_message_expiration
    expect(page.get_by_role("heading", name="Fragments")).to_have_count(0)


@pytest.mark.req("S17")
def test_sessions_are_enabled_by_a_check_box(
    page: Page, admin: ServiceBusAdministrationClient, server: Busbar
) -> None:
    create_queue(page, "by-check-box", "Requires session")
    expect(page.get_by_text("sessions", exact=True)).to_be_visible()
    assert admin.get_queue("by-check-box").requires_session is True

    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        with client.get_queue_sender("by-check-box") as sender:
            sender.send_messages([ServiceBusMessage(f"{n}", session_id="ab"[n % 2]) for n in range(4)])
        with client.get_queue_receiver("by-check-box", session_id="b") as receiver:
            received = receiver.receive_messages(2, max_wait_time=10)
            if len(received) < 2:
                received += receiver.receive_messages(2, max_wait_time=10)
            assert [(message.session_id, str(message)) for message in received] == [("b", "1"), ("b", "3")]
        with pytest.raises(ServiceBusError), client.get_queue_receiver("by-check-box") as plain:
            plain.receive_messages(1, max_wait_time=5)


def test_a_subscription_of_a_topic(page: Page, admin: ServiceBusAdministrationClient) -> None:
    page.goto("/topic/new")
    page.get_by_label("Name", exact=True).fill("news/local")
    page.get_by_label("Enable partitioning").check()
    page.get_by_role("button", name="Create topic").click()
    expect(page.get_by_text("There are no subscriptions.")).to_be_visible()
    assert admin.get_topic("news/local").enable_partitioning is True

    for name, ticked in (("ordered", True), ("plain", False)):
        page.goto("/topic?name=news/local")
        page.get_by_role("link", name="New subscription").click()
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_label("Requires session").set_checked(ticked)
        page.get_by_role("button", name="Create subscription").click()
        expect(page.get_by_role("heading", name=name)).to_be_visible()
        assert admin.get_subscription("news/local", name).requires_session is ticked
    page.get_by_role("link", name="news/local").click()
    for name in ("ordered", "plain"):
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
