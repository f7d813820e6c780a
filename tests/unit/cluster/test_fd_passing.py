"""The fd_socket: sockets that pass from one process to another, and who has how many of them."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from busbar.cluster import fd_passing
from busbar.cluster.fd_passing import CLIENT, WAITING, FdReceiver, FdSender
from harness.waiting import until


class Broker:
    """The other end."""

    def __init__(self, end: socket.socket) -> None:
        self.got: list[tuple[str, socket.socket]] = []
        self.lost: list[str] = []
        self.population = 0
        self._end = FdReceiver(
            end, lambda *one: self.got.append(one), lambda: self.population, self.lost.append
        )

    @property
    def labels(self) -> list[str]:
        return [label for label, _ in self.got]

    def close(self) -> None:
        self._end.close()
        for _, one in self.got:
            one.close()


@contextmanager
def client() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's end, and the one to be handed over."""
    here, there = socket.socketpair()
    with here:
        yield here, there


async def test_what_is_handed_over_is_the_same_connection() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    way, broker = FdSender(ours), Broker(theirs)
    with client() as (here, there):
        here.sendall(b"before")
        way.send(CLIENT, there)
        way.send("peer broker-1", socket.socketpair()[0])
        assert there.fileno() == -1, "it is closed here"
        await until(lambda: broker.labels == [CLIENT, "peer broker-1"])
        assert broker.got[0][1].recv(10) == b"before"
        broker.got[0][1].sendall(b"after")
        assert here.recv(10) == b"after"
    broker.close()
    assert way.close() == []


async def test_the_count_is_what_was_said_and_what_was_handed_over_since() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    way, broker = FdSender(ours), Broker(theirs)
    for _ in range(3):
        way.send(CLIENT, socket.socketpair()[0])
    assert way.connection_count == 3, "nobody has heard of them yet"
    broker.population = 2  # one has left already
    await until(lambda: way.connection_count == 2)
    way.send(CLIENT, socket.socketpair()[0])
    assert way.connection_count == 3
    broker.population = 0
    await until(lambda: way.connection_count == 0)
    broker.close()
    way.close()


async def test_who_cannot_be_handed_over_waits_and_is_given_back_at_the_end() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    way = FdSender(ours)  # nobody reads
    ends = []
    while not way.is_full:
        here, there = socket.socketpair()
        ends.append(here)
        way.send(CLIENT, there)
        assert len(ends) < 10_000
    broker = Broker(theirs)
    await until(lambda: len(broker.got) == len(ends))
    assert not way.is_full
    broker.close()
    with client() as (here, there):
        way.send(CLIENT, there)  # it has ended, and nobody knows
        (left,) = way.close()
        left.sendall(b"still there")
        assert here.recv(20) == b"still there"
        left.close()
    for end in ends:
        end.close()
    assert len(ends) >= WAITING


async def test_a_report_comes_only_when_there_is_news() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    broker = Broker(theirs)
    broker.population = 5
    await asyncio.sleep(3 * fd_passing.REPORT_SECONDS)
    assert ours.recv(64) == b"0 5"
    try:
        assert not ours.recv(64)
    except BlockingIOError:
        pass
    broker.close()
    ours.close()


async def test_a_socket_that_cannot_be_handed_over_does_not_keep_back_the_others() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    way, broker = FdSender(ours), Broker(theirs)
    broken, _ = socket.socketpair()
    broken.close()
    way.send(CLIENT, broken)
    for _ in range(3):
        way.send(CLIENT, socket.socketpair()[0])
    await until(lambda: len(broker.got) == 3)
    assert way.connection_count == 3 and not way.is_full
    broker.close()
    assert way.close() == []


async def test_what_the_kernel_has_no_room_for_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    way, broker = FdSender(ours), Broker(theirs)
    send = socket.send_fds
    problems = [errno.ETOOMANYREFS, errno.ENOBUFS]

    def refused(*arguments: object) -> int:
        if problems:
            number = problems.pop()
            raise OSError(number, os.strerror(number))
        return send(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "send_fds", refused)
    for label in ("first", "second"):
        way.send(label, socket.socketpair()[0])
    await until(lambda: broker.labels == ["first", "second"])
    broker.close()
    way.close()


async def test_a_socket_that_cannot_be_taken_does_not_keep_back_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    receive = socket.recv_fds
    problems = [errno.ENOMEM]

    def refused(*arguments: object) -> object:
        if problems:
            raise OSError(problems.pop(), "no memory")
        return receive(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "recv_fds", refused)
    way, broker = FdSender(ours), Broker(theirs)
    got = broker.got.append

    def take(label: str, what: socket.socket) -> None:
        if label == "bad":
            raise ValueError(label)
        got((label, what))

    broker._end._got = take
    here, there = socket.socketpair()
    way.send("bad", there)
    way.send("good", socket.socketpair()[0])
    await until(lambda: broker.labels == ["good"])
    here.settimeout(10)
    assert here.recv(1) == b"", "the one that failed is closed"
    here.close()
    broker.close()
    way.close()


async def test_what_there_is_no_descriptor_for_is_named() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    way, broker = FdSender(ours), Broker(theirs)
    here, there = socket.socketpair()
    way.send("peer broker-1", there)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)  # the lowest that is free
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        broker._end._take()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (broker.labels, broker.lost) == ([], ["peer broker-1"])
    here.settimeout(10)
    assert here.recv(1) == b""
    here.close()
    broker.close()
    way.close()
