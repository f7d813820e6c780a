"""The transactions of one client connection, and the scopes that its AMQP sessions give them.

Rules:
1. A transaction belongs to its connection: its id is good on all AMQP sessions of the connection, and on no other one.
2. It is rolled back when its coordinator link, the AMQP session of that link or the connection ends, and when its time is
   over. The ids of the last REMEMBERED ones that timed out are kept, so that their client learns why they are gone.
3. The end of any other link is no rollback.
4. An AMQP session crosses entities if a coordinator is attached on it before any link to an entity (`$cbs` and `$management`
   do not count). The first link to an entity that is not refused, in the order of attach frames, names the via entity: its
   top-level entity. A receiver there of another top-level entity is refused.
5. What open transactions keep is limited: for a connection, and for all connections of a gateway.
6. Operations that join a transaction wait for the end of the turn. If the discharge has come by then, and the transaction
   waits for nothing else, the commit checks them, and they are answered with it. Otherwise, fragments are asked for each.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

from busbar.amqp.link import Link
from busbar.amqp.session import Session
from busbar.gateway.address import NodeKind, node_of
from busbar.model.api import EntityView, FragmentApi
from busbar.model.errors import (
    BusbarError,
    InvalidOperation,
    QuotaExceeded,
    ServerBusy,
    TransactionTimeout,
    TransactionUnknown,
)
from busbar.model.limits import Limits
from busbar.model.names import above, key_of
from busbar.partitions.origin import Wakeable
from busbar.partitions.transaction import (
    ITEM_COST,
    OPERATION_COST,
    TIMEOUT,
    UNKNOWN,
    Operation,
    Transaction,
    TransactionScope,
    TransactionState,
)

REMEMBERED = 1_000


class TransactionOutcome(StrEnum):
    """How a transaction ended. The value is its label in the metrics."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    TIMED_OUT = "timed_out"
    IN_DOUBT = "in_doubt"


class GatewayTransactions:
    """The transactions of all connections of a gateway: how many are open, how others ended, and the bytes they keep."""

    def __init__(self) -> None:
        self.held = 0
        self.open = 0
        self.ended = dict.fromkeys(TransactionOutcome, 0)

    def end(self, outcome: TransactionOutcome) -> None:
        self.open -= 1
        self.ended[outcome] += 1

    def take(self, size: int, most: int) -> None:
        if self.held + size > most:
            raise ServerBusy(
                f"Open transactions hold {self.held} bytes; {most} are allowed. Try again later."
            )
        self.held += size

    def give_back(self, size: int) -> None:
        self.held -= size


class _ConnectionBytes:
    """What the open transactions of one connection keep; two messages always fit."""

    def __init__(self, limits: Limits, gateway: GatewayTransactions) -> None:
        self._most = max(
            limits.max_transaction_bytes, 2 * (limits.max_message_size + OPERATION_COST + ITEM_COST)
        )
        self._most_of_all = max(limits.max_all_transaction_bytes, self._most)
        self._gateway = gateway
        self._held = 0

    def take(self, size: int) -> None:
        if self._held + size > self._most:
            raise QuotaExceeded(
                f"Open transactions of this connection hold {self._held} bytes; with {size} more there would be more than "
                f"the {self._most} that are allowed."
            )
        self._gateway.take(size, self._most_of_all)
        self._held += size

    def give_back(self, size: int) -> None:
        self._held -= size
        self._gateway.give_back(size)


class Joining(Protocol):
    """An operation that has joined a transaction, and that the client has no answer to."""

    def ask(self) -> None:
        """Ask the fragment, if it has to agree, and answer the client."""

    def accept(self) -> None:
        """Answer the client: the operation is part of the transaction."""


class Discharge(Protocol):
    """The end of a transaction, which waits until fragments have answered for all its operations."""

    def ready(self, joined: list[Joining]) -> None:
        """Commit. Operations that have `joined` in this turn are answered with the commit."""


_NOTHING: Final[tuple[list[Operation], list[Joining]]] = ([], [])
"""What has joined a transaction in a turn in which nothing has."""


class SessionScope(TransactionScope):
    """An AMQP session as its transactions see it."""

    __slots__ = ("_named_by", "crosses", "has_entity_link", "in_order")

    def __init__(self) -> None:
        super().__init__()
        self.has_entity_link = False
        self.crosses = False
        """Whether a coordinator came before any link to an entity."""
        self.in_order = asyncio.Lock()
        """Links are decided in the order of their attach frames, as long as none has named the via entity."""
        self._named_by: Link | None = None

    async def name(self, link: Link, entity: EntityView, broker: FragmentApi) -> None:
        """Note the entity of a link: the first one names the via entity. Raises InvalidOperation."""
        top = above(entity.path)[-1]
        if self.via is None:
            self.via = entity if key_of(top) == key_of(entity.path) else await broker.entity(top)
            self._named_by = link
        elif link.sending and key_of(self.via.path) != key_of(top):
            raise InvalidOperation(
                f"The AMQP session has a coordinator and sends via '{self.via.path}', so '{top}' cannot be received from on "
                "it. Transactions settle messages of one top-level entity: use another session for others."
            )

    def forget(self, link: Link) -> None:
        """Drop a link that was refused: it has named nothing."""
        if self._named_by is link:
            self.via = None
            self._named_by = None


class ConnectionTransactions:
    """The open transactions of a connection. `wake_at` is the connection's timer."""

    def __init__(
        self,
        limits: Limits,
        gateway: GatewayTransactions,
        wake_at: Callable[[Wakeable, int], None],
    ) -> None:
        self._limits = limits
        self._gateway = gateway
        self._buffered = _ConnectionBytes(limits, gateway)
        self._wake_at: Callable[[Wakeable, int], None] | None = wake_at
        self._is_waking = False
        self._open: dict[bytes, Transaction] = {}
        self._coordinators: dict[bytes, Link] = {}
        self._waiting: dict[bytes, Discharge] = {}
        self._joined: dict[bytes, tuple[list[Operation], list[Joining]]] = {}
        self._discharged: list[bytes] = []
        self._timed_out: OrderedDict[bytes, None] = OrderedDict()
        self._scopes: dict[Session, SessionScope] = {}

    # ---- AMQP sessions ---------------------------------------------------------------------------

    def attaching(self, link: Link) -> None:
        """Note the attach frame of a link."""
        end = link.source if link.sending else link.target
        if end is None:
            return
        if end.coordinator:
            scope = self._scope(link.session)
            if not scope.has_entity_link:
                scope.crosses = True
        elif _is_entity(end.address):
            self._scope(link.session).has_entity_link = True

    def crossing(self, link: Link) -> SessionScope | None:
        """The scope of an AMQP session that crosses entities; None for any other."""
        scope = self._scopes.get(link.session)
        return scope if scope is not None and scope.crosses else None

    def _scope(self, session: Session) -> SessionScope:
        scope = self._scopes.get(session)
        if scope is None:
            scope = self._scopes[session] = SessionScope()
        return scope

    def session_ended(self, session: Session) -> None:
        """Drop the scope of an AMQP session that has ended. Its coordinator links end with it, each by itself."""
        self._scopes.pop(session, None)

    # ---- transactions ----------------------------------------------------------------------------

    def declare(self, coordinator: Link, id: bytes, origin: int) -> None:
        """Begin a transaction. Raises QuotaExceeded."""
        if len(self._open) >= self._limits.max_transactions:
            raise QuotaExceeded(
                f"The connection has {len(self._open)} open transactions; more are not allowed."
            )
        scope = self._scope(coordinator.session)
        self._open[id] = Transaction(id, origin, scope, self._limits, self._buffered)
        self._coordinators[id] = coordinator
        self._gateway.open += 1

    def find(self, id: bytes) -> Transaction:
        """The open transaction with this id. Raises TransactionUnknown or TransactionTimeout."""
        transaction = self._open.get(id)
        if transaction is not None:
            return transaction
        if id in self._timed_out:
            seconds = f"{self._limits.transaction_timeout / 1000:g}"
            raise TransactionTimeout(TIMEOUT.format(seconds))
        raise TransactionUnknown(UNKNOWN)

    def has_timed_out(self, id: bytes) -> bool:
        return id in self._timed_out

    def fail(self, id: bytes, error: BusbarError) -> None:
        """Fail a transaction because an operation was refused and its client gets no answer. It can only be rolled back."""
        transaction = self._open.get(id)
        if transaction is not None:
            transaction.fail(error)

    def enlisted(self, transaction: Transaction) -> None:
        """Note that an operation has joined the transaction: its time may have begun to run."""
        if not self._is_waking and self._wake_at is not None:
            self._is_waking = True  # all have the same time, so no later one is over before
            self._wake_at(self, transaction.deadline)

    def confirmed(self, transaction: Transaction, operation: Operation) -> None:
        """Note that a fragment can do what an operation asks for."""
        transaction.confirm(operation)
        self._probed(transaction)

    def withdrawn(
        self, transaction: Transaction, operation: Operation, error: BusbarError, is_answered: bool
    ) -> None:
        """Note that a fragment cannot do what an operation asks for."""
        transaction.withdraw(operation, error, is_answered)
        self._probed(transaction)

    def join(self, transaction: Transaction, operation: Operation, joining: Joining) -> None:
        """Note that an operation has joined the transaction in this turn."""
        self.enlisted(transaction)
        theirs = self._joined.get(transaction.id)
        if theirs is None:
            self._joined[transaction.id] = ([operation], [joining])
        else:
            theirs[0].append(operation)
            theirs[1].append(joining)

    def end_turn(self) -> None:
        """Continue with the operations that have joined transactions in this turn, and with the discharges that came."""
        if not self._joined and not self._discharged:
            return
        joined, self._joined = self._joined, {}
        discharged, self._discharged = self._discharged, []
        for id in discharged:
            discharge = self._waiting.get(id)
            operations, joinings = joined.get(id, _NOTHING)
            if discharge is not None and self._open[id].is_ready_with(operations):
                del self._waiting[id]
                joined.pop(id, None)
                discharge.ready(joinings)
        for _, others in joined.values():
            for joining in others:
                joining.ask()

    def request_begun(self, id: bytes) -> Transaction | None:
        """The transaction that a management request names; None if there is none. Its discharge waits for the request."""
        transaction = self._open.get(id)
        if transaction is not None:
            transaction.request_begun()
        return transaction

    def request_finished(self, transaction: Transaction, error: BusbarError | None) -> None:
        """Note that a management request that names the transaction was answered."""
        transaction.request_finished(error)
        self._probed(transaction)

    def _probed(self, transaction: Transaction) -> None:
        if transaction.is_ready:
            waiting = self._waiting.pop(transaction.id, None)
            if waiting is not None:
                waiting.ready([])

    def when_ready(self, transaction: Transaction, discharge: Discharge) -> None:
        """Call `discharge.ready` as soon as fragments have answered for all operations; at the end of the turn at once."""
        self._waiting[transaction.id] = discharge
        self._discharged.append(transaction.id)

    # ---- their end -------------------------------------------------------------------------------

    def forget(self, id: bytes, outcome: TransactionOutcome = TransactionOutcome.ROLLED_BACK) -> None:
        """Drop a transaction that is over, and count it."""
        transaction = self._open.pop(id, None)
        self._coordinators.pop(id, None)
        self._waiting.pop(id, None)
        if transaction is not None:
            transaction.end()
            self._gateway.end(outcome)

    def coordinator_closed(self, coordinator: Link) -> None:
        """Roll back the transactions of a coordinator link that has ended, but for those whose commit is under way."""
        self.end_turn()  # discharges that came before the end of the link are performed
        for id in [id for id, link in self._coordinators.items() if link is coordinator]:
            if not self._is_under_way(id):
                self.forget(id)

    def _is_under_way(self, id: bytes) -> bool:
        """Whether the broker was asked to commit, and has not answered."""
        return self._open[id].state is TransactionState.DISCHARGING and id not in self._waiting

    def wake(self, now: int) -> int:
        """Roll back the transactions whose time is over."""
        for transaction in [*self._open.values()]:
            if transaction.expire(now):
                self.forget(transaction.id, TransactionOutcome.TIMED_OUT)
                self._timed_out[transaction.id] = None
                if len(self._timed_out) > REMEMBERED:
                    self._timed_out.popitem(last=False)
        deadlines = [each.deadline for each in self._open.values() if each.deadline and each.is_running]
        self._is_waking = bool(deadlines)
        return min(deadlines, default=0)

    def close(self) -> None:
        """Roll back all transactions of a connection that is gone, but for those whose commit is under way."""
        for id in [*self._open]:
            is_in_doubt = self._is_under_way(id)
            self.forget(id, TransactionOutcome.IN_DOUBT if is_in_doubt else TransactionOutcome.ROLLED_BACK)
        self._joined.clear()
        self._scopes.clear()
        self._timed_out.clear()
        self._wake_at = None


def _is_entity(address: str | None) -> bool:
    """Whether a link to this address is one to an entity. One that names nothing will be refused."""
    try:
        return node_of(address).kind is NodeKind.ENTITY
    except BusbarError:
        return False
