"""What keep-alive is worth over HTTP: requests/s on a kept connection and on a new one each, plain and over TLS."""

from __future__ import annotations

import socket
import ssl
import sys
import time

from busbar.model.sas import sign
from harness.serving import Busbar, serving

SECONDS = 1.0
"""For each of the figures: two for each transport, twice over."""
ROUNDS = 2
MIN_RATIO = 1.2


def token(server: Busbar) -> str:
    return sign("http://localhost/q", "RootManageSharedAccessKey", server.key, int(time.time()) + 600)


class Client:
    """One request at a time, the cheapest one: a receive from an empty queue, answered without a sync."""

    def __init__(self, server: Busbar, trust: ssl.SSLContext | None) -> None:
        self._port = server.port
        self._trust = trust
        self._authorization = token(server)
        self._socket: socket.socket | None = None

    def request(self, *, keep: bool) -> None:
        connection = self._socket
        if connection is None:
            connection = socket.create_connection(("localhost", self._port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._trust is not None:
                connection = self._trust.wrap_socket(connection, server_hostname="localhost")
        connection.sendall(
            f"DELETE /q/messages/head?timeout=0 HTTP/1.1\r\nHost: localhost\r\n"
            f"Connection: {'keep-alive' if keep else 'close'}\r\n"
            f"Authorization: {self._authorization}\r\n\r\n".encode()
        )
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            part = connection.recv(4096)
            assert part, f"the server went away after {answer!r}"
            answer += part
        assert answer.startswith(b"HTTP/1.1 204 "), answer
        self._socket = connection if keep else None
        if not keep:
            connection.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def rate(client: Client, *, keep: bool) -> float:
    began = time.monotonic()
    done = 0
    while time.monotonic() - began < SECONDS:
        client.request(keep=keep)
        done += 1
    return done / (time.monotonic() - began)


def main() -> int:
    fine = True
    with serving({"q": {}}) as server:
        secure = ssl.create_default_context(cafile=str(server.data / "tls" / "ca.pem"))
        for name, trust in (("plain", None), ("TLS", secure)):
            client = Client(server, trust)
            kept = closed = 0.0
            for _ in range(ROUNDS):
                kept = max(kept, rate(client, keep=True))
                client.close()
                closed = max(closed, rate(client, keep=False))
            print(
                f"{name:>6}: {kept:,.0f} requests/s kept alive, {closed:,.0f} with a connection each: {kept / closed:.1f} ×"
            )
            fine = fine and kept / closed >= MIN_RATIO
    if not fine:
        print(f"keep-alive should be worth at least {MIN_RATIO} ×")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
