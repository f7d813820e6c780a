"""The blocking clients of a soak: threads that send, receive, accept sessions and work in transactions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from busbar.client import BusbarClientError, OutgoingMessage, Received, Retry, TransactionInDoubt, blocking
from busbar.client.blocking import BlockingFactory
from busbar.client.blocking_messages import BlockingMessageReceiver, BlockingProcessor
from tests.durability.soak_journal import (
    ACKNOWLEDGED,
    COMMITTED,
    IN_DOUBT,
    ORDERS,
    REPLIES,
    ROLLED_BACK,
)
from tests.durability.soak_workers import (
    CALL_SECONDS,
    ROLLED_BACK_SHARE,
    SESSIONS,
    UNIQUE,
    WAIT_SECONDS,
    ProgramChanged,
    Soak,
    outcome_of,
)


class BlockingClients:
    """Two factories, on a connection each, and the threads that use them."""

    def __init__(self, soak: Soak, connection_string: str, retry: Retry, timeout: float) -> None:
        self._soak = soak
        self._factories = [
            blocking.connect(connection_string, retry=retry, operation_timeout=timeout) for _ in range(2)
        ]
        first, second = self._factories
        self._processor: BlockingProcessor = first.processor(
            UNIQUE, self._handle, max_concurrent_calls=3, prefetch_count=20
        )
        self._threads = [
            threading.Thread(
                target=self._run, args=(work, factory), name=f"soak-{work.__name__}", daemon=True
            )
            for work, factory in (
                (self._send, first),
                (self._receive, second),
                (self._work_on_sessions, second),
                (self._work_in_transactions, first),
            )
        ]

    def start(self) -> None:
        self._processor.start()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Wait for the threads, and close all clients."""
        for thread in self._threads:
            thread.join(CALL_SECONDS)
            if thread.is_alive():
                self._soak.journal.fault(f"{thread.name} has not ended within {CALL_SECONDS:g} s")
        with self._timed("close a blocking processor"):
            self._processor.close()
        for factory in self._factories:
            with self._timed("close a blocking factory"):
                factory.close()

    def _run(self, work: Callable[[BlockingFactory], None], factory: BlockingFactory) -> None:
        try:
            work(factory)
        except BaseException as error:
            self._soak.journal.fault(f"{work.__name__} ends with {error!r}")

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        """Measure a call. An error of the client is counted, and ends the block."""
        began = time.monotonic()
        try:
            yield
        except BusbarClientError as error:
            self._soak.failed(what, error)
        finally:
            self._soak.note_call(what, began)

    def _send(self, factory: BlockingFactory) -> None:
        soak = self._soak
        name = f"b{soak.sender_name()}"
        chance, number = soak.chance(name), 0
        with factory.message_sender(UNIQUE, resend_unanswered=True) as sender:
            while soak.is_sending:
                number += 1
                message = soak.message(chance, number, name, UNIQUE)
                outcome, began = ACKNOWLEDGED, time.monotonic()
                try:
                    sender.send_messages(message)
                except BusbarClientError as error:
                    outcome = outcome_of(error)
                    soak.failed("blocking send", error)
                soak.note_call("blocking send", began)
                soak.journal.sent(UNIQUE, str(message.message_id), outcome)
                time.sleep(chance.expovariate(1 / soak.pace))

    def _handle(self, message: Received) -> None:
        """The handler of the processor, which completes the message when this returns."""
        self._soak.received(UNIQUE, message)

    def _receive(self, factory: BlockingFactory) -> None:
        soak = self._soak
        chance = soak.chance("blocking receiver")
        with factory.message_receiver(UNIQUE, prefetch_count=30) as receiver:
            while soak.is_running:
                with self._timed("blocking receive"):
                    for message in receiver.receive_messages(10, WAIT_SECONDS):
                        soak.received(UNIQUE, message)
                        self._complete(receiver, UNIQUE, message)
                if soak.is_sending and chance.random() < 0.05:
                    time.sleep(chance.uniform(0.5, 7.0))

    def _complete(self, receiver: BlockingMessageReceiver, queue: str, message: Received) -> None:
        with self._timed("blocking complete"):
            receiver.complete_message(message)
            self._soak.journal.completed(queue, message.sequence_number)

    def _work_on_sessions(self, factory: BlockingFactory) -> None:
        soak = self._soak
        while soak.is_running:
            with (
                self._timed("blocking session"),
                factory.accept_session(SESSIONS, max_wait_time=0.5) as session,
            ):
                for message in session.receive_messages(5, 0.3):
                    soak.received(SESSIONS, message)
                    self._complete(session, SESSIONS, message)
                session.get_state()
            time.sleep(0.02)

    def _work_in_transactions(self, factory: BlockingFactory) -> None:
        soak = self._soak
        chance, attempts = soak.chance("blocking transactions"), 0
        with (
            factory.message_receiver(ORDERS) as receiver,
            factory.message_sender(REPLIES, via=ORDERS) as sender,
        ):
            while soak.is_running:
                with self._timed("blocking receive of an order"):
                    for message in receiver.receive_messages(1, WAIT_SECONDS):
                        soak.received(ORDERS, message)
                        attempts += 1
                        reply = OutgoingMessage(b"reply", message_id=f"{message.message_id}:b.{attempts}")
                        outcome = ROLLED_BACK
                        try:
                            with factory.transaction(via=ORDERS) as transaction:
                                receiver.complete_message(message, transaction=transaction)
                                sender.send_messages(reply, transaction=transaction)
                                if chance.random() < ROLLED_BACK_SHARE:
                                    raise ProgramChanged
                            outcome = COMMITTED
                        except TransactionInDoubt:
                            outcome = IN_DOUBT
                        except (BusbarClientError, ProgramChanged):
                            pass
                        soak.journal.discharged(str(message.message_id), str(reply.message_id), outcome)
