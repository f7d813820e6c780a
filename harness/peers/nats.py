"""NATS JetStream: a work queue in files. Each message is synced before it is acknowledged (`sync_interval: always`).

A message is published with a reply subject, where the server acknowledges it. A pull consumer receives it. Its settlement is
confirmed too. There are no batches in the older protocol: the messages of a batch are published together.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from harness.peers.client import BODY, PeerConnection, PeerError, PeerReceiver, PeerSender, opened
from harness.peers.packages import Program, Unavailable, find_program
from harness.peers.process import PeerProcess
from harness.postgresql import free_port

OLDEST = (2, 10)
"""The first version that can sync each message."""
_END = b"\r\n"
_PULL_SECONDS = 600


class NatsConnection(PeerConnection):
    def __init__(self) -> None:
        super().__init__()
        self._data = b""
        self._replies: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self._data += data
        at = 0
        while (end := self._data.find(_END, at)) >= 0:
            words = self._data[at:end].split()
            at_next = end + 2
            if words[0] == b"MSG":
                length = int(words[-1])
                if len(self._data) < at_next + length + 2:
                    break
                self._take(words, self._data[at_next : at_next + length])
                at_next += length + 2
            elif words[0] == b"HMSG":  # a status of a pull, as its end
                length = int(words[-1])
                if len(self._data) < at_next + length + 2:
                    break
                at_next += length + 2
            elif words[0] == b"PING":
                self.write(b"PONG\r\n")
            elif words[0] == b"-ERR":
                self.fail(PeerError(self._data[at:end].decode()))
                return
            at = at_next
        self._data = self._data[at:]
        if isinstance(self.user, NatsReceiver):
            self.user.settle()

    def _take(self, words: list[bytes], payload: bytes) -> None:
        if isinstance(self.user, NatsSender):
            if b'"error"' in payload:
                self.fail(PeerError(payload.decode()))
            else:
                self.user.answered(1)
        elif isinstance(self.user, NatsReceiver):
            self.user.take(words)
        else:
            self._replies.append(payload)
            self.waiting.wake()

    async def begin(self, inbox: bytes) -> None:
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        self.write(b"CONNECT %b\r\nSUB %b 1\r\n" % (json.dumps(options).encode(), inbox))

    async def call(self, subject: str, request: object, inbox: bytes) -> None:
        """Ask the server's interface, and raise what it refuses."""
        text = json.dumps(request).encode()
        self.write(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox, len(text), text))
        await self.waiting.until(lambda: bool(self._replies))
        answer = json.loads(self._replies.pop())
        if "error" in answer:
            raise PeerError(f"{subject}: {answer['error']['description']}")


class NatsSender(PeerSender):
    def __init__(self, connection: NatsConnection, queue: str, in_flight: int, batch: int) -> None:
        super().__init__(in_flight, batch)
        self._connection = connection
        self._data = b"PUB %b sent %d\r\n%b\r\n" % (queue.encode(), len(BODY), BODY) * batch

    def write(self, batches: int) -> None:
        self._connection.write(self._data * batches)


class NatsReceiver(PeerReceiver):
    """Asks for messages when half of its credit is used. A message comes with the subject where it is settled."""

    def __init__(self, connection: NatsConnection, queue: str, credit: int) -> None:
        super().__init__()
        self._connection = connection
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{queue}.{queue}".encode()
        self._credit = credit
        self._used = 0
        self._settling: list[bytes] = []

    def pull(self, count: int) -> None:
        text = json.dumps({"batch": count, "expires": _PULL_SECONDS * 10**9}).encode()
        self._connection.write(b"PUB %b got %d\r\n%b\r\n" % (self._subject, len(text), text))

    def take(self, words: list[bytes]) -> None:
        if len(words) == 5:  # a message, with a subject for its settlement
            self._settling.append(b"PUB %b got 4\r\n+ACK\r\n" % words[3])
            self._used += 1
        else:
            self.confirm(1)

    def settle(self) -> None:
        if self._settling:
            self._connection.write(b"".join(self._settling))
            self._settling.clear()
        if self._used >= (self._credit + 1) // 2:
            self.pull(self._used)
            self._used = 0


def require_sync(program: Program) -> None:
    said = subprocess.run([str(program.path), "-v"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+)\.(\d+)\.\d+", said)
    if found is None or tuple(map(int, found.groups())) < OLDEST:
        raise Unavailable(
            f"{program.path.name} is {said.strip() or 'of an unknown version'}, which cannot sync before it acknowledges: "
            f"put one of {'.'.join(map(str, OLDEST))} or later on the PATH"
        )


class Nats:
    name = "NATS JetStream"

    def __init__(self, directory: Path, queue: str = "orders", *, synced: bool = True) -> None:
        """Without `synced`, an older server can be used, for tests of the client."""
        program = find_program("nats-server", "nats-server")
        if synced:
            require_sync(program)
        self._port = free_port()
        self._queue = queue
        sync = ", sync_interval: always" if synced else ""
        settings = directory / "nats.conf"
        settings.write_text(
            f"host: 127.0.0.1\nport: {self._port}\n"
            f'jetstream {{ store_dir: "{directory}", max_file_store: 10GB{sync} }}\n'
        )
        self._process = PeerProcess([str(program.path), "-c", str(settings)], directory)
        self._connections: list[NatsConnection] = []

    def start(self) -> None:
        self._process.start(self._port)

    def stop(self) -> None:
        self._process.stop()

    def cpu_seconds(self) -> float:
        return self._process.cpu_seconds()

    def syncs(self) -> int | None:
        return None

    async def sender(self, in_flight: int, batch: int = 1) -> NatsSender:
        connection = await self._connect(b"sent")
        connection.user = sender = NatsSender(connection, self._queue, in_flight, batch)
        return sender

    async def receiver(self, credit: int) -> NatsReceiver:
        connection = await self._connect(b"got")
        connection.user = receiver = NatsReceiver(connection, self._queue, credit)
        receiver.pull(credit)
        return receiver

    async def _connect(self, inbox: bytes) -> NatsConnection:
        """A connection to a stream and a consumer, which exist afterwards."""
        connection = await opened(NatsConnection, self._port)
        self._connections.append(connection)
        await connection.begin(inbox)
        stream = {
            "name": self._queue,
            "subjects": [self._queue],
            "retention": "workqueue",
            "storage": "file",
            "num_replicas": 1,
            "duplicate_window": 10**8,
        }
        await connection.call(f"$JS.API.STREAM.CREATE.{self._queue}", stream, inbox)
        consumer = {
            "stream_name": self._queue,
            "config": {
                "durable_name": self._queue,
                "ack_policy": "explicit",
                "deliver_policy": "all",
                "max_ack_pending": 10_000,
            },
        }
        await connection.call(f"$JS.API.CONSUMER.DURABLE.CREATE.{self._queue}.{self._queue}", consumer, inbox)
        return connection

    async def close(self) -> None:
        while self._connections:
            self._connections.pop().abort()
