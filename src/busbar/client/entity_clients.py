"""Clients of a queue, a topic or a subscription: the senders and receivers of one entity under one name.

Each client has its own links, its own batches and its own cache of prefetched messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from busbar.client.message_receiver import MessageReceiver, ReceiveMode
from busbar.client.message_sender import MessageSender

if TYPE_CHECKING:
    from busbar.client.factory import MessagingFactory


class QueueClient:
    """Sends to a queue and receives from it. MessagingFactory.queue_client creates it."""

    def __init__(
        self,
        factory: MessagingFactory,
        path: str,
        *,
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> None:
        self.path = path
        self.sender = MessageSender(factory, path)
        self.receiver = MessageReceiver(
            factory, path, path, receive_mode=receive_mode, prefetch_count=prefetch_count
        )
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

    async def close(self) -> None:
        """Send and complete what waits, and close the links."""
        await self.sender.close()
        await self.receiver.close()

    async def __aenter__(self) -> QueueClient:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


class TopicClient(MessageSender):
    """Sends to a topic. MessagingFactory.topic_client creates it."""


class SubscriptionClient(MessageReceiver):
    """Receives from a subscription. MessagingFactory.subscription_client creates it."""
