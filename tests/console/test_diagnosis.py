"""Why a message did not arrive, in a real browser: a test of rules, and the history of a message."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter
from playwright.sync_api import Page, expect

from harness.serving import Busbar

pytestmark = pytest.mark.timeout(120)

HOSTILE = "<img src=x onerror=alert(1)>"


def test_rules_are_tested_with_a_message(
    page: Page, admin: ServiceBusAdministrationClient, server: Busbar
) -> None:
    admin.create_topic("tested")
    admin.create_subscription("tested", "all")
    admin.create_subscription("tested", "large")
    admin.create_rule("tested", "large", "amount", filter=SqlRuleFilter("amount > 100"))
    admin.delete_rule("tested", "large", "$Default")
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_topic_sender("tested") as sender,
    ):
        sender.send_messages(
            ServiceBusMessage("x", message_id=HOSTILE, application_properties={"amount": 50})
        )

    page.goto("/topic?name=tested")
    page.get_by_role("link", name="Test rules").click()
    page.get_by_label("Message id").fill(HOSTILE)
    page.get_by_role("button", name="Test rules").click()
    rows = page.locator("tbody tr")
    expect(rows.filter(has_text="all")).to_contain_text("gets it")
    large = rows.filter(has_text="large")
    expect(large).to_contain_text("does not get it")
    expect(large).to_contain_text("`amount > 100` is false, where property 'amount' is 50")
    expect(page.get_by_label("Message id")).to_have_value(HOSTILE)

    page.get_by_label("Message id").fill("")
    page.get_by_label("Application properties").fill(f"note={HOSTILE}")
    page.get_by_role("button", name="Test rules").click()
    expect(large).to_contain_text("UNKNOWN because property 'amount' is missing")
    page.get_by_label("Application properties").fill("amount:int=lots")
    page.get_by_role("button", name="Test rules").click()
    expect(page.get_by_role("alert")).to_contain_text("amount:int=lots")
    page.get_by_label("Message id").fill("gone")
    page.get_by_role("button", name="Test rules").click()
    expect(page.get_by_role("alert")).to_contain_text("has the message 'gone' any more")


def test_the_history_of_a_message(page: Page, admin: ServiceBusAdministrationClient, server: Busbar) -> None:
    admin.create_queue("watched")
    page.goto("/")
    page.get_by_role("link", name="History").click()
    expect(page.get_by_text("No entity records its history.")).to_be_visible()
    page.get_by_role("button", name="Record all entities").click()
    expect(page.get_by_role("status")).to_have_text("All entities record their history from now on.")
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender("watched") as sender,
        client.get_queue_receiver("watched") as receiver,
    ):
        sender.send_messages(ServiceBusMessage("x", message_id=HOSTILE))
        (message,) = receiver.receive_messages(1, max_wait_time=15)
        receiver.dead_letter_message(message, reason=HOSTILE)
    page.get_by_label("Message id").fill(HOSTILE)
    page.get_by_role("button", name="Show history").click()
    expect(page.get_by_role("heading", name=f"Message {HOSTILE}")).to_be_visible()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    for row, what in enumerate(("sent", "delivered", "dead-lettered")):
        expect(rows.nth(row)).to_contain_text(what)
        expect(rows.nth(row)).to_contain_text("watched")
        expect(rows.nth(row)).to_contain_text("127.0.0.1")
    expect(rows.nth(2)).to_contain_text(HOSTILE)
    page.get_by_role("button", name="Stop recording").click()
    expect(page.get_by_role("status")).to_have_text("No entity records its history now.")
    page.goto("/history?id=nobody")
    expect(page.get_by_text("Nothing is recorded of it.")).to_be_visible()
