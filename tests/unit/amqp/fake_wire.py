"""Two engines joined by a wire that is not there, and one engine talked to in hexadecimal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from busbar.amqp.codec import encode_value
from busbar.amqp.connection import Connection, ConnectionConfig
from busbar.amqp.events import Event, LinkAttaching, SaslInit
from busbar.amqp.link import Link
from busbar.amqp.performatives import Terminus
from busbar.amqp.session import Session
from busbar.amqp.types import Described, ULong

MECHANISMS = ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"]
AMQP = b"AMQP\x00\x01\x00\x00"
SASL = b"AMQP\x03\x01\x00\x00"

E = TypeVar("E", bound=Event)


def of(kind: type[E], events: list[Event]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def the(kind: type[E], events: list[Event]) -> E:
    found = of(kind, events)
    assert len(found) == 1, [type(event).__name__ for event in events]
    return found[0]


def names(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def server_config(**changes: object) -> ConnectionConfig:
    settings: dict[str, object] = {"container_id": "broker", "mechanisms": MECHANISMS}
    settings.update(changes)
    return ConnectionConfig(**settings)  # type: ignore[arg-type]


def client_config(**changes: object) -> ConnectionConfig:
    settings: dict[str, object] = {"container_id": "client", "hostname": "localhost", "server": False}
    settings.update(changes)
    return ConnectionConfig(**settings)  # type: ignore[arg-type]


class Wire:
    """A client and a server; `run` carries bytes until both are silent. Links are accepted unless told otherwise."""

    def __init__(
        self, server: ConnectionConfig | None = None, client: ConnectionConfig | None = None
    ) -> None:
        self.server = Connection(server or server_config())
        self.client = Connection(client or client_config())
        self.now = 1000
        self.grants = 100
        self.verdict = 0
        self.answer: Callable[[Link], None] = self.accept

    def accept(self, link: Link) -> None:
        link.accept(262144)
        if not link.sending:
            link.grant(self.grants)

    def run(self, chunk: int = 0) -> tuple[list[Event], list[Event]]:
        """Carry all bytes, in pieces of `chunk`; the server's events and the client's."""
        server: list[Event] = []
        client: list[Event] = []
        while True:
            up, down = self.client.data_to_send(), self.server.data_to_send()
            if not up and not down:
                return server, client
            for piece in _pieces(up, chunk):
                for event in self.server.receive_data(piece, self.now):
                    server.append(event)
                    if isinstance(event, SaslInit):
                        self.server.sasl_outcome(self.verdict)
                    elif isinstance(event, LinkAttaching):
                        self.answer(event.link)
            for piece in _pieces(down, chunk):
                client += self.client.receive_data(piece, self.now)

    def start(self) -> Session:
        """Open the connection and begin a session; the client's end of it."""
        self.client.open()
        session = self.client.begin()
        self.run()
        assert self.client.is_open and self.server.is_open and session.is_begun
        return session

    def sender(self, session: Session, name: str = "s") -> tuple[Link, Link]:
        """A link on which the client sends: its end and the server's."""
        link = session.attach_sender(name, Terminus("me"), Terminus("q"), 0, 1)
        events, _ = self.run()
        return link, the(LinkAttaching, events).link

    def receiver(self, session: Session, name: str = "r", **options: object) -> tuple[Link, Link]:
        """A link on which the client receives: its end and the server's."""
        link = session.attach_receiver(name, Terminus("q"), Terminus("me"), 0, 1, **options)  # type: ignore[arg-type]
        events, _ = self.run()
        return link, the(LinkAttaching, events).link


def _pieces(data: bytes, chunk: int) -> list[bytes]:
    if not data:
        return []
    if chunk == 0:
        return [data]
    return [data[start : start + chunk] for start in range(0, len(data), chunk)]


def frame(channel: int, code: int | str, fields: list[object], payload: bytes = b"", kind: int = 0) -> bytes:
    """A frame as any client might write it."""
    descriptor = ULong(code) if isinstance(code, int) else code
    body = encode_value(Described(descriptor, fields)) + payload
    return (8 + len(body)).to_bytes(4, "big") + bytes((2, kind)) + channel.to_bytes(2, "big") + body


def hexed(text: str) -> bytes:
    return bytes.fromhex(text)


def bodies(data: bytes) -> list[bytes]:
    """The frames in `data`, without headers of the protocol."""
    found = []
    while data:
        if data.startswith(b"AMQP"):
            data = data[8:]
            continue
        size = int.from_bytes(data[:4], "big")
        found.append(data[:size])
        data = data[size:]
    return found
