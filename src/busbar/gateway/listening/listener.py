"""The listening ports: accepts every connection and passes it on.

While there is no room for one more, none is accepted, and new connections stay in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

BACKLOG = 1024
ACCEPTS_PER_TURN = 64
"""After so many the open connections get their turn."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


class Listener:
    def __init__(
        self,
        accept_delay: Callable[[], float],
        on_accept: Callable[[socket.socket], None],
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        """`accept_delay` is 0 if one more may be accepted now, else the seconds to wait; `on_accept` gets the accepted
        socket; `make_room` is called when there are no descriptors left."""
        self.loop = asyncio.get_running_loop()
        self._accept_delay = accept_delay
        self._on_accept = on_accept
        self._make_room = make_room
        self._listening: list[socket.socket] = []
        self._pauses: set[asyncio.TimerHandle] = set()

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
                # A name may have an address that this machine does not have (::1 where there is no IPv6).
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
        """Stop accepting."""
        for listener in self._listening:
            self.loop.remove_reader(listener)
            listener.close()
        self._listening.clear()
        for pause in self._pauses:
            pause.cancel()

    def _acceptable(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            wait = self._accept_delay()
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
                self._make_room()
                self._pause(listener, 0.2)
                return
            accepted.setblocking(False)
            with suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._on_accept(accepted)

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        self.loop.remove_reader(listener)

        def go_on() -> None:
            self._pauses.discard(timer)
            if listener in self._listening:
                self.loop.add_reader(listener, self._acceptable, listener)

        # Not the whole wait: others may authenticate meanwhile and make room.
        timer = self.loop.call_later(min(seconds, 0.05), go_on)
        self._pauses.add(timer)


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
