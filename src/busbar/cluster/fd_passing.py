"""Hands sockets from the controller to a broker process: the connections of clients, and its channels to the other broker
processes.

Rules:
1. Each is handed over with a label, in a datagram of its own, in their order. A socket that cannot be handed over now waits.
2. The broker process reports from time to time how many connections it has, and how many it had got by then. Connections
   that were handed over since are counted on top.
3. A socket that cannot be handed over is closed, and the others go on. If the cause is not the socket (too many are under
   way, the process is ending), it is tried again after a pause. The same holds for a socket that cannot be taken at the
   other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable

CLIENT = "client"
WAITING = 64
"""How many sockets wait here. Further clients are better left in the kernel's queue."""
REPORT_SECONDS = 0.25
RETRY_SECONDS = 0.05
NOT_NOW = frozenset((errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM))
"""Errors by which the kernel has no room for one more socket on its way."""
ENDING = frozenset((errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN))
"""Errors by which the process has ended: the channel to it ends too, and the fd_socket is closed with it."""

_log = logging.getLogger(__name__)


class FdSender:
    """The controller's end."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[str, socket.socket]] = deque()
        self._clients = 0
        """Handed over so far."""
        self._reported = (0, 0)
        self._retry: asyncio.TimerHandle | None = None
        self._loop.add_reader(end, self._read_report)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= WAITING

    @property
    def connection_count(self) -> int:
        """Connections of the broker: what it reported last, and what was handed over since."""
        got, connections = self._reported
        return connections + self._clients - got

    def send(self, label: str, what: socket.socket) -> None:
        """Hand over a socket. It is closed here when it was handed over."""
        self._clients += label == CLIENT
        self._waiting.append((label, what))
        if len(self._waiting) == 1:
            self._flush()

    def close(self) -> list[socket.socket]:
        """Close this end. Returns the clients that were not handed over."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._end.close()
        left = [what for label, what in self._waiting if label == CLIENT]
        for label, what in self._waiting:
            if label != CLIENT:
                what.close()
        self._waiting.clear()
        return left

    def _flush(self) -> None:
        while self._waiting:
            label, what = self._waiting[0]
            try:
                socket.send_fds(self._end, [label.encode()], [what.fileno()])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._end, self._flush)
                return
            except OSError as error:  # rule 3
                if error.errno in NOT_NOW or error.errno in ENDING:
                    self._loop.remove_writer(self._end)
                    self._retry = self._loop.call_later(RETRY_SECONDS, self._flush)
                    return
                _log.warning("a socket (%s) could not be handed over: %s", label, error)
                self._clients -= label == CLIENT
            self._waiting.popleft()
            what.close()
        self._loop.remove_writer(self._end)

    def _read_report(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            got, connections = self._end.recv(64).split()
            self._reported = (int(got), int(connections))


class FdReceiver:
    """The broker process's end."""

    def __init__(
        self,
        end: socket.socket,
        got: Callable[[str, socket.socket], None],
        population: Callable[[], int],
        exhausted: Callable[[str], None],
    ) -> None:
        """`exhausted` is called with the label of a socket for which there was no descriptor left."""
        end.setblocking(False)
        self._end = end
        self._got = got
        self._population = population
        self._exhausted = exhausted
        self._clients = 0
        self._said = (0, 0)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self._take)
        self._next_report = self._loop.call_later(REPORT_SECONDS, self._report)
        self._retry: asyncio.TimerHandle | None = None

    def close(self) -> None:
        self._loop.remove_reader(self._end)
        self._next_report.cancel()
        if self._retry is not None:
            self._retry.cancel()
        self._end.close()

    def _take(self) -> None:
        for _ in range(WAITING):
            try:
                label, descriptors, _flags, _from = socket.recv_fds(self._end, 256, 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # rule 3; if the controller ends, so does this one
                _log.warning("nothing can be taken from the controller: %s", error)
                self._loop.remove_reader(self._end)
                self._retry = self._loop.call_later(RETRY_SECONDS, self._again)
                return
            self._taken(label.decode(), descriptors)

    def _again(self) -> None:
        self._loop.add_reader(self._end, self._take)

    def _taken(self, label: str, descriptors: list[int]) -> None:
        self._clients += label == CLIENT
        if not descriptors:
            self._exhausted(label)
            return
        what: socket.socket | None = None
        try:
            what = socket.socket(fileno=descriptors[0])
            what.setblocking(False)
            self._got(label, what)
        except Exception:
            _log.exception("a socket (%s) could not be taken", label)
            if what is not None:
                what.close()
            else:
                os.close(descriptors[0])

    def _report(self) -> None:
        now = (self._clients, self._population())
        if now != self._said:
            with contextlib.suppress(OSError):  # reported again later, if it is full now
                self._end.send(f"{now[0]} {now[1]}".encode())
                self._said = now
        self._next_report = self._loop.call_later(REPORT_SECONDS, self._report)
