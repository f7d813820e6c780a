"""Senders, receivers, sessions and processors for code that blocks. `blocking.connect` returns the factory that makes them.

Calls may come from any thread. A send and a completion go at once: they do not wait for others to share a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Self

from busbar.client.blocking_loop import LoopThread
from busbar.client.blocking_transaction import BlockingTransaction, awaited
from busbar.client.entity_clients import QueueClient
from busbar.client.message import OutgoingMessage
from busbar.client.message_receiver import DELETED_AT_A_TIME, MessageReceiver
from busbar.client.message_sender import Message, MessageSender
from busbar.client.processor import MessageContext, Processor
from busbar.client.received import PeekedMessage, Received
from busbar.client.session_processor import SessionProcessor
from busbar.client.session_receiver import SessionReceiver


class BlockingMessageSender:
    """MessageSender, without await."""

    def __init__(self, thread: LoopThread, sender: MessageSender) -> None:
        self._thread = thread
        self._sender = sender

    @property
    def entity(self) -> str:
        return self._sender.entity

    def send_messages(
        self, messages: Message | Sequence[Message], *, transaction: BlockingTransaction | None = None
    ) -> None:
        """Send a message, or several, at once."""
        self._thread.run(self._sender.send_at_once(messages, transaction=awaited(transaction)))

    def schedule_messages(
        self,
        messages: OutgoingMessage | Sequence[OutgoingMessage],
        schedule_time_utc: datetime,
        *,
        transaction: BlockingTransaction | None = None,
    ) -> list[int]:
        scheduling = self._sender.schedule_messages(
            messages, schedule_time_utc, transaction=awaited(transaction)
        )
        return self._thread.run(scheduling)

    def cancel_scheduled_messages(
        self, sequence_numbers: int | Sequence[int], *, transaction: BlockingTransaction | None = None
    ) -> None:
        self._thread.run(
            self._sender.cancel_scheduled_messages(sequence_numbers, transaction=awaited(transaction))
        )

    def close(self) -> None:
        self._thread.run(self._sender.close())

    def __enter__(self) -> BlockingMessageSender:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class BlockingMessageReceiver:
    """MessageReceiver, without await."""

    def __init__(self, thread: LoopThread, receiver: MessageReceiver) -> None:
        self._thread = thread
        self._receiver = receiver

    @property
    def entity(self) -> str:
        return self._receiver.entity

    def receive_messages(
        self, max_message_count: int = 1, max_wait_time: float | None = None
    ) -> list[Received]:
        return self._thread.run(self._receiver.receive_messages(max_message_count, max_wait_time))

    def complete_message(self, message: Received, *, transaction: BlockingTransaction | None = None) -> None:
        """Complete a message at once."""
        self._thread.run(self._receiver.complete_at_once(message, transaction=awaited(transaction)))

    def abandon_message(
        self,
        message: Received,
        properties: dict[str, object] | None = None,
        *,
        transaction: BlockingTransaction | None = None,
    ) -> None:
        self._thread.run(
            self._receiver.abandon_message(message, properties, transaction=awaited(transaction))
        )

    def defer_message(
        self,
        message: Received,
        properties: dict[str, object] | None = None,
        *,
        transaction: BlockingTransaction | None = None,
    ) -> None:
        self._thread.run(self._receiver.defer_message(message, properties, transaction=awaited(transaction)))

    def dead_letter_message(
        self,
        message: Received,
        *,
        reason: str = "",
        error_description: str = "",
        transaction: BlockingTransaction | None = None,
    ) -> None:
        self._thread.run(
            self._receiver.dead_letter_message(
                message,
                reason=reason,
                error_description=error_description,
                transaction=awaited(transaction),
            )
        )

    def renew_message_lock(self, message: Received) -> int:
        return self._thread.run(self._receiver.renew_message_lock(message))

    def renew_message_locks(self, messages: Sequence[Received]) -> None:
        self._thread.run(self._receiver.renew_message_locks(messages))

    def peek_messages(
        self,
        max_message_count: int = 1,
        *,
        sequence_number: int | None = None,
        session_id: str | None = None,
        state: str = "",
        body: bool = True,
    ) -> list[PeekedMessage]:
        return self._thread.run(
            self._receiver.peek_messages(
                max_message_count,
                sequence_number=sequence_number,
                session_id=session_id,
                state=state,
                body=body,
            )
        )

    def receive_deferred_messages(self, sequence_numbers: int | Sequence[int]) -> list[Received]:
        return self._thread.run(self._receiver.receive_deferred_messages(sequence_numbers))

    def delete_messages(
        self, max_message_count: int = DELETED_AT_A_TIME, *, before: datetime | None = None
    ) -> int:
        return self._thread.run(self._receiver.delete_messages(max_message_count, before=before))

    def purge_messages(self, *, before: datetime | None = None) -> int:
        return self._thread.run(self._receiver.purge_messages(before=before))

    def close(self) -> None:
        self._thread.run(self._receiver.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class BlockingQueueClient:
    """QueueClient, without await: a sender and a receiver of one queue."""

    def __init__(self, thread: LoopThread, client: QueueClient) -> None:
        self.path = client.path
        self.sender = BlockingMessageSender(thread, client.sender)
        self.receiver = BlockingMessageReceiver(thread, client.receiver)
        self.send_messages = self.sender.send_messages
        self.schedule_messages = self.sender.schedule_messages
        self.cancel_scheduled_messages = self.sender.cancel_scheduled_messages
        self.receive_messages = self.receiver.receive_messages
        self.complete_message = self.receiver.complete_message
        self.abandon_message = self.receiver.abandon_message
        self.defer_message = self.receiver.defer_message
        self.dead_letter_message = self.receiver.dead_letter_message
        self.renew_message_lock = self.receiver.renew_message_lock
        self.peek_messages = self.receiver.peek_messages
        self.receive_deferred_messages = self.receiver.receive_deferred_messages
        self.delete_messages = self.receiver.delete_messages
        self.purge_messages = self.receiver.purge_messages

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()

    def __enter__(self) -> BlockingQueueClient:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class BlockingSessionReceiver(BlockingMessageReceiver):
    """SessionReceiver, without await."""

    def __init__(self, thread: LoopThread, receiver: SessionReceiver) -> None:
        super().__init__(thread, receiver)
        self._session = receiver

    @property
    def session_id(self) -> str:
        return self._session.session_id

    @property
    def locked_until(self) -> int:
        """The end of the session lock in ms since 1970."""
        return self._session.locked_until

    @property
    def is_locked(self) -> bool:
        return self._session.is_locked

    def renew_lock(self) -> int:
        return self._thread.run(self._session.renew_lock())

    def get_state(self) -> bytes | None:
        return self._thread.run(self._session.get_state())

    def set_state(self, state: bytes | None, *, transaction: BlockingTransaction | None = None) -> None:
        self._thread.run(self._session.set_state(state, transaction=awaited(transaction)))


BlockingHandler = Callable[[Received], None]
"""Called in a thread for each message. If it returns, the message is completed; if it raises, abandoned."""


class HandlerThreads:
    """Threads for blocking handlers, one for each call at the same time."""

    def __init__(self, handler: BlockingHandler, count: int) -> None:
        self._handler = handler
        self._threads = ThreadPoolExecutor(max(1, count), "busbar-handler")

    async def handle(self, context: MessageContext) -> None:
        """Call the handler in a thread, and wait for it."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._handler, context.message)

    def close(self) -> None:
        self._threads.shutdown(wait=False)


class BlockingProcessor:
    """Processor or SessionProcessor, without await. Handlers run in threads of its own."""

    def __init__(
        self, thread: LoopThread, processor: Processor | SessionProcessor, threads: HandlerThreads
    ) -> None:
        self._thread = thread
        self._processor = processor
        self._threads = threads

    def start(self) -> None:
        self._thread.run(self._processor.start())

    def close(self) -> None:
        """Receive no more, and wait for the handlers that run."""
        self._thread.run(self._processor.close())
        self._threads.close()

    def __enter__(self) -> BlockingProcessor:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
