"""A fast client for measurements and stress tests of a server: Busbar's own engine in the client role, on asyncio.

    connection = await connect(port, key)
    sender = await connection.sender("q", in_flight=1_000)
    await sender.send(100_000)              returns when all are acknowledged
    receiver = await connection.receiver("q", credit=2_000)
    await receiver.settled(100_000)         returns when so many settlements are confirmed

Only the server's dispositions show what was acknowledged. When the connection ends, the outcome of unanswered messages is
unknown; they stay in `unanswered` (sender) or `unconfirmed` (receiver).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import EllipsisType
from typing import cast

from busbar.amqp.codec import encode_value
from busbar.amqp.connection import Connection, ConnectionConfig
from busbar.amqp.errors import AmqpError
from busbar.amqp.events import (
    Arrived,
    Closed,
    CreditChanged,
    Delivery,
    Disposed,
    Event,
    LinkAttached,
    LinkDetached,
    SessionBegun,
)
from busbar.amqp.link import Link
from busbar.amqp.outcomes import ACCEPTED, MODIFIED, REJECTED, Outcome, empty_state, rejected_state
from busbar.amqp.performatives import Terminus
from busbar.amqp.session import Session
from busbar.amqp.types import Described, Symbol, UInt, ULong
from busbar.message.decoded import DecodedMessage, decode_message, encode_message
from busbar.model.sas import sign
from harness.conditions import Conditions

KEY_NAME = "RootManageSharedAccessKey"
BATCH_FORMAT = 0x80013700
COMPLETE = empty_state(ACCEPTED)
ABANDON = encode_value(Described(ULong(MODIFIED), [True, False]))
DEFER = encode_value(Described(ULong(MODIFIED), [True, True]))
DEAD_LETTER = rejected_state(
    AmqpError(
        "com.microsoft:dead-letter", "", {"DeadLetterReason": "load", "DeadLetterErrorDescription": "asked"}
    ),
    4096,
)
RECEIVER_SETTLES_SECOND = 1
SESSION_FILTER = "com.microsoft:session-filter"
EXPECTED = {COMPLETE: ACCEPTED, ABANDON: MODIFIED, DEFER: MODIFIED, DEAD_LETTER: REJECTED}

Payload = Callable[[int], bytes]


class LinkRefused(Exception):
    """The server refused a link, or closed it."""


class ConnectionOver(Exception):
    """The connection ended before the awaited result."""


def sas_token(resource: str, key: str, lifetime: int = 3600) -> str:
    return sign(resource, KEY_NAME, key, int(time.time()) + lifetime)


def payload_of(body: bytes) -> Payload:
    """Messages with this body and a message-id of their number."""
    data = encode_value(Described(ULong(0x75), body))
    sample = encode_value(Described(ULong(0x73), ["0" * 12]))
    head = sample[: sample.index(b"0" * 12)]

    def build(number: int) -> bytes:
        return head + b"%012d" % number + data

    return build


def session_payload(session_of: Callable[[int], str], body: bytes = b"x" * 100) -> Payload:
    """Messages with their number as message-id, each in the message session for its number."""
    data = encode_value(Described(ULong(0x75), body))

    def build(number: int) -> bytes:
        properties = [f"{number:012}", *[None] * 9, session_of(number)]
        return encode_value(Described(ULong(0x73), properties)) + data

    return build


def batch_of(payloads: list[bytes]) -> bytes:
    """Several messages as one delivery of the Service Bus batch format."""
    parts = []
    for payload in payloads:
        parts.append(b"\x00\x53\x75\xb0" + len(payload).to_bytes(4, "big") + payload)
    return b"".join(parts)


class LoadLink(Conditions):
    """What every link does: it waits for its attach, and notices its end."""

    def __init__(self, connection: LoadConnection) -> None:
        super().__init__()
        self.connection = connection
        self.attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over = False

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked whenever something happens on the link."""
        if self.over and not condition():
            raise ConnectionOver
        await super().until(condition)

    def end(self, error: AmqpError | None) -> None:
        self.over = True
        problem = (
            ConnectionOver() if error is None else LinkRefused(f"{error.condition}: {error.description}")
        )
        if not self.attached.done():
            self.attached.set_exception(problem)
        self.fail(problem)

    def credit_changed(self) -> None:
        pass

    def arrived(self, deliveries: list[Delivery]) -> None:
        pass

    def disposed(self, ids: list[int], tags: list[bytes], outcome: Outcome | None) -> None:
        pass


class Sender(LoadLink):
    """Sends with up to `in_flight` messages unanswered, one per transfer or `batch` at a time."""

    def __init__(self, connection: LoadConnection, payload: Payload, in_flight: int, batch: int) -> None:
        super().__init__(connection)
        self.link: Link | None = None
        self._payload = payload
        self._in_flight = in_flight
        self._batch = batch
        self.next = 0  # the number of the next message
        self.limit = 0
        self.unanswered: dict[bytes, tuple[int, int]] = {}  # tag: first number, count
        self.outstanding = 0
        self.acknowledged = 0
        self.refused: list[tuple[int, str]] = []
        self.last_error: AmqpError | None = None
        self.on_acknowledged: Callable[[int, int], None] | None = None

    async def send(self, count: int) -> None:
        """Send that many more; returns when all of them are answered."""
        self.start(count)
        await self.until(lambda: self.next >= self.limit and not self.outstanding)

    def start(self, count: int) -> None:
        self.limit = self.next + count
        self._pump()
        self.connection.flush()

    def stop(self) -> None:
        self.limit = self.next

    def credit_changed(self) -> None:
        self._pump()

    def disposed(self, ids: list[int], tags: list[bytes], outcome: Outcome | None) -> None:
        for tag in tags:
            first, count = self.unanswered.pop(tag)
            self.outstanding -= count
            if outcome is not None and outcome.code == ACCEPTED:
                self.acknowledged += count
                if self.on_acknowledged is not None:
                    self.on_acknowledged(first, count)
            else:
                self.last_error = error = None if outcome is None else outcome.error
                self.refused.append((first, "" if error is None else error.condition))
        self._pump()
        self.wake()

    def _pump(self) -> None:
        link = self.link
        if link is None or not link.is_attached:
            return
        batch = self._batch
        room = min(self._in_flight - self.outstanding, self.limit - self.next) // batch
        room = min(room, link.credit)
        if room <= 0:
            return
        tags, payloads = [], []
        payload = self._payload
        number = self.next
        for _ in range(room):
            tag = number.to_bytes(4, "big")
            tags.append(tag)
            self.unanswered[tag] = (number, batch)
            if batch == 1:
                payloads.append(payload(number))
            else:
                payloads.append(batch_of([payload(inner) for inner in range(number, number + batch)]))
            number += batch
        self.outstanding += number - self.next
        self.next = number
        link.deliver(tags, payloads, False, BATCH_FORMAT if batch > 1 else 0)


Decide = Callable[[list[Delivery]], list[tuple[list[int], bytes]]]
"""Decides which deliveries get which settlement (an encoded state); the others stay locked."""


class Receiver(LoadLink):
    """Receives with constant credit and settles messages, in ranges or one by one."""

    def __init__(
        self, connection: LoadConnection, credit: int, decide: Decide | None, single: bool, delete: bool
    ) -> None:
        super().__init__(connection)
        self.link: Link | None = None
        self._credit = credit
        self._decide = decide
        self._single = single
        self._delete = delete
        self.received = 0
        self.confirmed = 0
        self.denied: list[tuple[int, str]] = []
        self.unconfirmed: dict[int, bytes] = {}
        self.on_confirmed: Callable[[int, bytes], None] | None = None

    @property
    def session(self) -> str:
        """The message session that it holds."""
        source = None if self.link is None else self.link.source
        assert source is not None and source.filter is not None
        return str(source.filter[SESSION_FILTER])

    async def settled(self, count: int) -> None:
        """Wait for that many settlements (or, without locks, messages) in all."""
        await self.until(
            lambda: (self.received if self._delete else self.confirmed + len(self.denied)) >= count
        )

    def grant(self) -> None:
        if self.link is not None:
            self.link.grant(self._credit)
            self.connection.flush()

    def arrived(self, deliveries: list[Delivery]) -> None:
        link = self.link
        assert link is not None
        self.received += len(deliveries)
        if not self._delete:
            if self._decide is None:
                ids = [delivery.id for delivery in deliveries]
                self._settle(link, ids, COMPLETE)
            else:
                for ids, state in self._decide(deliveries):
                    self._settle(link, ids, state)
        if link.credit <= self._credit // 2:
            link.grant(self._credit)
        self.wake()

    def _settle(self, link: Link, ids: list[int], state: bytes) -> None:
        unconfirmed = self.unconfirmed
        for number in ids:
            unconfirmed[number] = state
        if self._single:
            for number in ids:
                link.dispose([number], state, False)
        else:
            link.dispose(ids, state, False)

    def disposed(self, ids: list[int], tags: list[bytes], outcome: Outcome | None) -> None:
        for number in ids:
            state = self.unconfirmed.pop(number)
            if outcome is not None and outcome.code == EXPECTED[state] and outcome.error is None:
                self.confirmed += 1
                if self.on_confirmed is not None:
                    self.on_confirmed(number, state)
            else:
                error = None if outcome is None else outcome.error
                self.denied.append((number, "" if error is None else error.condition))
        self.wake()


class _Half(LoadLink):
    """One link of a request-response pair."""

    def __init__(self, connection: LoadConnection) -> None:
        super().__init__(connection)
        self.link: Link | None = None
        self.replies: list[DecodedMessage] = []

    def arrived(self, deliveries: list[Delivery]) -> None:
        self.replies += [decode_message(delivery.payload) for delivery in deliveries]
        self.wake()

    def credit_changed(self) -> None:
        self.wake()


class Requests:
    """A request-response node, with one request at a time."""

    def __init__(self, requests: _Half, replies: _Half) -> None:
        self._requests = requests
        self._replies = replies
        self._asked = 0

    async def ask(self, value: object, properties: dict[str, object]) -> DecodedMessage:
        self._asked += 1
        request = DecodedMessage(value, None, properties)
        request.message_id = f"request-{self._asked}"
        link, back = self._requests.link, self._replies.link
        assert link is not None and back is not None
        await self._requests.until(lambda: link.credit > 0)
        link.deliver([self._asked.to_bytes(4, "big")], [encode_message(request)], True)
        back.grant(10)
        self._requests.connection.flush()
        await self._replies.until(lambda: len(self._replies.replies) > 0)
        return self._replies.replies.pop()

    async def peek(self, start: int, count: int = 250) -> list[bytes]:
        """Encoded messages of a management node from a sequence number on."""
        reply = await self.ask(
            {"from-sequence-number": start, "message-count": count},
            {"operation": "com.microsoft:peek-message"},
        )
        if reply.application_properties["statusCode"] == 204:
            return []
        assert isinstance(reply.value, dict), reply.application_properties
        return [entry["message"] for entry in reply.value["messages"]]


class LoadConnection(asyncio.Protocol):
    """One connection with one session."""

    def __init__(self, key: str | None) -> None:
        password = key is not None
        self._engine = Connection(
            ConnectionConfig(
                container_id="load",
                hostname="localhost",
                mechanisms=["PLAIN"] if password else ["ANONYMOUS"],
                user=KEY_NAME,
                password=key or "",
                server=False,
                incoming_window=20_000,
                outgoing_window=20_000,
                max_message_size=1 << 30,
            )
        )
        self._transport: asyncio.Transport | None = None
        self._links: list[LoadLink] = []
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: AmqpError | None = None
        self._engine.open()
        self.session = self._engine.begin()

    @property
    def local_port(self) -> int:
        assert self._transport is not None
        return int(self._transport.get_extra_info("sockname")[1])

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._transport.set_write_buffer_limits(high=16 * 1024 * 1024)
        self.flush()

    def data_received(self, data: bytes) -> None:
        for event in self._engine.receive_data(data, time.time_ns() // 1_000_000):
            self._handle(event)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.begun.done():
            self.begun.set_exception(ConnectionOver())
        for link in self._links:
            link.end(None)
        if not self.lost.done():
            self.lost.set_result(None)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Arrived | CreditChanged | Disposed | LinkAttached | LinkDetached):
            user = event.link.user
            assert isinstance(user, LoadLink)
            if isinstance(event, Arrived):
                user.arrived(event.deliveries)
            elif isinstance(event, Disposed):
                user.disposed(event.ids, event.tags, event.outcome)
            elif isinstance(event, CreditChanged):
                user.credit_changed()
            elif isinstance(event, LinkDetached):
                user.end(event.error or AmqpError("detached", ""))
            elif not user.attached.done() and (
                event.link.target if event.link.sending else event.link.source
            ):
                user.attached.set_result(None)  # one without a terminus is refused: its detach follows
        elif isinstance(event, SessionBegun):
            if not self.begun.done():
                self.begun.set_result(None)
        elif isinstance(event, Closed):
            self.error = event.error
            if self._transport is not None:
                self._transport.close()

    def flush(self) -> None:
        data = self._engine.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    # Links

    async def sender(
        self,
        queue: str,
        payload: Payload | None = None,
        *,
        in_flight: int = 1_000,
        batch: int = 1,
        body: bytes = b"x" * 1024,
        capabilities: list[str] | None = None,
    ) -> Sender:
        """Attach a sender. `capabilities` are the desired ones; the link has those that were offered."""
        sender = Sender(self, payload or payload_of(body), in_flight, batch)
        sender.link = await self._attach(sender, queue, sending=True, capabilities=capabilities)
        return sender

    async def receiver(
        self,
        queue: str,
        *,
        credit: int = 1_000,
        decide: Decide | None = None,
        single: bool = False,
        delete: bool = False,
        session: str | EllipsisType | None = ...,
        wait: int = 60_000,
    ) -> Receiver:
        """Attach a receiver and give it credit; deliveries may come before this returns.

        With `session`, of a message session: a named one, or with None the next available within `wait` ms.
        """
        receiver = Receiver(self, credit, decide, single, delete)
        far = Terminus(queue)
        properties: dict[object, object] | None = None
        if session is not ...:
            far = Terminus(queue, {SESSION_FILTER: session})
            properties = {Symbol("com.microsoft:timeout"): UInt(wait)}
        receiver.link = await self._attach(
            receiver, queue, sending=False, settled=delete, source=far, properties=properties
        )
        receiver.grant()
        return receiver

    async def requests(self, node: str) -> Requests:
        asking, answering = _Half(self), _Half(self)
        asking.link = await self._attach(asking, node, sending=True)
        answering.link = await self._attach(answering, node, sending=False, settled=True)
        return Requests(asking, answering)

    async def put_token(self, token: str, audience: str) -> int:
        node = await self.requests("$cbs")
        reply = await node.ask(
            token, {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
        )
        return int(str(reply.application_properties["status-code"]))

    async def _attach(
        self,
        user: LoadLink,
        address: str,
        *,
        sending: bool,
        settled: bool = False,
        source: Terminus | None = None,
        properties: dict[object, object] | None = None,
        capabilities: list[str] | None = None,
    ) -> Link:
        if self.lost.done():
            raise ConnectionOver
        attach = self.session.attach_sender if sending else self.session.attach_receiver
        name = f"{address}-{len(self._links)}"
        near, far = Terminus(f"{name}-end"), source or Terminus(address)
        link = attach(
            name,
            near if sending else far,
            far if sending else near,
            1 if settled else 0,
            0 if settled else RECEIVER_SETTLES_SECOND,
            properties,
            desired_capabilities=capabilities,
        )
        await self.attached(user, link)
        return link

    def begin(self) -> Session:
        """Another AMQP session."""
        session = self._engine.begin()
        self.flush()
        return session

    async def attached(self, user: LoadLink, link: Link) -> None:
        """Wait until the attach of a link is answered. Raises LinkRefused."""
        link.user = user
        self._links.append(user)
        self.flush()
        await user.attached

    async def close(self) -> None:
        self._engine.close()
        self.flush()
        if self._transport is not None:
            try:
                await asyncio.wait_for(asyncio.shield(self.lost), 2)
            except TimeoutError:
                pass
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def connect(port: int, key: str = "SAS_KEY_VALUE", *, token_for: str | None = None) -> LoadConnection:
    """Connect with SASL PLAIN, or, with `token_for`, with a token for that resource put to `$cbs`."""
    loop = asyncio.get_running_loop()
    password = key if token_for is None else None
    _transport, connection = await loop.create_connection(lambda: LoadConnection(password), "127.0.0.1", port)
    await connection.begun
    if connection.error is not None:  # the broker answered, and closed in the same moment
        raise ConnectionOver(f"{connection.error.condition}: {connection.error.description}")
    if token_for is not None:
        resource = f"sb://localhost:{port}/{token_for}"
        status = await connection.put_token(sas_token(resource, key), resource)
        if status not in (200, 202):
            raise LinkRefused(f"$cbs answered {status}")
    return connection
