"""The daily work with entities in a real browser: finding one, its settings, rules and keys; stores, taps and clients."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)
from playwright.sync_api import Page, expect

from busbar.cli.main import run
from harness.serving import Busbar

pytestmark = pytest.mark.timeout(120)

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.mark.req("U27")
def test_an_entity_is_found_by_a_part_of_its_name(page: Page, admin: ServiceBusAdministrationClient) -> None:
    for number in range(60):
        admin.create_queue(f"shop/Invoice-{number:02}")
    page.goto("/")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("invoice-3")
    page.keyboard.press("Enter")
    queues = page.locator("section").filter(has=page.get_by_role("heading", name="Queues"))
    expect(queues.locator("tbody tr")).to_have_count(10)
    expect(page.get_by_text("No topic has such a name.")).to_be_visible()

    page.goto("/?search=INVOICE")
    expect(queues.locator("tbody tr")).to_have_count(50)
    page.get_by_role("link", name="after →").click()
    expect(queues.locator("tbody tr")).to_have_count(10)
    expect(queues.get_by_role("link", name="shop/Invoice-59")).to_be_visible()
    expect(page.get_by_role("searchbox")).to_have_value("INVOICE")
    page.goto(f"/?search={HOSTILE}")
    expect(page.get_by_role("heading", name=f"Entities with “{HOSTILE}”")).to_be_visible()


@pytest.mark.req("U27")
def test_settings_are_changed_and_others_stay(page: Page, admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("settings", max_delivery_count=4, user_metadata=HOSTILE)
    page.goto("/queue?name=settings")
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_label("Lock duration")).to_have_value("1m")
    expect(page.get_by_label("User metadata")).to_have_value(HOSTILE)
    page.get_by_label("Lock duration").fill("9m")
    page.get_by_label("Dead-letter on expiry").check()
    # Somebody else changes another setting meanwhile.
    other = admin.get_queue("settings")
    other.max_delivery_count = 5
    admin.update_queue(other)
    page.get_by_role("button", name="Change queue").click()
    expect(page.get_by_role("alert")).to_contain_text("LockDuration is 540 s")
    expect(page.get_by_label("Lock duration")).to_have_value("9m")
    page.get_by_label("Lock duration").fill("90s")
    page.get_by_role("button", name="Change queue").click()
    expect(page.get_by_role("status")).to_have_text("The queue was changed.")
    found = admin.get_queue("settings")
    assert found.lock_duration == timedelta(seconds=90) and found.dead_lettering_on_message_expiration
    assert found.max_delivery_count == 5 and found.user_metadata == HOSTILE


@pytest.mark.req("U27")
def test_rules_are_added_changed_and_deleted(page: Page, admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("news")
    admin.create_subscription("news", "audit")
    page.goto("/subscription?topic=news&name=audit")
    page.get_by_role("link", name="Rules").click()
    page.get_by_role("link", name="New rule").click()
    page.get_by_label("Name", exact=True).fill("large")
    page.get_by_label("SQL expression").fill("amount >")
    page.get_by_role("button", name="Create rule").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("SQL expression").fill(f"amount > 100 AND note = '{HOSTILE}'")
    page.get_by_label("Action", exact=True).fill("SET seen = 'yes'")
    page.get_by_role("button", name="Create rule").click()
    expect(page.get_by_role("status")).to_have_text("The rule was created.")
    expect(page.get_by_text(f"amount > 100 AND note = '{HOSTILE}'")).to_be_visible()
    rule = admin.get_rule("news", "audit", "large")
    assert isinstance(rule.filter, SqlRuleFilter) and isinstance(rule.action, SqlRuleAction)
    assert rule.action.sql_expression == "SET seen = 'yes'"

    page.get_by_role("link", name="large", exact=True).click()
    page.get_by_label("Filter").select_option("Properties that must be equal")
    page.get_by_text("Properties that must be equal", exact=True).last.click()
    page.get_by_label("Subject").fill("order")
    page.get_by_label("Application properties").fill("region=eu\namount:int=100")
    page.get_by_role("button", name="Change rule").click()
    expect(page.get_by_role("status")).to_have_text("The rule was changed.")
    changed = admin.get_rule("news", "audit", "large").filter
    assert isinstance(changed, CorrelationRuleFilter)
    assert changed.label == "order" and changed.properties == {"region": "eu", "amount": 100}

    page.get_by_role("link", name="Delete the rule $Default").click()
    expect(page.get_by_role("heading", name="Delete the rule $Default?")).to_be_visible()
    page.get_by_role("button", name="Delete rule").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert [rule.name for rule in admin.list_rules("news", "audit")] == ["large"]


@pytest.mark.req("U27")
def test_keys_are_shown_after_a_click(page: Page, admin: ServiceBusAdministrationClient) -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.SEND],
        key_name="writer",
        primary_key="first+key/of-the-writer=",
        secondary_key="second+key/of-the-writer=",
    )
    admin.create_queue("guarded", authorization_rules=[rule])
    page.goto("/queue?name=guarded")
    page.get_by_role("link", name="Access keys").click()
    expect(page.get_by_role("cell", name="writer", exact=True)).to_be_visible()
    assert "key/of-the-writer" not in page.content()
    page.get_by_role("button", name="Show the keys of writer").click()
    expect(page.get_by_text("first+key/of-the-writer=", exact=True)).to_be_visible()
    expect(page.get_by_text("EntityPath=guarded").first).to_contain_text("SharedAccessKeyName=writer")
    page.get_by_role("link", name="Hide them").click()
    expect(page.get_by_role("cell", name="writer", exact=True)).to_be_visible()
    assert "key/of-the-writer" not in page.content()

    page.get_by_role("link", name="Renew a key of writer").click()
    page.get_by_role("button", name="Renew key").click()
    expect(page.get_by_role("heading", name="Keys of writer")).to_be_visible()
    (found,) = admin.get_queue("guarded").authorization_rules or [rule]
    assert (
        found.primary_key == "first+key/of-the-writer=" and found.secondary_key != "second+key/of-the-writer="
    )
    assert str(found.secondary_key) in page.content()


@pytest.mark.req("U27")
def test_a_rule_of_the_namespace_is_created_and_deleted(page: Page, server: Busbar) -> None:
    page.goto("/")
    page.get_by_role("link", name="Access").click()
    expect(page.get_by_role("cell", name="RootManageSharedAccessKey", exact=True)).to_be_visible()
    assert server.key not in page.content()
    page.get_by_role("link", name="New access rule").click()
    page.get_by_label("Name", exact=True).fill("reader")
    page.get_by_role("button", name="Create rule").click()
    expect(page.get_by_role("alert")).to_be_visible()  # no right is chosen
    page.get_by_label("Listen").check()
    page.get_by_role("button", name="Create rule").click()
    expect(page.get_by_role("status")).to_contain_text("The rule was created")
    page.get_by_role("button", name="Show the keys of reader").click()
    shown = page.get_by_text("SharedAccessKeyName=reader").first.inner_text()
    with (
        ServiceBusClient.from_connection_string(shown) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        assert receiver.peek_messages(1) == []
    page.get_by_role("link", name="Delete the rule reader").click()
    page.get_by_role("button", name="Delete rule").click()
    expect(page.get_by_role("status")).to_have_text("The rule was deleted.")
    expect(page.get_by_role("cell", name="reader", exact=True)).to_have_count(0)


@pytest.mark.req("U27")
def test_the_last_hour_is_plotted(page: Page, admin: ServiceBusAdministrationClient, server: Busbar) -> None:
    admin.create_queue("plotted")
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender("plotted") as sender,
    ):
        sender.send_messages([ServiceBusMessage("x") for _ in range(7)])
    page.goto("/queue?name=plotted")
    backlog = page.locator("figure").filter(has=page.get_by_role("heading", name="Backlog"))
    expect(backlog.locator("figcaption")).to_contain_text(
        "messages 7"
    )  # at the next question, in some seconds
    line = backlog.locator("path.line.messages")
    expect(line).to_have_count(1)
    box, area = line.bounding_box(), backlog.locator("svg").bounding_box()
    assert box is not None and area is not None
    assert area["x"] - 1 <= box["x"] and box["x"] + box["width"] <= area["x"] + area["width"] + 1


@pytest.mark.req("U27")
def test_stores_processes_and_taps(page: Page, admin: ServiceBusAdministrationClient, server: Busbar) -> None:
    admin.create_queue("tapped", enable_partitioning=True)
    assert run(["tap", "create", "tapped", "archive", "--owner", HOSTILE, "--data", str(server.data)]) == 0
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender("tapped") as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
    page.goto("/taps")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="tapped", exact=True))
    expect(row).to_contain_text(HOSTILE)
    expect(row.get_by_role("cell").nth(5)).to_have_text("1")
    page.get_by_role("link", name="Stores").click()
    expect(page.get_by_role("cell", name=re.compile("^store-.$"))).to_have_count(4)
    expect(page.get_by_text("Every messaging store is open, and every process is up.")).to_be_visible()
    assert run(["stores", "offline", "store-1", "--data", str(server.data)]) == 0
    try:
        expect(page.get_by_role("alert")).to_contain_text("store-1")
        page.goto("/")
        expect(page.get_by_role("alert")).to_contain_text("The store store-1 is unavailable")
    finally:
        assert run(["stores", "online", "store-1", "--data", str(server.data)]) == 0


def test_a_subscription_shows_its_fragments(page: Page, admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("spread", enable_partitioning=True)
    admin.create_subscription("spread", "all")
    for path in ("/subscription?topic=spread&name=all", "/topic?name=spread"):
        page.goto(path)
        expect(page.locator(".fragments li")).to_have_count(16)
    admin.create_queue("regular")
    page.goto("/queue?name=regular")
    expect(page.get_by_text("Messaging store", exact=True)).to_be_visible()


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
