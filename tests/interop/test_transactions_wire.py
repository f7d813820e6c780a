"""Transactions on the wire: Qpid Proton, and the frames of the .NET and Java SDKs in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from proton import Delivery, Message, symbol
from proton.handlers import TransactionHandler
from proton.reactor import AtMostOnce

from busbar.amqp.outcomes import ACCEPTED, MODIFIED, REJECTED
from busbar.amqp.types import Array
from busbar.client import MessagingFactory
from busbar.message.decoded import decode_message
from busbar.message.lock_token import tag_to_uuid
from harness.amqp_driver import ABANDON, DEAD_LETTER, DEFER, LoadConnection, connect, sas_token
from harness.serving import Busbar
from harness.transaction_driver import WireSession, code_and_txn, condition, text
from tests.interop import transaction_fixtures as fixtures
from tests.interop.partitioned_queues import Names
from tests.interop.plain_amqp import PlainAmqp, ReceiveSecond, owned
from tests.interop.transactions import message, peeked

pytestmark = [
    pytest.mark.timeout(60),
    fixtures.SERVER,
]
UUID_CODE = 0x98
names, regular, either = fixtures.names, fixtures.regular, fixtures.either


@pytest_asyncio.fixture
async def factory(server: Busbar) -> AsyncIterator[MessagingFactory]:
    async with await MessagingFactory.connect(server.connection_string) as made:
        yield made


@pytest_asyncio.fixture
async def client(server: Busbar) -> AsyncIterator[LoadConnection]:
    connection = await connect(server.port, server.key)
    yield connection
    await connection.close()


# ---- Qpid Proton


class PlainTransaction(TransactionHandler):  # type: ignore[misc]  # proton has no types
    """A transaction of Proton's, whose outcomes are waited for."""

    def __init__(self, plain: PlainAmqp) -> None:
        self._plain = plain
        self.state = ""
        self.cause: Any = None
        connection: Any = plain.connection
        self.transaction = connection.container.declare_transaction(connection.conn, self)
        self._wait("declared", "declare failed")

    def on_transaction_declared(self, event: Any) -> None:
        self.state = "declared"

    def on_transaction_declare_failed(self, event: Any) -> None:
        self.state = "declare failed"

    def on_transaction_committed(self, event: Any) -> None:
        self.state = "committed"

    def on_transaction_aborted(self, event: Any) -> None:
        self.state = "aborted"

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.state = "commit failed"
        self.cause = event.delivery.remote.condition

    def _wait(self, *states: str) -> str:
        self._plain.pump(lambda: self.state in states)
        return self.state

    def send(self, sender: Any, text: str, key: str | None = None) -> Any:
        """Send a message in the transaction; the delivery with the broker's answer."""
        sent = Message(body=text.encode(), inferred=True)
        if key is not None:
            sent.annotations = {symbol("x-opt-partition-key"): key}
        delivery = self.transaction.send(sender.link, sent)
        self._plain.pump(lambda: delivery.settled)
        return delivery

    def accept(self, delivery: Any) -> None:
        self.transaction.accept(delivery)
        self._plain.pump(lambda: delivery.settled)

    def commit(self) -> str:
        self.transaction.commit()
        return self._wait("committed", "commit failed")

    def abort(self) -> str:
        self.transaction.abort()
        return self._wait("aborted")


@pytest.fixture
def plain(server: Busbar) -> Iterator[PlainAmqp]:
    client = PlainAmqp(server.port, server.key)
    yield client
    client.close()


def texts_of(plain: PlainAmqp, queue: str) -> list[str]:
    """Take all messages of a queue."""
    receiver: Any = plain.connection.create_receiver(queue, credit=100, options=AtMostOnce())
    found = []
    plain.listen(0.5)
    while receiver.fetcher.has_message:
        found.append(owned(receiver.fetcher.incoming.popleft()[0]).body.decode())
    receiver.close()
    return found


@pytest.mark.req("P20")
def test_proton_commits(plain: PlainAmqp, either: str) -> None:
    sender, receiver = plain.connection.create_sender(either), plain.receiver(either, 1, ReceiveSecond())
    tx = PlainTransaction(plain)
    assert tx.send(sender, "first", "k").remote_state == 0x34
    assert tx.commit() == "committed"
    _, delivery = plain.take(receiver)
    tx = PlainTransaction(plain)
    tx.accept(delivery)
    tx.send(sender, "second", "k")
    assert tx.commit() == "committed"
    receiver.close()
    assert texts_of(plain, either) == ["second"]


def test_proton_aborts(plain: PlainAmqp, either: str) -> None:
    sender = plain.connection.create_sender(either)
    tx = PlainTransaction(plain)
    tx.send(sender, "never", "k")
    assert tx.abort() == "aborted"
    assert texts_of(plain, either) == []


@pytest.mark.req("P20")
def test_proton_sends_with_another_key(plain: PlainAmqp, names: Names) -> None:
    queue = names.take("partitioned")
    sender = plain.connection.create_sender(queue)
    tx = PlainTransaction(plain)
    tx.send(sender, "1", "k")
    for key in (None, "other"):
        refused = tx.send(sender, "x", key)
        assert refused.remote_state == Delivery.REJECTED
        assert refused.remote.condition.name == "amqp:not-allowed"
    assert tx.commit() == "committed"
    assert texts_of(plain, queue) == ["1"]


def test_proton_hears_why_a_commit_failed(plain: PlainAmqp, names: Names) -> None:
    one, two = names.take("regular"), names.take("regular")
    here, there = (
        plain.connection.create_sender(one),
        plain.connection.create_sender(two, options=AtMostOnce()),
    )
    tx = PlainTransaction(plain)
    tx.send(here, "1")
    tx.transaction.send(there.link, Message(body=b"settled", inferred=True))
    assert tx.commit() == "commit failed"
    assert tx.cause.name == "amqp:transaction:rollback" and "top-level" in tx.cause.description
    assert texts_of(plain, one) == [] and texts_of(plain, two) == []


# ---- .NET


async def test_the_frames_of_dotnet(client: LoadConnection, factory: MessagingFactory, either: str) -> None:
    """A session for each link, a coordinator on another one, the txn-id on every management request of the scope."""
    sending, receiving, managing, coordinating = (WireSession(client, new=True) for _ in range(4))
    sender = await sending.sender(f"/{either}")
    assert code_and_txn(await sender.send(message("old", partition_key="k")))[0] == ACCEPTED
    receiver = await receiving.receiver(f"/{either}", 1)
    delivery = await receiver.take()
    management = await managing.management(either)
    coordinator = await coordinating.coordinator()
    txn, other = await coordinator.declare(), await coordinator.declare()
    assert txn != other
    status, _, body = await management.ask(
        "peek-message", {"from-sequence-number": 1, "message-count": 5}, txn
    )
    assert status == 200 and isinstance(body["messages"], list) and len(body["messages"]) == 1
    tokens = Array(UUID_CODE, [tag_to_uuid(delivery.tag)])
    assert (await management.ask("renew-lock", {"lock-tokens": tokens}, txn))[0] == 200
    assert code_and_txn(await sender.send(message("new", partition_key="k"), txn)) == (ACCEPTED, txn)
    assert code_and_txn(await receiver.settle(delivery, txn)) == (ACCEPTED, txn)
    assert code_and_txn(await sender.send(message("undone", partition_key="k"), other)) == (ACCEPTED, other)
    assert await peeked(factory, either) == ["old"]
    assert code_and_txn(await coordinator.discharge(other, fail=True)) == (ACCEPTED, None)
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    assert await peeked(factory, either) == ["new"]
    assert condition(await coordinator.discharge(txn)) == "amqp:transaction:unknown-id"
    assert "hasn't been declared yet" in text(await coordinator.discharge(txn))


@pytest.mark.parametrize(("state", "code"), [(ABANDON, MODIFIED), (DEFER, MODIFIED), (DEAD_LETTER, REJECTED)])
async def test_the_answer_has_the_outcome_of_the_settlement(
    client: LoadConnection, regular: str, state: bytes, code: int
) -> None:
    """SDKs compare the outcome with their own, and take an error in it for a refusal."""
    wire, coordinator = WireSession(client), await WireSession(client, new=True).coordinator()
    sender, receiver = await wire.sender(regular), await wire.receiver(regular, 1)
    await sender.send(message("1"))
    txn = await coordinator.declare()
    outcome = await receiver.settle(await receiver.take(), txn, state)
    assert code_and_txn(outcome) == (code, txn)
    assert outcome is not None and outcome.error is None
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)


async def test_a_rolled_back_message_is_settled_by_its_token(client: LoadConnection, regular: str) -> None:
    wire, coordinator = WireSession(client), await WireSession(client, new=True).coordinator()
    sender, receiver = await wire.sender(regular), await wire.receiver(regular, 1)
    management = await wire.management(regular)
    await sender.send(message("1"))
    delivery = await receiver.take()
    txn = await coordinator.declare()
    await receiver.settle(delivery, txn)
    await coordinator.discharge(txn, fail=True)
    settle: dict[str, object] = {
        "disposition-status": "completed",
        "lock-tokens": Array(UUID_CODE, [tag_to_uuid(delivery.tag)]),
    }
    assert (await management.ask("update-disposition", settle))[0] == 200
    assert (await management.ask("update-disposition", settle))[:2] == (
        410,
        "com.microsoft:message-lock-lost",
    )


# ---- Java


async def test_the_frames_of_java(server: Busbar, factory: MessagingFactory, either: str) -> None:
    """One session for all; the coordinator comes before the first token and before all links to entities."""
    loop = asyncio.get_running_loop()
    _transport, client = await loop.create_connection(lambda: LoadConnection(None), "127.0.0.1", server.port)
    await client.begun
    wire = WireSession(client)
    coordinator = wire.start_coordinator()
    resource = f"amqp://localhost:{server.port}/{either}"
    client.flush()
    assert await client.put_token(sas_token(resource, server.key), resource) == 202
    management = await wire.management(either)
    sender, receiver = await wire.sender(either), await wire.receiver(either, 1)
    await sender.send(message("old", partition_key="k"))
    delivery = await receiver.take()
    txn = await coordinator.declare()
    await receiver.settle(delivery, txn)
    await sender.send(message("new", partition_key="k"), txn)
    assert (await management.ask("peek-message", {"from-sequence-number": 1, "message-count": 5}, txn))[
        0
    ] == 200
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    assert await peeked(factory, either) == ["new"]
    await client.close()


# ---- sessions


@pytest.mark.parametrize("kind", ["regular", "partitioned"])
async def test_a_message_session_in_a_transaction(
    client: LoadConnection, factory: MessagingFactory, names: Names, kind: str
) -> None:
    """Settlement, reply and state of a session are one change."""
    queue = names.take(f"{kind}-sessions")
    wire, coordinator = WireSession(client), await WireSession(client, new=True).coordinator()
    sender, management = await wire.sender(queue), await wire.management(queue)
    await sender.send(message("question", session_id="s"))
    receiver = await wire.receiver(queue, 10, session="s")
    delivery = await receiver.take()
    state: dict[str, object] = {"session-id": "s", "session-state": b"answered"}
    for fail in (True, False):
        txn = await coordinator.declare()
        if fail:
            assert code_and_txn(await receiver.settle(delivery, txn)) == (ACCEPTED, txn)
        else:
            settle: dict[str, object] = {
                "disposition-status": "completed",
                "lock-tokens": Array(UUID_CODE, [tag_to_uuid(delivery.tag)]),
                "session-id": "s",
            }
            assert (await management.ask("update-disposition", settle, txn))[0] == 200
        assert (await management.ask("set-session-state", state, txn))[0] == 200
        await sender.send(message("answer", session_id="s"), txn)
        assert (await management.ask("get-session-state", {"session-id": "s"}, txn))[2][
            "session-state"
        ] is None
        assert await peeked(factory, queue) == ["question"]
        assert code_and_txn(await coordinator.discharge(txn, fail)) == (ACCEPTED, None)
    assert (await management.ask("get-session-state", {"session-id": "s"}))[2]["session-state"] == b"answered"
    assert decode_message((await receiver.take()).payload).data == b"answer"
    assert await peeked(factory, queue) == ["answer"]


async def test_a_closed_session_takes_its_locks_along(
    client: LoadConnection, factory: MessagingFactory, names: Names
) -> None:
    """The end of a working link is no rollback, but the locks of a session receiver end with it."""
    queue = names.take("regular-sessions")
    wire, coordinator = WireSession(client), await WireSession(client, new=True).coordinator()
    sender = await wire.sender(queue)
    await sender.send(message("1", session_id="s"))
    receiver = await wire.receiver(queue, 10, session="s")
    txn = await coordinator.declare()
    await receiver.settle(await receiver.take(), txn)
    await receiver.detach()
    await wire.receiver(queue, 0, session="s")  # it is free
    outcome = await coordinator.discharge(txn)
    assert condition(outcome) == "amqp:transaction:rollback" and "lock" in text(outcome)
    assert await peeked(factory, queue) == ["1"]


# ---- ReceiveAndDelete


@pytest.mark.req("B5")
async def test_transactions_need_peek_lock(client: LoadConnection, regular: str) -> None:
    wire, coordinator = WireSession(client), await WireSession(client, new=True).coordinator()
    sender, receiver = await wire.sender(regular), await wire.receiver(regular, 1, delete=True)
    await sender.send(message("1"))
    delivery = await receiver.take()
    assert delivery.settled
    txn = await coordinator.declare()
    outcome = await receiver.settle(delivery, txn)
    assert condition(outcome) == "amqp:not-allowed" and "PeekLock" in text(outcome)
    management = await wire.management(regular)
    deleting: dict[str, object] = {"sequence-numbers": [1], "receiver-settle-mode": 0}
    asked = await management.ask("receive-by-sequence-number", deleting, txn)
    assert asked[:2] == (400, "amqp:not-allowed")
    asked = await management.ask("batch-delete-messages", {"message-count": 1, "enqueued-time-utc": 1}, txn)
    assert asked[:2] == (400, "amqp:not-allowed")
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None), "it stays usable"
