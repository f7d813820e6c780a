"""What a transaction may contain: keys and sessions of partitioned entities, and rules of subscriptions."""

from __future__ import annotations

import pytest

from busbar.client import MessagingFactory, SendFailed, SettleFailed, TransactionRolledBack
from busbar.model.partitioning import FRAGMENTS, index_of_key
from tests.interop import transaction_fixtures as fixtures
from tests.interop.partitioned_queues import Names
from tests.interop.transactions import (
    manage,
    message,
    peeked,
    received,
    text_of,
    via_keyed,
)

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("server", ["1", "2"], indirect=True),
    fixtures.SERVER,
]
KEY = fixtures.KEY
names, regular, partitioned, factory = (
    fixtures.names,
    fixtures.regular,
    fixtures.partitioned,
    fixtures.factory,
)


@pytest.mark.req("P20")
async def test_every_message_carries_the_same_key(factory: MessagingFactory, partitioned: str) -> None:
    sender = await factory.sender(partitioned)
    async with factory.transaction() as tx:
        for wrong in (message("none"), message("id", message_id="only an id")):
            with pytest.raises(SendFailed) as refused:
                await sender.send([wrong], transaction=tx)
            assert refused.value.condition == "amqp:not-allowed"
        await sender.send([message("1", partition_key=KEY)], transaction=tx)
        await sender.send([message("2", session_id=KEY)], transaction=tx)
        for other in (message("x", partition_key="other"), message("x", session_id="other")):
            with pytest.raises(SendFailed) as refused:
                await sender.send([other], transaction=tx)
            assert refused.value.condition == "amqp:not-allowed"
        with pytest.raises(SendFailed):
            await sender.send([message("x", session_id=KEY, partition_key="other")], transaction=tx)
    assert await peeked(factory, partitioned) == ["1", "2"]


@pytest.mark.req("P20")
async def test_a_message_id_is_a_key_where_duplicates_are_detected(
    factory: MessagingFactory, names: Names
) -> None:
    queue = names.take("partitioned-unique")
    sender = await factory.sender(queue)
    async with factory.transaction() as tx:
        await sender.send([message("1", message_id="id")], transaction=tx)
        with pytest.raises(SendFailed):
            await sender.send([message("x", message_id="another id")], transaction=tx)
    async with factory.transaction() as tx:
        await sender.send([message("again", message_id="id")], transaction=tx)
    assert await peeked(factory, queue) == ["1"], "the second one is a duplicate"


@pytest.mark.req("P20")
async def test_a_regular_queue_needs_no_key(factory: MessagingFactory, regular: str) -> None:
    sender = await factory.sender(regular)
    async with factory.transaction() as tx:
        await sender.send([message("none"), message("key", partition_key="a")], transaction=tx)
        await sender.send([message("another", partition_key="b")], transaction=tx)
    assert await peeked(factory, regular) == ["none", "key", "another"]


@pytest.mark.req("P21")
async def test_a_key_leads_to_the_same_fragment_inside_and_outside(
    factory: MessagingFactory, partitioned: str
) -> None:
    sender, receiver = await factory.sender(partitioned), await factory.receiver(partitioned)
    keys = [f"key {number}" for number in range(12)]
    await sender.send([message(key, partition_key=key) for key in keys])
    for key in keys:
        async with factory.transaction() as tx:
            await sender.send([message(key, partition_key=key)], transaction=tx)
    fragments: dict[str, set[int]] = {}
    for each in await received(receiver, 24):
        fragments.setdefault(text_of(each), set()).add(each.sequence_number >> 48)
    assert all(len(found) == 1 for found in fragments.values()) and len(fragments) == 12
    assert len({min(found) for found in fragments.values()}) > 3, "they are spread"


@pytest.mark.req("P21")
async def test_settlements_are_of_the_fragment_of_the_key(
    factory: MessagingFactory, partitioned: str
) -> None:
    sender, receiver = await factory.sender(partitioned), await factory.receiver(partitioned)
    await sender.send([message(str(n), partition_key=str(n)) for n in range(8)])
    messages = await received(receiver, 8)
    fragments = {each.sequence_number >> 48 for each in messages}
    one = messages[0]
    other = next(each for each in messages if each.sequence_number >> 48 != one.sequence_number >> 48)
    assert len(fragments) > 1
    async with factory.transaction() as tx:
        await receiver.complete([one], transaction=tx)
        with pytest.raises(SettleFailed) as refused:
            await receiver.complete([other], transaction=tx)
        assert refused.value.condition == "amqp:not-allowed"
    (again,) = await received(receiver, 1)
    assert text_of(again) == text_of(other) and again.delivery_count == 0, "its lock was given up, uncounted"


@pytest.mark.req("P22")
@pytest.mark.parametrize("kind", ["regular", "partitioned"])
async def test_an_entity_with_sessions_needs_a_session_id(
    factory: MessagingFactory, names: Names, kind: str
) -> None:
    queue = names.take(f"{kind}-sessions")
    sender = await factory.sender(queue)
    async with factory.transaction() as tx:
        for wrong in (
            message("none"),
            message("key", partition_key="s"),
            message("differ", session_id="s", partition_key="k"),
        ):
            with pytest.raises(SendFailed) as refused:
                await sender.send([wrong], transaction=tx)
            assert refused.value.condition == "amqp:not-allowed"
        await sender.send([message("1", session_id="s")], transaction=tx)
        await sender.send([message("2", session_id="s", partition_key="s")], transaction=tx)
    assert await peeked(factory, queue) == ["1", "2"]


@pytest.mark.req("P23")
async def test_one_session_of_a_partitioned_entity_and_many_of_a_regular_one(
    factory: MessagingFactory, names: Names
) -> None:
    queue = names.take("partitioned-sessions")
    sender = await factory.sender(queue)
    async with factory.transaction() as tx:
        await sender.send([message("a", session_id="a")], transaction=tx)
        with pytest.raises(SendFailed) as refused:
            await sender.send([message("b", session_id="b")], transaction=tx)
        assert refused.value.condition == "amqp:not-allowed"
    assert await peeked(factory, queue) == ["a"]
    queue = names.take("regular-sessions")
    sender = await factory.sender(queue)
    async with factory.transaction() as tx:
        await sender.send([message(name, session_id=name) for name in "abc"], transaction=tx)
        await sender.send([message("d", session_id="d")], transaction=tx)
    assert await peeked(factory, queue) == ["a", "b", "c", "d"]


# ---- ViaPartitionKey


@pytest.mark.req("P21")
async def test_a_via_partition_key_is_the_key_of_a_message_that_has_no_other(
    factory: MessagingFactory, partitioned: str
) -> None:
    """In a transaction and outside of one. Any other key of the message comes first."""
    sender, receiver = await factory.sender(partitioned), await factory.receiver(partitioned)
    await sender.send([via_keyed(f"{n}", KEY) for n in range(5)])
    async with factory.transaction() as tx:
        await sender.send([via_keyed("5", KEY)], transaction=tx)
        await sender.send([message("6", partition_key=KEY)], transaction=tx)
        with pytest.raises(SendFailed) as refused:
            await sender.send([via_keyed("x", "another key")], transaction=tx)
        assert refused.value.condition == "amqp:not-allowed"
    await sender.send([via_keyed("7", "another key", session_id=KEY)])
    got = await received(receiver, 8)
    assert {each.sequence_number >> 48 for each in got} == {index_of_key(KEY, FRAGMENTS)}
    assert [text_of(each) for each in got] == [f"{n}" for n in range(8)]


# ---- rules of subscriptions


@pytest.mark.req("P31")
async def test_rules_are_changed_in_a_transaction_on_regular_topics_only(
    factory: MessagingFactory, names: Names
) -> None:
    for kind in ("regular", "partitioned"):
        subscription = f"{names.take(f'{kind}-topic')}/Subscriptions/one"
        connection = await factory.connection_for(subscription)
        rule: dict[str, object] = {
            "rule-name": "r",
            "rule-description": {"sql-filter": {"expression": "colour = 'red'"}},
        }
        listing: dict[str, object] = {"top": 10, "skip": 0}
        tx = factory.transaction()
        await tx.begin()
        status, condition, _ = await manage(factory, subscription, "add-rule", rule, tx.state(connection))
        if kind == "partitioned":
            assert (status, condition) == (400, "amqp:not-allowed")
            removed = await manage(
                factory, subscription, "remove-rule", {"rule-name": "$Default"}, tx.state(connection)
            )
            assert removed[:2] == (400, "amqp:not-allowed")
            await tx.commit()
            assert (await manage(factory, subscription, "add-rule", rule))[0] == 200
            assert (await manage(factory, subscription, "remove-rule", {"rule-name": "r"}))[0] == 200
            continue
        assert status == 200
        assert len((await manage(factory, subscription, "enumerate-rules", listing))[2]["rules"]) == 1
        await tx.rollback()
        assert len((await manage(factory, subscription, "enumerate-rules", listing))[2]["rules"]) == 1
        tx = factory.transaction()
        await tx.begin()
        await manage(factory, subscription, "add-rule", rule, tx.state(connection))
        await tx.commit()
        assert len((await manage(factory, subscription, "enumerate-rules", listing))[2]["rules"]) == 2


@pytest.mark.req("P31")
async def test_several_rules_are_changed_as_a_whole(factory: MessagingFactory, names: Names) -> None:
    topic = names.take("regular-topic")
    subscription = f"{topic}/Subscriptions/one"
    connection = await factory.connection_for(subscription)
    listing: dict[str, object] = {"top": 10, "skip": 0}

    async def rules() -> list[str]:
        status, _, body = await manage(factory, subscription, "enumerate-rules", listing)
        return [] if status == 204 else [rule["rule-description"].value[2] for rule in body["rules"]]

    def adding(name: str, expression: str) -> dict[str, object]:
        return {"rule-name": name, "rule-description": {"sql-filter": {"expression": expression}}}

    async with factory.transaction() as tx:
        state = tx.state(connection)
        assert (await manage(factory, subscription, "remove-rule", {"rule-name": "$Default"}, state))[
            0
        ] == 200
        assert (await manage(factory, subscription, "add-rule", adding("red", "colour = 'red'"), state))[
            0
        ] == 200
        wrong = await manage(factory, subscription, "add-rule", adding("x" * 51, "1=1"), state)
        assert wrong[0] == 400, "refused at once"
        other = await manage(
            factory, f"{topic}/Subscriptions/two", "remove-rule", {"rule-name": "$Default"}, state
        )
        assert other[:2] == (400, "amqp:not-allowed")
        sender = await factory.sender(topic)
        with pytest.raises(SendFailed):
            await sender.send([message("mixed")], transaction=tx)
        assert await rules() == ["$Default"]
    assert await rules() == ["red"]
    with pytest.raises(TransactionRolledBack, match="could not be found"):
        async with factory.transaction() as tx:
            await manage(factory, subscription, "remove-rule", {"rule-name": "red"}, tx.state(connection))
            await manage(factory, subscription, "add-rule", adding("blue", "1=1"), tx.state(connection))
            assert (await manage(factory, subscription, "remove-rule", {"rule-name": "red"}))[0] == 200
    assert await rules() == [], "nothing of it was done"
    assert (await manage(factory, subscription, "add-rule", adding("red", "colour = 'red'")))[0] == 200
    await sender.send([message(c, application_properties={"colour": c}) for c in ("red", "blue")])
    assert await peeked(factory, subscription) == ["red"]


@pytest.mark.req("P31")
async def test_a_rule_change_that_cannot_be_made_is_refused_at_once(
    factory: MessagingFactory, names: Names
) -> None:
    """It is then no part of the transaction, which can still be committed."""
    subscription = f"{names.take('regular-topic')}/Subscriptions/one"
    connection = await factory.connection_for(subscription)

    def adding(name: str, expression: str = "1=1", action: str = "") -> dict[str, object]:
        rule: dict[str, object] = {"sql-filter": {"expression": expression}}
        if action:
            rule["sql-rule-action"] = {"expression": action}
        return {"rule-name": name, "rule-description": rule}

    async with factory.transaction() as tx:

        async def change(operation: str, body: dict[str, object]) -> tuple[int, str]:
            return (await manage(factory, subscription, operation, body, tx.state(connection)))[:2]

        bad = (400, "com.microsoft:argument-error")
        exists = (409, "com.microsoft:entity-already-exists")
        missing = (404, "amqp:not-found")
        assert await change("add-rule", adding("bad", "colour = = 'red'")) == bad
        assert await change("add-rule", adding("bad", action="SET = 1")) == bad
        assert await change("add-rule", adding("$Default")) == exists
        assert await change("remove-rule", {"rule-name": "nothing"}) == missing
        assert await change("remove-rule", {"rule-name": "$Default"}) == (200, "")
        assert await change("remove-rule", {"rule-name": "$Default"}) == missing
        assert await change("add-rule", adding("red", "colour = 'red'")) == (200, "")
        assert await change("add-rule", adding("red")) == exists
        assert await change("remove-rule", {"rule-name": "red"}) == (200, "")
        assert await change("add-rule", adding("red", "colour = 'blue'")) == (200, "")
    listing: dict[str, object] = {"top": 10, "skip": 0}
    rules = (await manage(factory, subscription, "enumerate-rules", listing))[2]["rules"]
    (rule,) = [each["rule-description"].value for each in rules]
    assert rule[2] == "red" and rule[0].value[0] == "colour = 'blue'"
