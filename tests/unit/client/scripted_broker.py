"""A peer on a real socket, with our engine in the server's role, that does what a test tells it: mostly wrong things."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from busbar.amqp.connection import Connection, ConnectionConfig
from busbar.amqp.events import (
    Arrived,
    Closed,
    CreditChanged,
    Delivery,
    Disposed,
    Event,
    LinkAttaching,
    Opened,
    SaslInit,
)
from busbar.amqp.link import Link
from busbar.amqp.types import Int, Symbol
from busbar.message.decoded import DecodedMessage, decode_message, encode_message

Answer = Callable[[Link, list[Delivery]], None]
Ask = Callable[[str, dict[str, object]], tuple[int, object]]


def accept_all(link: Link, deliveries: list[Delivery]) -> None:
    link.accept_deliveries([delivery.id for delivery in deliveries])


class ScriptedBroker:
    """Takes every token and every link, and accepts what is sent, unless told otherwise."""

    def __init__(self) -> None:
        self.port = 0
        self.answer: Answer = accept_all
        self.manage: Ask = lambda operation, body: (200, {})
        self.attach: Callable[[Link], None] | None = None
        self.settle: Callable[[Link, list[int]], None] = lambda link, ids: link.confirm(ids, 0x24)
        self.credit: Callable[[Link, bool], None] = lambda link, drain: link.drained() if drain else None
        self.offers = ["busbar:mixed-batches"]
        self.message_size = 262_144
        self.tokens: list[str] = []
        self.token_status = 202
        self.refusal = ""
        """The condition of the close that a new connection gets."""
        self.sasl_code = 0
        self.arrived: list[Delivery] = []
        self.peers: list[Peer] = []
        self.connections = 0
        self.reads = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> ScriptedBroker:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Peer(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName=Root;SharedAccessKey=a-secret;"
            "UseDevelopmentEmulator=true"
        )

    def close(self, condition: str) -> None:
        """Close all connections with an error."""
        for peer in self.peers:
            peer.close(condition)

    def hang_up(self) -> None:
        """All connections are lost."""
        for peer in list(self.peers):
            peer.abort()

    async def stop(self) -> None:
        self.hang_up()
        if self._server is not None:
            self._server.close()
            self._server = None


class Peer(asyncio.Protocol):
    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._engine = Connection(ConnectionConfig("scripted", mechanisms=["ANONYMOUS"], idle_timeout=0))
        self._transport: asyncio.Transport | None = None
        self.links: list[Link] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._broker.peers.append(self)
        self._broker.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self in self._broker.peers:
            self._broker.peers.remove(self)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self, condition: str) -> None:
        self._engine.close(condition, "as told")
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._broker.reads += 1
        for event in self._engine.receive_data(data, time.monotonic_ns() // 1_000_000):
            self._handle(event)
        self.flush()

    def flush(self) -> None:
        data = self._engine.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    def _handle(self, event: Event) -> None:
        broker = self._broker
        if isinstance(event, SaslInit):
            self._engine.sasl_outcome(broker.sasl_code)
        elif isinstance(event, Opened) and broker.refusal:
            self._engine.close(broker.refusal, "as told")
        elif isinstance(event, LinkAttaching):
            self.links.append(event.link)
            if broker.attach is not None:
                broker.attach(event.link)
            event.link.accept(broker.message_size, offered_capabilities=broker.offers or None)
            if not event.link.sending:
                event.link.grant(1000)
        elif isinstance(event, Arrived):
            address = _address(event.link)
            if address.startswith("$") or address.endswith("$management"):
                event.link.accept_deliveries([delivery.id for delivery in event.deliveries])
                for delivery in event.deliveries:
                    self._reply(event.link, address, decode_message(delivery.payload))
                return
            broker.arrived += event.deliveries
            broker.answer(event.link, event.deliveries)
        elif isinstance(event, CreditChanged):
            if event.link.sending:
                broker.credit(event.link, event.drain)
        elif isinstance(event, Disposed):
            broker.settle(event.link, event.ids)
        elif isinstance(event, Closed):
            self.abort()

    def _reply(self, link: Link, address: str, request: DecodedMessage) -> None:
        reply = DecodedMessage()
        if address == "$cbs":
            self._broker.tokens.append(str(request.value))
            said: dict[str, object] = {"status-code": Int(self._broker.token_status)}
            reply.application_properties = said | {"status-description": "as told"}
        else:
            body = request.value if isinstance(request.value, dict) else {}
            status, value = self._broker.manage(str(request.application_properties["operation"]), body)
            if status == 0:
                return  # no reply at all
            reply.application_properties = {"statusCode": Int(status), "statusDescription": "as told"}
            if status >= 300:
                reply.application_properties["errorCondition"] = Symbol(str(value))
            else:
                reply.value = value
        reply.correlation_id = request.message_id
        for other in self.links:
            if other.sending and other.target is not None and other.target.address == request.reply_to:
                other.deliver([b"r"], [encode_message(reply)], True)


def _address(link: Link) -> str:
    end = link.source if link.sending else link.target
    return "" if end is None or end.address is None else end.address
