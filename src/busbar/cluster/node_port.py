"""The node port: channels between processes of different nodes, over TCP with TLS.

Rules:
1. A connection has HELLO_SECONDS from its acceptance to the end of its hello, and holds a bounded number of bytes by then.
   At most MOST_STRANGERS connections are at that stage; further ones are closed.
2. What is not a process of this namespace is closed, with one line in the log.
3. After the hello, the connection is a channel like that between two processes of one machine (channel.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import cast

from busbar.cluster.channel import Channel
from busbar.cluster.codec import WireError
from busbar.cluster.hello import (
    LARGEST_HELLO,
    PROTOCOL_VERSIONS,
    Hello,
    Welcome,
    frame_of,
    judge,
    read_hello,
    read_welcome,
)
from busbar.cluster.node_tls import NodeTls, certified_name

HELLO_SECONDS = 5.0
MOST_STRANGERS = 64
ACCEPT_PAUSE = 0.1

_log = logging.getLogger(__name__)

Answer = Callable[[Hello], Channel | str]
"""Decides what a hello becomes: a channel, or the reason for which it is refused."""


class _Opening(asyncio.Protocol):
    """A connection until its first frame."""

    def __init__(self) -> None:
        self.first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) < 4 or self.first.done():
            return
        end = 4 + int.from_bytes(self._buffer[:4], "big")
        if end > LARGEST_HELLO:
            self._fail(WireError("it does not speak this protocol"))
        elif len(self._buffer) >= end:
            assert self._transport is not None
            self._transport.pause_reading()  # what follows is for the channel
            self.first.set_result(bytes(self._buffer[4:end]))
            del self._buffer[:end]

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._fail(WireError(str(exc) if exc else "it ended the connection"))

    def become(self, channel: Channel) -> None:
        """Let a channel have the connection, and what came behind the first frame."""
        assert self._transport is not None
        self._transport.set_protocol(channel)
        channel.connection_made(self._transport)
        if self._buffer:
            channel.data_received(bytes(self._buffer))
        if self._is_lost:
            channel.connection_lost(None)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _fail(self, error: Exception) -> None:
        if not self.first.done():
            self.first.set_exception(error)
            self.first.exception()  # the waiting task may have ended


class NodePort:
    """The port at which other processes of the namespace connect to this one."""

    def __init__(
        self,
        tls: NodeTls,
        namespace: str,
        known_as: str,
        answer: Answer,
        versions: list[int] = PROTOCOL_VERSIONS,
    ) -> None:
        """`known_as` is the name by which others look for this process, and `versions` are those that it offers."""
        self._tls = tls
        self._versions = versions
        self._namespace = namespace
        self._known_as = known_as
        self._answer = answer
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._openings: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> int:
        """Listen, and return the number of the port. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, port), family=family)
        self._listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(self._listening))
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        for task in (self._accepting, *self._openings):
            if task is not None:
                task.cancel()
        if self._listening is not None:
            self._listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(listening)
            except OSError as error:  # too many descriptors, for example
                _log.warning("the node port cannot accept: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            if len(self._openings) >= MOST_STRANGERS:
                client.close()
                continue
            task = loop.create_task(self._open(client, str(address[0])))
            self._openings.add(task)
            task.add_done_callback(self._openings.discard)

    async def _open(self, client: socket.socket, address: str) -> None:
        transport: asyncio.Transport | None = None
        opening = _Opening()
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # What uvloop returns beside the transport is another protocol.
                transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: opening, client, ssl=self._tls.accepting, ssl_handshake_timeout=HELLO_SECONDS
                )
                hello = read_hello(await opening.first)
            certified = certified_name(transport)
            welcome = judge(hello, self._namespace, certified, self._known_as, self._versions)
            channel = self._answer(hello) if welcome.version else welcome.reason
            if isinstance(channel, str):
                _log.info("%s is refused at the node port: %s", hello.broker, channel)
                transport.write(frame_of(Welcome(0, channel)))
                transport.close()
            else:
                transport.write(frame_of(welcome))
                channel.level = welcome.version
                opening.become(channel)
        except (OSError, TimeoutError, WireError) as error:  # ssl.SSLError is an OSError
            reason = str(error) or "it did not say who it is in time"
            _log.warning("a connection of %s to the node port is closed: %s", address, reason)
            if transport is not None:
                transport.close()
            else:
                client.close()


class HelloRefused(Exception):
    """The other process does not take this one; the text has its reason."""


async def dial(
    address: str, tls: NodeTls, hello: Hello, node: str, make_channel: Callable[[], Channel]
) -> Channel:
    """A channel to a process of another node. Raises OSError, TimeoutError, WireError, HelloRefused."""
    host, _, port = address.rpartition(":")
    transport: asyncio.Transport | None = None
    opening = _Opening()
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: opening, host.strip("[]"), int(port), ssl=tls.dialling, server_hostname=""
            )
            if certified_name(transport) != node:
                raise WireError(f"at {address} is {certified_name(transport)!r}, not {node!r}")
            transport.write(frame_of(hello))
            welcome = read_welcome(await opening.first)
        if not welcome.version:
            raise HelloRefused(welcome.reason)
        if welcome.version not in hello.versions:
            raise WireError(f"it answers with version {welcome.version}, and was offered {hello.versions}")
        channel = make_channel()
        channel.level = welcome.version
        opening.become(channel)
        return channel
    except BaseException:
        if transport is not None:
            with contextlib.suppress(Exception):
                transport.abort()
        raise
