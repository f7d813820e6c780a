"""One connection to a namespace, opened again when it is lost, and the clients on it.

    factory = await MessagingFactory.connect("Endpoint=sb://...")
    sender = await factory.sender("orders")
    await sender.send([encode(OutgoingMessage(b"..."))])

Senders, receivers and taps share the connection, and attach their links when they need them. If a link was lost, or the
broker closed it because it was idle, the next call attaches another one.
"""

from __future__ import annotations

import asyncio
import ssl
import uuid
from pathlib import Path
from weakref import WeakSet, WeakValueDictionary

from busbar.client.connection import ClientConnection
from busbar.client.connection_string import parse_connection_string
from busbar.client.entity_clients import QueueClient, SubscriptionClient, TopicClient
from busbar.client.management import EntityManagement, SessionView
from busbar.client.message_receiver import MessageReceiver, ReceiveMode
from busbar.client.message_sender import MessageSender
from busbar.client.processor import Handler, HandlerSettings, OnError, Processor, log_error
from busbar.client.receiver import Receiver
from busbar.client.requests import RequestNode
from busbar.client.retry import Retry
from busbar.client.sender import Sender, Writer
from busbar.client.session_processor import SessionProcessor, SessionSettings
from busbar.client.session_receiver import SessionReceiver
from busbar.client.taps import Taps
from busbar.client.tokens import Tokens
from busbar.client.transactions import ClientTransaction, CoordinatorEnd

BATCH_FLUSH_INTERVAL = 0.020
OPERATION_TIMEOUT = 60.0
LOCK_RENEWAL_DURATION = 300.0
SESSION_IDLE_TIMEOUT = 5.0
SUB_QUEUES = {
    "": "",
    "deadletter": "/$deadletterqueue",
    "transferdeadletter": "/$transfer/$deadletterqueue",
}


class MessagingFactory:
    """Owns the connection, which is opened by `connect` or when it is first used, and again when it was lost.

    `batch_flush_interval`: asynchronous sends and completions wait for each other for at most so many seconds (batching.py);
    0 switches that off. `operation_timeout` limits every wait for the broker, in seconds. `trust` is a file with the
    certificate authorities to trust, instead of the system's. Raises ValueError for an invalid connection string.
    """

    def __init__(
        self,
        connection_string: str,
        *,
        batch_flush_interval: float = BATCH_FLUSH_INTERVAL,
        operation_timeout: float = OPERATION_TIMEOUT,
        retry: Retry | None = None,
        name: str = "",
        trust: Path | None = None,
    ) -> None:
        if batch_flush_interval < 0 or operation_timeout <= 0:
            raise ValueError(
                f"batch_flush_interval is {batch_flush_interval:g} and operation_timeout {operation_timeout:g}; they are "
                "seconds, at least 0 and more than 0"
            )
        self.endpoint = parse_connection_string(connection_string)
        self.retry = retry or Retry()
        self.batch_flush_interval = batch_flush_interval
        self.operation_timeout = operation_timeout
        self._name = name or f"busbar-client-{uuid.uuid4().hex[:12]}"
        self._context: ssl.SSLContext | None = None
        if self.endpoint.tls:
            self._context = ssl.create_default_context(cafile=None if trust is None else str(trust))
        self._connection: ClientConnection | None = None
        self._tokens: Tokens | None = None
        self._nodes: dict[str, RequestNode] = {}
        self._coordinators: dict[str | None, CoordinatorEnd] = {}
        self._clients: WeakSet[MessageSender | MessageReceiver | QueueClient] = WeakSet()
        self._processors: WeakSet[Processor | SessionProcessor] = WeakSet()
        self._lock = asyncio.Lock()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._closed = False

    @classmethod
    async def connect(
        cls,
        connection_string: str,
        *,
        batch_flush_interval: float = BATCH_FLUSH_INTERVAL,
        operation_timeout: float = OPERATION_TIMEOUT,
        retry: Retry | None = None,
        name: str = "",
        trust: Path | None = None,
    ) -> MessagingFactory:
        """Make a factory and open its connection. Raises ValueError, CannotConnect."""
        factory = cls(
            connection_string,
            batch_flush_interval=batch_flush_interval,
            operation_timeout=operation_timeout,
            retry=retry,
            name=name,
            trust=trust,
        )
        await factory.retry.run(factory.connection)
        return factory

    async def connection(self) -> ClientConnection:
        """The open connection, or a new one."""
        async with self._lock:
            self._check()
            connection = self._connection
            if connection is None or connection.is_over:
                connection = await ClientConnection.open(
                    self.endpoint, self._name, self.operation_timeout, self._context
                )
                try:
                    self._check()
                except ValueError:  # it was closed meanwhile
                    await connection.close()
                    raise
                self._connection = connection
                self._tokens = Tokens(connection, self.operation_timeout)
                self._nodes = {}
                self._coordinators = {}
            return connection

    def _check(self) -> None:
        if self._closed:
            raise ValueError("the factory is closed")

    async def connection_for(self, entity: str) -> ClientConnection:
        """The connection, with a token for an entity."""
        connection = await self.connection()
        assert self._tokens is not None
        await self._tokens.grant(entity)
        return connection

    async def node(self, entity: str, address: str) -> RequestNode:
        """The node that answers requests at an address of an entity."""
        connection = await self.connection_for(entity)
        node = self._nodes.get(address)
        if node is None or node.error is not None:
            async with self._opening(address):
                node = self._nodes.get(address)
                if node is None or node.error is not None:
                    node = await RequestNode.open(connection, address, self.operation_timeout)
                    if connection is self._connection:
                        self._nodes[address] = node
        return node

    async def coordinator(self, via: str | None) -> CoordinatorEnd:
        """The coordinator link of the connection for transactions with this home, or a new one."""
        connection = await self.connection()
        assert self._tokens is not None
        if (
            via is not None or self._tokens.is_empty
        ):  # a transaction is declared by a client that has put some token
            await self._tokens.grant(via or self.endpoint.entity_path)
        async with self._opening(f"coordinator {via or ''}"):
            coordinator = self._coordinators.get(via)
            if (
                coordinator is None
                or coordinator.error is not None
                or coordinator.connection is not connection
            ):
                coordinator = await CoordinatorEnd.open(connection, via, self.operation_timeout)
                if connection is self._connection:
                    self._coordinators[via] = coordinator
            return coordinator

    def _opening(self, what: str) -> asyncio.Lock:
        """Held while a link for requests is opened. One that the broker is slow to answer holds up no others."""
        return self._locks.setdefault(what, asyncio.Lock())

    # ---- what is made here -----------------------------------------------------------------------

    async def sender(
        self, entity: str, *, writer: Writer | None = None, in_flight: int = 2_000, via: str | None = None
    ) -> Sender:
        """Create a sender to a queue or topic, with at most `in_flight` unanswered messages.

        With `via` the messages are stored in that queue or topic, which moves them on. Its transactions then concern `via`.
        """
        sender = Sender(self, entity.strip("/"), writer, in_flight, None if via is None else via.strip("/"))
        await self.retry.run(sender.attached)
        return sender

    async def receiver(
        self, entity: str, *, sub_queue: str = "", credit: int = 1_000, delete: bool = False
    ) -> Receiver:
        """A receiver of a queue or subscription, or of one of its dead-letter queues."""
        path = entity.strip("/")
        receiver = Receiver(self, path, path + _suffix(sub_queue), credit, delete)
        await self.retry.run(receiver.attached)
        return receiver

    async def taps(self, entity: str, *, sub_queue: str = "") -> Taps:
        """The taps of a queue or subscription, or of its dead-letter queue."""
        path = entity.strip("/")
        taps = Taps(self, path, f"{path}{_suffix(sub_queue)}/$management")
        await self.retry.run(taps.node)
        return taps

    def transaction(self, *, via: str | None = None) -> ClientTransaction:
        """A transaction, for `async with`. With `via` that queue, topic or subscription is its home: messages to other
        entities go through it."""
        return ClientTransaction(self, None if via is None else via.strip("/"))

    def message_sender(
        self, entity: str, *, via: str | None = None, resend_unanswered: bool = False
    ) -> MessageSender:
        """Make a sender to a queue or topic.

        `resend_unanswered` is for entities that detect duplicates: a message whose answer was lost is sent again.
        """
        target = None if via is None else via.strip("/")
        sender = MessageSender(self, entity.strip("/"), via=target, resend_unanswered=resend_unanswered)
        self._clients.add(sender)
        return sender

    def message_receiver(
        self,
        entity: str,
        *,
        sub_queue: str = "",
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> MessageReceiver:
        """Make a receiver of a queue or subscription, or of one of its dead-letter queues."""
        path = entity.strip("/")
        address = path + _suffix(sub_queue)
        receiver = MessageReceiver(
            self, path, address, receive_mode=receive_mode, prefetch_count=prefetch_count
        )
        self._clients.add(receiver)
        return receiver

    def queue_client(
        self,
        path: str,
        *,
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> QueueClient:
        """Make a client that sends to a queue and receives from it."""
        client = QueueClient(self, path.strip("/"), receive_mode=receive_mode, prefetch_count=prefetch_count)
        self._clients.add(client)
        return client

    def topic_client(self, path: str) -> TopicClient:
        """Make a client that sends to a topic."""
        client = TopicClient(self, path.strip("/"))
        self._clients.add(client)
        return client

    def subscription_client(
        self,
        topic: str,
        name: str,
        *,
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> SubscriptionClient:
        """Make a client that receives from a subscription."""
        path = subscription_path(topic, name)
        client = SubscriptionClient(
            self, path, path, receive_mode=receive_mode, prefetch_count=prefetch_count
        )
        self._clients.add(client)
        return client

    async def accept_session(
        self,
        entity: str,
        session_id: str | None = None,
        *,
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
        max_wait_time: float | None = None,
    ) -> SessionReceiver:
        """Accept a message session of a queue or subscription, or the next available one.

        Waits up to `max_wait_time` seconds (the `operation_timeout` without it) for one that is available. Raises
        OperationTimeout, SessionCannotBeLocked.
        """
        receiver = await SessionReceiver.accept(
            self,
            entity.strip("/"),
            session_id,
            receive_mode=receive_mode,
            prefetch_count=prefetch_count,
            wait=self.operation_timeout if max_wait_time is None else max_wait_time,
        )
        self._clients.add(receiver)
        return receiver

    async def list_sessions(self, entity: str) -> list[str]:
        """The ids of the sessions that have messages or a state."""
        path = entity.strip("/")
        return await EntityManagement(self, path, path).sessions()

    async def inspect_session(self, entity: str, session_id: str, *, with_state: bool = False) -> SessionView:
        """Who holds a message session, and its state, without holding it. Other brokers than Busbar refuse that."""
        path = entity.strip("/")
        return await EntityManagement(self, path, path).inspect_session(session_id, with_state=with_state)

    def processor(
        self,
        entity: str,
        handler: Handler,
        *,
        on_error: OnError = log_error,
        max_concurrent_calls: int = 1,
        max_lock_renewal_duration: float = LOCK_RENEWAL_DURATION,
        auto_complete: bool = True,
        sub_queue: str = "",
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> Processor:
        """Make a processor, which calls the handler for each message between `start` and `close`."""
        receiver = self.message_receiver(
            entity, sub_queue=sub_queue, receive_mode=receive_mode, prefetch_count=prefetch_count
        )
        settings = HandlerSettings(handler, on_error, auto_complete, max_lock_renewal_duration)
        processor = Processor(receiver, settings, max_concurrent_calls)
        self._processors.add(processor)
        return processor

    def session_processor(
        self,
        entity: str,
        handler: Handler,
        *,
        on_error: OnError = log_error,
        max_concurrent_sessions: int = 8,
        session_idle_timeout: float = SESSION_IDLE_TIMEOUT,
        max_lock_renewal_duration: float = LOCK_RENEWAL_DURATION,
        auto_complete: bool = True,
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> SessionProcessor:
        """Make a processor of message sessions."""
        sessions = SessionSettings(entity, receive_mode, prefetch_count, session_idle_timeout)
        settings = HandlerSettings(handler, on_error, auto_complete, max_lock_renewal_duration)
        processor = SessionProcessor(self, sessions, settings, max_concurrent_sessions)
        self._processors.add(processor)
        return processor

    async def close(self) -> None:
        """Send and complete what waits, and close all clients and the connection."""
        if not self._closed:
            await asyncio.gather(*[loops.close() for loops in list(self._processors)])
            closing = [client.close() for client in list(self._clients)]
            await asyncio.gather(*closing, return_exceptions=True)
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_over:
            await connection.close()

    async def __aenter__(self) -> MessagingFactory:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<MessagingFactory {self._name} at {self.endpoint.authority}>"


def subscription_path(topic: str, name: str) -> str:
    """The path of a subscription, as links name it."""
    return f"{topic.strip('/')}/Subscriptions/{name}"


def _suffix(sub_queue: str) -> str:
    suffix = SUB_QUEUES.get(sub_queue)
    if suffix is None:
        raise ValueError(
            f"the sub-queue {sub_queue!r} is not known; 'deadletter' and 'transferdeadletter' are, or '' for the queue "
            "itself"
        )
    return suffix
