"""Starts new connections. Every port accepts AMQP, HTTP and WebSocket, and all of them inside TLS.

1. Until its first byte has come, a new socket is only peeked at (MSG_PEEK). So TLS can begin on it as if nothing had been
   read, and a silent connection costs a descriptor and a timer.
2. From acceptance to the first bytes that name a protocol, TLS handshake included, a client has `handshake_timeout`.
3. Then it waits until the limits allow its start, its bytes still in the kernel. TLS also waits for one of
   `max_tls_handshakes`. If a handshake takes longer than `SILENT_GRACE`, it is ended for one that waits.
4. The connection limiter bounds the number of connections. If the controller has accepted a socket and there is no room, the
   socket waits here, as in the kernel's queue. If that queue is full, the socket is closed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable

from busbar.gateway.listening.connection_limiter import SILENT_GRACE, ConnectionLimiter, TrackedConnection
from busbar.gateway.listening.listener import BACKLOG
from busbar.gateway.listening.protocol_detection import TLS_HANDSHAKE, ProtocolDetector, WireProtocol

FLOOD = 500
"""More waiting connections than a restart of all clients explains."""

Successor = Callable[[WireProtocol, TrackedConnection], asyncio.Protocol]
"""Creates the protocol that takes over an AMQP or HTTP connection."""


class Acceptor:
    """The new connections of a gateway. If `tls` is None, a ClientHello is refused."""

    def __init__(self, limiter: ConnectionLimiter, successor: Successor, tls: ssl.SSLContext | None) -> None:
        self.limiter = limiter
        self.successor = successor
        self.tls = tls
        self.loop = asyncio.get_running_loop()
        self._backlog: deque[socket.socket] = deque()
        self._next_admission: asyncio.TimerHandle | None = None
        self._handshakes: dict[_NewSocket, float] = {}
        self._waiting_plain: deque[_NewSocket] = deque()
        self._waiting_tls: deque[_NewSocket] = deque()
        self._next_look: asyncio.Handle | None = None
        limiter.place_free = self._look_soon
        self._tasks: set[asyncio.Task[None]] = set()

    def accepted(self, accepted: socket.socket) -> None:
        """Begin to peek at a socket that the limits allow."""
        _NewSocket(self, accepted)

    def adopt(self, accepted: socket.socket) -> None:
        """Take a socket that the controller has accepted."""
        if len(self._backlog) >= BACKLOG:
            accepted.close()
            return
        self._backlog.append(accepted)
        if self._next_admission is None:
            self._admit()

    def _admit(self) -> None:
        self._next_admission = None
        while self._backlog:
            wait = self.limiter.accept_delay()
            if wait:
                self._next_admission = self.loop.call_later(min(wait, 0.05), self._admit)
                return
            self.accepted(self._backlog.popleft())

    def close(self) -> None:
        """Close the sockets that have sent nothing yet."""
        if self._next_admission is not None:
            self._next_admission.cancel()
        while self._backlog:
            self._backlog.popleft().close()
        self._waiting_plain.clear()
        self._waiting_tls.clear()
        if self._next_look is not None:
            self._next_look.cancel()
        for task in self._tasks:
            task.cancel()

    # Letting in those whose first byte is there

    def first_byte(self, new_socket: _NewSocket, *, tls: bool) -> None:
        """Start the connection when the limits allow it."""
        (self._waiting_tls if tls else self._waiting_plain).append(new_socket)
        self._start_waiting()

    def handshake_ended(self, new_socket: _NewSocket) -> None:
        if self._handshakes.pop(new_socket, None) is not None:
            self._look_soon()

    def _start_waiting(self) -> None:
        for waiting, tls in ((self._waiting_plain, None), (self._waiting_tls, self.tls)):
            while waiting:
                if waiting[0].dropped:
                    waiting.popleft()
                    continue
                wait = self.limiter.start_delay() or (self._handshake_in() if tls else 0.0)
                if wait:
                    self._look_in(wait)
                    break
                # In a flood the newest come first: clients that have waited longest have most likely disconnected.
                new_socket = waiting.popleft() if len(waiting) < FLOOD else waiting.pop()
                if new_socket.dropped:
                    continue
                if tls is not None:
                    self._handshakes[new_socket] = self.loop.time()
                new_socket.take_over(tls)

    def _handshake_in(self) -> float:
        """0 if one more handshake may begin, else the seconds to wait."""
        if len(self._handshakes) < self.limiter.limits.max_tls_handshakes:
            return 0.0
        oldest, began = next(iter(self._handshakes.items()))
        wait = began + SILENT_GRACE - self.loop.time()
        if wait > 0:
            return wait
        del self._handshakes[oldest]
        oldest.drop()
        return 0.0

    def _look_soon(self) -> None:
        """Schedule a look at waiting sockets for the end of this turn, because something was freed."""
        if self._waiting_plain or self._waiting_tls:
            self._look_in(0.0)

    def _look_in(self, seconds: float) -> None:
        if self._next_look is not None:
            if seconds:
                return  # a look is due anyway; if it comes too early, it schedules another
            self._next_look.cancel()
        self._next_look = self.loop.call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self._start_waiting()

    def spawn(self, new_socket: _NewSocket, tls: ssl.SSLContext | None) -> asyncio.Task[None]:
        task = self.loop.create_task(new_socket.connect(tls))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _NewSocket:
    """A socket that no protocol has taken over yet."""

    def __init__(self, acceptor: Acceptor, accepted: socket.socket) -> None:
        self.dropped = False
        self._acceptor = acceptor
        self._socket = accepted
        self._task: asyncio.Task[None] | None = None
        self._ours = True  # no transport has the socket
        self._tracked = acceptor.limiter.track(self.drop)
        limits = acceptor.limiter.limits
        self._deadline = acceptor.loop.call_later(
            min(limits.handshake_timeout, limits.token_timeout) / 1000, self._too_late
        )
        self._looking = True
        acceptor.loop.add_reader(accepted, self._look)

    def _look(self) -> None:
        try:
            first = self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self.drop()
            return
        self._acceptor.loop.remove_reader(self._socket)
        self._looking = False
        self._tracked.first_byte()
        self._acceptor.first_byte(self, tls=first == TLS_HANDSHAKE and self._acceptor.tls is not None)

    def take_over(self, tls: ssl.SSLContext | None) -> None:
        self._ours = False
        self._tracked.start()
        self._task = self._acceptor.spawn(self, tls)

    async def connect(self, tls: ssl.SSLContext | None) -> None:
        def sniffer() -> ProtocolDetector:
            return ProtocolDetector(
                self._tracked,
                lambda speaks: self._acceptor.successor(speaks, self._tracked),
                self._deadline.cancel,
            )

        try:
            if tls is None:
                await self._acceptor.loop.connect_accepted_socket(sniffer, self._socket)
            else:
                await self._acceptor.loop.connect_accepted_socket(
                    sniffer,
                    self._socket,
                    ssl=tls,
                    ssl_handshake_timeout=self._acceptor.limiter.limits.handshake_timeout / 1000,
                )
        except (
            OSError,
            EOFError,
        ):  # ssl.SSLError is an OSError: the client violated the protocol, or disconnected
            self._end()
        except asyncio.CancelledError:
            self._end()
            raise
        finally:
            self._task = None
            self._acceptor.handshake_ended(self)

    def _too_late(self) -> None:
        self._tracked.evict()

    def drop(self) -> None:
        """Close it, before a transport has it or while it is in its handshake."""
        if self.dropped:
            return
        if self._task is not None:
            self.dropped = True
            self._task.cancel()
        else:
            self._end()

    def _end(self) -> None:
        self.dropped = True
        self._deadline.cancel()
        if self._looking:
            self._looking = False
            self._acceptor.loop.remove_reader(self._socket)
        if self._ours:
            self._socket.close()
        self._tracked.untrack()
