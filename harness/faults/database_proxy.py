"""A TCP proxy in front of a database server that cuts a connection at a chosen point, or holds what a client sends.

cut(Cut.REQUEST)     the next bytes of the client do not reach the server
cut(Cut.ANSWER)      they do, and the server's answer does not reach the client
cut(Cut.BOTH)        they do, and the connection is cut at once: whether the server gets to act on them is chance
hold() and release() bytes of the client wait in the proxy meanwhile
part() and join()    all connections end, and further ones are closed at once, meanwhile
"""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import Enum, auto
from typing import Self

_BACKEND_KEY = b"K\x00\x00\x00\x0c"


class Cut(Enum):
    REQUEST = auto()
    ANSWER = auto()
    BOTH = auto()


class DatabaseProxy:
    def __init__(self, port: int, *, is_pooler: bool = False) -> None:
        """`is_pooler`: clients get another process number than that of their session, as from poolers."""
        self._target = port
        self._is_pooler = is_pooler
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.cuts = 0
        self._next: Cut | None = None
        self._flows = threading.Event()
        self._flows.set()
        self._is_parted = False
        self._open: set[socket.socket] = set()
        self._muted: dict[socket.socket, threading.Event] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self.release()
        for end in list(self._open):
            _close(end)

    def cut(self, how: Cut) -> None:
        """Cut the connection over which the next bytes come."""
        self._next = how

    def hold(self) -> None:
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    def part(self) -> None:
        self._is_parted = True
        for end in list(self._open):
            _close(end)

    def join(self) -> None:
        self._is_parted = False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                if self._is_parted:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            self._open |= {client, server}
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._upwards, args=(client, server), daemon=True).start()
            threading.Thread(target=self._downwards, args=(server, client), daemon=True).start()

    def _upwards(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                self._flows.wait()
                how, self._next = self._next, None
                if how is Cut.ANSWER:
                    self._muted[client] = threading.Event()
                if how is not Cut.REQUEST:
                    server.sendall(data)
                if how is Cut.ANSWER:
                    self._forward_until_answered(client, server)
                if how is not None:
                    self.cuts += 1
                    break
        self._end(client, server)

    def _forward_until_answered(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on the rest of the request. When the server has answered, it has acted."""
        client.setblocking(False)
        while not self._muted[client].wait(0.002):
            with contextlib.suppress(BlockingIOError):
                rest = client.recv(1 << 20)
                if not rest:
                    return
                server.sendall(rest)

    def _downwards(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                at = data.find(_BACKEND_KEY) if self._is_pooler else -1
                if at >= 0:
                    data = data[: at + 5] + b"\0\0\0\1" + data[at + 9 :]
                if client in self._muted:
                    self._muted[client].set()
                else:
                    client.sendall(data)
        self._end(client, server)

    def _end(self, *ends: socket.socket) -> None:
        for end in ends:
            _close(end)
            self._open.discard(end)
            self._muted.pop(end, None)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
