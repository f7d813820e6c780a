"""RabbitMQ: a quorum queue, which syncs its log before it confirms a publish. Persistent messages, publisher confirms.

The client has the part of AMQP 0-9-1 that this needs. RabbitMQ does not confirm settlements, so a message counts when its
acknowledgement is sent. The messages of a batch are published together.
"""

from __future__ import annotations

import struct
from pathlib import Path

from harness.peers.client import BODY, PeerConnection, PeerError, PeerReceiver, PeerSender, opened
from harness.peers.packages import Program, find_packaged
from harness.peers.process import PeerProcess
from harness.postgresql import free_port

_METHOD, _HEADER, _CONTENT, _END = 1, 2, 3, b"\xce"
_FRAME = struct.Struct(">BHI")
_METHOD_ID = struct.Struct(">HH")
_TAG = struct.Struct(">QB")
START, START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK = ((10, number) for number in (10, 11, 30, 31, 40, 41))
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
DECLARE, DECLARE_OK = (50, 10), (50, 11)
SELECT, SELECT_OK = (85, 10), (85, 11)
QOS, QOS_OK, CONSUME, CONSUME_OK = ((60, number) for number in (10, 11, 20, 21))
PUBLISH, DELIVER, ACK, NACK = ((60, number) for number in (40, 60, 80, 120))
CLOSES = ((10, 50), (20, 40))

Method = tuple[int, int]


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + _END


def method(which: Method, arguments: bytes = b"", channel: int = 1) -> bytes:
    return frame(_METHOD, _METHOD_ID.pack(*which) + arguments, channel)


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def long(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


class RabbitmqConnection(PeerConnection):
    def __init__(self) -> None:
        super().__init__()
        self._data = b""
        self._answers: list[Method] = []

    def data_received(self, data: bytes) -> None:
        self._data = data = self._data + data
        at = 0
        while len(data) - at >= 8:
            kind, _channel, size = _FRAME.unpack_from(data, at)
            if len(data) - at < size + 8:
                break
            begin, at = at + 7, at + size + 8
            if kind == _METHOD:
                self._take(_METHOD_ID.unpack_from(data, begin), data, begin + 4, at - 1)
            elif kind == _CONTENT and isinstance(self.user, RabbitmqReceiver):
                self.user.received(size)
        self._data = data[at:]
        if isinstance(self.user, RabbitmqReceiver):
            self.user.settle()

    def _take(self, which: Method, data: bytes, begin: int, end: int) -> None:
        if which == DELIVER and isinstance(self.user, RabbitmqReceiver):
            begin += 1 + data[begin]  # the consumer's name
            self.user.tag = int.from_bytes(data[begin : begin + 8], "big")
        elif which == ACK and isinstance(self.user, RabbitmqSender):
            self.user.confirmed(*_TAG.unpack_from(data, begin))
        elif which in CLOSES or which == NACK:
            self.fail(PeerError(f"the server closed or refused: {data[begin:end]!r}"))
        else:
            self._answers.append(which)
            self.waiting.wake()

    async def call(self, data: bytes, answer: Method) -> None:
        self.write(data)
        await self.waiting.until(lambda: answer in self._answers)
        self._answers.remove(answer)

    async def begin(self, queue: str) -> None:
        """Log in, open a channel, and declare the queue."""
        await self.call(b"AMQP\x00\x00\x09\x01", START)
        login = long(b"") + short("PLAIN") + long(b"\x00guest\x00guest") + short("en_US")
        await self.call(method(START_OK, login, 0), TUNE)
        self.write(method(TUNE_OK, struct.pack(">HIH", 1, 131_072, 0), 0))
        await self.call(method(OPEN, short("/") + b"\x00\x00", 0), OPEN_OK)
        await self.call(method(CHANNEL_OPEN, b"\x00"), CHANNEL_OPEN_OK)
        durable = 2
        arguments = short("x-queue-type") + b"S" + long(b"quorum")
        await self.call(
            method(DECLARE, b"\x00\x00" + short(queue) + bytes([durable]) + long(arguments)), DECLARE_OK
        )


class RabbitmqSender(PeerSender):
    def __init__(self, connection: RabbitmqConnection, queue: str, in_flight: int, batch: int) -> None:
        super().__init__(in_flight, batch)
        self._connection = connection
        publish = method(PUBLISH, b"\x00\x00" + short("") + short(queue) + b"\x00")
        has_mode, persistent = 0x1000, 2
        header = frame(_HEADER, struct.pack(">HHQHB", 60, 0, len(BODY), has_mode, persistent))
        self._data = (publish + header + frame(_CONTENT, BODY)) * batch
        self._single: set[int] = set()  # confirmed before one with a lower number
        self._next = 1

    def write(self, batches: int) -> None:
        self._connection.write(self._data * batches)

    def confirmed(self, tag: int, multiple: int) -> None:
        if not multiple and tag != self._next:
            self._single.add(tag)
            self.answered(1)
            return
        count = sum(1 for number in range(self._next, tag + 1) if number not in self._single)
        self._next = tag + 1
        while self._next in self._single:
            self._next += 1
        self._single = {number for number in self._single if number > self._next}
        self.answered(count)


class RabbitmqReceiver(PeerReceiver):
    def __init__(self, connection: RabbitmqConnection) -> None:
        super().__init__()
        self._connection = connection
        self.tag = 0
        self._bytes = 0
        self._unsettled = 0

    def received(self, size: int) -> None:
        self._bytes += size
        if self._bytes == len(BODY):
            self._bytes = 0
            self._unsettled += 1

    def settle(self) -> None:
        """Acknowledge what is whole; the last tag may be of a message whose body is still to come."""
        count, self._unsettled = self._unsettled, 0
        if count:
            self._connection.write(method(ACK, _TAG.pack(self.confirmed + count, 1)))
            self.confirm(count)


class Rabbitmq:
    name = "RabbitMQ"

    def __init__(self, directory: Path, queue: str = "orders") -> None:
        pattern = "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"
        program = find_packaged("rabbitmq-server", pattern)
        erlang = _relocated(program)
        self._queue = queue
        self._port, mapper_port = free_port(), free_port()
        environment = program.environment() | {
            "PATH": f"{erlang / 'bin'}:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(directory),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(mapper_port),
            "RABBITMQ_NODENAME": f"peer{self._port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log-files"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "environment"),
            "RABBITMQ_CONFIG_FILE": str(directory / "configuration"),
            # Its schedulers do not spin while they wait: they would take the processors of the others.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none "
            "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        mapper = next(erlang.glob("erts-*/bin/epmd"))
        arguments = ["-port", str(mapper_port), "-address", "127.0.0.1"]
        self._mapper = PeerProcess([str(mapper), *arguments], directory, environment)
        self._mapper_port = mapper_port
        self._process = PeerProcess(["/bin/sh", str(program.path)], directory, environment)
        self._connections: list[RabbitmqConnection] = []

    def start(self) -> None:
        self._mapper.start(self._mapper_port)
        try:
            self._process.start(self._port)
        except BaseException:
            self._mapper.stop()
            raise

    def stop(self) -> None:
        self._process.stop()
        self._mapper.stop()

    def cpu_seconds(self) -> float:
        return self._process.cpu_seconds()

    def syncs(self) -> int | None:
        return None

    async def sender(self, in_flight: int, batch: int = 1) -> RabbitmqSender:
        connection = await self._connect()
        await connection.call(method(SELECT, b"\x00"), SELECT_OK)
        connection.user = sender = RabbitmqSender(connection, self._queue, in_flight, batch)
        return sender

    async def receiver(self, credit: int) -> RabbitmqReceiver:
        connection = await self._connect()
        await connection.call(method(QOS, struct.pack(">IHB", 0, credit, 0)), QOS_OK)
        connection.user = receiver = RabbitmqReceiver(connection)
        consume = b"\x00\x00" + short(self._queue) + short("one") + b"\x00" + long(b"")
        await connection.call(method(CONSUME, consume), CONSUME_OK)
        return receiver

    async def _connect(self) -> RabbitmqConnection:
        connection = await opened(RabbitmqConnection, self._port)
        self._connections.append(connection)
        await connection.begin(self._queue)
        return connection

    async def close(self) -> None:
        while self._connections:
            self._connections.pop().abort()


def _relocated(program: Program) -> Path:
    """The directory of Erlang; its start script names the place where the package belongs, and gets that where it is."""
    erlang = program.root / "usr/lib/erlang"
    script = erlang / "bin/erl"
    if program.root != Path("/"):
        text = script.read_text()
        moved = text.replace("=/usr/lib/erlang", f"={erlang}")
        if moved != text:
            script.write_text(moved)
    return erlang
