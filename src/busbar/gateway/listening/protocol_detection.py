"""Detects the protocol of a connection by its first bytes.

    41 4D 51 50 ("AMQP")            AMQP
    a method of HTTP and a space    HTTP (a WebSocket begins as such)
    16                              a TLS ClientHello; the acceptor sees it before a transport has the socket
    anything else                   unknown: the answer is AMQP's own header (AMQP 2.2), then the connection is closed

Inside TLS the same bytes decide again, but TLS in TLS is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import cast

from busbar.gateway.listening.connection_limiter import TrackedConnection

TLS_HANDSHAKE = b"\x16"
_AMQP = b"AMQP"
_METHODS = tuple(
    method + b" " for method in (b"GET", b"PUT", b"POST", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"TRACE")
)
_OUR_HEADER = b"AMQP\x03\x01\x00\x00"


class WireProtocol(Enum):
    AMQP = "amqp"
    HTTP = "http"
    NOTHING_KNOWN = "unknown"
    NOT_ENOUGH = "more bytes are needed"


def detect_protocol(first: bytes) -> WireProtocol:
    """The protocol of a connection that begins with these bytes."""
    if first.startswith(_AMQP):
        return WireProtocol.AMQP
    if first.startswith(_METHODS):
        return WireProtocol.HTTP
    if any(opening.startswith(first) for opening in (_AMQP, *_METHODS)):
        return WireProtocol.NOT_ENOUGH
    return WireProtocol.NOTHING_KNOWN


class ProtocolDetector(asyncio.Protocol):
    """Has the transport until the protocol is detected, then passes it on with all bytes that were read."""

    def __init__(
        self,
        tracked: TrackedConnection,
        successor: Callable[[WireProtocol], asyncio.Protocol],
        decided: Callable[[], None],
    ) -> None:
        self._tracked = tracked
        self._successor = successor
        self._decided = decided
        self._read = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._tracked.set_evict(self._transport.abort)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._read += data
        speaks = detect_protocol(self._read)
        if speaks is WireProtocol.NOT_ENOUGH:
            return
        self._decided()
        if speaks is WireProtocol.NOTHING_KNOWN:
            transport.write(_OUR_HEADER)
            transport.close()
            return
        protocol = self._successor(speaks)
        self._transport = None
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not transport.is_closing():  # it may not have been admitted
            protocol.data_received(self._read)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._decided()
        self._tracked.untrack()
