"""A TCP proxy in front of a Busbar that notes the requests of the console, and passes everything on."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from typing import Self

from harness.serving import Busbar

REQUEST = re.compile(rb"[A-Z]+ (\S+) HTTP/1\.1\r\n")


class RequestCounter:
    """`seen` has the path of each request, and "AMQP" for a connection of that protocol."""

    def __init__(self, server: Busbar) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.seen: list[str] = []

    @property
    def connection_string(self) -> str:
        port = self._listening.getsockname()[1]
        return re.sub(r"(sb://[^:;]*):\d+", rf"\1:{port}", self._server.connection_string)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._server.port))
                threading.Thread(target=self._pass_on, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, client, False), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_client:
                    self._note(data)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _note(self, data: bytes) -> None:
        if data.startswith(b"AMQP"):
            self.seen.append("AMQP")
        elif found := REQUEST.match(data):
            self.seen.append(found[1].partition(b"?")[0].decode())
