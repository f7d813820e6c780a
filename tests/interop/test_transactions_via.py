"""Messages that one entity keeps for another: links with a destination, and transactions over several entities.

All tests run with one process and with two brokers: there the entities may be in different processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from busbar.amqp.outcomes import ACCEPTED
from busbar.client import BusbarClientError, ClientTransaction, MessagingFactory, NotFound, SendFailed
from busbar.model.partitioning import FRAGMENTS, index_of_key
from harness.amqp_driver import LinkRefused, LoadConnection, connect
from harness.serving import Busbar
from harness.transaction_driver import WireSession, code_and_txn, condition
from harness.waiting import until
from tests.interop import transaction_fixtures as fixtures
from tests.interop.administration import Administration
from tests.interop.partitioned_queues import Names
from tests.interop.transactions import (
    message,
    peeked,
    received,
    text_of,
    via_keyed,
)

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.parametrize("server", ["1", "2"], indirect=True),
    fixtures.SERVER,
]
KEY = fixtures.KEY
names = fixtures.names
PAIRS = [(here, there) for here in ("regular", "partitioned") for there in ("regular", "partitioned")]


@pytest.fixture(params=PAIRS, ids=["-".join(pair) for pair in PAIRS])
def pair(request: pytest.FixtureRequest, names: Names) -> tuple[str, str]:
    """The queue that keeps messages, and the one they are for."""
    here, there = request.param
    return names.take(here), names.take(there)


@pytest_asyncio.fixture
async def factory(server: Busbar) -> AsyncIterator[MessagingFactory]:
    async with await MessagingFactory.connect(server.connection_string) as made:
        yield made


@pytest_asyncio.fixture
async def client(server: Busbar) -> AsyncIterator[LoadConnection]:
    connection = await connect(server.port, server.key)
    yield connection
    await connection.close()


class Mistake(Exception):
    """What a program may raise inside a transaction."""


async def test_a_link_with_a_destination(factory: MessagingFactory, pair: tuple[str, str]) -> None:
    here, there = pair
    sender = await factory.sender(there, via=here)
    await sender.send([message(f"{n:03}", partition_key=KEY) for n in range(200)])
    messages = await received(await factory.receiver(there), 200)
    assert [text_of(each) for each in messages] == [f"{n:03}" for n in range(200)], "in their order"
    assert await peeked(factory, here) == [], "they were never messages of the other one"


async def test_receive_here_and_send_there(factory: MessagingFactory, pair: tuple[str, str]) -> None:
    here, there = pair
    source, receiver, target = (
        await factory.sender(here),
        await factory.receiver(here),
        await factory.sender(there),
    )
    await source.send([message("question", partition_key=KEY)])
    (question,) = await received(receiver, 1)
    with pytest.raises(Mistake):
        async with factory.transaction(via=here) as tx:
            await receiver.complete([question], transaction=tx)
            await target.send([message("no", partition_key=KEY)], transaction=tx)
            raise Mistake
    assert await peeked(factory, here) == ["question"]
    async with factory.transaction(via=here) as tx:
        await receiver.complete([question], transaction=tx)
        await target.send([message("answer", partition_key=KEY)], transaction=tx)
        await source.send([message("next", partition_key=KEY)], transaction=tx)
        assert await peeked(factory, there) == []
    (answer,) = await received(await factory.receiver(there), 1)
    assert text_of(answer) == "answer"
    assert await peeked(factory, here) == ["next"]


async def test_a_link_with_a_destination_in_a_transaction(
    factory: MessagingFactory, pair: tuple[str, str]
) -> None:
    """The old form of .NET and Java: the sender's own entity is the home."""
    here, there = pair
    sender, source, receiver = (
        await factory.sender(there, via=here),
        await factory.sender(here),
        await factory.receiver(here),
    )
    await source.send([message("old", partition_key=KEY)])
    (old,) = await received(receiver, 1)
    async with factory.transaction() as tx:
        await receiver.complete([old], transaction=tx)
        await sender.send([message("new", partition_key=KEY)], transaction=tx)
    (new,) = await received(await factory.receiver(there), 1)
    assert text_of(new) == "new" and await peeked(factory, here) == []


@pytest.mark.parametrize("form", ["link", "session"])
async def test_a_via_partition_key_chooses_the_fragment_of_the_outbox_alone(
    server: Busbar, factory: MessagingFactory, names: Names, form: str
) -> None:
    here, there = names.take("partitioned"), names.take("partitioned")
    sender = await factory.sender(there, via=here if form == "link" else None)

    async def send(*messages: bytes) -> ClientTransaction:
        """Send in a transaction, which is left open."""
        tx = factory.transaction(via=None if form == "link" else here)
        await tx.begin()
        for each in messages:
            await sender.send([each], transaction=tx)
        return tx

    tx = await send(*[via_keyed(f"{n}", KEY) for n in range(60)])
    for wrong in (message("none"), via_keyed("x", "another key"), message("x", partition_key="another key")):
        with pytest.raises(SendFailed) as refused:
            await sender.send([wrong], transaction=tx)
        assert refused.value.condition == "amqp:not-allowed"
    await sender.send([via_keyed("keyed", KEY, session_id="theirs")], transaction=tx)
    await tx.commit()
    got = await received(await factory.receiver(there), 61)
    places = {text_of(each): each.sequence_number >> 48 for each in got}
    assert places.pop("keyed") == index_of_key("theirs", FRAGMENTS), "keys of the destination are its own"
    assert len({*places.values()}) > 4, "those without a key of their own go everywhere"

    tx = await send(via_keyed("lost", KEY), via_keyed("lost too", KEY, session_id="theirs"))
    await Administration(server, asynchronous=False).delete_queue(there)
    await tx.commit()
    failed = await received(await factory.receiver(here, sub_queue="transferdeadletter"), 2)
    assert {each.sequence_number >> 48 for each in failed} == {index_of_key(KEY, FRAGMENTS)}


async def test_a_topic_is_a_destination(factory: MessagingFactory, names: Names) -> None:
    here, topic = names.take("regular"), names.take("regular-topic")
    sender = await factory.sender(topic, via=here)
    await sender.send([message("1"), message("2")])
    for name in ("one", "two"):
        got = await received(await factory.receiver(f"{topic}/Subscriptions/{name}"), 2)
        assert [text_of(each) for each in got] == ["1", "2"]


@pytest.mark.parametrize("kind", ["regular", "partitioned"])
async def test_receive_from_a_subscription_and_send_to_a_queue(
    factory: MessagingFactory, names: Names, kind: str
) -> None:
    """The subscription names its topic, through whose outbox the message goes. No right to send to the topic is needed."""
    topic, there = names.take(f"{kind}-topic"), names.take("regular")
    subscription = f"{topic}/Subscriptions/one"
    source, receiver, target = (
        await factory.sender(topic),
        await factory.receiver(subscription),
        await factory.sender(there),
    )
    await source.send([message("question", partition_key=KEY)])
    (question,) = await received(receiver, 1)
    async with factory.transaction(via=subscription) as tx:
        await receiver.complete([question], transaction=tx)
        await target.send([message("answer", partition_key=KEY)], transaction=tx)
    (answer,) = await received(await factory.receiver(there), 1)
    assert text_of(answer) == "answer" and await peeked(factory, subscription) == []


async def test_without_a_via_entity_there_is_one_home(factory: MessagingFactory, names: Names) -> None:
    here, there = names.take("regular"), names.take("regular")
    one, two = await factory.sender(here), await factory.sender(there)
    async with factory.transaction() as tx:
        await one.send([message("1")], transaction=tx)
        with pytest.raises(SendFailed):
            await two.send([message("2")], transaction=tx)
    assert await peeked(factory, here) == ["1"] and await peeked(factory, there) == []


async def test_settlements_are_of_the_via_entity(factory: MessagingFactory, names: Names) -> None:
    here, there = names.take("regular"), names.take("regular")
    sender, receiver = await factory.sender(there), await factory.receiver(there)
    await sender.send([message("1")])
    (one,) = await received(receiver, 1)
    async with factory.transaction(via=here) as tx:
        with pytest.raises(BusbarClientError) as refused:
            await receiver.complete([one], transaction=tx)
        assert refused.value.condition == "amqp:not-allowed"
    await receiver.complete([one])


async def test_what_the_destination_would_refuse_is_refused_at_once(
    factory: MessagingFactory, names: Names
) -> None:
    sender = await factory.sender(names.take("regular-sessions"), via=names.take("regular"))
    with pytest.raises(SendFailed, match="SessionId"):
        await sender.send([message("none")])
    with pytest.raises(NotFound):
        await factory.sender("nothing", via=names.take("regular"))


async def test_a_deleted_destination_leaves_the_message_in_the_transfer_dead_letter_queue(
    server: Busbar, factory: MessagingFactory, names: Names
) -> None:
    here, there = names.take("regular"), names.take("regular")
    sender = await factory.sender(there)
    tx = factory.transaction(via=here)
    await tx.begin()
    await sender.send([message("lost")], transaction=tx)
    await Administration(server, asynchronous=False).delete_queue(there)
    await tx.commit()

    async def dead() -> bool:
        return await peeked(factory, here, "/$Transfer/$DeadLetterQueue") == ["lost"]

    for _ in range(100):
        if await dead():
            break
        await asyncio.sleep(0.1)
    assert await dead() and await peeked(factory, here) == []


# ---- the frames of SDKs whose transactions cross entities


async def test_the_frames_of_dotnet_across_entities(
    client: LoadConnection, factory: MessagingFactory, names: Names
) -> None:
    """One session for all links. A coordinator comes first and is never used; a second one declares."""
    here, there = names.take("regular"), names.take("partitioned")
    wire = WireSession(client, new=True)
    await wire.coordinator()
    receiver = await wire.receiver(f"/{here}", 1)
    sender, source = await wire.sender(f"/{there}"), await wire.sender(f"/{here}")
    coordinator = await wire.coordinator()
    await source.send(message("question"))
    delivery = await receiver.take()
    txn = await coordinator.declare()
    assert code_and_txn(await receiver.settle(delivery, txn)) == (ACCEPTED, txn)
    assert code_and_txn(await sender.send(message("answer"), txn)) == (ACCEPTED, txn)
    assert await peeked(factory, there) == []
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    (answer,) = await received(await factory.receiver(there), 1)
    assert text_of(answer) == "answer" and await peeked(factory, here) == []
    with pytest.raises(LinkRefused, match="amqp:not-allowed"):
        await wire.receiver(f"/{there}", 1)
    assert code_and_txn(await sender.send(message("direct")))[0] == ACCEPTED
    assert sorted(await peeked(factory, there)) == ["answer", "direct"]


async def test_the_frames_of_java_across_entities(
    client: LoadConnection, factory: MessagingFactory, names: Names
) -> None:
    """One session, with the management links on it before those to entities."""
    here, there = names.take("partitioned"), names.take("regular")
    wire = WireSession(client)
    coordinator = await wire.coordinator()
    await wire.management(there)
    receiver, sender, source = (
        await wire.receiver(here, 1),
        await wire.sender(there),
        await wire.sender(here),
    )
    await source.send(message("question", partition_key=KEY))
    delivery = await receiver.take()
    txn = await coordinator.declare()
    await receiver.settle(delivery, txn)
    assert condition(await sender.send(message("none"), txn)) == "amqp:not-allowed", "the outbox needs a key"
    assert code_and_txn(await sender.send(message("answer", partition_key=KEY), txn)) == (ACCEPTED, txn)
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    (answer,) = await received(await factory.receiver(there), 1)
    assert text_of(answer) == "answer"


async def test_a_link_ends_with_its_destination(server: Busbar, client: LoadConnection, names: Names) -> None:
    here, there = names.take("regular"), names.take("regular")
    sender = await WireSession(client).sender(here, destination=there)
    await Administration(server, asynchronous=False).delete_queue(there)
    await until(lambda: sender.over)
