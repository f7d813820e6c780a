"""A TCP load balancer in front of the nodes of a cluster, as an operator would have one: it passes bytes on, unread.

A connection goes to the next node that accepts it. A node that is taken out gets no more, and those it has are ended.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from typing import Self

from harness.serving import Busbar


class LoadBalancer:
    def __init__(self) -> None:
        self._nodes: list[Busbar] = []
        self._turn = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._open: dict[socket.socket, tuple[socket.socket, Busbar]] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        for node in [*self._nodes]:
            self.take_out(node)

    def put_in(self, node: Busbar) -> None:
        self._nodes.append(node)

    def drain(self, node: Busbar) -> None:
        """Send no more clients to a node, which is about to be stopped."""
        self._nodes.remove(node)

    def take_out(self, node: Busbar) -> None:
        """Send no more clients to a node, and end the connections that it has."""
        self._nodes.remove(node)
        for client, (server, where) in [*self._open.items()]:
            if where is node:
                _end(client)
                _end(server)

    @property
    def connection_string(self) -> str:
        """The connection string of the nodes, which have the same key, with the port of the balancer."""
        return re.sub(r"(sb://[^:;]*):\d+", rf"\1:{self.port}", self._nodes[0].connection_string)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if not self._connect(client):
                client.close()

    def _connect(self, client: socket.socket) -> bool:
        for _ in range(len(self._nodes)):
            self._turn += 1
            node = self._nodes[self._turn % len(self._nodes)]
            try:
                server = socket.create_connection(("127.0.0.1", node.port), timeout=2)
            except OSError:
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open[client] = (server, node)
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(*ends, client), daemon=True).start()
            return True
        return False

    def _pass_on(self, source: socket.socket, target: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        _end(source)
        _end(target)
        self._open.pop(client, None)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
