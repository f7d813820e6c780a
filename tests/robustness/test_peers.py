"""The servers that `bench/peers.py` compares Busbar with, and their clients. Nothing is downloaded here."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from harness.peers import packages
from harness.peers.busbar import BusbarPeer
from harness.peers.client import BODY, Peer, PeerConnection, PeerError
from harness.peers.nats import Nats
from harness.peers.packages import Unavailable, find_program, is_at_hand
from harness.peers.postgresql import Postgresql
from harness.peers.process import tree_seconds
from harness.peers.rabbitmq import Rabbitmq, RabbitmqConnection, RabbitmqSender
from harness.peers.redis import Redis, RedisConnection, RedisSender, command

Maker = Callable[[Path], Peer]
PACKAGED: dict[str, Maker] = {
    "redis-server": Redis,
    "rabbitmq-server": Rabbitmq,
    "nats-server": partial(Nats, synced=False),
}
MAKERS: dict[str, Maker] = {"busbar": BusbarPeer, "postgresql": Postgresql, **PACKAGED}


@pytest.mark.parametrize("name", MAKERS)
async def test_messages_go_round(name: str) -> None:
    if name in PACKAGED and not is_at_hand(name, name):
        pytest.skip(f"{name} is not on this machine")
    with tempfile.TemporaryDirectory(prefix="busbar-peer-") as directory:  # which PostgreSQL's user can reach
        peer = MAKERS[name](Path(directory))
        peer.start()
        try:
            async with asyncio.timeout(60):
                await go_round(peer)
        finally:
            await peer.close()
            peer.stop()


async def go_round(peer: Peer) -> None:
    """One in flight, several, batches, a backlog: everything that is sent is settled, and the server did work."""
    before = peer.cpu_seconds()
    receiver, sender = await peer.receiver(1), await peer.sender(1, 1)
    for number in range(3):
        await sender.send(1)
        await receiver.settled(number + 1)
    await peer.close()
    receiver = await peer.receiver(50)
    for batch in (1, 10):
        sender = await peer.sender(50, batch)
        await sender.send(200)
        assert (sender.acknowledged, sender.outstanding) == (200, 0)
    await receiver.settled(400)
    await peer.close()
    sender = await peer.sender(50, 1)
    await sender.send(300)
    receiver = await peer.receiver(50)
    await receiver.settled(300)
    assert receiver.confirmed == 300
    assert peer.cpu_seconds() > before


class Written(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def abort(self) -> None:
        pass


def made(connection: PeerConnection) -> Written:
    transport = Written()
    connection.connection_made(transport)
    return transport


def test_replies_of_redis_may_come_in_any_pieces() -> None:
    connection = RedisConnection()
    transport = made(connection)
    connection.user = sender = RedisSender(connection, b"q", in_flight=100, batch=100)
    sender.start(100)
    assert transport.data.count(BODY) == 100
    replies = b"+OK\r\n" + b"+QUEUED\r\n" * 100 + b"*100\r\n" + b"$3\r\n1-0\r\n" * 100
    for at in range(0, len(replies), 7):
        connection.data_received(replies[at : at + 7])
    assert sender.acknowledged == 100


async def test_an_error_of_redis_ends_the_wait() -> None:
    connection = RedisConnection()
    made(connection)
    connection.user = sender = RedisSender(connection, b"q", in_flight=1, batch=1)
    sending = asyncio.ensure_future(sender.send(1))
    await asyncio.sleep(0)
    connection.data_received(b"-MISCONF no space\r\n")
    with pytest.raises(PeerError, match="MISCONF no space"):
        await sending


def test_commands_of_redis_have_lengths() -> None:
    assert command(b"XDEL", b"q") == b"*2\r\n$4\r\nXDEL\r\n$1\r\nq\r\n"


def test_confirms_of_rabbitmq_count_once() -> None:
    """They come one by one, in ranges, and out of order."""
    connection = RabbitmqConnection()
    made(connection)
    sender = RabbitmqSender(connection, "q", in_flight=10, batch=1)
    sender.start(10)
    seen = []
    for tag, multiple in ((2, 0), (1, 0), (5, 0), (6, 1), (7, 0), (9, 0), (10, 1)):
        sender.confirmed(tag, multiple)
        seen.append(sender.acknowledged)
    assert seen == [1, 2, 3, 6, 7, 8, 10]


def test_a_program_that_cannot_be_had_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(
        Unavailable, match="no apt-get: install no-such-queue, or put its program on the PATH"
    ):
        find_program("no-such-queue", "no-such-queue")
    assert not any(packages.cache_directory().iterdir())


def test_a_server_that_cannot_sync_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "nats-server"
    old.write_text("#!/bin/sh\necho nats-server: v2.9.10\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(Unavailable, match=r"v2\.9\.10, which cannot sync .* 2\.10 or later"):
        Nats(tmp_path)


def test_the_time_of_children_that_ended_counts() -> None:
    before, used = tree_seconds(os.getpid()), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([sys.executable, "-c", "sum(i * i for i in range(1_500_000))"], check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used
    assert tree_seconds(os.getpid()) - before >= used / 2
