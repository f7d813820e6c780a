"""azure-servicebus, unmodified, behind one face: the synchronous client is called in threads, so that a test is
written once, with `await`, and runs with both clients.

No retries by default: what the broker does wrong once must be seen, not repaired by the client.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import azure.servicebus
import azure.servicebus.aio
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage

from tests.interop.queue_pool import QueuePool

SETTLEMENTS = ("complete", "abandon", "defer", "dead_letter")
"""What a receiver can do with a message; each has a method of its own: `complete_message` and so on."""

SUBSCRIPTION = "/Subscriptions/"
"""Between the names of a topic and of its subscription, where they are one path."""

_THREADS = ThreadPoolExecutor(64, thread_name_prefix="sdk")


async def in_thread(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(_THREADS, lambda: call(*args, **options))


class Handler:
    """A sender, receiver or lock renewer of either client: its methods are awaited, `raw` is the SDK's own object.

    The SDK takes half a second to open a link (it sleeps between its steps), so opening starts at once, as `with` does
    it, and goes on while the test does something else.
    """

    def __init__(self, raw: Any, *, asynchronous: bool, opens: bool) -> None:
        self.raw = raw
        self._asynchronous = asynchronous
        self._opening: asyncio.Future[Any] | None = None
        if opens:
            self._opening = asyncio.ensure_future(
                raw.__aenter__() if asynchronous else in_thread(raw.__enter__)
            )
            self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def opened(self) -> None:
        """The link is open, or the reason why not is raised."""
        if self._opening is not None:
            await self._opening

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.raw, name)

        async def call(*args: Any, **options: Any) -> Any:
            await self.opened()
            if not self._asynchronous:
                return await in_thread(method, *args, **options)
            result = method(*args, **options)
            return await result if inspect.isawaitable(result) else result

        return call

    async def __aiter__(self) -> AsyncIterator[ServiceBusReceivedMessage]:
        await self.opened()
        if self._asynchronous:
            async for message in self.raw:
                yield message
            return
        messages = iter(self.raw)
        while (message := await in_thread(next, messages, None)) is not None:
            yield message

    async def close(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])
        await (self.raw.close() if self._asynchronous else in_thread(self.raw.close))


class Farewells:
    """Handlers that are being closed while the next tests run."""

    def __init__(self) -> None:
        self._closing: set[asyncio.Future[Any]] = set()

    def add(self, handler: Handler) -> None:
        closing = asyncio.ensure_future(handler.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def finish(self) -> None:
        await asyncio.gather(*self._closing, return_exceptions=True)


class Azure:
    """A user's program: one client of the SDK and the senders and receivers it made."""

    def __init__(
        self, connection_string: str, farewells: Farewells, *, asynchronous: bool, retry_total: int = 0
    ) -> None:
        self._connection_string = connection_string
        self._farewells = farewells
        self._asynchronous = asynchronous
        self._retry_total = retry_total
        self._handlers: list[Handler] = []
        self._ready: dict[tuple[str, str], Handler] = {}
        self.queue = ""
        """A queue of its own whose sender and receiver are open already, if it was given one."""

    @property
    def _package(self) -> Any:
        return azure.servicebus.aio if self._asynchronous else azure.servicebus

    def client(self, connection_string: str = "") -> Any:
        return self._package.ServiceBusClient.from_connection_string(
            connection_string or self._connection_string, retry_total=self._retry_total
        )

    def adopt(self, queue: str, sender: Handler, receiver: Handler) -> None:
        """Take over a queue with its open handlers; the first call that asks for one gets it."""
        self.queue = queue
        self._ready = {(queue, "sender"): sender, (queue, "receiver"): receiver}
        self._handlers += [sender, receiver]

    def sender(self, queue: str, *, connection_string: str = "") -> Handler:
        """To a queue, or to the topic whose subscription this is."""
        if not connection_string and (queue, "sender") in self._ready:
            return self._ready.pop((queue, "sender"))
        client = self.client(connection_string)
        topic, below, _ = queue.partition(SUBSCRIPTION)
        return self._kept(client.get_topic_sender(topic) if below else client.get_queue_sender(queue))

    def topic(self, topic: str) -> Handler:
        """A sender."""
        return self._kept(self.client().get_topic_sender(topic))

    def receiver(self, queue: str, *, connection_string: str = "", **options: Any) -> Handler:
        """Of a queue, or of a subscription by its path."""
        if not options and not connection_string and (queue, "receiver") in self._ready:
            return self._ready.pop((queue, "receiver"))
        client = self.client(connection_string)
        topic, below, name = queue.partition(SUBSCRIPTION)
        if below:
            return self._kept(client.get_subscription_receiver(topic, name, **options))
        return self._kept(client.get_queue_receiver(queue, **options))

    def dead_letters(self, queue: str, **options: Any) -> Handler:
        return self.receiver(queue, sub_queue=azure.servicebus.ServiceBusSubQueue.DEAD_LETTER, **options)

    def once(self, queue: str, **options: Any) -> Handler:
        """A receiver in ReceiveAndDelete mode."""
        return self.receiver(
            queue, receive_mode=azure.servicebus.ServiceBusReceiveMode.RECEIVE_AND_DELETE, **options
        )

    def renewer(self, **options: Any) -> Handler:
        return self._kept(self._package.AutoLockRenewer(**options), opens=False)

    async def send(self, queue: str, *contents: Any, **options: Any) -> None:
        """Send each content (a message, or what makes one) in a transfer of its own.

        Nearly every test receives from that queue next: an ordinary receiver is opened meanwhile.
        """
        sender = self.sender(queue)
        if queue != self.queue and (queue, "receiver") not in self._ready:
            self._ready[queue, "receiver"] = self.receiver(queue)
        for content in contents:
            message = (
                content if isinstance(content, ServiceBusMessage) else ServiceBusMessage(content, **options)
            )
            await sender.send_messages(message)

    def kept(self, raw: Any) -> Handler:
        """One that the test made itself."""
        return self._kept(raw)

    def _kept(self, raw: Any, *, opens: bool = True) -> Handler:
        handler = Handler(raw, asynchronous=self._asynchronous, opens=opens)
        self._handlers.append(handler)
        return handler

    def forget(self, *handlers: Handler) -> None:
        """They are somebody else's to close."""
        self._handlers = [handler for handler in self._handlers if handler not in handlers]

    def leave(self) -> None:
        """Close everything, without waiting for it."""
        for handler in self._handlers:
            self._farewells.add(handler)
        self._handlers.clear()


class Stock:
    """Queues with an open sender and receiver each, prepared while earlier tests run."""

    DEPTH = 3

    def __init__(self, azure: Azure, queues: QueuePool) -> None:
        self._azure = azure
        self._queues = queues
        self._prepared: deque[tuple[str, Handler, Handler]] = deque()

    def give(self, azure: Azure) -> None:
        """Hand one of them over, and prepare the next."""
        while len(self._prepared) <= self.DEPTH:
            queue = self._queues.take("plain")
            handlers = self._azure.sender(queue), self._azure.receiver(queue)
            self._azure.forget(*handlers)
            self._prepared.append((queue, *handlers))
        azure.adopt(*self._prepared.popleft())

    def clear(self) -> None:
        while self._prepared:
            self._azure.adopt(*self._prepared.popleft())
        self._azure.leave()


def text_of(message: ServiceBusMessage) -> str:
    return b"".join(message.body).decode()


async def take(receiver: Handler, count: int = 1, wait: float = 20) -> list[ServiceBusReceivedMessage]:
    """Exactly `count` messages; several calls if they come in several parts."""
    taken: list[ServiceBusReceivedMessage] = []
    while len(taken) < count:
        more = await receiver.receive_messages(max_message_count=count - len(taken), max_wait_time=wait)
        assert more, f"{len(taken)} of {count} messages came"
        taken.extend(more)
    return taken


async def take_one(receiver: Handler, wait: float = 20) -> ServiceBusReceivedMessage:
    return (await take(receiver, 1, wait))[0]


async def nothing_left(receiver: Handler, wait: float = 0.3) -> bool:
    return not await receiver.receive_messages(max_message_count=1, max_wait_time=wait)
