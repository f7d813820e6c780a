"""Operations of clients that join a transaction: settlements on links, and management requests.

Rules:
1. The rules of the transaction are checked first (partitions/transaction.py). Then the fragment is asked whether it could do
   the operation now (Probe). Nothing changes in the fragment before the discharge. For a rule the catalogue is asked.
2. The client is answered at once: with the same outcome in the transaction, or with the error. If the discharge came in the
   same turn, the commit is the check, and the answer comes with that of the discharge. A refused operation is no part of the
   transaction. Settlements of one read that name the same outcome are asked for together. If they are refused, each is asked
   for alone.
3. If the client has settled the delivery itself, it gets no answer. A refusal then fails the transaction.
4. A settlement that is refused because it concerns another fragment gives up its lock. It does not count as delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Protocol, TypeVar

from busbar.amqp.link import Link
from busbar.clock import wall_clock
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.message.lock_token import split_by_fragment
from busbar.model.api import EntityView, RuleChange
from busbar.model.commands import RELEASE, Command, Probe, Settle
from busbar.model.effects import Effect, Refused
from busbar.model.errors import ArgumentError, BusbarError, InternalError, MessageLockLost, error_of
from busbar.model.message import Overlay
from busbar.model.sas import LISTEN, MANAGE
from busbar.partitions.origin import CreditListener
from busbar.partitions.resolver import Locks
from busbar.partitions.transaction import Operation, OtherFragment, Transaction

T = TypeVar("T")
Settlement = tuple[int, int, Overlay | None]
"""The code of an outcome, the settlement it asks for (-1: none), and the properties it sets."""


class SettlingLink(CreditListener, Protocol):
    """A link whose deliveries are settled."""

    lost_error: ClassVar[type[BusbarError]]
    lost_text: ClassVar[str]


class EnlistedSettlement:
    """Deliveries of a link whose settlement joins a transaction."""

    __slots__ = ("_code", "_ids", "_is_answered", "_link", "_operation", "_owner", "_peer", "_transaction")

    def __init__(
        self, peer: LinkConnection, owner: SettlingLink, link: Link, ids: list[int], is_answered: bool
    ) -> None:
        self._peer = peer
        self._owner = owner
        self._link = link
        self._ids = ids
        self._is_answered = is_answered
        self._code = 0
        self._transaction: Transaction | None = None
        self._operation: Operation | None = None

    def begin(
        self,
        txn: bytes,
        entity: EntityView,
        resource: str,
        tags: list[bytes],
        read_outcome: Callable[[], Settlement],
        now: int,
    ) -> None:
        """Enlist the settlement and ask the fragment."""
        peer = self._peer
        locks = split_by_fragment(tags)
        try:
            self._transaction = transaction = peer.transactions.find(txn)
            self._code, action, overlay = read_outcome()
            if action < 0:
                raise ArgumentError(
                    "The disposition names a transaction and no outcome that settles a message."
                )
            operation = transaction.settle(entity, locks, action, overlay, (LISTEN, resource), now)
        except BusbarError as error:
            if len(self._ids) > 1:
                for delivery_id, tag in zip(self._ids, tags, strict=True):
                    self._of(delivery_id).begin(txn, entity, resource, [tag], read_outcome, now)
                return
            if isinstance(error, OtherFragment):
                release_locks(peer, locks)
            self.refuse(error)
            return
        self._operation = operation
        peer.transactions.join(transaction, operation, self)

    def ask(self) -> None:
        operation = self._operation
        assert operation is not None
        peer = self._peer
        peer.command(Probe(operation.parts[0].fragment, peer.origin, peer.expect(self), operation.parts))

    def accept(self) -> None:
        if self._is_answered and self._transaction is not None:
            self._link.confirm_in_txn(self._ids, self._code, self._transaction.id)
        self._owner.replenish(wall_clock())

    def _of(self, delivery_id: int, operation: Operation | None = None) -> EnlistedSettlement:
        """One of these deliveries."""
        part = EnlistedSettlement(self._peer, self._owner, self._link, [delivery_id], self._is_answered)
        part._code, part._transaction, part._operation = self._code, self._transaction, operation
        return part

    def answered(self, effect: Effect, now: int) -> None:
        transaction, operation = self._transaction, self._operation
        assert transaction is not None and operation is not None
        transactions = self._peer.transactions
        if isinstance(effect, Refused) and len(self._ids) > 1:
            for delivery_id, one in zip(self._ids, transaction.split(operation), strict=False):
                self._of(delivery_id, one).ask()
            return
        if isinstance(effect, Refused):
            error = error_of(effect.condition, effect.text)
            if isinstance(error, MessageLockLost):
                error = self._owner.lost_error(self._owner.lost_text)
            self._deny(error)
            transactions.withdrawn(transaction, operation, error, self._is_answered)
        else:
            self.accept()
            transactions.confirmed(transaction, operation)
            return
        self._owner.replenish(now)

    def refuse(self, error: BusbarError) -> None:
        """Refuse the settlement, which breaks a rule."""
        self._deny(error)
        if not self._is_answered and self._transaction is not None:
            self._transaction.fail(error)

    def _deny(self, error: BusbarError) -> None:
        self._peer.service.refusals.add(error.condition, len(self._ids))
        if self._is_answered:
            for delivery_id in self._ids:
                self._link.deny(delivery_id, error.condition, error.text)


def release_locks(peer: LinkConnection, locks: Sequence[Locks]) -> None:
    """Unlock messages; they do not count as delivered."""
    for fragment, _indexes, numbers, nonces in locks:
        peer.command(Settle(fragment, peer.origin, 0, RELEASE, numbers, nonces, None, False))


async def ask_fragment(
    peer: LinkConnection, transaction: Transaction, operation: Operation, command: Command | None = None
) -> Effect:
    """Ask the fragment of an enlisted operation whether it can be done, or send it `command`. Raises its refusal."""
    peer.transactions.enlisted(transaction)
    fragment = operation.parts[0].fragment

    def build(request: int) -> Command:
        if command is None:
            return Probe(fragment, peer.origin, request, operation.parts)
        command.request = request
        return command

    return await _confirmed(peer, transaction, operation, peer.ask(build))


async def change_rule(
    peer: LinkConnection, transaction: Transaction, entity: EntityView, change: RuleChange, resource: str
) -> None:
    """Have a rule of a subscription changed at the commit, if the catalogue could change it now. Raises its refusal."""
    before = transaction.changes_of_rule(change[0])
    operation = transaction.change_rule(entity, change, (MANAGE, resource), wall_clock())
    peer.transactions.enlisted(transaction)
    check = peer.service.broker.check_rules([*before, change])
    await _confirmed(peer, transaction, operation, check)


async def _confirmed(
    peer: LinkConnection, transaction: Transaction, operation: Operation, check: Awaitable[T]
) -> T:
    """Await the check of an enlisted operation. If it fails, the operation is no part of the transaction."""
    try:
        checked = await check
    except BusbarError as error:
        peer.transactions.withdrawn(transaction, operation, error, True)
        raise
    except asyncio.CancelledError:
        peer.transactions.withdrawn(transaction, operation, InternalError("cancelled"), True)
        raise
    peer.transactions.confirmed(transaction, operation)
    return checked
