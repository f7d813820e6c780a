"""The link on which a client declares transactions and discharges them.

Rules:
1. The link needs no token, since the Java client attaches it before it puts one. A declare needs a grant.
2. Requests are answered: one that the client has settled itself ends the link.
3. A discharge that commits waits until fragments have answered for all operations. Then it looks at the rights again and
   becomes one Transact. It is accepted when that is durable. Operations that came together with it are not asked for
   before: if the Transact is refused, they are, so that each gets the answer that is its own.
4. If the Transact is refused, the answer is amqp:transaction:rollback with the cause in its text. If its outcome is not
   known, the answer is com.microsoft:server-busy: the transaction may be committed or not.
5. Rule changes are one change of the catalogue, made at the discharge.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from busbar.amqp.errors import ProtocolError
from busbar.amqp.events import Delivery
from busbar.amqp.link import Link
from busbar.amqp.transactions import DECLARE, CoordinatorRequest, coordinator_request
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.amqp.transactions import Joining, TransactionOutcome
from busbar.model.commands import Transact
from busbar.model.effects import Effect, Refused
from busbar.model.errors import (
    BusbarError,
    InvalidOperation,
    NotImplementedHere,
    ServerBusy,
    TransactionRolledBack,
    Unauthorized,
    error_of,
)
from busbar.partitions.transaction import Operation, RightOn, Transaction
from busbar.partitions.transaction_parts import fragments_of, merged_parts

CREDIT = 100
MAX_REQUEST = 4 * 1024
ID_BYTES = 16
IDS_AT_ONCE = 64
IN_DOUBT = "It is not known whether the transaction was committed: it may or may not be. {}"


class CoordinatorLink:
    """Client to coordinator."""

    def __init__(self, peer: LinkConnection, link: Link) -> None:
        self._peer = peer
        self._link = link
        self._random = b""  # for ids

    def opened(self, now: int) -> None:
        self._link.grant(CREDIT)

    def closed(self) -> None:
        """Roll back the open transactions of this link."""
        self._peer.transactions.coordinator_closed(self._link)

    def arrived(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.settled:
                text = (
                    "A declare or discharge has to be sent unsettled: its answer is part of the transaction."
                )
                self._peer.end_link(self._link, InvalidOperation.condition, text)
                return
            try:
                self._perform(delivery)
            except BusbarError as error:
                self._peer.service.refusals.add(error.condition)
                self._link.reject_delivery(delivery.id, error.condition, error.text)
            except ProtocolError as wrong:
                self._link.reject_delivery(delivery.id, wrong.condition, wrong.description)
        if self._link.credit <= CREDIT // 2:
            self._link.grant(CREDIT)

    def _perform(self, delivery: Delivery) -> None:
        if delivery.oversized:
            raise ProtocolError(
                "amqp:decode-error", f"A request to a coordinator has at most {MAX_REQUEST} bytes."
            )
        request = coordinator_request(delivery.payload)
        if request.code == DECLARE:
            self._declare(delivery.id, request)
        else:
            self._discharge(delivery.id, request)

    def _declare(self, delivery_id: int, request: CoordinatorRequest) -> None:
        if request.has_global_id:
            raise NotImplementedHere("A declare cannot name a global transaction: transactions are local.")
        if not self._peer.is_authenticated:
            raise Unauthorized("A transaction cannot be declared before a token was put to $cbs.")
        id = self._new_id()
        self._peer.transactions.declare(self._link, id, self._peer.origin)
        self._link.declared(delivery_id, id)

    def _new_id(self) -> bytes:
        if not self._random:
            self._random = secrets.token_bytes(ID_BYTES * IDS_AT_ONCE)
        id, self._random = self._random[:ID_BYTES], self._random[ID_BYTES:]
        return id

    def _discharge(self, delivery_id: int, request: CoordinatorRequest) -> None:
        transactions = self._peer.transactions
        if request.fail and transactions.has_timed_out(request.txn):
            self._link.accept_deliveries([delivery_id])  # it is rolled back, as the client asked
            return
        transaction = transactions.find(request.txn)
        try:
            transaction.discharge(request.fail)
        except TransactionRolledBack:
            transactions.forget(request.txn)
            raise
        if request.fail:
            transactions.forget(request.txn)
            self._link.accept_deliveries([delivery_id])
        else:
            transactions.when_ready(transaction, _Commit(self._peer, self._link, delivery_id, transaction))


def _rights_of(operations: Sequence[Operation]) -> list[RightOn]:
    """All rights that the operations need, each once."""
    if len(operations) == 1:
        return operations[0].rights
    return sorted({right for operation in operations for right in operation.rights})


class _Commit:
    """A transaction on its way to the broker, and the discharge that is answered with its outcome."""

    def __init__(self, peer: LinkConnection, link: Link, delivery_id: int, transaction: Transaction) -> None:
        self._peer = peer
        self._link = link
        self._delivery_id = delivery_id
        self._transaction = transaction
        self._joined: list[Joining] = []

    def ready(self, joined: list[Joining]) -> None:
        self._joined = joined
        transaction = self._transaction
        operations = transaction.operations()
        if transaction.failure is not None:
            self._end(transaction.rolled_back())
            return
        for right, resource in _rights_of(operations):
            if not self._peer.may(right, resource):
                self._roll_back(Unauthorized(f"The transaction needs the right {right} on '{resource}'."))
                return
        if not operations:
            self._end(None)
        elif operations[0].rules:
            self._peer.spawn(self._change_rules())
        else:
            self._lead(fragments_of(operations))

    def _lead(self, fragments: list[int]) -> None:
        """Find the fragment that leads the commit: the only one, or that of the topic."""
        first = self._transaction.operations()[0]
        home = self._transaction.home
        if len(fragments) == 1:
            self._transact(fragments[0])
        elif home is not None:
            self._transact(home.fragments[first.index])
        else:
            self._peer.spawn(self._lead_by_topic(first.home, first.index))

    async def _lead_by_topic(self, path: str, index: int) -> None:
        try:
            topic = await self._peer.service.broker.entity(path)
        except BusbarError as error:
            self._roll_back(error)
        else:
            self._transact(topic.fragments[index])
        self._peer.flush()

    def _transact(self, leader: int) -> None:
        peer = self._peer
        parts = merged_parts(self._transaction.operations())
        peer.command(Transact(leader, peer.origin, peer.expect(self), parts))

    def answered(self, effect: Effect, now: int) -> None:
        if not isinstance(effect, Refused):
            self._end(None)
        elif effect.certain and not self._transaction.is_ready:
            self._ask_first()
        elif effect.certain:
            self._roll_back(error_of(effect.condition, effect.text))
        else:
            self._end(ServerBusy(IN_DOUBT.format(effect.text)))

    def _ask_first(self) -> None:
        """Ask the fragment for each operation that came with the discharge: at least one of them is refused."""
        joined, self._joined = self._joined, []
        self._peer.transactions.when_ready(self._transaction, self)
        for joining in joined:
            joining.ask()

    async def _change_rules(self) -> None:
        operations = self._transaction.operations()
        changes = [change for operation in operations for change in operation.rules]
        try:
            await self._peer.service.broker.change_rules(changes)
        except asyncio.CancelledError:
            raise
        except BusbarError as error:
            if error.certain:
                self._roll_back(error)
            else:
                self._end(ServerBusy(IN_DOUBT.format(error.text)))
        else:
            self._end(None)
        self._peer.flush()

    def _roll_back(self, cause: BusbarError) -> None:
        self._transaction.fail(cause)
        self._end(self._transaction.rolled_back())

    def _end(self, error: BusbarError | None) -> None:
        """Answer the operations that came with the discharge, and the discharge: the transaction is over."""
        for joining in self._joined:
            joining.accept()
        outcome = TransactionOutcome.ROLLED_BACK
        if error is None:
            outcome = TransactionOutcome.COMMITTED
        elif isinstance(error, ServerBusy):
            outcome = TransactionOutcome.IN_DOUBT
        self._peer.transactions.forget(self._transaction.id, outcome)
        if error is None:
            self._link.accept_deliveries([self._delivery_id])
        else:
            self._peer.service.refusals.add(error.condition)
            self._link.reject_delivery(self._delivery_id, error.condition, error.text)
