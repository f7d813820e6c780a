"""The pages of the web console in a real browser: forms, refusals, deleting, the keyboard, a page that stays open."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient
from playwright.sync_api import BrowserContext, Page, expect

from busbar.catalogue.placement import place
from busbar.cli.main import run
from busbar.console.layout import SECTIONS
from harness.serving import Busbar
from tests.console.console_process import ConsoleProcess

pytestmark = pytest.mark.timeout(120)


@pytest.mark.req("U27")
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
    expect(page.get_by_label("Name", exact=True)).to_be_focused()  # the cursor stands in the first field
    page.keyboard.type("by-keyboard")
    box = page.get_by_label("Enable partitioning")
    for _ in range(10):
        page.keyboard.press("Tab")
        if box.evaluate("box => box === document.activeElement"):
            break
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="by-keyboard")).to_be_visible()
    assert admin.get_queue("by-keyboard").enable_partitioning is True


def test_the_keyboard_reaches_everything_and_shows_where_it_is(page: Page) -> None:
    page.goto("/queue?name=orders")
    tabs = ("Namespace", "Overview", "Messages", "Dead letters", "Send", "Settings", "Access keys")
    for expected in ("Skip to content", "Busbar", *(name for _, name in SECTIONS), "search", *tabs):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "(() => { const each = document.activeElement; const style = getComputedStyle(each);"
            " return [each.textContent.trim() || each.name, style.outlineStyle, style.outlineWidth]; })()"
        )
        assert focused == [expected, "solid", "2px"]
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("a/b")  # in a field it is a letter
    expect(page.get_by_role("searchbox")).to_have_value("a/b")


@pytest.mark.req("U27")
def test_the_overview_renews_itself(
    page: Page, admin: ServiceBusAdministrationClient, server: Busbar
) -> None:
    page.goto("/")
    page.get_by_role("link", name="orders", exact=True).focus()
    page.evaluate("window.stays = true")
    admin.create_queue("appears", requires_session=True)
    client = ServiceBusClient.from_connection_string(server.connection_string)
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages([ServiceBusMessage("x") for _ in range(3)])
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="appears", exact=True))
    expect(row).to_contain_text("sessions")
    orders = page.get_by_role("row").filter(has=page.get_by_role("link", name="orders", exact=True))
    expect(orders.get_by_role("cell").nth(2)).to_have_text("3")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_focused()
    assert page.evaluate("window.stays") is True


@pytest.mark.req("U27")
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


def test_the_printed_address_is_good_for_one_browser(
    browser: BrowserContext, console: ConsoleProcess
) -> None:
    assert browser.browser is not None
    other = browser.browser.new_context()
    page = other.new_page()
    page.goto(console.sign_in)
    expect(page.get_by_role("alert")).to_contain_text("was used already")
    page.goto(console.base)
    expect(page.get_by_role("heading", name="Not signed in")).to_be_visible()
    other.close()


def test_what_is_on_its_way_and_what_could_not_be_moved_is_shown(
    page: Page, admin: ServiceBusAdministrationClient, server: Busbar
) -> None:
    admin.create_queue("letters")
    admin.update_queue(admin.get_queue("letters"), forward_dead_lettered_messages_to="letters")
    stores = [f"store-{index}" for index in range(4)]
    target, source = (
        next(name for name in map(f"{word}-{{}}".format, range(99)) if place(name, 1, stores) == (store,))
        for word, store in (("target", "store-1"), ("source", "store-2"))
    )
    admin.create_queue(target)
    admin.create_queue(source, forward_to=target)
    change_store(server, "offline")
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_queue_sender(source) as sender:
            sender.send_messages(ServiceBusMessage("waits"))
        with client.get_queue_sender("letters") as sender:
            sender.send_messages(ServiceBusMessage("bad"))
        with client.get_queue_receiver("letters", max_wait_time=20) as receiver:
            for _ in range(5):  # four moves to itself, and one too many
                (message,) = receiver.receive_messages(1, 20)
                receiver.dead_letter_message(message)
    try:
        page.goto(f"/queue?name={source}")
        expect(page.locator(".tiles > div").filter(has_text="being forwarded")).to_contain_text("1")
        page.goto("/queue?name=letters")
        expect(page.locator(".tiles > div").filter(has_text="failed transfers")).to_contain_text("1")
    finally:
        change_store(server, "online")
    page.goto(f"/queue?name={target}")
    expect(page.locator(".tiles > div").filter(has_text=re.compile("^1messages$"))).to_be_visible()


def change_store(server: Busbar, to: str) -> None:
    assert run(["stores", to, "store-1", "--data", str(server.data)]) == 0
