"""Redis: a stream with a consumer group. Each write is synced before it is answered (`appendfsync always`).

A message is added with XADD, read with XREADGROUP, and settled with XACK and XDEL. A batch is a transaction.
"""

from __future__ import annotations

from pathlib import Path

from harness.peers.client import BODY, PeerConnection, PeerError, PeerReceiver, PeerSender, opened
from harness.peers.packages import find_program
from harness.peers.process import PeerProcess
from harness.postgresql import free_port

_END = b"\r\n"
Reply = bytes | int | None | list["Reply"] | PeerError


def command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts.append(b"$%d\r\n%b\r\n" % (len(word), word))
    return b"".join(parts)


class _Incomplete(Exception):
    """The rest of a reply has not arrived."""


def parse(data: bytes, at: int) -> tuple[Reply, int]:
    """The reply at a position, and where it ends. Raises _Incomplete."""
    end = data.find(_END, at)
    if end < 0:
        raise _Incomplete
    kind, text, end = data[at : at + 1], data[at + 1 : end], end + 2
    if kind == b"+":
        return text, end
    if kind == b"-":
        return PeerError(text.decode()), end
    count = int(text)
    if kind == b":":
        return count, end
    if count < 0:
        return None, end
    if kind == b"$":
        if len(data) < end + count + 2:
            raise _Incomplete
        return data[end : end + count], end + count + 2
    if kind != b"*":
        raise PeerError(f"a reply begins with {kind!r}")
    items: list[Reply] = []
    for _ in range(count):
        item, end = parse(data, end)
        items.append(item)
    return items, end


class RedisConnection(PeerConnection):
    def __init__(self) -> None:
        super().__init__()
        self._data = b""
        self._replies: list[Reply] = []

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not data.endswith(_END):
            return  # no reply ends here: a large one is not parsed again for each part of it
        at = 0
        try:
            while at < len(self._data):
                reply, at = parse(self._data, at)
                self._take(reply)
        except _Incomplete:
            pass
        except PeerError as error:
            self.fail(error)
        self._data = self._data[at:]

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, PeerError):
            raise reply
        if isinstance(self.user, RedisSender | RedisReceiver):
            self.user.take(reply)
        else:
            self._replies.append(reply)
            self.waiting.wake()

    async def call(self, *words: bytes) -> Reply:
        self.write(command(*words))
        await self.waiting.until(lambda: bool(self._replies))
        return self._replies.pop()


class RedisSender(PeerSender):
    def __init__(self, connection: RedisConnection, queue: bytes, in_flight: int, batch: int) -> None:
        super().__init__(in_flight, batch)
        self._connection = connection
        self._transaction = batch > 1
        one = command(b"XADD", queue, b"*", b"b", BODY)
        self._data = command(b"MULTI") + one * batch + command(b"EXEC") if self._transaction else one

    def write(self, batches: int) -> None:
        self._connection.write(self._data * batches)

    def take(self, reply: Reply) -> None:
        if not self._transaction:
            self.answered(1)
        elif isinstance(reply, list):  # of EXEC; those before it are of the queued commands
            self.answered(len(reply))


class RedisReceiver(PeerReceiver):
    def __init__(self, connection: RedisConnection, queue: bytes, group: bytes, credit: int) -> None:
        super().__init__()
        self._connection = connection
        self._queue, self._group = queue, group
        count = b"%d" % credit
        self._read = command(
            b"XREADGROUP", b"GROUP", group, b"one", b"COUNT", count, b"BLOCK", b"0", b"STREAMS", queue, b">"
        )
        self._integers = 0

    def start(self) -> None:
        self._connection.write(self._read)

    def take(self, reply: Reply) -> None:
        if isinstance(reply, int):
            self._integers += 1
            if self._integers % 2 == 0:  # of XDEL, after that of XACK
                self.confirm(reply)
            return
        ids = ids_of(reply)
        settle = command(b"XACK", self._queue, self._group, *ids) + command(b"XDEL", self._queue, *ids)
        self._connection.write(settle + self._read)


def ids_of(reply: Reply) -> list[bytes]:
    """The ids of the messages of one stream, in a reply to XREADGROUP."""
    match reply:
        case [[bytes(), [*entries]]]:
            return [entry[0] for entry in entries if isinstance(entry, list) and isinstance(entry[0], bytes)]
    raise PeerError("the reply to XREADGROUP has another form")


class Redis:
    name = "Redis"

    def __init__(self, directory: Path, queue: str = "orders") -> None:
        program = find_program("redis-server", "redis-server")
        self._port = free_port()
        settings = {
            "port": str(self._port),
            "bind": "127.0.0.1",
            "dir": str(directory),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "daemonize": "no",
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        self._process = PeerProcess([str(program.path), *options], directory, program.environment())
        self._queue = queue.encode()
        self._connections: list[RedisConnection] = []

    def start(self) -> None:
        self._process.start(self._port)

    def stop(self) -> None:
        self._process.stop()

    def cpu_seconds(self) -> float:
        return self._process.cpu_seconds()

    def syncs(self) -> int | None:
        return None

    async def sender(self, in_flight: int, batch: int = 1) -> RedisSender:
        connection = await self._connect()
        connection.user = sender = RedisSender(connection, self._queue, in_flight, batch)
        return sender

    async def receiver(self, credit: int) -> RedisReceiver:
        connection = await self._connect()
        group = b"group"
        try:
            await connection.call(b"XGROUP", b"CREATE", self._queue, group, b"0", b"MKSTREAM")
        except PeerError as error:
            if not str(error).startswith("BUSYGROUP"):  # it exists
                raise
            connection = await self._connect()
        connection.user = receiver = RedisReceiver(connection, self._queue, group, credit)
        receiver.start()
        return receiver

    async def _connect(self) -> RedisConnection:
        connection = await opened(RedisConnection, self._port)
        self._connections.append(connection)
        return connection

    async def close(self) -> None:
        while self._connections:
            self._connections.pop().abort()
