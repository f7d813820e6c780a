"""Where sockets are handed from the serving process to a broker process: the connections of clients, and its channels to the
other broker processes.

Rules:
1. Each is handed over with a label, in a datagram of its own, in their order. Who cannot be handed over now waits.
2. The broker process says from time to time how many connections it has, and how many it had got by then: what was handed
   over since is counted on top.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable

CLIENT = "client"
WAITING = 64
"""Who comes then is better left in the kernel's queue."""
REPORT_SECONDS = 0.25


class Hatch:
    """The serving process's end."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[str, socket.socket]] = deque()
        self._clients = 0
        """Handed over so far."""
        self._reported = (0, 0)
        self._loop.add_reader(end, self._hear)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= WAITING

    @property
    def population(self) -> int:
        """Rule 2."""
        got, connections = self._reported
        return connections + self._clients - got

    def hand_over(self, label: str, what: socket.socket) -> None:
        """It is closed here when it was handed over."""
        self._clients += label == CLIENT
        self._waiting.append((label, what))
        if len(self._waiting) == 1:
            self._pass_on()

    def close(self) -> list[socket.socket]:
        """The clients that were not handed over."""
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._end.close()
        left = [what for label, what in self._waiting if label == CLIENT]
        for label, what in self._waiting:
            if label != CLIENT:
                what.close()
        self._waiting.clear()
        return left

    def _pass_on(self) -> None:
        while self._waiting:
            label, what = self._waiting[0]
            try:
                socket.send_fds(self._end, [label.encode()], [what.fileno()])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._end, self._pass_on)
                return
            except OSError:  # nobody is there any more: its channel ends too, and we are closed
                self._loop.remove_writer(self._end)
                return
            self._waiting.popleft()
            what.close()
        self._loop.remove_writer(self._end)

    def _hear(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            got, connections = self._end.recv(64).split()
            self._reported = (int(got), int(connections))


class HatchEnd:
    """The broker process's end."""

    def __init__(
        self,
        end: socket.socket,
        got: Callable[[str, socket.socket], None],
        population: Callable[[], int],
        exhausted: Callable[[], None],
    ) -> None:
        """`exhausted` hears that there was no descriptor left for what was handed over."""
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

    def close(self) -> None:
        self._loop.remove_reader(self._end)
        self._next_report.cancel()
        self._end.close()

    def _take(self) -> None:
        for _ in range(WAITING):
            try:
                label, descriptors, _flags, _from = socket.recv_fds(self._end, 256, 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # the serving process ends, and so does this one
                self._loop.remove_reader(self._end)
                return
            name = label.decode()
            self._clients += name == CLIENT
            if not descriptors:
                self._exhausted()
                continue
            what = socket.socket(fileno=descriptors[0])
            what.setblocking(False)
            self._got(name, what)

    def _report(self) -> None:
        now = (self._clients, self._population())
        if now != self._said:
            with contextlib.suppress(OSError):  # said again, if it is not full
                self._end.send(f"{now[0]} {now[1]}".encode())
                self._said = now
        self._next_report = self._loop.call_later(REPORT_SECONDS, self._report)
