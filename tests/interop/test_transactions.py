"""Transactions with busbar.client at a real broker, on regular and partitioned entities."""

from __future__ import annotations

import asyncio
import time

import pytest

from busbar.client import (
    BusbarClientError,
    MessagingFactory,
    SendFailed,
    SettleFailed,
    TransactionRolledBack,
    TransactionTimeout,
    TransactionUnknown,
    Unauthorized,
    blocking,
)
from harness.serving import Busbar, serving
from tests.interop import transaction_fixtures as fixtures
from tests.interop.partitioned_queues import BRIEF_LOCK, Names
from tests.interop.transactions import (
    LIMITS,
    manage,
    message,
    peeked,
    received,
    text_of,
)

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.asyncio(loop_scope="session"),
    fixtures.SERVER,
]
KEY = fixtures.KEY
names, regular, partitioned, either, factory = (
    fixtures.names,
    fixtures.regular,
    fixtures.partitioned,
    fixtures.either,
    fixtures.factory,
)


def keyed(*texts: str, key: str = KEY) -> list[bytes]:
    return [message(text, partition_key=key) for text in texts]


class Mistake(Exception):
    """What a program may raise inside a transaction."""


# ---- all or nothing


async def test_a_commit_does_all_of_it(factory: MessagingFactory, either: str) -> None:
    sender, receiver = await factory.sender(either), await factory.receiver(either, credit=3)
    await sender.send(keyed("done", "deferred", "dead"))
    done, deferred, dead = await received(receiver, 3)
    async with factory.transaction() as tx:
        await receiver.complete([done], transaction=tx)
        await receiver.defer([deferred], transaction=tx)
        await receiver.dead_letter([dead], "reason", transaction=tx)
        await sender.send(keyed("new", "newer"), transaction=tx)
        assert await peeked(factory, either) == ["done", "deferred", "dead"], "nobody sees any of it"
        assert await peeked(factory, either, "/$deadletterqueue") == []
    assert await peeked(factory, either) == ["deferred", "new", "newer"]
    assert await peeked(factory, either, "/$deadletterqueue") == ["dead"]
    assert [text_of(each) for each in await received(receiver, 2)] == ["new", "newer"]


async def test_a_rollback_does_nothing_of_it(factory: MessagingFactory, either: str) -> None:
    sender, receiver = await factory.sender(either), await factory.receiver(either)
    await sender.send(keyed("old"))
    (old,) = await received(receiver, 1)
    with pytest.raises(Mistake):
        async with factory.transaction() as tx:
            await receiver.complete([old], transaction=tx)
            await sender.send(keyed("new"), transaction=tx)
            raise Mistake
    assert await peeked(factory, either) == ["old"]
    await receiver.complete([old])  # its lock was never lost
    assert await peeked(factory, either) == []


async def test_a_message_can_be_settled_in_the_next_transaction(
    factory: MessagingFactory, either: str
) -> None:
    sender, receiver = await factory.sender(either), await factory.receiver(either)
    await sender.send(keyed("old"))
    (old,) = await received(receiver, 1)
    for attempt in range(3):
        tx = factory.transaction()
        await tx.begin()
        await receiver.abandon([old], {"attempt": attempt}, transaction=tx)
        await (tx.rollback() if attempt < 2 else tx.commit())
        assert not tx.is_open
    (again,) = await received(receiver, 1)
    assert again.delivery_count == 1 and again.decode().application_properties == {"attempt": 2}


async def test_many_transactions_at_a_time(factory: MessagingFactory, either: str) -> None:
    sender = await factory.sender(either)

    async def one(number: int) -> None:
        try:
            async with factory.transaction() as tx:
                await sender.send(keyed(f"{number} a", key=str(number)), transaction=tx)
                await asyncio.sleep(0)
                await sender.send(keyed(f"{number} b", key=str(number)), transaction=tx)
                if number % 2:
                    raise Mistake
        except Mistake:
            pass

    await asyncio.gather(*(one(number) for number in range(16)))
    expected = {f"{number} {half}" for number in range(0, 16, 2) for half in "ab"}
    assert set(await peeked(factory, either)) == expected


async def test_a_lost_connection_rolls_back(server: Busbar, factory: MessagingFactory, either: str) -> None:
    other = await MessagingFactory.connect(server.connection_string)
    sender, receiver = await other.sender(either), await factory.receiver(either)
    tx = other.transaction()
    await tx.begin()
    await sender.send(keyed("never"), transaction=tx)
    connection = await other.connection()
    assert connection._transport is not None
    connection._transport.abort()
    with pytest.raises(BusbarClientError):
        await tx.commit()
    assert await receiver.receive(1, 0.3) == [] and await peeked(factory, either) == []
    await other.close()


async def test_a_transaction_times_out(factory: MessagingFactory, regular: str) -> None:
    sender = await factory.sender(regular)
    tx = factory.transaction()
    await tx.begin()
    await sender.send(keyed("late"), transaction=tx)
    await asyncio.sleep(LIMITS["transaction_timeout"] / 1000 + 0.3)  # type: ignore[operator]
    with pytest.raises(SendFailed) as refused:
        await sender.send(keyed("later"), transaction=tx)
    assert refused.value.condition == "amqp:transaction:timeout"
    with pytest.raises(TransactionTimeout):
        await tx.commit()
    assert await peeked(factory, regular) == []


async def test_a_lock_that_ends_before_the_commit_rolls_back(factory: MessagingFactory, names: Names) -> None:
    queue = names.take("regular-brief")
    sender, receiver = await factory.sender(queue), await factory.receiver(queue, credit=1)
    await sender.send(keyed("old"))
    (old,) = await received(receiver, 1)
    tx = factory.transaction()
    await tx.begin()
    await sender.send(keyed("new"), transaction=tx)
    await receiver.complete([old], transaction=tx)
    await asyncio.sleep(BRIEF_LOCK + 0.2)
    with pytest.raises(TransactionRolledBack, match="lock"):
        await tx.commit()
    assert await peeked(factory, queue) == ["old"]


async def test_of_two_transactions_with_one_lock_the_first_wins(
    factory: MessagingFactory, either: str
) -> None:
    sender, receiver = await factory.sender(either), await factory.receiver(either)
    await sender.send(keyed("old"))
    (old,) = await received(receiver, 1)
    first, second = factory.transaction(), factory.transaction()
    await first.begin()
    await second.begin()
    await receiver.complete([old], transaction=first)
    assert old.link is not None
    old.link.locked.add(old.delivery_id)  # as another process would settle it: by its lock token
    await receiver.complete([old], transaction=second)
    await sender.send(keyed("second"), transaction=second)
    await sender.send(keyed("first"), transaction=first)
    await first.commit()
    with pytest.raises(TransactionRolledBack):
        await second.commit()
    assert await peeked(factory, either) == ["first"]


async def test_a_settlement_whose_lock_is_lost_is_refused_at_once(
    factory: MessagingFactory, names: Names
) -> None:
    queue = names.take("regular-brief")
    sender, receiver = await factory.sender(queue), await factory.receiver(queue, credit=1)
    await sender.send(keyed("old"))
    (old,) = await received(receiver, 1)
    await asyncio.sleep(BRIEF_LOCK + 0.2)
    async with factory.transaction() as tx:
        with pytest.raises(SettleFailed) as lost:
            await receiver.complete([old], transaction=tx)
        assert lost.value.condition == "com.microsoft:message-lock-lost"
        await sender.send(keyed("new"), transaction=tx)
    assert sorted(await peeked(factory, queue)) == ["new", "old"], "the rest is committed"


async def test_a_full_queue_rolls_back_and_can_be_worked_off(factory: MessagingFactory) -> None:
    sender, receiver = await factory.sender("small"), await factory.receiver("small", credit=1)
    large = message("x" * 250_000)
    while True:
        try:
            await sender.send([large])
        except SendFailed as full:
            assert full.condition == "amqp:resource-limit-exceeded"
            break
    with pytest.raises(TransactionRolledBack, match="amqp:resource-limit-exceeded"):
        async with factory.transaction() as tx:
            await sender.send([large], transaction=tx)
    (one,) = await received(receiver, 1)
    async with factory.transaction() as tx:
        await receiver.complete([one], transaction=tx)
        await sender.send([large], transaction=tx)


# ---- one entity


async def test_one_entity_in_a_transaction(factory: MessagingFactory, either: str, regular: str) -> None:
    here, elsewhere = await factory.sender(either), await factory.sender(regular)
    async with factory.transaction() as tx:
        await here.send(keyed("1"), transaction=tx)
        with pytest.raises(SendFailed, match="cannot span multiple top-level entities") as refused:
            await elsewhere.send(keyed("2"), transaction=tx)
        assert refused.value.condition == "amqp:not-allowed"
        await here.send(keyed("3"), transaction=tx)
    assert await peeked(factory, either) == ["1", "3"]
    assert await peeked(factory, regular) == []


async def test_a_dead_letter_queue_belongs_to_its_queue(factory: MessagingFactory, either: str) -> None:
    sender, receiver = await factory.sender(either), await factory.receiver(either)
    await sender.send(keyed("dead"))
    await receiver.dead_letter(await received(receiver, 1))
    dead = await factory.receiver(either, sub_queue="deadletter")
    (letter,) = await received(dead, 1)
    async with factory.transaction() as tx:
        await dead.complete([letter], transaction=tx)
        await sender.send(keyed("alive"), transaction=tx)
    assert await peeked(factory, either) == ["alive"]
    assert await peeked(factory, either, "/$deadletterqueue") == []


# ---- limits


async def test_a_hundred_messages(factory: MessagingFactory, either: str) -> None:
    sender = await factory.sender(either)
    async with factory.transaction() as tx:
        await sender.send(keyed(*[f"{n:03}" for n in range(100)]), transaction=tx)
        with pytest.raises(SendFailed) as refused:
            await sender.send(keyed("one too many"), transaction=tx)
        assert refused.value.condition == "amqp:resource-limit-exceeded"
    assert await peeked(factory, either) == [f"{n:03}" for n in range(100)]


async def test_so_many_settlements(factory: MessagingFactory, regular: str) -> None:
    sender, receiver = await factory.sender(regular), await factory.receiver(regular)
    most = 120
    await sender.send([message(str(n)) for n in range(most + 1)])
    messages = await received(receiver, most + 1)
    async with factory.transaction() as tx:
        await receiver.complete(messages[:most], transaction=tx)
        with pytest.raises(SettleFailed) as refused:
            await receiver.complete(messages[most:], transaction=tx)
        assert refused.value.condition == "amqp:resource-limit-exceeded"
    assert await peeked(factory, regular) == [str(most)]


async def test_open_transactions_of_a_connection(factory: MessagingFactory) -> None:
    open_ones = [factory.transaction() for _ in range(20)]
    for tx in open_ones:
        await tx.begin()
    with pytest.raises(BusbarClientError) as refused:
        await factory.transaction().begin()
    assert refused.value.condition == "amqp:resource-limit-exceeded"
    for tx in open_ones:
        await tx.rollback()
    async with factory.transaction():
        pass


async def test_transactions_whose_declaration_was_cancelled_do_not_stay_open(
    factory: MessagingFactory, regular: str
) -> None:
    async with factory.transaction():
        pass  # opens the link to the coordinator
    for _ in range(150):
        declaring = asyncio.create_task(factory.transaction().begin())
        await asyncio.sleep(0)
        declaring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await declaring
    sender = await factory.sender(regular)
    async with factory.transaction() as tx:
        await sender.send(keyed("sent"), transaction=tx)
    assert await peeked(factory, regular) == ["sent"]


# ---- management


async def test_messages_are_scheduled_at_the_commit(factory: MessagingFactory, either: str) -> None:
    due = int(time.time() * 1000) + 3_600_000
    payload = message("later", partition_key=KEY, scheduled_enqueue_time=due, message_id="m")
    body: dict[str, object] = {"messages": [{"message-id": "m", "message": payload}]}
    connection = await factory.connection_for(either)
    numbers = []
    for is_kept in (False, True):
        tx = factory.transaction()
        await tx.begin()
        status, _, said = await manage(factory, either, "schedule-message", body, tx.state(connection))
        assert status == 200
        numbers.append(said["sequence-numbers"].items[0])
        assert await peeked(factory, either) == []
        await (tx.commit() if is_kept else tx.rollback())
    assert numbers[1] > numbers[0] and await peeked(factory, either) == ["later"]
    cancel: dict[str, object] = {"sequence-numbers": [numbers[1]]}
    for is_kept in (False, True):
        tx = factory.transaction()
        await tx.begin()
        assert (await manage(factory, either, "cancel-scheduled-message", cancel, tx.state(connection)))[
            0
        ] == 200
        assert await peeked(factory, either) == ["later"]
        await (tx.commit() if is_kept else tx.rollback())
    assert await peeked(factory, either) == []
    assert (await manage(factory, either, "cancel-scheduled-message", cancel))[0] == 404


# ---- topics


@pytest.mark.parametrize("kind", ["regular", "partitioned"])
async def test_a_topic_takes_messages_in_a_transaction(
    factory: MessagingFactory, names: Names, kind: str
) -> None:
    topic = names.take(f"{kind}-topic")
    sender = await factory.sender(topic)
    with pytest.raises(Mistake):
        async with factory.transaction() as tx:
            await sender.send(keyed("no"), transaction=tx)
            raise Mistake
    async with factory.transaction() as tx:
        await sender.send(keyed("1"), transaction=tx)
        await sender.send(keyed("2"), transaction=tx)
        assert await peeked(factory, f"{topic}/Subscriptions/one") == []
    for name in ("one", "two"):
        assert await peeked(factory, f"{topic}/Subscriptions/{name}") == ["1", "2"]


@pytest.mark.parametrize("kind", ["regular", "partitioned"])
async def test_a_topic_and_its_subscriptions_in_one_transaction(
    factory: MessagingFactory, names: Names, kind: str
) -> None:
    topic = names.take(f"{kind}-topic")
    one, two = f"{topic}/Subscriptions/one", f"{topic}/Subscriptions/two"
    sender, first, second = (
        await factory.sender(topic),
        await factory.receiver(one, credit=1),
        await factory.receiver(two, credit=1),
    )
    await sender.send(keyed("old"))
    (here,), (there,) = await received(first, 1), await received(second, 1)
    with pytest.raises(Mistake):
        async with factory.transaction() as tx:
            await first.complete([here], transaction=tx)
            await second.complete([there], transaction=tx)
            await sender.send(keyed("no"), transaction=tx)
            raise Mistake
    assert await peeked(factory, one) == ["old"] == await peeked(factory, two)
    async with factory.transaction() as tx:
        await first.complete([here], transaction=tx)
        await second.dead_letter([there], "reason", transaction=tx)
        await sender.send(keyed("new"), transaction=tx)
        assert await peeked(factory, one) == ["old"]
    assert await peeked(factory, one) == ["new"] == await peeked(factory, two)
    assert await peeked(factory, two, "/$deadletterqueue") == ["old"]


async def test_two_subscriptions_without_their_topic(factory: MessagingFactory, names: Names) -> None:
    topic = names.take("regular-topic")
    one, two = f"{topic}/Subscriptions/one", f"{topic}/Subscriptions/two"
    sender, first, second = (
        await factory.sender(topic),
        await factory.receiver(one, credit=1),
        await factory.receiver(two, credit=1),
    )
    await sender.send(keyed("old"))
    (here,), (there,) = await received(first, 1), await received(second, 1)
    async with factory.transaction() as tx:
        await first.complete([here], transaction=tx)
        await second.complete([there], transaction=tx)
    assert await peeked(factory, one) == [] == await peeked(factory, two)


# ---- the client


async def test_a_transaction_is_over_once(factory: MessagingFactory, regular: str) -> None:
    sender = await factory.sender(regular)
    async with factory.transaction() as tx:
        await sender.send(keyed("1"), transaction=tx)
        await tx.commit()
        with pytest.raises(TransactionUnknown):
            await sender.send(keyed("2"), transaction=tx)
    with pytest.raises(TransactionUnknown):
        await tx.commit()
    with pytest.raises(ValueError, match="begun once"):
        await tx.begin()
    assert await peeked(factory, regular) == ["1"]


async def test_a_transaction_before_anything_else(server: Busbar, regular: str) -> None:
    """The first thing that a client does on its connection."""
    async with await MessagingFactory.connect(server.connection_string) as made:
        async with made.transaction() as tx:
            await (await made.sender(regular)).send(keyed("1"), transaction=tx)
        assert await peeked(made, regular) == ["1"]


async def test_a_receiver_that_deletes_has_no_transactions(factory: MessagingFactory, regular: str) -> None:
    sender, receiver = await factory.sender(regular), await factory.receiver(regular, delete=True)
    await sender.send(keyed("1"))
    (gone,) = await received(receiver, 1)
    async with factory.transaction() as tx:
        with pytest.raises(ValueError, match="deleted"):
            await receiver.complete([gone], transaction=tx)


async def test_a_connection_cannot_use_the_transaction_of_another(server: Busbar, regular: str) -> None:
    connect = MessagingFactory.connect
    async with await connect(server.connection_string) as one, await connect(server.connection_string) as two:
        sender = await two.sender(regular)
        async with one.transaction() as tx:
            with pytest.raises(BusbarClientError):
                await sender.send(keyed("1"), transaction=tx)
        assert await peeked(one, regular) == []


async def test_blocking(server: Busbar, either: str) -> None:
    def work() -> list[str]:
        with (
            blocking.connect(server.connection_string) as made,
            made.sender(either) as sender,
            made.receiver(either) as receiver,
        ):
            sender.send(keyed("old"))
            (old,) = receiver.receive(1)
            with pytest.raises(Mistake), made.transaction() as tx:
                sender.send(keyed("no"), transaction=tx)
                raise Mistake
            with made.transaction() as tx:
                receiver.complete([old], transaction=tx)
                sender.send(keyed("new"), transaction=tx)
                assert tx.is_open
            return [text_of(each) for each in receiver.receive(5, 5)]

    assert await asyncio.to_thread(work) == ["new"]


async def test_basic_has_no_transactions() -> None:
    config = (
        '{"UserConfig": {"Namespaces": [{"Name": "b", "Queues": [{"Name": "q", "Properties": {}}]}], '
        '"Logging": {"Type": "File"}}, "Busbar": {"Tier": "Basic"}}'
    )
    with serving(config=config) as basic:
        async with await MessagingFactory.connect(basic.connection_string) as made:
            with pytest.raises(BusbarClientError, match="Basic"):
                await made.transaction().begin()


async def test_a_refused_key_can_declare_nothing(server: Busbar) -> None:
    wrong = server.connection_string.replace("SharedAccessKey=", "SharedAccessKey=wrong")
    async with await MessagingFactory.connect(wrong) as made:
        with pytest.raises(Unauthorized):
            await made.transaction().begin()
