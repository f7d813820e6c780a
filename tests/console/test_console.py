"""The web console in a real browser: what is ticked there is what programs find.

Queues are created as a person would, by the labels on the page, and then used through the Azure SDK.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient
from playwright.sync_api import BrowserContext, Page, expect

from tests.console.console_process import ConsoleProcess
from tests.serving import Busbar

pytestmark = pytest.mark.timeout(120)
FRAGMENTS = 16


@pytest.fixture(scope="module")
def admin(server: Busbar) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=str(server.data / "tls" / "ca.pem"), retry_total=0
    )


def create_queue(page: Page, name: str, *ticked: str) -> None:
    page.goto("/")
    page.get_by_role("link", name="New queue").click()
    page.get_by_label("Name", exact=True).fill(name)
    for label in ticked:
        page.get_by_label(label).check()
    page.get_by_role("button", name="Create queue").click()
    expect(page.get_by_role("status")).to_have_text("The queue was created.")


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
    assert {message.sequence_number >> 48 for message in messages} == set(range(FRAGMENTS))

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
    expect(page.locator("tbody tr")).to_have_count(2)


def test_every_field_arrives(page: Page, admin: ServiceBusAdministrationClient) -> None:
    page.goto("/queue/new")
    page.get_by_label("Name", exact=True).fill("every/field")
    page.get_by_label("Maximum size").select_option("3 GB")
    page.get_by_label("Lock duration").fill("2m")
    page.get_by_label("Time to live").fill("1h30m")
    page.get_by_label("Maximum deliveries").fill("7")
    page.get_by_label("Requires duplicate detection").check()
    page.get_by_label("Dead-letter on expiry").check()
    page.get_by_role("button", name="Create queue").click()
    expect(page.get_by_role("heading", name="every/field")).to_be_visible()
    found = admin.get_queue("every/field")
    assert found.max_size_in_megabytes == 3072
    assert found.lock_duration == timedelta(minutes=2)
    assert found.default_message_time_to_live == timedelta(minutes=90)
    assert found.max_delivery_count == 7
    assert found.requires_duplicate_detection and found.dead_lettering_on_message_expiration


def test_a_refusal_is_shown_and_nothing_typed_is_lost(
    page: Page, admin: ServiceBusAdministrationClient
) -> None:
    page.goto("/queue/new")
    page.get_by_label("Name", exact=True).fill("refused")
    page.get_by_label("Maximum size").select_option("2 GB")
    page.get_by_label("Lock duration").fill("10m")
    page.get_by_label("Enable partitioning").check()
    page.get_by_role("button", name="Create queue").click()
    expect(page.get_by_role("alert")).to_contain_text("LockDuration is 600 s; 5 s to 300 s are allowed")
    expect(page.get_by_label("Name", exact=True)).to_have_value("refused")
    expect(page.get_by_label("Maximum size")).to_have_value("2048")
    expect(page.get_by_label("Lock duration")).to_have_value("10m")
    expect(page.get_by_label("Enable partitioning")).to_be_checked()

    page.get_by_label("Lock duration").fill("soon")
    page.get_by_role("button", name="Create queue").click()
    expect(page.get_by_role("alert")).to_contain_text("'soon' is not a duration")

    page.get_by_label("Lock duration").fill("1m")
    page.get_by_role("button", name="Create queue").click()
    expect(page.get_by_role("heading", name="refused")).to_be_visible()
    assert admin.get_queue("refused").enable_partitioning is True


def test_the_keyboard_is_enough(page: Page, admin: ServiceBusAdministrationClient) -> None:
    page.goto("/queue/new")
    page.keyboard.type("by-keyboard")  # the cursor stands in the first field
    box = page.get_by_label("Enable partitioning")
    for _ in range(10):
        page.keyboard.press("Tab")
        if box.evaluate("box => box === document.activeElement"):
            break
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="by-keyboard")).to_be_visible()
    assert admin.get_queue("by-keyboard").enable_partitioning is True


def test_the_overview_renews_itself(
    page: Page, admin: ServiceBusAdministrationClient, server: Busbar
) -> None:
    page.goto("/")
    page.get_by_role("link", name="orders", exact=True).focus()
    page.evaluate("window.stays = true")
    admin.create_queue("appears", requires_session=True)
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage("x") for _ in range(3)])
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="appears", exact=True))
    expect(row).to_contain_text("sessions", timeout=30_000)
    orders = page.get_by_role("row").filter(has=page.get_by_role("link", name="orders", exact=True))
    expect(orders.get_by_role("cell").nth(2)).to_have_text("3", timeout=30_000)
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_focused()
    assert page.evaluate("window.stays") is True
    expect(page.get_by_role("cell", name=re.compile("^store-"))).to_have_count(4)


def test_deleting_asks_first(page: Page, admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("doomed")
    page.goto("/queue?name=doomed")
    page.get_by_role("link", name="Delete this queue").click()
    expect(page.get_by_role("heading", name="Delete doomed?")).to_be_visible()
    page.get_by_role("link", name="Keep it").click()
    assert admin.get_queue("doomed").name == "doomed"
    page.get_by_role("link", name="Delete this queue").click()
    page.get_by_role("button", name="Delete queue").click()
    expect(page.get_by_role("heading", name="Namespace")).to_be_visible()
    assert "doomed" not in [queue.name for queue in admin.list_queues()]
    page.goto("/queue?name=doomed")
    expect(page.get_by_role("alert")).to_contain_text("does not exist")


def test_a_narrow_screen_needs_no_scrolling_sideways(
    page: Page, admin: ServiceBusAdministrationClient
) -> None:
    admin.create_queue("a-rather-long-name." * 6 + "end", enable_partitioning=True)
    page.set_viewport_size({"width": 340, "height": 700})
    for path in ("/", f"/queue?name={'a-rather-long-name.' * 6}end", "/queue/new"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path


def test_the_printed_address_is_good_for_one_browser(browser: BrowserContext, console: ConsoleProcess) -> None:
    assert browser.browser is not None
    other = browser.browser.new_context()
    page = other.new_page()
    page.goto(console.sign_in)
    expect(page.get_by_role("alert")).to_contain_text("was used already")
    page.goto(console.base)
    expect(page.get_by_role("heading", name="Not signed in")).to_be_visible()
    other.close()
