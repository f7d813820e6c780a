"""Which copies a subscription gets by its rules, with the vendor's SDK, on regular and partitioned topics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from harness.serving import Busbar
from tests.interop.administration import Administration
from tests.interop.azure_sdk import nothing_left, take, take_one, text_of
from tests.interop.session_queues import World
from tests.interop.topics import Topic, everywhere, keyed, texts

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="session")]


@asynccontextmanager
async def administration(server: Busbar, world: World) -> AsyncIterator[Administration]:
    client = Administration(server, asynchronous=world.client == "async")
    try:
        yield client
    finally:
        await client.close()


async def set_rules(admin: Administration, topic: Topic, subscription: str, **rules: Any) -> None:
    """These and no others: filters, or pairs of a filter and an action."""
    for name, rule in rules.items():
        selects, action = rule if isinstance(rule, tuple) else (rule, None)
        await admin.create_rule(
            topic.name, subscription, name, filter=selects, action=action and SqlRuleAction(action)
        )
    await admin.delete_rule(topic.name, subscription, "$Default")


@everywhere
async def test_filters_of_every_kind(world: World, session_broker: Busbar) -> None:
    subscriptions = {
        "sql": SqlRuleFilter("size > 10 AND sys.Label LIKE 'or%'"),
        "parameters": SqlRuleFilter("size = @n", parameters={"n": 5}),
        "correlated": CorrelationRuleFilter(label="order", properties={"region": "eu"}),
        "all": TrueRuleFilter(),
        "none": FalseRuleFilter(),
    }
    topic = Topic(world, **dict.fromkeys(subscriptions, ""))
    async with administration(session_broker, world) as admin:
        for name, selects in subscriptions.items():
            await set_rules(admin, topic, name, rule=selects)
    await topic.send(
        keyed("a", subject="order", application_properties={"size": 20, "region": "eu"}),
        keyed("b", subject="order", application_properties={"size": 5}),
        keyed("c", subject="other", application_properties={"size": 20, "region": "eu"}),
        keyed("d"),
    )
    for name, expected in (
        ("sql", "a"),
        ("parameters", "b"),
        ("correlated", "a"),
        ("all", "abcd"),
        ("none", ""),
    ):
        assert await topic.drained(name, len(expected)) == list(expected), name


@everywhere
async def test_rules_with_and_without_actions(world: World, session_broker: Busbar) -> None:
    """Two with an action and three without all match: three copies."""
    topic = Topic(world, one="", other="")
    async with administration(session_broker, world) as admin:
        await set_rules(
            admin,
            topic,
            "one",
            cheap=SqlRuleFilter("price < 10"),
            red=SqlRuleFilter("colour = 'red'"),
            every=TrueRuleFilter(),
            labels=(SqlRuleFilter("price < 10"), "SET sys.Label = 'bargain'; SET price = price * 2"),
            strips=(TrueRuleFilter(), "REMOVE colour; SET seen = TRUE"),
        )
    await topic.send(keyed("x", subject="s", application_properties={"price": 4, "colour": "red"}))
    got: list[Any] = await take(topic.once("one"), 3)
    by_rule = {(each.application_properties or {}).get(b"RuleName", b"").decode(): each for each in got}
    assert by_rule.keys() == {"", "labels", "strips"}
    plain, labels, strips = by_rule[""], by_rule["labels"], by_rule["strips"]
    assert (plain.subject, plain.application_properties) == ("s", {b"price": 4, b"colour": b"red"})
    assert (labels.subject, labels.application_properties[b"price"]) == ("bargain", 8)
    assert (strips.subject, strips.application_properties[b"seen"]) == ("s", True)
    assert b"colour" not in strips.application_properties
    assert {text_of(each) for each in got} == {"x"}
    assert len({each.enqueued_sequence_number for each in got}) == 1, "copies of one message"
    assert sorted(each.sequence_number % (1 << 48) for each in got) == [1, 2, 3]
    (other,) = await take(topic.once("other"), 1)
    assert (other.subject, other.application_properties) == ("s", {b"price": 4, b"colour": b"red"})


@everywhere
async def test_a_filter_that_fails(world: World, session_broker: Busbar) -> None:
    letters = "<DeadLetteringOnFilterEvaluationExceptions>true</DeadLetteringOnFilterEvaluationExceptions>"
    silence = letters.replace("true", "false")
    topic = Topic(world, told=letters, quiet=silence)
    async with administration(session_broker, world) as admin:
        for name in ("told", "quiet"):
            await set_rules(admin, topic, name, ratio=SqlRuleFilter("10 / n > 1"))
    await topic.send(
        keyed("fine", application_properties={"n": 2}), keyed("bad", application_properties={"n": 0})
    )
    dead = await take_one(topic.dead_letters("told"))
    assert (text_of(dead), dead.dead_letter_reason) == ("bad", "FilterException")
    assert "ratio" in str(dead.dead_letter_error_description)
    assert await nothing_left(topic.dead_letters("quiet"))
    for name in ("told", "quiet"):
        assert await topic.drained(name, 1) == ["fine"]


@everywhere
async def test_rules_come_and_go_while_messages_flow(world: World, session_broker: Busbar) -> None:
    """From when a change is answered it holds, in every fragment."""
    topic = Topic(world, one="", steady="")
    sender = topic.sender()
    steady = topic.once("steady")

    async def round_of(mark: str) -> None:
        """Without a key: on a partitioned topic they go to all fragments."""
        for _ in range(4):
            await sender.send_messages(ServiceBusMessage(mark))
        await sender.send_messages([ServiceBusMessage(mark)] * 12)

    async with administration(session_broker, world) as admin:
        await round_of("default")
        await set_rules(admin, topic, "one", eu=SqlRuleFilter("region = 'eu'"))
        await round_of("nobody's")
        await admin.create_rule(topic.name, "one", "again", filter=TrueRuleFilter())
        await round_of("again")
        await admin.delete_rule(topic.name, "one", "again")
        await round_of("nobody's")
        for number in range(17):
            await sender.send_messages(ServiceBusMessage("eu", application_properties={"region": "eu"}))
            if number == 8:
                await admin.create_rule(topic.name, "one", "unrelated", filter=FalseRuleFilter())
    got = texts(await take(topic.once("one"), 16 + 16 + 17))
    assert (got.count("default"), got.count("again"), got.count("eu")) == (16, 16, 17)
    assert await topic.left("one") == []
    assert len(await take(steady, 4 * 16 + 17)) == 4 * 16 + 17


@everywhere
async def test_rules_are_asked_when_a_message_is_due(world: World, session_broker: Busbar) -> None:
    topic = Topic(world, gains="", loses="")
    async with administration(session_broker, world) as admin:
        await set_rules(admin, topic, "gains")
        await topic.sender().schedule_messages(keyed("x"), datetime.now(UTC) + timedelta(seconds=1.5))
        await admin.create_rule(topic.name, "gains", "all", filter=TrueRuleFilter())
        await set_rules(admin, topic, "loses")
    assert text_of(await take_one(topic.receiver("gains"))) == "x"
    assert await topic.left("loses") == []


@everywhere
async def test_runtime_properties(world: World, session_broker: Busbar) -> None:
    topic = Topic(world, one="", two="")
    sender = topic.sender()
    body = "x" * 1000
    await sender.send_messages([keyed(body) for _ in range(4)])
    await sender.schedule_messages(keyed(body), datetime.now(UTC) + timedelta(hours=1))
    receiver = topic.receiver("one")
    dead, deferred, completed = await take(receiver, 3)
    await receiver.dead_letter_message(dead)
    await receiver.defer_message(deferred)
    await receiver.complete_message(completed)
    async with administration(session_broker, world) as admin:
        one = await admin.get_subscription_runtime_properties(topic.name, "one")
        two = await admin.get_subscription_runtime_properties(topic.name, "two")
        whole = await admin.get_topic_runtime_properties(topic.name)
        listed = await admin.list_subscriptions_runtime_properties(topic.name)
    assert (one.active_message_count, one.dead_letter_message_count, one.total_message_count) == (1, 1, 3)
    assert (two.active_message_count, two.dead_letter_message_count, two.total_message_count) == (4, 0, 4)
    assert {each.name: each.total_message_count for each in listed} == {"one": 3, "two": 4}
    assert (whole.subscription_count, whole.scheduled_message_count) == (2, 1)
    assert 8 * 1000 < whole.size_in_bytes < 8 * 2000, "seven copies and what is scheduled"
    assert one.accessed_at_utc > datetime.now(UTC) - timedelta(minutes=5)
