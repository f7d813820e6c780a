"""busbar.client's administration client at a real broker, beside the vendor's: what one creates the other reads alike."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import azure.servicebus.management as vendor
import pytest

from busbar.client import (
    UNLIMITED,
    CorrelationRuleFilter,
    EntityStatus,
    FalseRuleFilter,
    MessagingFactory,
    NotFound,
    OutgoingMessage,
    QueueProperties,
    RuleProperties,
    SharedAccessAuthorizationRule,
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionProperties,
    TopicProperties,
    TrueRuleFilter,
    encode,
)
from harness.serving import Busbar
from tests.interop import administration_fixtures as fixtures
from tests.interop.administration import Administration
from tests.interop.administration_fixtures import PAGED, Face

admin, azure, name = fixtures.admin, fixtures.azure, fixtures.name
pytestmark = [pytest.mark.asyncio(loop_scope="session"), fixtures.SERVER]


def comparable(properties: Any, names: list[str]) -> dict[str, Any]:
    """The properties of an object of either client, in the form of this one."""
    values = {each: getattr(properties, each) for each in names}
    never = datetime(1, 1, 1, tzinfo=UTC)  # what did not happen, in the vendor's client
    values = {key: None if value == never else value for key, value in values.items()}
    for each in ("forward_to", "forward_dead_lettered_messages_to"):
        if values.get(each):
            values[each] = values[each].rpartition("/")[2]
    if "authorization_rules" in values:
        values["authorization_rules"] = [
            (rule.key_name, sorted(rule.rights), rule.primary_key, rule.secondary_key)
            for rule in values["authorization_rules"] or ()
        ]
    return values


def assert_alike(ours: Any, theirs: Any) -> None:
    names = [each.name for each in fields(ours)]
    assert comparable(ours, names) == comparable(theirs, names)


def keys() -> list[SharedAccessAuthorizationRule]:
    return [
        SharedAccessAuthorizationRule(
            "app",
            ["Listen", "Send"],
            "cHJpbWFyeS1rZXktb2YtdGhlLWFwcGxpY2F0aW9uISE=",
            "c2Vjb25kYXJ5LWtleS1vZi10aGUtYXBwbGljYXRpb24=",
        )
    ]


def vendor_keys() -> list[vendor.AuthorizationRule]:
    (rule,) = keys()
    return [
        vendor.AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=rule.rights,
            key_name=rule.key_name,
            primary_key=rule.primary_key,
            secondary_key=rule.secondary_key,
        )
    ]


QUEUE: dict[str, Any] = {
    "lock_duration": timedelta(seconds=13, milliseconds=500),
    "max_size_in_megabytes": 3072,
    "requires_duplicate_detection": True,
    "requires_session": True,
    "default_message_time_to_live": timedelta(days=1, hours=2, minutes=11),
    "dead_lettering_on_message_expiration": True,
    "duplicate_detection_history_time_window": timedelta(minutes=12),
    "max_delivery_count": 14,
    "enable_batched_operations": False,
    "auto_delete_on_idle": timedelta(minutes=10),
    "user_metadata": "<metadata> & more, ünïcode\n",
}
TOPIC: dict[str, Any] = {
    "default_message_time_to_live": timedelta(minutes=11),
    "max_size_in_megabytes": 2048,
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window": timedelta(minutes=12),
    "enable_batched_operations": False,
    "support_ordering": False,
    "auto_delete_on_idle": timedelta(minutes=10),
    "user_metadata": "metadata",
}
SUBSCRIPTION: dict[str, Any] = {
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


# What one creates the other reads alike


async def test_queues_are_read_alike(admin: Face, azure: Administration, name: str) -> None:
    for suffix, options in (("plain", {}), ("full", QUEUE), ("partitioned", {"enable_partitioning": True})):
        created = await admin.create_queue(f"{name}-{suffix}", authorization_rules=keys(), **options)
        assert created == await admin.get_queue(f"{name}-{suffix}")
        assert {attribute: getattr(created, attribute) for attribute in options} == options
        assert_alike(created, await azure.get_queue(f"{name}-{suffix}"))
        theirs = await azure.create_queue(
            f"{name}-{suffix}-theirs", authorization_rules=vendor_keys(), **options
        )
        found = await admin.get_queue(f"{name}-{suffix}-theirs")
        assert_alike(found, theirs)
        times = [rule.created_at_utc for rule in (*found.authorization_rules, *created.authorization_rules)]
        assert all(abs(time - datetime.now(UTC)) < timedelta(minutes=1) for time in times)
        same = replace(created, name=found.name, authorization_rules=found.authorization_rules)
        assert found == same, "the same arguments make the same queue"


async def test_defaults_of_the_object_are_those_of_the_broker(admin: Face, name: str) -> None:
    def without_what_the_namespace_has(properties: Any) -> Any:
        assert properties.availability_status == "Available"
        properties.availability_status = None
        if not isinstance(properties, SubscriptionProperties):
            assert properties.max_message_size_in_kilobytes == 256
            properties.max_message_size_in_kilobytes = None
        return properties

    queue, topic = f"{name}-queue", f"{name}-topic"
    assert without_what_the_namespace_has(await admin.create_queue(queue)) == QueueProperties(queue)
    assert without_what_the_namespace_has(await admin.create_topic(topic)) == TopicProperties(topic)
    subscription = await admin.create_subscription(topic, "s")
    assert without_what_the_namespace_has(subscription) == SubscriptionProperties("s")


async def test_topics_and_subscriptions_are_read_alike(admin: Face, azure: Administration, name: str) -> None:
    target = f"{name}-target"
    await admin.create_queue(target)
    for suffix, topic_options, options in (("plain", {}, {}), ("full", TOPIC, SUBSCRIPTION)):
        topic = f"{name}-{suffix}"
        created = await admin.create_topic(topic, **topic_options)
        assert {attribute: getattr(created, attribute) for attribute in topic_options} == topic_options
        assert_alike(created, await azure.get_topic(topic))
        assert_alike(await admin.get_topic(topic), await azure.get_topic(topic))
        theirs = await azure.create_topic(f"{topic}-theirs", **topic_options)
        assert_alike(await admin.get_topic(f"{topic}-theirs"), theirs)

        made = await admin.create_subscription(topic, "ours", **options)
        assert {attribute: getattr(made, attribute) for attribute in options} == options
        assert_alike(made, await azure.get_subscription(topic, "ours"))
        await azure.create_subscription(topic, "theirs", **options)
        assert_alike(
            await admin.get_subscription(topic, "theirs"), await azure.get_subscription(topic, "theirs")
        )
        assert [each.name for each in await admin.list_subscriptions(topic)] == ["ours", "theirs"]
    await admin.create_subscription(f"{name}-plain", "passes-on", forward_to=target)
    passes_on = await admin.get_subscription(f"{name}-plain", "passes-on")
    assert passes_on.forward_to == target, "the path, not an address"
    assert_alike(passes_on, await azure.get_subscription(f"{name}-plain", "passes-on"))
    filtering = await admin.create_topic(f"{name}-filters", filtering_messages_before_publishing=True)
    assert filtering.filtering_messages_before_publishing
    assert_alike(filtering, await azure.get_topic(f"{name}-filters"))


VALUES: dict[str, Any] = {
    "@text": "a <b> & c",
    "@empty": "",
    "@int": 5,
    "@long": 5_000_000_000,
    "@double": 1.5,
    "@bool": True,
    "@time": datetime(2020, 5, 5, 8, 22, 1, tzinfo=UTC),
    "@duration": timedelta(days=2, hours=3, seconds=1.5),
}


async def test_rules_are_read_alike(admin: Face, azure: Administration, name: str) -> None:
    await admin.create_topic(name)
    await admin.create_subscription(name, "s")
    default = await admin.get_rule(name, "s", "$Default")
    assert (default.name, default.filter, default.action) == ("$Default", TrueRuleFilter(), None)
    properties = {key.strip("@"): value for key, value in VALUES.items()}
    system = {
        "correlation_id": "c", "message_id": "m", "to": "t", "reply_to": "r", "label": "", "session_id": "s",
        "reply_to_session_id": "rs", "content_type": " text/plain ",
    }  # fmt: skip
    ours: dict[str, Any] = {
        "sql": SqlRuleFilter("size > @int AND name = @text", VALUES),
        "correlation": CorrelationRuleFilter(**system, properties=properties),
        "all": TrueRuleFilter(),
        "none": FalseRuleFilter(),
    }
    theirs = {
        "sql": vendor.SqlRuleFilter("size > @int AND name = @text", VALUES),
        "correlation": vendor.CorrelationRuleFilter(**system, properties=properties),
        "all": vendor.TrueRuleFilter(),
        "none": vendor.FalseRuleFilter(),
    }
    for kind, chosen in ours.items():
        action = SqlRuleAction("SET label = @text", {"@text": "x", "@int": 7}) if kind == "sql" else None
        created = await admin.create_rule(name, "s", kind, filter=chosen, action=action)
        assert (created.name, created.filter, created.action) == (kind, chosen, action)
        assert created == await admin.get_rule(name, "s", kind)
        assert abs(created.created_at_utc - datetime.now(UTC)) < timedelta(minutes=1)
        found = await azure.get_rule(name, "s", kind)
        assert type(found.filter).__name__ == type(chosen).__name__
        for attribute in ("sql_expression", *system) if kind in ("sql", "correlation") else ():
            expected = getattr(chosen, attribute, "absent")
            # The vendor's client reads an empty text as none.
            assert (getattr(found.filter, attribute, "absent") or "") == expected
        if kind == "sql":
            assert dict(found.filter.parameters) | {"@empty": ""} == VALUES
            assert found.action.sql_expression == "SET label = @text"
            assert dict(found.action.parameters) == {"@text": "x", "@int": 7}
        if kind == "correlation":
            assert dict(found.filter.properties) | {"empty": ""} == properties

        their_action = (
            vendor.SqlRuleAction("SET label = @text", {"@text": "x", "@int": 7}) if action else None
        )
        await azure.create_rule(name, "s", f"{kind}-theirs", filter=theirs[kind], action=their_action)
        read = await admin.get_rule(name, "s", f"{kind}-theirs")
        assert read.action == action
        if kind != "correlation":
            assert read.filter == chosen
        else:
            assert read.filter == replace(ours["correlation"], label=read.filter.label)
            assert not read.filter.label
    listed = [rule.name for rule in await admin.list_rules(name, "s")]
    assert listed == sorted(["$Default", *ours, *(f"{kind}-theirs" for kind in ours)])


async def test_a_rule_is_replaced_and_deleted(admin: Face, azure: Administration, name: str) -> None:
    await admin.create_topic(name)
    rule = RuleProperties("mine", SqlRuleFilter("a = 1"), SqlRuleAction("SET b = 2"))
    await admin.create_subscription(name, "s", default_rule=rule)
    (found,) = await admin.list_rules(name, "s")
    assert (found.name, found.filter, found.action) == ("mine", rule.filter, rule.action)
    found.filter, found.action = CorrelationRuleFilter(label="x"), None
    updated = await admin.update_rule(name, "s", found)
    assert updated == found == await admin.get_rule(name, "s", "mine")
    assert (await azure.get_rule(name, "s", "mine")).filter.label == "x"
    await admin.delete_rule(name, "s", "mine")
    assert await admin.list_rules(name, "s") == []
    for call in (admin.get_rule(name, "s", "mine"), admin.delete_rule(name, "s", "mine")):
        with pytest.raises(NotFound):
            await call
    with pytest.raises(NotFound):
        await admin.update_rule(name, "s", found)


async def test_runtime_properties_are_read_alike(
    admin: Face, azure: Administration, server: Busbar, name: str
) -> None:
    queue, topic = f"{name}-queue", f"{name}-topic"
    await admin.create_queue(queue)
    await admin.create_topic(topic)
    await admin.create_subscription(topic, "s")
    assert (await admin.get_queue_runtime_properties(queue)).accessed_at_utc is None
    later = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)
    async with await MessagingFactory.connect(server.connection_string) as factory:
        for entity in (queue, topic):
            sender = await factory.sender(entity)
            await sender.send([encode(OutgoingMessage(b"%d" % n)) for n in range(5)])
            await sender.send([encode(OutgoingMessage(b"later", scheduled_enqueue_time=later))])
        receiver = await factory.receiver(queue, credit=3)
        got = await receiver.receive(3, 5)
        await receiver.dead_letter(got[:1])
        await receiver.complete(got[1:2])
        await receiver.close(release=True)
    runtime = await admin.get_queue_runtime_properties(queue)
    assert (runtime.active_message_count, runtime.dead_letter_message_count) == (3, 1)
    assert (runtime.scheduled_message_count, runtime.total_message_count) == (1, 5)
    assert runtime.size_in_bytes > 0 and runtime.accessed_at_utc >= runtime.created_at_utc
    assert_alike(runtime, await azure.get_queue_runtime_properties(queue))
    assert runtime in await admin.list_queues_runtime_properties()
    of_topic = await admin.get_topic_runtime_properties(topic)
    assert (of_topic.subscription_count, of_topic.scheduled_message_count) == (1, 1)
    assert_alike(of_topic, await azure.get_topic_runtime_properties(topic))
    assert of_topic in await admin.list_topics_runtime_properties()
    of_subscription = await admin.get_subscription_runtime_properties(topic, "s")
    assert of_subscription.active_message_count == 5
    assert_alike(of_subscription, await azure.get_subscription_runtime_properties(topic, "s"))
    assert await admin.list_subscriptions_runtime_properties(topic) == [of_subscription]


async def test_the_namespace_is_read_alike(admin: Face, azure: Administration) -> None:
    ours, theirs = await admin.get_namespace_properties(), await azure.get_namespace_properties()
    assert ours.name == theirs.name and ours.messaging_sku == theirs.messaging_sku == "Standard"
    assert (ours.created_at_utc, ours.modified_at_utc) == (theirs.created_at_utc, theirs.modified_at_utc)
    assert (ours.namespace_type, ours.messaging_units) == ("Messaging", None)


# Updates, lists, folders


async def test_what_was_read_is_changed_and_written_back(
    admin: Face, azure: Administration, name: str
) -> None:
    target = f"{name}-target"
    await admin.create_queue(target)
    queue = await admin.create_queue(name, max_size_in_megabytes=2048, user_metadata="old")
    assert await admin.update_queue(queue) == queue, "nothing has changed"
    queue.lock_duration = timedelta(seconds=20)
    queue.status = EntityStatus.SEND_DISABLED
    queue.forward_to = target
    queue.default_message_time_to_live = "PT1H"
    queue.user_metadata = None
    queue.authorization_rules = keys()
    updated = await admin.update_queue(queue)
    assert (updated.lock_duration, updated.status) == (timedelta(seconds=20), "SendDisabled")
    assert (updated.forward_to, updated.default_message_time_to_live) == (target, timedelta(hours=1))
    assert (updated.user_metadata, updated.max_size_in_megabytes) == (None, 2048)
    assert_alike(updated, await azure.get_queue(name))
    again = await admin.update_queue(
        updated, status="Active", forward_to=None, default_message_time_to_live=UNLIMITED
    )
    assert (again.status, again.forward_to) == (EntityStatus.ACTIVE, None)
    assert again.default_message_time_to_live == UNLIMITED
    assert_alike(again, await azure.get_queue(name))


async def test_partitioned_entities_keep_their_size_when_written_back(admin: Face, name: str) -> None:
    queue = await admin.create_queue(name, enable_partitioning=True, max_size_in_megabytes=1024)
    assert queue.max_size_in_megabytes == 16 * 1024
    assert (await admin.update_queue(queue, max_delivery_count=3)).max_size_in_megabytes == 16 * 1024


async def test_topics_and_subscriptions_are_updated(admin: Face, azure: Administration, name: str) -> None:
    topic = await admin.create_topic(name)
    topic.user_metadata = "note"
    assert (await admin.update_topic(topic, status="SendDisabled")).status == EntityStatus.SEND_DISABLED
    assert_alike(await admin.get_topic(name), await azure.get_topic(name))
    subscription = await admin.create_subscription(name, "s", lock_duration="PT10S")
    subscription.max_delivery_count = 3
    updated = await admin.update_subscription(name, subscription, user_metadata="note")
    assert (updated.max_delivery_count, updated.user_metadata) == (3, "note")
    assert updated.lock_duration == timedelta(seconds=10)
    assert_alike(updated, await azure.get_subscription(name, "s"))
    await admin.delete_subscription(name, "s")
    with pytest.raises(NotFound):
        await admin.get_subscription(name, "s")
    await admin.delete_topic(name)
    assert name not in [each.name for each in await admin.list_topics()]


async def test_a_long_list_is_whole(admin: Face) -> None:
    expected = [f"page-{index:03d}" for index in range(PAGED)]
    listed = await admin.list_queues()
    assert [queue.name for queue in listed if queue.name.startswith("page-")] == expected
    runtime = await admin.list_queues_runtime_properties()
    assert [queue.name for queue in runtime if queue.name.startswith("page-")] == expected


async def test_a_path_with_a_folder_and_any_letters(admin: Face, name: str) -> None:
    path = f"eu/{name}/Orders.v1_x-y"
    assert (await admin.create_queue(path)).name == path
    assert (await admin.get_queue(path.upper())).name == path
    await admin.delete_queue(path)
    with pytest.raises(NotFound, match=r"Orders\.v1_x-y"):
        await admin.get_queue(path)
