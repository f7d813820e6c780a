"""Queues, topics, subscriptions and rules managed by the vendor's administration client over TLS, every property of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from azure.core.exceptions import (
    HttpResponseError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError
from azure.servicebus.management import (
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from harness.serving import Busbar, serving
from tests.interop.administration import Administration, administrations
from tests.interop.azure_sdk import in_thread
from tests.interop.http_runtime import Http

PAGED = 250
LONGEST = timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477581)
"""What "unlimited" becomes in Python."""

pytestmark = pytest.mark.server({f"page-{index:03d}": {} for index in range(PAGED)})


@pytest_asyncio.fixture(params=["sync", "async"], loop_scope="session")
async def admin(request: pytest.FixtureRequest, server: Busbar) -> AsyncIterator[Administration]:
    client = Administration(server, asynchronous=request.param == "async")
    yield client
    await client.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return "".join(char if char.isalnum() else "-" for char in request.node.name).strip("-")


def host(server: Busbar) -> str:
    return f"127.0.0.1:{server.port}"


def rules() -> list[AuthorizationRule]:
    return [
        AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=["Send", "Listen"],
            key_name="app",
            primary_key="cHJpbWFyeS1rZXktb2YtdGhlLWFwcGxpY2F0aW9uISE=",
            secondary_key="c2Vjb25kYXJ5LWtleS1vZi10aGUtYXBwbGljYXRpb24=",
        )
    ]


def assert_properties(properties: Any, expected: dict[str, Any]) -> None:
    assert {attribute: getattr(properties, attribute) for attribute in expected} == expected


def assert_rules(properties: Any) -> None:
    (rule,) = properties.authorization_rules
    (expected,) = rules()
    for attribute in ("type", "claim_type", "claim_value", "key_name", "primary_key", "secondary_key"):
        assert getattr(rule, attribute) == getattr(expected, attribute)
    assert sorted(rule.rights) == ["Listen", "Send"]
    assert abs(rule.created_at_utc - datetime.now(UTC)) < timedelta(minutes=1)


# Queues

QUEUE_DEFAULTS: dict[str, Any] = {
    "lock_duration": timedelta(minutes=1),
    "max_size_in_megabytes": 1024,
    "requires_duplicate_detection": False,
    "requires_session": False,
    "default_message_time_to_live": LONGEST,
    "dead_lettering_on_message_expiration": False,
    "duplicate_detection_history_time_window": timedelta(minutes=10),
    "max_delivery_count": 10,
    "enable_batched_operations": True,
    "status": "Active",
    "auto_delete_on_idle": LONGEST,
    "enable_partitioning": False,
    "availability_status": "Available",
    "enable_express": False,
    "forward_to": None,
    "forward_dead_lettered_messages_to": None,
    "user_metadata": None,
    "max_message_size_in_kilobytes": 256,
}


async def test_a_queue_that_asks_for_nothing_has_the_defaults(admin: Administration, name: str) -> None:
    created = await admin.create_queue(name)
    assert created.name == name
    assert_properties(created, QUEUE_DEFAULTS)
    assert_properties(await admin.get_queue(name.upper()), QUEUE_DEFAULTS)


@pytest.mark.req("U22")
async def test_every_property_of_a_queue(admin: Administration, name: str) -> None:
    asked: dict[str, Any] = {
        "lock_duration": timedelta(seconds=13),
        "max_size_in_megabytes": 3072,
        "requires_duplicate_detection": True,
        "requires_session": True,
        "default_message_time_to_live": timedelta(minutes=11),
        "dead_lettering_on_message_expiration": True,
        "duplicate_detection_history_time_window": timedelta(minutes=12),
        "max_delivery_count": 14,
        "enable_batched_operations": False,
        "auto_delete_on_idle": timedelta(minutes=10),
        "user_metadata": "<metadata> & more",
    }
    created = await admin.create_queue(name, authorization_rules=rules(), **asked)
    for found in (created, await admin.get_queue(name)):
        assert_properties(found, asked)
        assert_rules(found)
    listed = {queue.name: queue for queue in await admin.list_queues()}
    assert_properties(listed[name], asked)


@pytest.mark.req("U22")
async def test_a_queue_is_updated(admin: Administration, server: Busbar, name: str) -> None:
    target = f"{name}-target"
    await admin.create_queue(target)
    queue = await admin.create_queue(name)
    changes: dict[str, Any] = {
        "lock_duration": timedelta(seconds=20),
        "default_message_time_to_live": timedelta(hours=1),
        "dead_lettering_on_message_expiration": True,
        "max_delivery_count": 3,
        "enable_batched_operations": False,
        "max_size_in_megabytes": 2048,
        "status": "SendDisabled",
        "user_metadata": "new",
    }
    for attribute, value in changes.items():
        setattr(queue, attribute, value)
    queue.forward_to = target
    queue.authorization_rules = rules()
    await admin.update_queue(queue)
    updated = await admin.get_queue(name)
    assert_properties(updated, changes | {"forward_to": f"sb://{host(server)}/{target}"})
    assert_rules(updated)
    # What was read can be written back, and changes nothing.
    await admin.update_queue(updated)
    assert_properties(await admin.get_queue(name), changes)
    # Arguments go before the object's own values.
    await admin.update_queue(updated, status="Active", forward_to=None)
    assert_properties(await admin.get_queue(name), changes | {"status": "Active", "forward_to": None})


async def test_what_an_update_does_not_name_falls_back_to_its_default(
    admin: Administration, name: str
) -> None:
    await admin.create_queue(name, lock_duration="PT10S", max_delivery_count=3, requires_session=True)
    properties = dict.fromkeys(QUEUE_DEFAULTS) | {
        "name": name,
        "max_delivery_count": 4,
        "authorization_rules": None,
    }
    await admin.update_queue(properties)
    expected = QUEUE_DEFAULTS | {"max_delivery_count": 4, "requires_session": True}
    assert_properties(await admin.get_queue(name), expected)


async def test_a_queue_in_a_folder(admin: Administration, name: str) -> None:
    path = f"eu/{name}/Orders.v1_x-y"
    assert (await admin.create_queue(path)).name == path
    assert (await admin.get_queue(path)).name == path
    assert path in [queue.name for queue in await admin.list_queues()]
    await admin.delete_queue(path)
    with pytest.raises(ResourceNotFoundError):
        await admin.get_queue(path)


async def test_a_queue_is_usable_at_once_and_gone_when_deleted(server: Busbar, name: str) -> None:
    def exchange() -> str:
        with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
            with client.get_queue_sender(name) as sender:
                sender.send_messages(ServiceBusMessage("hello"))
            with client.get_queue_receiver(name, max_wait_time=5) as receiver:
                (message,) = receiver.receive_messages()
                return str(message)

    async with administrations(server) as clients:
        for admin in clients:
            await admin.create_queue(name)
            assert await in_thread(exchange) == "hello"
            await admin.delete_queue(name)
        with pytest.raises(MessagingEntityNotFoundError):
            await in_thread(exchange)


@pytest.mark.req("U22")
async def test_runtime_properties_tell_what_is_there(server: Busbar, name: str) -> None:
    def work() -> None:
        with ServiceBusClient.from_connection_string(server.connection_string) as client:
            with client.get_queue_sender(name) as sender:
                sender.send_messages([ServiceBusMessage(f"message {index}") for index in range(5)])
                sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=1))
            with client.get_queue_receiver(name) as receiver:
                first, second, third = receiver.receive_messages(max_message_count=3, max_wait_time=5)
                receiver.dead_letter_message(first)
                receiver.defer_message(second)
                receiver.complete_message(third)

    async with administrations(server) as clients:
        await clients[0].create_queue(name)
        for admin in clients:
            before = await admin.get_queue_runtime_properties(name)
            assert (before.total_message_count, before.size_in_bytes) == (0, 0)
            assert abs(before.created_at_utc - datetime.now(UTC)) < timedelta(minutes=1)
        await in_thread(work)
        for admin in clients:
            listed = {queue.name: queue for queue in await admin.list_queues_runtime_properties()}
            for runtime in (await admin.get_queue_runtime_properties(name), listed[name]):
                assert runtime.name == name
                assert runtime.active_message_count == 2
                assert runtime.dead_letter_message_count == 1
                assert runtime.scheduled_message_count == 1
                assert runtime.transfer_message_count == runtime.transfer_dead_letter_message_count == 0
                assert runtime.total_message_count == 5, "the deferred one counts, the completed one is gone"
                assert runtime.size_in_bytes > 0
                assert runtime.updated_at_utc >= runtime.created_at_utc
                assert runtime.accessed_at_utc >= runtime.created_at_utc


# Lists


@pytest.mark.req("U22")
async def test_a_long_list_comes_in_pages(admin: Administration) -> None:
    def paged(queues: list[Any]) -> list[str]:
        return [queue.name for queue in queues if queue.name.startswith("page-")]

    pages = await admin.pages("list_queues")
    assert [len(page) for page in pages[:-1]] == [100] * (len(pages) - 1)
    assert len(pages) >= 3
    expected = [f"page-{index:03d}" for index in range(PAGED)]
    assert paged([queue for page in pages for queue in page]) == expected
    assert paged(await admin.list_queues_runtime_properties()) == expected


async def test_a_list_in_small_pages_from_somewhere(admin: Administration) -> None:
    everything = [queue.name for queue in await admin.list_queues()]
    pages = await admin.pages("list_queues", start_index=200, max_page_size=7)
    assert {len(page) for page in pages[:-1]} == {7}
    assert [queue.name for page in pages for queue in page] == everything[200:]


# Topics, subscriptions and rules


@pytest.mark.req("U22")
async def test_every_property_of_a_topic(admin: Administration, name: str) -> None:
    plain = await admin.create_topic(f"{name}-plain")
    assert_properties(
        plain,
        {
            "default_message_time_to_live": LONGEST,
            "max_size_in_megabytes": 1024,
            "requires_duplicate_detection": False,
            "duplicate_detection_history_time_window": timedelta(minutes=10),
            "enable_batched_operations": True,
            "filtering_messages_before_publishing": False,
            "status": "Active",
            "support_ordering": True,
            "auto_delete_on_idle": LONGEST,
            "enable_partitioning": False,
            "availability_status": "Available",
            "enable_express": False,
            "user_metadata": None,
            "max_message_size_in_kilobytes": 256,
        },
    )
    asked: dict[str, Any] = {
        "default_message_time_to_live": timedelta(minutes=11),
        "max_size_in_megabytes": 2048,
        "requires_duplicate_detection": True,
        "duplicate_detection_history_time_window": timedelta(minutes=12),
        "enable_batched_operations": False,
        "support_ordering": False,
        "auto_delete_on_idle": timedelta(minutes=10),
        "user_metadata": "metadata",
    }
    # The SDK never sends filtering_messages_before_publishing, whatever it is given.
    created = await admin.create_topic(name, authorization_rules=rules(), **asked)
    for found in (created, await admin.get_topic(name)):
        assert found.name == name
        assert_properties(found, asked)
        assert_rules(found)
    created.user_metadata = "new"
    created.status = "SendDisabled"
    await admin.update_topic(created, default_message_time_to_live="PT13M")
    changed = {
        "user_metadata": "new",
        "status": "SendDisabled",
        "default_message_time_to_live": timedelta(minutes=13),
    }
    assert_properties(await admin.get_topic(name), asked | changed)
    await admin.create_subscription(name, "one")
    runtime = await admin.get_topic_runtime_properties(name)
    assert (runtime.subscription_count, runtime.scheduled_message_count) == (1, 0)
    listed = {topic.name: topic for topic in await admin.list_topics()}
    assert_properties(listed[name], asked | changed)
    assert {topic.name for topic in await admin.list_topics_runtime_properties()} == set(listed)
    await admin.delete_topic(name)
    for missing in (
        admin.get_topic(name),
        admin.get_subscription(name, "one"),
        admin.get_rule(name, "one", "$Default"),
    ):
        with pytest.raises(ResourceNotFoundError):
            await missing


@pytest.mark.req("U22")
async def test_every_property_of_a_subscription(admin: Administration, server: Busbar, name: str) -> None:
    await admin.create_topic(name)
    await admin.create_queue(f"{name}-target")
    plain = await admin.create_subscription(name, "plain")
    assert_properties(
        plain,
        {
            "lock_duration": timedelta(minutes=1),
            "requires_session": False,
            "default_message_time_to_live": LONGEST,
            "dead_lettering_on_message_expiration": False,
            "dead_lettering_on_filter_evaluation_exceptions": True,
            "max_delivery_count": 10,
            "enable_batched_operations": True,
            "status": "Active",
            "forward_to": None,
            "user_metadata": None,
            "forward_dead_lettered_messages_to": None,
            "auto_delete_on_idle": LONGEST,
            "availability_status": "Available",
        },
    )
    asked: dict[str, Any] = {
        "lock_duration": timedelta(seconds=17),
        "requires_session": True,
        "default_message_time_to_live": timedelta(minutes=11),
        "dead_lettering_on_message_expiration": True,
        "dead_lettering_on_filter_evaluation_exceptions": False,
        "max_delivery_count": 14,
        "enable_batched_operations": False,
        "user_metadata": "metadata",
        "auto_delete_on_idle": timedelta(minutes=10),
    }
    target = f"sb://{host(server)}/{name}-target"
    created = await admin.create_subscription(name, "full", **asked)
    for found in (created, await admin.get_subscription(name, "full")):
        assert found.name == "full"
        assert_properties(found, asked)
    plain.max_delivery_count = 2
    plain.forward_to = f"{name}-target"
    await admin.update_subscription(name, plain)
    assert_properties(
        await admin.get_subscription(name, "plain"), {"max_delivery_count": 2, "forward_to": target}
    )
    assert [subscription.name for subscription in await admin.list_subscriptions(name)] == ["full", "plain"]
    runtime = await admin.get_subscription_runtime_properties(name, "full")
    assert (runtime.total_message_count, runtime.active_message_count) == (0, 0)
    assert len(await admin.list_subscriptions_runtime_properties(name)) == 2
    await admin.delete_subscription(name, "full")
    with pytest.raises(ResourceNotFoundError):
        await admin.get_subscription(name, "full")
    assert [subscription.name for subscription in await admin.list_subscriptions(name)] == ["plain"]


@pytest.mark.req("U22")
async def test_filters_and_actions_of_rules(admin: Administration, name: str) -> None:
    await admin.create_topic(name)
    await admin.create_subscription(name, "s")
    default = await admin.get_rule(name, "s", "$Default")
    assert (default.name, type(default.filter), default.action) == ("$Default", TrueRuleFilter, None)
    parameters: dict[str, Any] = {
        "@text": "a <b> & c",
        "@int": 5,
        "@long": 5_000_000_000,
        "@double": 1.5,
        "@bool": True,
        "@time": datetime(2020, 5, 5, 8, 22, 1, tzinfo=UTC),
        "@duration": timedelta(days=2, hours=3),
    }
    expression = "size > @int AND name = @text"
    created = await admin.create_rule(
        name,
        "s",
        "sql",
        filter=SqlRuleFilter(expression, parameters),
        action=SqlRuleAction("SET label = @text", {"@text": "x"}),
    )
    for found in (created, await admin.get_rule(name, "s", "sql")):
        assert found.name == "sql"
        assert (found.filter.sql_expression, dict(found.filter.parameters)) == (expression, parameters)
        assert (found.action.sql_expression, dict(found.action.parameters)) == (
            "SET label = @text",
            {"@text": "x"},
        )
        assert abs(found.created_at_utc - datetime.now(UTC)) < timedelta(minutes=1)
    correlation: dict[str, Any] = {
        "correlation_id": "c",
        "message_id": "m",
        "to": "t",
        "reply_to": "r",
        "label": "l",
        "session_id": "s",
        "reply_to_session_id": "rs",
        "content_type": "text/plain",
    }
    properties = {key.removeprefix("@"): value for key, value in parameters.items()}
    await admin.create_rule(
        name, "s", "correlation", filter=CorrelationRuleFilter(**correlation, properties=properties)
    )
    found = await admin.get_rule(name, "s", "correlation")
    assert_properties(found.filter, correlation)
    assert dict(found.filter.properties) == properties
    await admin.create_rule(name, "s", "nothing", filter=FalseRuleFilter())
    assert isinstance((await admin.get_rule(name, "s", "nothing")).filter, FalseRuleFilter)
    created.filter = SqlRuleFilter("size = 1")
    created.action = None
    await admin.update_rule(name, "s", created)
    found = await admin.get_rule(name, "s", "sql")
    assert (found.filter.sql_expression, found.action) == ("size = 1", None)
    listed = await admin.list_rules(name, "s")
    assert [rule.name for rule in listed] == ["$Default", "correlation", "nothing", "sql"]
    assert dict(listed[1].filter.properties) == properties
    for rule in listed:
        await admin.delete_rule(name, "s", rule.name)
    assert await admin.list_rules(name, "s") == []
    with pytest.raises(ResourceNotFoundError):
        await admin.get_rule(name, "s", "sql")


async def test_the_namespace(admin: Administration) -> None:
    namespace = await admin.get_namespace_properties()
    assert namespace.messaging_sku == "Standard"
    assert namespace.name
    assert namespace.created_at_utc <= datetime.now(UTC) + timedelta(minutes=1)


# Partitioned entities


@pytest.mark.req("P12")
async def test_partitioning_is_chosen_at_creation(admin: Administration, name: str) -> None:
    for kind, other in (("queue", "regular-queue"), ("topic", "regular-topic")):
        create, get, update = (getattr(admin, f"{verb}_{kind}") for verb in ("create", "get", "update"))
        await create(f"{name}-{kind}", enable_partitioning=True, max_size_in_megabytes=5120)
        await create(f"{name}-{other}")
        entity = await get(f"{name}-{kind}")
        assert entity.enable_partitioning is True
        assert entity.max_size_in_megabytes == 16 * 5120
        await update(entity, user_metadata="the rest may change")
        again = await get(f"{name}-{kind}")
        assert_properties(
            again,
            {
                "enable_partitioning": True,
                "max_size_in_megabytes": 81_920,
                "user_metadata": "the rest may change",
            },
        )
        for path, wish in ((f"{name}-{kind}", False), (f"{name}-{other}", True)):
            with pytest.raises(HttpResponseError, match="SubCode=40000") as refusal:
                await update(await get(path), enable_partitioning=wish)
            assert refusal.value.status_code == 400
            assert (await get(path)).enable_partitioning is not wish


@pytest.mark.req("P10")
@pytest.mark.parametrize("version", ["2012-08", "2013-07"])
async def test_an_older_api_version_is_refused_partitioned_entities(
    admin: Administration, server: Busbar, name: str, version: str
) -> None:
    await admin.create_queue(f"{name}-queue", enable_partitioning=True)
    await admin.create_topic(f"{name}-topic", enable_partitioning=True)
    await admin.create_subscription(f"{name}-topic", "s")
    old = Administration(server, asynchronous=True, api_version=version)
    try:
        for attempt in (
            old.create_queue(f"{name}-new", enable_partitioning=True),
            old.create_topic(f"{name}-new", enable_partitioning=True),
            old.get_queue(f"{name}-queue"),
            old.get_topic(f"{name}-topic"),
            old.get_subscription(f"{name}-topic", "s"),
            old.list_rules(f"{name}-topic", "s"),
            old.list_topics(),
            old.delete_queue(f"{name}-queue"),
        ):
            with pytest.raises(HttpResponseError, match="use 2013-10 or later") as refusal:
                await attempt
            assert refusal.value.status_code == 400
        # Its messages, too: a program that names an old version is told, not half served.
        http = Http(server.port, server.key)
        for method, path in (("POST", "messages"), ("POST", "messages/head"), ("DELETE", "messages/head")):
            answer = await http.request(method, f"{name}-queue/{path}?timeout=0&api-version={version}", b"")
            assert "use 2013-10 or later" in answer.error(400)
        assert (await http.request("POST", f"{name}-queue/messages?api-version=2013-10", b"x")).status == 201
        await http.close()
        # Regular entities are as old as the service.
        await old.create_queue(f"{name}-regular")
        assert (await old.get_queue(f"{name}-regular")).enable_partitioning is False
    finally:
        await old.close()
        await admin.delete_topic(f"{name}-topic")
    new = Administration(server, asynchronous=True, api_version="2013-10")
    try:
        assert (await new.get_queue(f"{name}-queue")).enable_partitioning is True
    finally:
        await new.close()


# Restart


async def test_management_outlives_a_restart(name: str) -> None:
    with serving({}) as server:
        admin = Administration(server, asynchronous=True)
        await admin.create_queue(name, user_metadata="kept", authorization_rules=rules())
        await admin.create_topic(f"{name}-topic")
        await admin.create_subscription(f"{name}-topic", "s")
        await admin.create_rule(f"{name}-topic", "s", "r", filter=SqlRuleFilter("a = @b", {"@b": 1.5}))
        before = await admin.get_queue_runtime_properties(name)
        server.kill()
        server.start()
        queue = await admin.get_queue(name)
        assert queue.user_metadata == "kept"
        assert_rules(queue)
        after = await admin.get_queue_runtime_properties(name)
        assert after.created_at_utc == before.created_at_utc
        rule = await admin.get_rule(f"{name}-topic", "s", "r")
        assert dict(rule.filter.parameters) == {"@b": 1.5}
        await admin.close()
