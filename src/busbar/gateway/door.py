"""The listening ports. Every one understands everything: AMQP, HTTP, WebSocket, and all of them inside TLS.

1. A new socket is only looked at (MSG_PEEK) until its first byte has come: so TLS can begin on it as if nothing had been
   read, and a connection that says nothing costs a descriptor and a timer.
2. From accepting to the first bytes that name a protocol, TLS handshake included, a guest has `hello_wait`.
3. Then it waits for a place of the lobby's, its bytes still in the kernel. TLS also waits for one of `max_handshakes`: a
   handshake that has taken longer than the lobby's grace for the silent makes room for one that waits.
4. How many may be inside at all is the lobby's business: while it has no room, nobody is accepted, and the kernel's queue
   holds those who come.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from busbar.gateway.lobby import SILENT_GRACE, Guest, Lobby
from busbar.gateway.sniffing import TLS_HANDSHAKE, Sniffer, Speaks

_log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTS_PER_TURN = 64
"""Then the connections that are there already get their turn."""
FLOOD = 500
"""As many that wait for a place are more than a restart of the clients explains."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Successor = Callable[[Speaks, Guest], asyncio.Protocol]
"""Makes the protocol that takes over a connection which speaks AMQP or HTTP."""


class Door:
    """All ports of a gateway. `tls` may be None: then a ClientHello is nobody we know."""

    def __init__(self, lobby: Lobby, successor: Successor, tls: ssl.SSLContext | None) -> None:
        self.lobby = lobby
        self.successor = successor
        self.tls = tls
        self.loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        self._pauses: set[asyncio.TimerHandle] = set()
        self._handshakes: dict[_Newcomer, float] = {}
        self._waiting_plain: deque[_Newcomer] = deque()
        self._waiting_tls: deque[_Newcomer] = deque()
        self._next_look: asyncio.Handle | None = None
        lobby.place_free = self._look_soon
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> int:
        """Listen on all addresses of the host; returns the port (0 asks for a free one). Raises OSError."""
        found = await self.loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        opened: list[socket.socket] = []
        failed: OSError | None = None
        for family, kind, protocol, _name, address in dict.fromkeys(found):
            try:
                # All addresses of a host get the port that the first one got.
                opened.append(_listening(family, kind, protocol, (address[0], port, *address[2:])))
                port = opened[0].getsockname()[1]
            except OSError as error:
                failed = error
                # A name may stand for an address that this machine does not have (::1 where there is no IPv6).
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    break
        else:
            failed = None if opened else failed
        if failed is not None:
            for listener in opened:
                listener.close()
            raise failed
        for listener in opened:
            self._listening.append(listener)
            self.loop.add_reader(listener, self._acceptable, listener)
        return port

    def close(self) -> None:
        """Accept nobody any more, and give up on those who have not spoken yet."""
        for listener in self._listening:
            self.loop.remove_reader(listener)
            listener.close()
        self._listening.clear()
        for pause in self._pauses:
            pause.cancel()
        self._waiting_plain.clear()
        self._waiting_tls.clear()
        if self._next_look is not None:
            self._next_look.cancel()
        for task in self._tasks:
            task.cancel()

    # Accepting

    def _acceptable(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            wait = self.lobby.room_in()
            if wait:
                self._pause(listener, wait)
                return
            try:
                accepted, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                _log.warning("no connection can be accepted for a moment: %s", error.strerror)
                self.lobby.turn_out_oldest()
                self._pause(listener, 0.2)
                return
            accepted.setblocking(False)
            with suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Newcomer(self, accepted)

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        self.loop.remove_reader(listener)

        def go_on() -> None:
            self._pauses.discard(timer)
            if listener in self._listening:
                self.loop.add_reader(listener, self._acceptable, listener)

        # Not the whole wait: others may prove themselves meanwhile and make room.
        timer = self.loop.call_later(min(seconds, 0.05), go_on)
        self._pauses.add(timer)

    # Letting in those whose first byte is there

    def spoke(self, newcomer: _Newcomer, *, tls: bool) -> None:
        """Let it in when there is a place for it."""
        (self._waiting_tls if tls else self._waiting_plain).append(newcomer)
        self._let_in()

    def handshake_ended(self, newcomer: _Newcomer) -> None:
        if self._handshakes.pop(newcomer, None) is not None:
            self._look_soon()

    def _let_in(self) -> None:
        for waiting, tls in ((self._waiting_plain, None), (self._waiting_tls, self.tls)):
            while waiting:
                if waiting[0].dropped:
                    waiting.popleft()
                    continue
                wait = self.lobby.place_in() or (self._handshake_in() if tls else 0.0)
                if wait:
                    self._look_in(wait)
                    break
                # In a flood the last come first: those who have waited longest are the likeliest to have given up.
                newcomer = waiting.popleft() if len(waiting) < FLOOD else waiting.pop()
                if newcomer.dropped:
                    continue
                if tls is not None:
                    self._handshakes[newcomer] = self.loop.time()
                newcomer.take_over(tls)

    def _handshake_in(self) -> float:
        """0 if one more handshake may begin, else the seconds to wait."""
        if len(self._handshakes) < self.lobby.limits.max_handshakes:
            return 0.0
        oldest, began = next(iter(self._handshakes.items()))
        wait = began + SILENT_GRACE - self.loop.time()
        if wait > 0:
            return wait
        del self._handshakes[oldest]
        oldest.drop()
        return 0.0

    def _look_soon(self) -> None:
        """Something was freed: if anyone waits, look at the end of this turn."""
        if self._waiting_plain or self._waiting_tls:
            self._look_in(0.0)

    def _look_in(self, seconds: float) -> None:
        if self._next_look is not None:
            if seconds:
                return  # a look is due anyway; if it comes too early, it asks for another
            self._next_look.cancel()
        self._next_look = self.loop.call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self._let_in()

    def spawn(self, newcomer: _Newcomer, tls: ssl.SSLContext | None) -> asyncio.Task[None]:
        task = self.loop.create_task(newcomer.connect(tls))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Newcomer:
    """A socket that nobody has taken over yet."""

    def __init__(self, door: Door, accepted: socket.socket) -> None:
        self.dropped = False
        self._door = door
        self._socket = accepted
        self._task: asyncio.Task[None] | None = None
        self._ours = True  # no transport has the socket
        self._guest = door.lobby.enter(self.drop)
        limits = door.lobby.limits
        self._deadline = door.loop.call_later(
            min(limits.hello_wait, limits.token_wait) / 1000, self._too_late
        )
        self._looking = True
        door.loop.add_reader(accepted, self._look)

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
        self._door.loop.remove_reader(self._socket)
        self._looking = False
        self._guest.waits()
        self._door.spoke(self, tls=first == TLS_HANDSHAKE and self._door.tls is not None)

    def take_over(self, tls: ssl.SSLContext | None) -> None:
        self._ours = False
        self._guest.takes_place()
        self._task = self._door.spawn(self, tls)

    async def connect(self, tls: ssl.SSLContext | None) -> None:
        def sniffer() -> Sniffer:
            return Sniffer(
                self._guest, lambda speaks: self._door.successor(speaks, self._guest), self._deadline.cancel
            )

        try:
            if tls is None:
                await self._door.loop.connect_accepted_socket(sniffer, self._socket)
            else:
                await self._door.loop.connect_accepted_socket(
                    sniffer,
                    self._socket,
                    ssl=tls,
                    ssl_handshake_timeout=self._door.lobby.limits.hello_wait / 1000,
                )
        except (
            OSError,
            EOFError,
        ):  # ssl.SSLError is an OSError: the client did not keep to the protocol, or left
            self._end()
        except asyncio.CancelledError:
            self._end()
            raise
        finally:
            self._task = None
            self._door.handshake_ended(self)

    def _too_late(self) -> None:
        self._guest.turn_out()

    def drop(self) -> None:
        """Give up on it, before a transport has it or while it is in its handshake."""
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
            self._door.loop.remove_reader(self._socket)
        if self._ours:
            self._socket.close()
        self._guest.leave()


def _listening(family: int, kind: int, protocol: int, address: tuple[str | int, ...]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
