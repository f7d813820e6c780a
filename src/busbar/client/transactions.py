"""Transactions: sends and settlements that are done together at the commit, or not at all.

    async with factory.transaction() as tx:
        await sender.send(messages, transaction=tx)
        await receiver.complete(received, transaction=tx)

1. The block commits when it is left, and rolls back when it is left by an exception. `commit` and `rollback` do so before.
2. An operation that the broker refuses raises, and is no part of the transaction. If the block catches the error, the rest
   is committed.
3. A transaction belongs to the connection on which it was declared. If that is lost first, the broker rolls back.
4. TransactionInDoubt: the outcome of a commit is not known. All of it was done, or nothing.
5. Messages whose settlement was rolled back are still locked. They can be settled again, by their lock tokens.
6. All operations concern one queue, or one topic with its subscriptions. With `via` that is the home of the transaction, and
   messages to other entities are sent through it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from busbar.amqp.outcomes import ACCEPTED, DECLARED, REJECTED, Outcome, transactional_state
from busbar.amqp.performatives import Terminus
from busbar.amqp.session import Session
from busbar.amqp.transactions import (
    LOCAL_TRANSACTIONS,
    MULTIPLE_SESSIONS,
    MULTIPLE_TRANSACTIONS,
    declare_message,
    discharge_message,
)
from busbar.client.connection import ClientConnection, LinkEnd
from busbar.client.errors import (
    BusbarClientError,
    ConnectionLost,
    OperationTimeout,
    TransactionInDoubt,
    TransactionUnknown,
    error_of,
)

if TYPE_CHECKING:
    from busbar.client.factory import MessagingFactory
    from busbar.client.receiver_link import ReceiverLink

CAPABILITIES = [LOCAL_TRANSACTIONS, MULTIPLE_TRANSACTIONS, MULTIPLE_SESSIONS]
SERVER_BUSY = "com.microsoft:server-busy"
SUBSCRIPTIONS = "/subscriptions/"


class CoordinatorEnd(LinkEnd):
    """Our end of a coordinator link, on an AMQP session of its own."""

    def __init__(self, connection: ClientConnection, session: Session) -> None:
        self.connection = connection
        self.error: BusbarClientError | None = None
        self._session = session
        self._asked = 0
        self._waiting: dict[bytes, asyncio.Future[Outcome | None]] = {}

    @classmethod
    async def open(cls, connection: ClientConnection, via: str | None, timeout: float) -> CoordinatorEnd:
        """A coordinator whose transactions have `via` for their home, or that of their first operation."""
        session = connection.begin_session()
        end = cls(connection, session)
        target = Terminus(None, coordinator=True, capabilities=CAPABILITIES)
        try:
            await connection.attach(end, session, "the coordinator", timeout, target=target)
            if via is not None:
                # The first link to an entity on a session with a coordinator names the via entity. Nothing comes on it.
                is_subscription = SUBSCRIPTIONS in via.lower()
                terminus = {"source" if is_subscription else "target": Terminus(via)}
                await connection.attach(_NamingLink(end), session, via, timeout, **terminus)
        except BaseException:
            connection.end_session(session)
            raise
        return end

    async def ask(self, payload: bytes, timeout: float) -> Outcome:
        """The outcome of a request. Raises ConnectionLost, OperationTimeout, or why the link ended."""
        if self.error is not None:
            raise self.error
        answer: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        tag = self._send(payload)
        self._waiting[tag] = answer
        try:
            async with asyncio.timeout(timeout):
                outcome = await answer
        except TimeoutError:
            raise OperationTimeout(f"The coordinator does not answer within {timeout:g} s.") from None
        finally:
            self._waiting.pop(tag, None)
        if outcome is None:
            raise BusbarClientError("The coordinator settled a request without an outcome.")
        return outcome

    def _send(self, payload: bytes) -> bytes:
        """Send a request. Returns the tag that its answer has."""
        self._asked += 1
        tag = self._asked.to_bytes(8, "big")
        self.link.deliver([tag], [payload], False)
        self.connection.touch()
        return tag

    def disposed(self, ids: list[int], tags: list[bytes], outcome: Outcome | None) -> None:
        for tag in tags:
            answer = self._waiting.get(tag)
            if answer is not None and not answer.done():
                answer.set_result(outcome)
            elif outcome is not None and outcome.code == DECLARED and outcome.txn:
                self._send(discharge_message(outcome.txn, True))  # the call that declared it has ended

    def ended(self, error: BusbarClientError) -> None:
        self.error = error
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        self.connection.end_session(self._session)  # the next coordinator has a session of its own


class _NamingLink(LinkEnd):
    """A link that names the via entity of a coordinator's session."""

    def __init__(self, coordinator: CoordinatorEnd) -> None:
        self._coordinator = coordinator

    def ended(self, error: BusbarClientError) -> None:
        """The name stays: transactions go on."""


class ClientTransaction:
    """Made by MessagingFactory.transaction."""

    def __init__(self, factory: MessagingFactory, via: str | None) -> None:
        self._factory = factory
        self._via = via
        self._coordinator: CoordinatorEnd | None = None
        self._id = b""
        self._settled: list[tuple[ReceiverLink, list[int]]] = []

    @property
    def is_open(self) -> bool:
        """Whether the transaction was declared, and neither committed nor rolled back."""
        return self._coordinator is not None

    async def begin(self) -> None:
        """Declare the transaction. Raises the broker's refusal."""
        if self._coordinator is not None or self._id:
            raise ValueError("a transaction is begun once; make another one")
        coordinator = await self._factory.coordinator(self._via)
        outcome = await coordinator.ask(declare_message(), self._factory.operation_timeout)
        if outcome.code != DECLARED or not outcome.txn:
            raise _refusal(outcome)
        self._id = outcome.txn
        self._coordinator = coordinator

    def state(self, connection: ClientConnection, outcome: bytes = b"") -> bytes:
        """The delivery state that names the transaction, with an outcome. Raises if it is over or of another connection."""
        if self._coordinator is None:
            raise TransactionUnknown("The transaction is not begun, or it is committed or rolled back.")
        if self._coordinator.connection is not connection:
            raise ConnectionLost("The connection of the transaction is lost: the broker has rolled it back.")
        return transactional_state(self._id, outcome)

    def settling(self, link: ReceiverLink, ids: list[int]) -> None:
        """Note deliveries that are settled in the transaction. If it is rolled back, they are still locked."""
        self._settled.append((link, ids))

    async def commit(self) -> None:
        """Do all of it. Raises TransactionRolledBack, TransactionTimeout or TransactionInDoubt."""
        coordinator = self._take()
        try:
            outcome = await coordinator.ask(
                discharge_message(self._id, False), self._factory.operation_timeout
            )
        except OperationTimeout as late:
            coordinator.connection.abort(ConnectionLost(late.text))
            raise TransactionInDoubt(f"The commit was not answered. {late.text}") from None
        except BusbarClientError as lost:
            raise TransactionInDoubt(f"The commit was not answered. {lost.text}", lost.condition) from None
        if outcome.code == ACCEPTED:
            return
        error = _refusal(outcome)
        if error.condition == SERVER_BUSY:
            raise TransactionInDoubt(error.text, error.condition)
        self._keep_locks()
        raise error

    async def rollback(self) -> None:
        """Do none of it. If the connection is lost, the broker has rolled back already."""
        coordinator = self._take()
        self._keep_locks()
        if coordinator.error is None:
            outcome = await coordinator.ask(
                discharge_message(self._id, True), self._factory.operation_timeout
            )
            if outcome.code != ACCEPTED:
                raise _refusal(outcome)

    def _take(self) -> CoordinatorEnd:
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is None:
            raise TransactionUnknown("The transaction is not begun, or it is committed or rolled back.")
        return coordinator

    def _keep_locks(self) -> None:
        for link, ids in self._settled:
            link.still_locked(ids)

    async def __aenter__(self) -> ClientTransaction:
        await self.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        if not self.is_open:
            return
        if kind is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except BusbarClientError:
            pass  # the exception that ended the block is more useful; without an answer the broker rolls back by itself


def _refusal(outcome: Outcome) -> BusbarClientError:
    error = outcome.error if outcome.code == REJECTED else None
    if error is None:
        return BusbarClientError(f"The coordinator answered with the outcome 0x{outcome.code:02x}.")
    return error_of(error.condition, error.description)
