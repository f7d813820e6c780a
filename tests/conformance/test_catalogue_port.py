"""Management through every port: a gateway cannot tell whether the catalogue is in its own process."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from busbar.model.api import BrokerApi, EntityView, RuntimeProperties
from busbar.model.commands import Send
from busbar.model.entities import (
    AuthorizationRule,
    CorrelationFilter,
    EntityKind,
    EntityStatus,
    FalseFilter,
    QueueDescription,
    Right,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    Tier,
    TopicDescription,
    TrueFilter,
    TypedText,
)
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
)
from busbar.model.message import Draft

QUEUE = QueueDescription(
    lock_duration=30_000,
    max_size_in_megabytes=2048,
    max_message_size=1024,
    requires_duplicate_detection=True,
    duplicate_detection_history_time_window=60_000,
    default_message_time_to_live=5_000,
    dead_lettering_on_message_expiration=True,
    max_delivery_count=3,
    enable_batched_operations=False,
    auto_delete_on_idle=600_000,
    status=EntityStatus.SEND_DISABLED,
    user_metadata="<mine> & ours",
    authorization_rules=(AuthorizationRule("r", frozenset([Right.SEND]), "a", "b"),),
)
RULES = [
    RuleDescription(),
    RuleDescription(FalseFilter()),
    RuleDescription(
        SqlFilter("a = @x", (("@x", 1), ("@y", 1.0), ("@z", True), ("@s", "1"))), SqlAction("SET a = 1")
    ),
    RuleDescription(
        CorrelationFilter(
            label="blue", properties=(("when", TypedText("dateTime", "2026-01-01T00:00:00Z")), ("n", 2**60))
        )
    ),
]


async def test_a_queue_comes_back_as_it_was_described(port: BrokerApi) -> None:
    made = await port.create("Made/Here", QUEUE)
    described = made.description
    assert isinstance(described, QueueDescription)
    (rule,) = described.authorization_rules
    assert rule == replace(QUEUE.authorization_rules[0], created=rule.created, modified=rule.created)
    assert replace(described, authorization_rules=QUEUE.authorization_rules) == QUEUE
    assert made.path == "Made/Here"
    assert len(made.fragments) == 1
    assert made.created == made.updated > 0
    assert await port.entity("made/here") == made
    await asyncio.sleep(0.005)
    changed = await port.update("MADE/here", replace(QUEUE, max_delivery_count=7, authorization_rules=()))
    assert changed.path == "Made/Here"
    assert changed.description == replace(QUEUE, max_delivery_count=7, authorization_rules=())
    assert changed.created == made.created < changed.updated
    await port.delete("made/HERE")
    with pytest.raises(EntityNotFound, match="'made/here' could not be found"):
        await port.entity("made/here")


async def test_rules_are_changed_together(port: BrokerApi) -> None:
    await port.create("together", TopicDescription())
    await port.create("together/Subscriptions/s", SubscriptionDescription())
    path = "together/Subscriptions/s/Rules/"

    async def names() -> list[str]:
        found = await port.list(EntityKind.RULE, "together/Subscriptions/s", 0, 100)
        return [view.path.removeprefix(path) for view in found]

    changes = [(f"{path}$Default", None), (f"{path}a", RULES[2]), (f"{path}b", RULES[1])]
    await port.change_rules(changes)
    assert await names() == ["a", "b"]
    assert (await port.entity(f"{path}a")).description == RULES[2]
    with pytest.raises(EntityAlreadyExists):
        await port.change_rules([(f"{path}a", None), (f"{path}c", RULES[0]), (f"{path}b", RULES[0])])
    with pytest.raises(EntityNotFound):
        await port.change_rules([(f"{path}c", RULES[0]), (f"{path}nothing", None)])
    assert await names() == ["a", "b"], "nothing of it was done"
    await port.change_rules([(f"{path}a", None), (f"{path}a", RULES[0])])
    assert (await port.entity(f"{path}a")).description == RULES[0], "one takes the place of another"


async def test_rules_are_checked_without_a_change(port: BrokerApi) -> None:
    await port.create("checked", TopicDescription())
    await port.create("checked/Subscriptions/s", SubscriptionDescription())
    path = "checked/Subscriptions/s/Rules/"
    bad = RuleDescription(SqlFilter("colour = = 'red'"))
    await port.check_rules([(f"{path}$Default", None), (f"{path}$Default", RULES[2]), (f"{path}a", RULES[0])])
    for changes, error in (
        ([(f"{path}a", bad)], ArgumentError),
        ([(f"{path}a", RuleDescription(action=SqlAction("SET = 1")))], ArgumentError),
        ([(f"{path}$Default", RULES[0])], EntityAlreadyExists),
        ([(f"{path}nothing", None)], EntityNotFound),
        ([(f"{path}$Default", None), (f"{path}$Default", None)], EntityNotFound),
        ([("nothing/Subscriptions/s/Rules/a", RULES[0])], EntityNotFound),
    ):
        with pytest.raises(error):
            await port.check_rules(changes)
    found = await port.list(EntityKind.RULE, "checked/Subscriptions/s", 0, 100)
    assert [view.path for view in found] == [f"{path}$Default"]


async def test_a_topic_with_subscriptions_and_rules(port: BrokerApi) -> None:
    topic = TopicDescription(user_metadata="t", support_ordering=False, status=EntityStatus.DISABLED)
    assert (await port.create("T", topic)).description == topic
    plain = await port.create("t/subscriptions/Plain", SubscriptionDescription())
    assert plain.path == "T/Subscriptions/Plain"
    assert (await port.entity("T/Subscriptions/plain/rules/$default")).description == RuleDescription(
        TrueFilter()
    )
    chosen = await port.create("T/Subscriptions/chosen", SubscriptionDescription(), ("Mine", RULES[2]))
    assert [view.path for view in await port.list(EntityKind.RULE, chosen.path, 0, 10)] == [
        "T/Subscriptions/chosen/Rules/Mine"
    ]
    for index, rule in enumerate(RULES):
        path = f"T/Subscriptions/chosen/Rules/r{index}"
        view = await port.create(path, rule)
        assert (view.path, view.description, view.fragments) == (path, rule, ())
        assert await port.entity(path) == view
    changed = await port.update("T/Subscriptions/chosen/Rules/r0", RULES[3])
    assert changed.description == RULES[3]
    assert [view.path for view in await port.list(EntityKind.SUBSCRIPTION, "t", 0, 10)] == [
        "T/Subscriptions/chosen",
        "T/Subscriptions/Plain",
    ]
    assert (await port.runtime("t")).subscriptions == 2
    await port.delete("T/Subscriptions/chosen/Rules/r1")
    await port.delete("t")
    for path in (plain.path, chosen.path, "T/Subscriptions/chosen/Rules/Mine"):
        with pytest.raises(EntityNotFound):
            await port.entity(path)


async def test_lists_are_in_order_and_in_pages(port: BrokerApi) -> None:
    names = [f"list/{letter}{number}" for number in range(4) for letter in "bA"]
    for name in names:
        await port.create(name, QueueDescription())
    found: list[str] = []
    while page := await port.list(EntityKind.QUEUE, "", len(found), 3):
        assert len(page) <= 3
        found += [view.path for view in page]
    assert [path for path in found if path.startswith("list/")] == sorted(names, key=str.lower)
    assert "news" not in found
    assert [view.path for view in await port.list(EntityKind.TOPIC, "", 0, 10)] == ["news"]
    with pytest.raises(EntityNotFound):
        await port.list(EntityKind.SUBSCRIPTION, "orders", 0, 10)
    with pytest.raises(EntityNotFound):
        await port.list(EntityKind.RULE, "news", 0, 10)


async def test_what_an_entity_holds(port: BrokerApi) -> None:
    view = await port.entity("orders")
    origin = port.connect(lambda effects: None)
    later = 4_000_000_000_000
    drafts = [Draft(b"12345", "", None, None, 0, 0), Draft(b"1", "", None, None, 0, later)]
    port.submit([Send(view.fragments[0], origin, 1, drafts, True)])
    runtime = await port.runtime("ORDERS")
    assert (runtime.active, runtime.scheduled, runtime.dead_letter) == (1, 1, 0)
    assert runtime.size > 0
    assert runtime.accessed > 0
    assert runtime.available
    assert await port.runtime("news") == RuntimeProperties()
    with pytest.raises(EntityNotFound):
        await port.runtime("nothing")
    namespace = await port.namespace()
    assert (namespace.name, namespace.tier) == ("busbar", Tier.STANDARD)
    assert namespace.created == namespace.modified > 0


async def test_a_page_says_what_its_entities_hold(port: BrokerApi) -> None:
    view = await port.entity("orders")
    origin = port.connect(lambda effects: None)
    port.submit([Send(view.fragments[0], origin, 1, [Draft(b"12345", "", None, None, 0, 0)], True)])
    page = await port.page(EntityKind.QUEUE, "", 0, 2)
    assert (page.namespace, page.has_more) == ("busbar", True)
    assert [view.path for view in page.entities] == ["Orders", "other"]
    assert [runtime.active for runtime in page.runtimes] == [1, 0]
    assert page.runtimes[0] == await port.runtime("orders")
    last = await port.page(EntityKind.QUEUE, "", 2, 2)
    assert ([view.path for view in last.entities], last.has_more) == (["short"], False)
    orders, nothing, news = await port.runtimes(["ORDERS", "nothing", "news"])
    assert (orders, nothing, news) == (page.runtimes[0], None, RuntimeProperties())
    with pytest.raises(EntityNotFound):
        await port.page(EntityKind.SUBSCRIPTION, "orders", 0, 10)


async def test_whoever_watches_hears_of_every_change(port: BrokerApi) -> None:
    heard: list[tuple[str, EntityView | None]] = []
    stop = port.watch(lambda path, view: heard.append((path, view)))
    made = await port.create("w", QueueDescription())
    changed = await port.update("w", QueueDescription(max_delivery_count=2))
    await port.delete("W")
    assert heard == [("w", made), ("w", changed), ("w", None)]
    stop()
    await port.create("w2", QueueDescription())
    assert len(heard) == 3


async def test_errors_keep_their_kind(port: BrokerApi) -> None:
    with pytest.raises(EntityAlreadyExists):
        await port.create("oRders", QueueDescription())
    with pytest.raises(EntityAlreadyExists, match="'news'"):
        await port.create("news", QueueDescription())
    with pytest.raises(ArgumentError):
        await port.create("../orders", QueueDescription())
    with pytest.raises(ArgumentOutOfRange, match="LockDuration"):
        await port.update("orders", QueueDescription(lock_duration=1))
    with pytest.raises(ArgumentError, match="EnablePartitioning"):
        await port.update("orders", QueueDescription(enable_partitioning=True))
    with pytest.raises(InvalidOperation):
        await port.update("news", QueueDescription())
    with pytest.raises(EntityNotFound):
        await port.update("nothing", QueueDescription())
    with pytest.raises(EntityNotFound):
        await port.delete("nothing")
    with pytest.raises(EntityNotFound):
        await port.create("nothing/Subscriptions/s", SubscriptionDescription())
    with pytest.raises(EntityNotFound):
        await port.create("orders/Subscriptions/s", SubscriptionDescription())
    with pytest.raises(ArgumentError, match="not the path of a subscription"):
        await port.create("orders", SubscriptionDescription())
