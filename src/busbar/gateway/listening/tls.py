"""TLS with bounded cost: a client cannot make the server work without effort of its own.

- OpenSSL gets one record at a time. So it is known whether each record had application data, and OpenSSL's own loop over
  records without data ends after each.
- After the handshake a record without data is one of three. A key update of TLS 1.3 (RFC 8446, 4.6.3) costs the server new
  keys and an answer. An attempt to renegotiate TLS 1.2 is answered with an alert. The third is an alert. A connection may
  send `AT_ONCE` of them, and `PER_SECOND` more as time passes; the next one closes it. Libraries renew keys after some
  gigabytes.
- Padded records have data like others.
- A ClientHello is checked before OpenSSL gets it (client_hello.py).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import TypeVar

from busbar.gateway.listening.client_hello import HANDSHAKE, HelloWatch

AT_ONCE = 100
PER_SECOND = 10
HEAD = 5
"""Bytes of a record's head; the last two are the length of the rest (RFC 8446, 5.1)."""

T = TypeVar("T")


class RecordFeed(ssl.SSLObject):
    """Moves bytes from `arrived` to `offered`, where OpenSSL reads them."""

    arrived: ssl.MemoryBIO
    offered: ssl.MemoryBIO

    def begin(self, arrived: ssl.MemoryBIO, offered: ssl.MemoryBIO) -> None:
        self.arrived = arrived
        self.offered = offered
        self._head = b""  # of a record, as far as it has come
        self._missing = 0  # bytes of the record that has begun
        self._hello: HelloWatch | None = HelloWatch()  # until the handshake has ended
        self._sees_hello = False  # it sees the record that has begun
        self._without_data = 0.0
        self._since = time.monotonic()

    def do_handshake(self) -> None:
        self._run_with_records(super().do_handshake)
        self._hello = None

    def unwrap(self) -> None:
        self._run_with_records(super().unwrap)

    def _run_with_records(self, work: Callable[[], T]) -> T:
        while True:
            try:
                return work()
            except ssl.SSLWantReadError:
                if not self._offer():
                    raise

    def read(self, len: int = 1024, buffer: bytearray | None = None) -> bytes | int:  # type: ignore[override]
        # The names of the arguments are those of ssl.SSLObject.
        while True:
            # A call of OpenSSL without data costs an exception, so a record is offered first.
            offered = not self.pending() and self._offer()
            try:
                return super().read(len, buffer)
            except ssl.SSLWantReadError:
                if not offered:
                    raise
                if not self._missing:
                    self._count()

    def _offer(self) -> bool:
        """Offer a record, or the part of it that has come. False if nothing has come."""
        if not self._missing:
            head = self._head + self.arrived.read(HEAD - len(self._head))
            if len(head) < HEAD:
                self._head = head
                return False
            self._head = b""
            self._missing = int.from_bytes(head[3:], "big")
            self._sees_hello = head[0] == HANDSHAKE
            self.offered.write(head)
        elif not self.arrived.pending:
            return False
        some = self.arrived.read(self._missing)
        self._missing -= len(some)
        if self._hello is not None and self._sees_hello:
            self._hello.sees(some)
        self.offered.write(some)
        return True

    def _count(self) -> None:
        now = time.monotonic()
        left = self._without_data - (now - self._since) * PER_SECOND
        self._since = now
        self._without_data = max(0.0, left) + 1
        if self._without_data > AT_ONCE:
            raise ssl.SSLError(
                f"more than {AT_ONCE} TLS records without application data, and {PER_SECOND} each second"
            )


class ServerContext(ssl.SSLContext):
    """The context of a server; event loops call it to create the TLS object of a connection."""

    sslobject_class = RecordFeed

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        offered = ssl.MemoryBIO()
        made = super().wrap_bio(offered, outgoing, server_side, server_hostname, session)
        assert isinstance(made, RecordFeed)
        made.begin(incoming, offered)
        return made
