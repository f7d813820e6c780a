"""Groups of sends or settlements, several at a time on one connection: each group in a transaction, or outside of one.

    load = await TransactionLoad.open(port, "queue")
    await load.send(groups=100, size=10, at_once=10, inside=True)

A group is sent at once. Inside, its transaction is declared before it, and the discharge is sent with it. The next group
follows when this one is answered: by the discharge, or by the outcomes of all its operations. What groups write in one turn
goes out at once, as with busbar.client.
"""

from __future__ import annotations

import asyncio

from busbar.amqp.outcomes import ACCEPTED, Outcome, transactional_state
from busbar.amqp.transactions import declare_message, discharge_message
from harness.amqp_driver import COMPLETE, LoadConnection, connect, payload_of
from harness.transaction_driver import Coordinator, WireReceiver, WireSender, WireSession

CREDIT = 2_000


class GroupRefused(Exception):
    """The broker refused an operation, or a discharge."""


class TransactionLoad:
    def __init__(self, connection: LoadConnection, entity: str, body: bytes) -> None:
        self.connection = connection
        self._entity = entity
        self._wire = WireSession(connection)
        self._payload = payload_of(body)
        self._coordinator: Coordinator | None = None
        self._sender: WireSender | None = None
        self._receiver: WireReceiver | None = None
        self._sent = 0
        self._wanted = 0  # messages that are still to be settled
        self._is_flushing = False

    def _grant(self) -> None:
        receiver = self._receiver
        assert receiver is not None
        receiver.link.grant(min(CREDIT, self._wanted - len(receiver.deliveries)))
        self._flush()

    def _flush(self) -> None:
        """Send what was written, at the end of this turn."""
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flushing = False
        self.connection.flush()

    @classmethod
    async def open(
        cls, port: int, entity: str, body: bytes, *, receives: bool = False, destination: str | None = None
    ) -> TransactionLoad:
        """Links to an entity: one that sends, via the entity if there is a destination, or one that receives."""
        load = cls(await connect(port), entity, body)
        if receives:
            load._receiver = await load._wire.receiver(entity, 0)
        else:
            load._sender = await load._wire.sender(entity, destination)
        load._coordinator = await WireSession(load.connection, new=True).coordinator()
        return load

    async def send(self, groups: int, size: int, at_once: int, inside: bool) -> None:
        await self._run(groups, size, at_once, inside, self._send_group)

    async def settle(self, groups: int, size: int, at_once: int, inside: bool) -> None:
        """Complete messages, each with a disposition of its own, as SDKs do. No more are received: others stay unlocked."""
        self._wanted = groups * size
        self._grant()
        await self._run(groups, size, at_once, inside, self._settle_group)

    async def _run(self, groups: int, size: int, at_once: int, inside: bool, run_group: object) -> None:
        assert callable(run_group)
        left = iter(range(groups))

        async def work() -> None:
            for _ in left:
                await run_group(size, await self._declare() if inside else None)

        await asyncio.gather(*[work() for _ in range(at_once)])

    async def _declare(self) -> bytes:
        assert self._coordinator is not None
        declared = self._coordinator.write(declare_message())
        self._flush()
        outcome = await declared
        if outcome is None or not outcome.txn:
            raise GroupRefused(outcome)
        return outcome.txn

    async def _send_group(self, size: int, txn: bytes | None) -> None:
        sender = self._sender
        assert sender is not None
        while sender.link.credit < size:  # another group may have used what came
            await sender.until(lambda: sender.link.credit >= size)
        numbers = range(self._sent, self._sent + size)
        self._sent += size
        tags = [number.to_bytes(4, "big") for number in numbers]
        answers = [sender.expect(tag) for tag in tags]
        state = b"" if txn is None else transactional_state(txn, b"")
        sender.link.deliver(tags, [self._payload(number) for number in numbers], False, 0, state)
        await self._finish(answers, txn)

    async def _settle_group(self, size: int, txn: bytes | None) -> None:
        receiver = self._receiver
        assert receiver is not None
        while len(receiver.deliveries) < size:  # another group may have taken what came
            await receiver.until(lambda: len(receiver.deliveries) >= size)
        ids = [receiver.deliveries.popleft().id for _ in range(size)]
        self._wanted -= size
        answers = [receiver.expect(delivery) for delivery in ids]
        state = COMPLETE if txn is None else transactional_state(txn, COMPLETE)
        for delivery in ids:
            receiver.link.dispose([delivery], state, False)
        if receiver.link.credit <= CREDIT // 2:
            self._grant()
        await self._finish(answers, txn)

    async def _finish(self, answers: list[asyncio.Future[Outcome | None]], txn: bytes | None) -> None:
        """Discharge the transaction of a group, and wait until the group is answered."""
        assert self._coordinator is not None
        if txn is not None:
            answers.append(self._coordinator.write(discharge_message(txn, False)))
        self._flush()
        for outcome in await asyncio.gather(*answers):
            if outcome is None or outcome.code != ACCEPTED:
                raise GroupRefused(outcome)
