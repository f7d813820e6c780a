"""Qpid Proton as an ordinary AMQP 1.0 client: links with exact credit, outcomes with all their fields, request-response."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from proton import UNDESCRIBED, Array, Delivery, Link, Message, symbol
from proton.reactor import LinkOption
from proton.utils import BlockingConnection

KEY_NAME = "RootManageSharedAccessKey"


class ReceiveSecond(LinkOption):
    """The receiver settles only after the broker has: the outcome of a settlement can be seen."""

    def apply(self, link: Any) -> None:
        link.snd_settle_mode = Link.SND_UNSETTLED
        link.rcv_settle_mode = Link.RCV_SECOND


class Target(LinkOption):
    """Names the client's own end of a link, to which replies are addressed."""

    def __init__(self, address: str) -> None:
        self._address = address

    def apply(self, link: Any) -> None:
        link.target.address = self._address


class Via(LinkOption):
    """Sends on the link are to end in another entity than the link's."""

    def __init__(self, destination: str) -> None:
        self._destination = destination

    def apply(self, link: Any) -> None:
        link.properties = {symbol("com.microsoft:transfer-destination-address"): self._destination}


def array(kind: int, *elements: object) -> Array:
    """An AMQP array; `kind` is a type of proton.Data."""
    undescribed: Any = UNDESCRIBED
    return Array(undescribed, kind, *elements)


def owned(message: Any) -> Any:
    """The message with its binary values copied: Proton gives views of memory that ends with the message."""
    message.body = _copied(message.body)
    message.properties = _copied(message.properties)
    return message


def _copied(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if type(value) is list else value


class PlainAmqp:
    """A connection with the few things a test does on it."""

    def __init__(
        self, port: int, key: str | None, *, user: str = KEY_NAME, timeout: float = 10, **options: Any
    ) -> None:
        if key is None:
            options.setdefault("allowed_mechs", "ANONYMOUS")
        else:
            options.setdefault("allowed_mechs", "PLAIN")
            options.update(user=user, password=key)
        self.connection = BlockingConnection(f"amqp://127.0.0.1:{port}", timeout=timeout, **options)
        self._one_at_a_time = threading.Lock()  # Proton is not to be used by two threads at once

    def close(self) -> None:
        self.connection.close()

    def send(self, queue: str, *messages: Message) -> Delivery:
        sender = self.connection.create_sender(queue)
        for message in messages:
            delivery = sender.send(message)
        sender.close()
        return delivery

    def receiver(self, queue: str, credit: int = 0, *options: LinkOption) -> Any:
        """A receiver that gets exactly the credit that the test grants."""
        receiver: Any = self.connection.create_receiver(
            queue, credit=0, name=f"receiver-{uuid.uuid4().hex}", options=list(options) or ReceiveSecond()
        )
        if credit:
            receiver.link.flow(credit)  # here, because Proton would top up what it is told at creation
        return receiver

    def pump(self, condition: Callable[[], object], timeout: float = 5) -> None:
        self.connection.wait(lambda: bool(condition()), timeout=timeout)

    def listen(self, seconds: float) -> None:
        """Let everything happen that happens in this time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.connection.container.timeout = left
            self.connection.container.process()

    def take(self, receiver: Any) -> tuple[Any, Any]:
        """The next message and its delivery, whose outcome the test decides."""
        self.pump(lambda: receiver.fetcher.has_message)
        message, delivery = receiver.fetcher.incoming.popleft()
        return owned(message), delivery

    def settle(self, delivery: Any, state: int, **fields: Any) -> int:
        """Ask for an outcome, wait for the broker's, and return it."""
        for name, value in fields.items():
            setattr(delivery.local, name, value)
        delivery.update(state)
        self.pump(lambda: delivery.settled)
        outcome = delivery.remote_state
        delivery.settle()
        return int(outcome)

    def request(
        self, node: str, operation: str, body: Any, *, node_keys: dict[str, object] | None = None
    ) -> Any:
        """One request and its reply on a request-response node."""
        reply_to = f"replies-{uuid.uuid4().hex}"
        receiver = self.connection.create_receiver(node, credit=10, options=Target(reply_to))
        sender = self.connection.create_sender(node)
        request = Message(body=body, id=uuid.uuid4(), reply_to=reply_to)
        properties: Any = {"operation": operation, **(node_keys or {})}
        request.properties = properties
        sender.send(request)
        reply: Any = owned(receiver.receive())
        assert reply.correlation_id == request.id
        sender.close()
        receiver.close()
        return reply

    def manage(self, queue: str, operation: str, body: dict[str, object]) -> tuple[int, Any]:
        """A `$management` request: the status code and the body of the reply."""
        with self._one_at_a_time:
            reply = self.request(f"{queue}/$management", f"com.microsoft:{operation}", body)
        return reply.properties["statusCode"], reply.body
