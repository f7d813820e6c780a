"""The network between nodes on one machine, which a test can cut.

A node listens on 127.0.0.1, and is known to the others as another address of the loopback. There a proxy for each of its
ports passes bytes on. While the network is cut, connections end, and new ones are refused at once.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class NodeNetwork:
    def __init__(self) -> None:
        self._listening: list[socket.socket] = []
        self._open: set[socket.socket] = set()
        self._is_cut = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for listening in self._listening:
            listening.close()
        self._end_all()

    def add(self, address: str, ports: int = 2) -> int:
        """Make a way to so many consecutive ports of 127.0.0.1, from that address. Returns the first."""
        while True:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                first = int(probe.getsockname()[1])
            with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
                for port in range(first, first + ports):
                    probes.enter_context(socket.create_server(("127.0.0.1", port)))
                fronts = [socket.create_server((address, port)) for port in range(first, first + ports)]
                self._listening += fronts
                for port, front in zip(range(first, first + ports), fronts, strict=True):
                    threading.Thread(target=self._accept, args=(front, port), daemon=True).start()
                return first

    def cut(self) -> None:
        self._is_cut = True
        self._end_all()

    def mend(self) -> None:
        self._is_cut = False

    def _end_all(self) -> None:
        for one in [*self._open]:
            _end(one)

    def _accept(self, front: socket.socket, port: int) -> None:
        while True:
            try:
                client, _ = front.accept()
            except OSError:
                return
            try:
                if self._is_cut:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", port))
            except OSError:
                client.close()
                continue
            self._open |= {client, server}
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for one in (source, target):
            _end(one)
            self._open.discard(one)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
