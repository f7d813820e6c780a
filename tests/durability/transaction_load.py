"""Clients that work in transactions while servers and brokers are killed, and what must hold for their messages.

Three kinds of load, each on entities of its own:

    Transfers   A regular queue with message sessions. An order is a message in the session of a teller. In one transaction
                the teller completes the order and sends two postings, to the sessions of two accounts.
    Accounts    A partitioned queue with message sessions. A session is a branch, its messages are accounts with balances. In
                one transaction a teller replaces two accounts of a branch by two with other balances.
    Deliveries  Send via. In one transaction a client completes a message of a regular queue and sends one with the same
                id to a partitioned queue.

A transaction whose commit was accepted is done. One whose commit was not answered, or whose outcome the broker does not
know, is done or not. Every other one is not done. `faults` compares that with all messages that are stored.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

from busbar.amqp.events import Delivery
from busbar.amqp.outcomes import ACCEPTED, REJECTED, Outcome
from busbar.client import (
    NO_RETRY,
    BusbarClientError,
    MessagingFactory,
    Received,
    Sender,
    SendFailed,
    TransactionInDoubt,
)
from busbar.message.decoded import decode_message
from harness.amqp_driver import ConnectionOver, LinkRefused, connect
from harness.serving import Busbar, Properties
from harness.transaction_driver import Coordinator, Refused, WireReceiver, WireSender, WireSession
from tests.interop.transactions import manage, message, text_of

SERVER_BUSY = "com.microsoft:server-busy"
QUEUES: dict[str, Properties] = {
    "bank": {"RequiresSession": True, "LockDuration": "PT2S", "MaxDeliveryCount": 2000},
    "branches": {
        "RequiresSession": True,
        "EnablePartitioning": True,
        "LockDuration": "PT2S",
        "MaxDeliveryCount": 2000,
    },
    "outgoing": {"LockDuration": "PT2S", "MaxDeliveryCount": 2000},
    "delivered": {"EnablePartitioning": True},
}
LIMITS = {"min_lock_duration": 100}
TELLERS = 3
CREDIT = 100_000
"""More than the messages that a client receives on one link."""
ROLLED_BACK = 0.15
"""The share of transactions that a client rolls back before it does the same again."""


async def stored(factory: MessagingFactory, queue: str) -> list[str]:
    """The texts of all messages of a queue. While a broker is away, it waits."""
    texts: list[str] = []
    start = 1
    while True:
        asked: dict[str, object] = {"from-sequence-number": start, "message-count": 100}
        status, condition, body = await manage(factory, queue, "peek-message", asked)
        if status == 204:
            return texts
        if condition == SERVER_BUSY:
            await asyncio.sleep(0.1)
            continue
        for entry in body["messages"]:
            delivery = Delivery(0, b"", 0, entry["message"], True, None, False)
            start = Received(cast(Any, None), delivery).sequence_number + 1
            texts.append(_text(delivery))


class Load:
    """What the clients of one kind were told. `repeat` runs one of them until `stop`, on one connection after the other."""

    def __init__(self, server: Busbar, chance: random.Random) -> None:
        self.server = server
        self.chance = chance
        self.confirmed = 0
        self.unknown = 0
        self.rolled_back = 0
        self.stop = False
        self.perhaps: set[str] = set()
        """Orders whose send was not answered, because a broker was killed: they are stored or not."""

    async def store(self, sender: Sender, orders: dict[str, bytes]) -> bool:
        """Send orders; whether all are stored."""
        try:
            await sender.send([*orders.values()])
        except SendFailed:
            self.perhaps.update(orders)
            return False
        return True

    def clients(self) -> list[Awaitable[None]]:
        raise NotImplementedError

    async def repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        while not self.stop:
            try:
                await work()
            except asyncio.CancelledError:
                # The driver cancels the outcomes that a lost link owes.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
            except (BusbarClientError, ConnectionOver, LinkRefused, Refused, TimeoutError, OSError):
                pass
            await asyncio.sleep(0.1)

    def count(self, outcome: Outcome | None) -> bool:
        """Count the answer to a commit; whether it is done for certain."""
        if outcome is not None and outcome.code == ACCEPTED:
            self.unknown -= 1
            self.confirmed += 1
            return True
        if outcome is not None and outcome.error is not None and outcome.error.condition != SERVER_BUSY:
            self.unknown -= 1  # it is rolled back for certain
        return False

    def __str__(self) -> str:
        return (
            f"{type(self).__name__}: {self.confirmed} confirmed, {self.unknown} unknown, "
            f"{self.rolled_back} rolled back"
        )


class WireClient:
    """A message session of a queue, a sender and a coordinator on one connection."""

    def __init__(self, receiver: WireReceiver, sender: WireSender, coordinator: Coordinator) -> None:
        self.receiver = receiver
        self.sender = sender
        self.coordinator = coordinator

    @classmethod
    async def open(cls, port: int, queue: str, session: str) -> WireClient:
        wire = WireSession(await connect(port))
        try:
            receiver = await wire.receiver(queue, CREDIT, session=session)
            return cls(receiver, await wire.sender(queue), await wire.coordinator())
        except BaseException:
            wire.connection.abort()
            raise

    async def take(self, load: Load) -> Delivery | None:
        """The next message; None when the load stops."""
        while not self.receiver.deliveries:
            if self.receiver.over:
                raise ConnectionOver
            if load.stop:
                return None
            await asyncio.sleep(0.002)
        return self.receiver.deliveries.popleft()

    async def send(self, txn: bytes, *payloads: bytes) -> None:
        for outcome in await asyncio.gather(*(self.sender.send(payload, txn) for payload in payloads)):
            _require(outcome)

    async def complete(self, txn: bytes, *deliveries: Delivery) -> None:
        for delivery in deliveries:
            _require(await self.receiver.settle(delivery, txn))

    def close(self) -> None:
        self.receiver.connection.abort()


def _require(outcome: Outcome | None) -> None:
    if outcome is None or outcome.code == REJECTED:
        raise Refused(outcome)


class Transfers(Load):
    """Orders t0, t1, ... in the sessions of tellers, and postings in those of accounts."""

    ACCOUNTS = 8

    def __init__(self, server: Busbar, chance: random.Random) -> None:
        super().__init__(server, chance)
        self.ordered: set[str] = set()
        self.done: set[str] = set()

    def clients(self) -> list[Awaitable[None]]:
        return [self.repeat(lambda teller=number: self._work(teller)) for number in range(TELLERS)]  # type: ignore[misc]

    async def order(self, factory: MessagingFactory, count: int) -> None:
        sender = await factory.sender("bank")
        orders = {}
        for number in range(len(self.ordered), len(self.ordered) + count):
            payer, payee = self.chance.sample(range(self.ACCOUNTS), 2)
            text = f"t{number} order {payer} {payee} {self.chance.randrange(1, 1_000)}"
            orders[f"t{number}"] = message(text, session_id=f"teller-{number % TELLERS}")
            self.ordered.add(f"t{number}")
        if not await self.store(sender, orders):
            await asyncio.sleep(0.3)
            await self.order(factory, count)

    async def _work(self, teller: int) -> None:
        client = await WireClient.open(self.server.port, "bank", f"teller-{teller}")
        try:
            while (order := await client.take(self)) is not None:
                await self._transfer(client, order)
        finally:
            client.close()

    async def _transfer(self, client: WireClient, order: Delivery) -> None:
        id, _, payer, payee, amount = _text(order).split()
        postings = (
            message(f"{id} posting {payer} -{amount}", session_id=f"account-{payer}"),
            message(f"{id} posting {payee} {amount}", session_id=f"account-{payee}"),
        )
        if self.chance.random() < ROLLED_BACK:
            txn = await client.coordinator.declare()
            await client.send(txn, *postings)
            _require(await client.coordinator.discharge(txn, fail=True))
            self.rolled_back += 1
        txn = await client.coordinator.declare()
        await client.send(txn, postings[0])
        await client.complete(txn, order)
        await client.send(txn, postings[1])
        self.unknown += 1
        if self.count(await client.coordinator.discharge(txn)):
            self.done.add(id)

    async def open_orders(self, factory: MessagingFactory) -> int:
        return len([text for text in await stored(factory, "bank") if " order " in text])

    async def faults(self, factory: MessagingFactory) -> list[str]:
        """Money that was made or lost, transfers that are half done, and those that are not what clients were told."""
        orders: Counter[str] = Counter()
        postings: dict[str, list[int]] = {}
        for text in await stored(factory, "bank"):
            id, kind, *rest = text.split()
            if kind == "order":
                orders[id] += 1
            else:
                postings.setdefault(id, []).append(int(rest[1]))
        found = []
        for id in sorted(self.ordered):
            amounts = postings.pop(id, [])
            if not orders[id] and not amounts and id in self.perhaps:
                continue
            if (orders[id], len(amounts)) not in ((1, 0), (0, 2)) or sum(amounts) != 0:
                found.append(f"{id} has {orders[id]} orders and the postings {amounts}")
            elif id in self.done and not amounts:
                found.append(f"{id} was confirmed and is not done")
        return [*found, *(f"{id} was never ordered" for id in postings)]


class Accounts(Load):
    """Accounts with a name, a balance and the number of their transfers, in the sessions of branches."""

    BRANCHES, ACCOUNTS, BALANCE = 3, 6, 1_000

    def clients(self) -> list[Awaitable[None]]:
        return [self.repeat(lambda branch=number: self._work(branch)) for number in range(self.BRANCHES)]  # type: ignore[misc]

    async def order(self, factory: MessagingFactory) -> None:
        sender = await factory.sender("branches")
        for branch in range(self.BRANCHES):
            fresh = (f"a{number} {self.BALANCE} 0" for number in range(self.ACCOUNTS))
            await sender.send([message(f"{branch} {text}", session_id=f"branch-{branch}") for text in fresh])

    async def _work(self, branch: int) -> None:
        client = await WireClient.open(self.server.port, "branches", f"branch-{branch}")
        try:
            here: dict[str, Delivery] = {}
            while (account := await client.take(self)) is not None:
                here[_text(account).split()[1]] = account
                if len(here) == self.ACCOUNTS:
                    await self._transfer(
                        client, *(here.pop(name) for name in self.chance.sample(sorted(here), 2))
                    )
        finally:
            client.close()

    async def _transfer(self, client: WireClient, payer: Delivery, payee: Delivery) -> None:
        amount = self.chance.randrange(1, 500)
        replaced = (_moved(payer, -amount), _moved(payee, amount))
        if self.chance.random() < ROLLED_BACK:
            txn = await client.coordinator.declare()
            await client.send(txn, *replaced)
            _require(await client.coordinator.discharge(txn, fail=True))
            self.rolled_back += 1
        txn = await client.coordinator.declare()
        await client.complete(txn, payer)
        await client.send(txn, *replaced)
        await client.complete(txn, payee)
        self.unknown += 1
        self.count(await client.coordinator.discharge(txn))

    async def faults(self, factory: MessagingFactory) -> list[str]:
        """Accounts that were lost or doubled, money that was made or lost, and transfers that were not counted."""
        branches: dict[str, list[tuple[str, int, int]]] = {}
        for text in await stored(factory, "branches"):
            branch, name, balance, transfers = text.split()
            branches.setdefault(branch, []).append((name, int(balance), int(transfers)))
        found = []
        names = [f"a{number}" for number in range(self.ACCOUNTS)]
        for branch, accounts in branches.items():
            if sorted(name for name, _, _ in accounts) != names:
                found.append(f"branch {branch} has {accounts}")
            if sum(balance for _, balance, _ in accounts) != self.ACCOUNTS * self.BALANCE:
                found.append(f"the money of branch {branch} is not conserved: {accounts}")
        counted = sum(transfers for accounts in branches.values() for _, _, transfers in accounts)
        if not 2 * self.confirmed <= counted <= 2 * (self.confirmed + self.unknown) or counted % 2:
            found.append(f"{counted} halves of transfers, {self.confirmed} confirmed, {self.unknown} unknown")
        if len(branches) != self.BRANCHES:
            found.append(f"{len(branches)} branches are left")
        return found


def _moved(account: Delivery, amount: int) -> bytes:
    """The account with another balance, as a message of the same session."""
    branch, name, balance, transfers = _text(account).split()
    text = f"{branch} {name} {int(balance) + amount} {int(transfers) + 1}"
    return message(text, session_id=f"branch-{branch}")


def _text(delivery: Delivery) -> str:
    data = decode_message(delivery.payload).data
    assert data is not None
    return data.decode()


class Deliveries(Load):
    """Messages d0, d1, ... that are received from one queue and sent to another one through it."""

    def __init__(self, server: Busbar, chance: random.Random) -> None:
        super().__init__(server, chance)
        self.ordered: set[str] = set()
        self.done: set[str] = set()

    def clients(self) -> list[Awaitable[None]]:
        return [self.repeat(self._work) for _ in range(2)]

    async def order(self, factory: MessagingFactory, count: int) -> None:
        sender = await factory.sender("outgoing")
        ids = [f"d{number}" for number in range(len(self.ordered), len(self.ordered) + count)]
        self.ordered.update(ids)
        if not await self.store(sender, {id: message(id) for id in ids}):
            await asyncio.sleep(0.3)
            await self.order(factory, count)

    async def _work(self) -> None:
        async with await MessagingFactory.connect(
            self.server.connection_string, retry=NO_RETRY, operation_timeout=10
        ) as factory:
            receiver, sender = await factory.receiver("outgoing", credit=4), await factory.sender("delivered")
            while not self.stop:
                for each in await receiver.receive(4, 0.2):
                    id = text_of(each)
                    tx = factory.transaction(via="outgoing")
                    await tx.begin()
                    await receiver.complete([each], transaction=tx)
                    await sender.send([message(id, partition_key=id)], transaction=tx)
                    if self.chance.random() < ROLLED_BACK:
                        await tx.rollback()
                        self.rolled_back += 1
                        continue  # it comes again when its lock ends
                    self.unknown += 1
                    with suppress(TransactionInDoubt):
                        await self._commit(tx.commit)
                        self.done.add(id)

    async def _commit(self, commit: Callable[[], Awaitable[None]]) -> None:
        try:
            await commit()
        except TransactionInDoubt:
            raise
        except BusbarClientError:
            self.unknown -= 1
            raise
        self.unknown -= 1
        self.confirmed += 1

    async def open_orders(self, factory: MessagingFactory) -> int:
        return len(self.ordered - self.perhaps - {*await stored(factory, "delivered")})

    async def faults(self, factory: MessagingFactory) -> list[str]:
        """Messages that arrived twice, or that were sent on and are still in their queue."""
        here, there = Counter(await stored(factory, "outgoing")), Counter(await stored(factory, "delivered"))
        found = [f"{id} arrived {count} times" for id, count in there.items() if count > 1]
        found += [f"{id} is in both queues" for id in here if there[id]]
        found += [f"{id} was confirmed and is not completed" for id in self.done if here[id]]
        return [*found, *(f"{id} was never sent" for id in there if id not in self.ordered)]
