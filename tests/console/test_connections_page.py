"""The connections of clients in a real browser: which one takes most, and closing it."""

from __future__ import annotations

import re

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient
from playwright.sync_api import Page, expect

from harness.serving import Busbar

pytestmark = pytest.mark.timeout(120)
HOSTILE = "<svg onload=alert(1)>"


@pytest.mark.req("U27")
def test_the_client_that_holds_messages_is_found_and_closed(
    page: Page, admin: ServiceBusAdministrationClient, server: Busbar
) -> None:
    admin.create_queue("held")
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as quiet,
        quiet.get_queue_sender("orders") as sender,
        ServiceBusClient.from_connection_string(server.connection_string, user_agent=HOSTILE) as client,
        client.get_queue_sender("held") as source,
        client.get_queue_receiver("held", prefetch_count=5) as receiver,
    ):
        sender.send_messages(ServiceBusMessage("x"))
        source.send_messages([ServiceBusMessage("x") for _ in range(3)])
        assert receiver.receive_messages(1, 10)
        page.goto("/connections")
        page.get_by_role("link", name="unsettled", exact=True).click()
        first = page.locator("tbody tr").first
        expect(first).to_contain_text("held")
        expect(first).to_contain_text(HOSTILE)
        expect(first.get_by_role("cell").nth(3)).to_have_text(re.compile("^[123]$"))
        first.locator("summary").click()
        expect(first.get_by_role("listitem").filter(has_text="receiver")).to_contain_text("held")

        page.goto("/queue?name=held")
        page.get_by_role("link", name="Its connections").click()
        expect(page.locator("tbody tr").first).to_contain_text("held")
        links = page.get_by_role("link", name=re.compile("^Close the connection"))
        before = links.count()
        links.first.click()
        expect(page.get_by_role("heading", name="Close the connection")).to_be_visible()
        expect(page.get_by_text("most clients connect again")).to_be_visible()
        page.get_by_role("button", name="Close connection").click()
        expect(page.get_by_role("status")).to_have_text("The connection was closed.")
        page.goto("/connections?entity=held")
        expect(links).to_have_count(before - 1)
    page.goto("/connection/close?id=nobody")
    expect(page.get_by_role("alert")).to_contain_text("does not exist")
