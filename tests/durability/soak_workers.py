"""The asynchronous clients of a soak: senders, processors, receivers, message sessions and transactions.

Every call of a client must end: with a result or with a BusbarClientError. One that takes longer than CALL_SECONDS, or ends
with another exception, is noted as a fault.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from busbar.client import (
    BusbarClientError,
    MessageContext,
    MessageReceiver,
    MessageSender,
    MessagingFactory,
    OperationTimeout,
    OutgoingMessage,
    Received,
    ReceiveMode,
    SendFailed,
    SessionReceiver,
    TransactionInDoubt,
)
from tests.durability.soak_journal import (
    ACKNOWLEDGED,
    COMMITTED,
    DELETED,
    IN_DOUBT,
    ORDERS,
    REFUSED,
    REPLIES,
    ROLLED_BACK,
    UNKNOWN,
    Journal,
)

PLAIN, UNIQUE, SESSIONS = "plain", "unique", "sessions"
SESSION_COUNT = 12
LARGEST_BODY = 12_000
WAIT_SECONDS = 1.0
CALL_SECONDS = 60.0
"""Longer than any call may take: the operation timeout, for each of its steps."""
ROLLED_BACK_SHARE = 0.1

T = TypeVar("T")


class ProgramChanged(Exception):
    """The program does not commit its transaction."""


class Soak:
    """What all clients share: the journal, the counts, and when to stop."""

    def __init__(self, journal: Journal, seed: int, pace: float) -> None:
        self.journal = journal
        self.seed = seed
        self.pace = pace
        """The mean pause of a sender after a message, in seconds."""
        self.is_sending = True
        self.is_running = True
        self.errors: Counter[str] = Counter()
        self.slowest: dict[str, float] = {}
        self.leaked: list[object] = []
        self.leaks = False
        self._senders = 0

    def chance(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def sender_name(self) -> str:
        self._senders += 1
        return f"{self._senders}"

    def note_call(self, what: str, began: float) -> None:
        took = time.monotonic() - began
        self.slowest[what] = max(took, self.slowest.get(what, 0.0))
        if took > CALL_SECONDS:
            self.journal.fault(f"{what} took {took:.1f} s")

    def failed(self, what: str, error: BusbarClientError) -> None:
        self.errors[f"{what}: {type(error).__name__}"] += 1

    async def call(self, what: str, call: Awaitable[T]) -> T:
        """The result of a call of the client, which must end."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await call
        except TimeoutError:
            self.journal.fault(f"{what} has not ended within {CALL_SECONDS:g} s")
            raise OperationTimeout("the soak has given up waiting") from None
        finally:
            self.note_call(what, began)

    def message(self, chance: random.Random, number: int, sender: str, queue: str) -> OutgoingMessage:
        body = bytes(chance.randrange(10, 200) if chance.random() < 0.9 else chance.randrange(LARGEST_BODY))
        session = str(chance.randrange(SESSION_COUNT)) if queue == SESSIONS else None
        return OutgoingMessage(body, message_id=f"{sender}-{number}", session_id=session)

    def received(self, queue: str, message: Received) -> None:
        self.journal.received(queue, message.message_id, message.sequence_number)
        if self.leaks:
            self.leaked.append([bytes(50_000), *([number] for number in range(100))])


def outcome_of(error: BusbarClientError) -> str:
    """Whether a send that failed may have been stored."""
    if isinstance(error, OperationTimeout) or (isinstance(error, SendFailed) and error.unknown):
        return UNKNOWN
    return REFUSED


async def send(soak: Soak, client: MessageSender, queue: str) -> None:
    """Send one message after the other."""
    name = soak.sender_name()
    chance, number = soak.chance(f"sender {name}"), 0
    while soak.is_sending:
        number += 1
        message = soak.message(chance, number, name, queue)
        try:
            await soak.call("send", client.send_messages(message))
            outcome = ACKNOWLEDGED
        except BusbarClientError as error:
            outcome = outcome_of(error)
            soak.failed("send", error)
        soak.journal.sent(queue, str(message.message_id), outcome)
        await asyncio.sleep(chance.expovariate(1 / soak.pace))


async def send_lists(soak: Soak, client: MessageSender, queue: str) -> None:
    """Send lists of messages: some may be stored, and others not."""
    name = soak.sender_name()
    chance, number = soak.chance(f"sender {name}"), 0
    while soak.is_sending:
        messages = [
            soak.message(chance, number + place, name, queue) for place in range(chance.randrange(1, 30))
        ]
        number += len(messages)
        outcomes = dict.fromkeys(range(len(messages)), ACKNOWLEDGED)
        try:
            await soak.call("send a list", client.send_messages(messages))
        except SendFailed as failed:
            outcomes |= dict.fromkeys(failed.failed, REFUSED) | dict.fromkeys(failed.unknown, UNKNOWN)
            soak.failed("send a list", failed)
        except BusbarClientError as error:
            outcomes = dict.fromkeys(outcomes, outcome_of(error))
            soak.failed("send a list", error)
        for place, message in enumerate(messages):
            soak.journal.sent(queue, str(message.message_id), outcomes[place])
        await asyncio.sleep(10 * chance.expovariate(1 / soak.pace))


def handler_of(soak: Soak, queue: str) -> Callable[[MessageContext], Awaitable[None]]:
    """A handler that completes its message itself, to note whether that was confirmed."""

    async def handle(context: MessageContext) -> None:
        message = context.message
        soak.received(queue, message)
        await soak.call("complete in a handler", context.complete_message())
        soak.journal.completed(queue, message.sequence_number)

    return handle


def on_error_of(soak: Soak) -> Callable[[BaseException], Awaitable[None]]:
    async def on_error(error: BaseException) -> None:
        if isinstance(error, BusbarClientError):
            soak.failed("processor", error)
        else:
            soak.journal.fault(f"a processor reports {error!r}")

    return on_error


async def complete(soak: Soak, client: MessageReceiver, queue: str, message: Received) -> None:
    try:
        await soak.call("complete", client.complete_message(message))
        soak.journal.completed(queue, message.sequence_number)
    except BusbarClientError as error:
        soak.failed("complete", error)


async def receive(soak: Soak, client: MessageReceiver, queue: str, *, slow: bool) -> None:
    """Receive and complete. A slow receiver pauses for seconds, while its prefetched messages wait."""
    chance = soak.chance(f"receiver of {queue}")
    while soak.is_running:
        try:
            messages = await soak.call(
                "receive", client.receive_messages(chance.randrange(1, 20), WAIT_SECONDS)
            )
        except BusbarClientError as error:
            soak.failed("receive", error)
            continue
        for message in messages:
            soak.received(queue, message)
        if client.receive_mode is ReceiveMode.PEEK_LOCK:
            await asyncio.gather(*[complete(soak, client, queue, message) for message in messages])
        if slow and soak.is_sending and chance.random() < 0.1:
            await asyncio.sleep(chance.uniform(0.5, 7.0))


async def work_on_sessions(soak: Soak, factory: MessagingFactory) -> None:
    """Accept the next session, work on it for a while, keep a state, and go on to the next."""
    chance = soak.chance("sessions")
    while soak.is_running:
        try:
            accepting = factory.accept_session(SESSIONS, prefetch_count=10, max_wait_time=WAIT_SECONDS)
            session = await soak.call("accept a session", accepting)
        except BusbarClientError as error:
            soak.failed("accept a session", error)
            await asyncio.sleep(0.1)
            continue
        try:
            await work_on(soak, session, chance.randrange(1, 5))
        except BusbarClientError as error:
            soak.failed("session", error)
        finally:
            await soak.call("close a session", session.close())


async def work_on(soak: Soak, session: SessionReceiver, rounds: int) -> None:
    for _ in range(rounds):
        for message in await soak.call("receive of a session", session.receive_messages(10, 0.3)):
            soak.received(SESSIONS, message)
            await complete(soak, session, SESSIONS, message)
        await soak.call("set a state", session.set_state(session.session_id.encode()))
        await soak.call("renew a session", session.renew_lock())


async def work_in_transactions(soak: Soak, factory: MessagingFactory) -> None:
    """Complete an order and send its reply via the queue of orders, in one transaction."""
    name = f"a{soak.sender_name()}"
    chance, attempts = soak.chance(f"transactions {name}"), 0
    receiver = factory.message_receiver(ORDERS)
    sender = factory.message_sender(REPLIES, via=ORDERS)
    while soak.is_running:
        try:
            messages = await soak.call("receive an order", receiver.receive_messages(1, WAIT_SECONDS))
        except BusbarClientError as error:
            soak.failed("receive an order", error)
            continue
        for message in messages:
            attempts += 1
            soak.received(ORDERS, message)
            reply = f"{message.message_id}:{name}.{attempts}"
            commits = chance.random() > ROLLED_BACK_SHARE
            outcome = await answer(soak, factory, receiver, sender, message, reply, commits)
            soak.journal.discharged(str(message.message_id), reply, outcome)


async def answer(
    soak: Soak,
    factory: MessagingFactory,
    receiver: MessageReceiver,
    sender: MessageSender,
    order: Received,
    reply: str,
    commits: bool,
) -> str:
    async def exchange() -> None:
        async with factory.transaction(via=ORDERS) as transaction:
            await receiver.complete_message(order, transaction=transaction)
            await sender.send_messages(OutgoingMessage(b"reply", message_id=reply), transaction=transaction)
            if not commits:
                raise ProgramChanged

    try:
        await soak.call("transaction", exchange())
        return COMMITTED
    except TransactionInDoubt as doubt:
        soak.failed("transaction", doubt)
        return IN_DOUBT
    except ProgramChanged:
        pass
    except BusbarClientError as error:
        soak.failed("transaction", error)
    try:  # it is still locked
        await soak.call("abandon an order", receiver.abandon_message(order))
    except BusbarClientError as error:
        soak.failed("abandon an order", error)
    return ROLLED_BACK


def deleting_receiver(factory: MessagingFactory) -> MessageReceiver:
    return factory.message_receiver(DELETED, receive_mode=ReceiveMode.RECEIVE_AND_DELETE)
