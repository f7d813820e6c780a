"""The node port: who gets in, who does not, and that nobody else costs much."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest

from busbar.app.node_certificates import LIFE, NodeCertificate, make_authority
from busbar.cluster import node_port
from busbar.cluster.calls import RemoteInterface
from busbar.cluster.channel import (
    CONTINUES,
    LARGEST_PART,
    Channel,
    ChannelClosed,
    FrameReader,
    encode_frame,
)
from busbar.cluster.codec import WireError
from busbar.cluster.hello import LARGEST_HELLO, PROTOCOL_VERSIONS, TO_STORES, Hello, frame_of
from busbar.cluster.node_port import HelloRefused, NodePort, dial
from busbar.cluster.node_tls import NodeTls
from busbar.cluster.protocol import StoreFrame, StoreStatus
from harness.waiting import until

AUTHORITY = make_authority()


class Ends(Channel):
    def __init__(self) -> None:
        super().__init__()
        self.frames: list[StoreFrame] = []

    def handle_frame(self, frame: StoreFrame) -> None:
        self.frames.append(frame)

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        raise WireError("nothing is served here")

    def closed(self) -> None:
        pass


def tls(directory: Path, node: str, authority: bytes = AUTHORITY, now: datetime | None = None) -> NodeTls:
    certificate = NodeCertificate(directory / node, node, authority)
    (directory / node).mkdir(exist_ok=True)
    assert certificate.renew(now)
    return NodeTls(certificate.files)


def hello(node: str = "b", to: str = "a.0", namespace: str = "n", **fields: Any) -> Hello:
    return Hello(TO_STORES, namespace, node, f"{node}.0", f"{node}.0.x", to, **fields)


@asynccontextmanager
async def listening(
    directory: Path, versions: list[int] = PROTOCOL_VERSIONS
) -> AsyncIterator[tuple[str, list[Ends]]]:
    """The port of the broker a.0, and the channels that it has accepted."""
    accepted: list[Ends] = []

    def answer(_: Hello) -> Channel:
        accepted.append(Ends())
        return accepted[-1]

    port = NodePort(tls(directory, "a"), "n", "a.0", answer, versions)
    number = await port.listen("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{number}", accepted
    finally:
        port.close()


async def test_two_nodes_of_a_namespace_have_a_channel(tmp_path: Path) -> None:
    async with listening(tmp_path) as (address, accepted):
        channel = await dial(address, tls(tmp_path, "b"), hello(), "a", Ends)
        assert isinstance(channel, Ends)
        for number in range(3):
            channel.write(StoreStatus(f"store-{number}", "open", "", None))
        await until(lambda: len(accepted[0].frames) == 3)
        accepted[0].write(StoreStatus("back", "open", "", None))
        await until(lambda: channel.frames)
        channel.abort()
        await until(lambda: accepted[0].is_lost and channel.is_lost)


@pytest.mark.parametrize(
    ("theirs", "ours", "level"),
    [([2, 1], [2, 1], 2), ([1], [2, 1], 1), ([2, 1], [1], 1), ([3, 2], [2, 1], 2)],
)
async def test_both_ends_use_the_highest_version_that_both_have(
    tmp_path: Path, theirs: list[int], ours: list[int], level: int
) -> None:
    async with listening(tmp_path, ours) as (address, accepted):
        channel = await dial(address, tls(tmp_path, "b"), hello(versions=theirs), "a", Ends)
        await until(lambda: accepted)
        assert (channel.level, accepted[0].level) == (level, level)
        channel.abort()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (hello(namespace="other"), "another namespace"),
        (hello(node="c"), "its certificate 'b'"),
        (hello(to="a.1"), "looking for 'a.1'"),
        (hello(versions=[7]), r"versions \[7\]"),
        (Hello(TO_STORES, "n", "b", "c.0", "c.0.x", "a.0"), "not of the node 'b'"),
    ],
)
async def test_a_process_that_is_not_meant_is_refused_with_the_reason(
    tmp_path: Path, wrong: Hello, reason: str
) -> None:
    async with listening(tmp_path) as (address, accepted):
        with pytest.raises(HelloRefused, match=reason):
            await dial(address, tls(tmp_path, "b"), wrong, "a", Ends)
        assert accepted == []


async def test_a_certificate_of_another_authority_or_an_old_one_does_not_get_in(tmp_path: Path) -> None:
    async with listening(tmp_path) as (address, accepted):
        old = tls(tmp_path, "b", now=datetime.now(UTC) - LIFE - timedelta(hours=1))
        for files in (tls(tmp_path, "c", make_authority()), old):
            with pytest.raises((OSError, WireError)):
                await dial(address, files, hello(), "a", Ends)
        assert accepted == []


async def test_a_dialling_process_checks_whom_it_has_reached(tmp_path: Path) -> None:
    async with listening(tmp_path) as (address, accepted):
        with pytest.raises(WireError, match="not 'z'"):
            await dial(address, tls(tmp_path, "b"), hello(), "z", Ends)
        assert accepted == []


async def test_what_speaks_something_else_is_closed_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_port, "HELLO_SECONDS", 0.5)
    async with listening(tmp_path) as (address, accepted):
        host, _, port = address.partition(":")
        with caplog.at_level(logging.WARNING, logger=node_port.__name__):
            for said in (b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x01\x00\x00", b""):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(said)
                await reader.read()  # until the node port closes it
                writer.close()
            await until(lambda: len(caplog.records) == 3, lambda: caplog.text)
        assert accepted == []


async def test_a_large_hello_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(tmp_path) as (address, accepted):
        host, _, port = address.partition(":")
        context = tls(tmp_path, "b").dialling
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="")
        writer.write(frame_of(hello(address="x" * LARGEST_HELLO)))
        assert await reader.read() == b""
        writer.close()
        await until(lambda: "does not speak this protocol" in caplog.text)
        assert accepted == []


def test_a_frame_of_any_size_crosses_in_parts() -> None:
    large = StoreStatus("s", "x" * (2 * LARGEST_PART + 5), "", None)
    small = StoreStatus("t", "open", "", None)
    sent = encode_frame(small) + encode_frame(large) + encode_frame(small)
    assert int.from_bytes(sent[len(encode_frame(small)) :][:4], "big") == LARGEST_PART | CONTINUES
    reader = FrameReader()
    got = [
        frame
        for start in range(0, len(sent), 1 << 20)
        for frame in reader.feed(sent[start : start + (1 << 20)])
    ]
    assert got == [small, large, small]


def test_a_part_that_is_too_large_is_refused() -> None:
    with pytest.raises(WireError, match="more than"):
        FrameReader().feed((LARGEST_PART + 1).to_bytes(4, "big"))


class Slow(Protocol):
    """Something that can be called, and takes its time."""

    async def wait(self) -> None: ...


SLOW = RemoteInterface[Slow](Slow)  # type: ignore[type-abstract]


class SlowEnds(Ends):
    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.gate = asyncio.Event()

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        return SLOW, self

    async def wait(self) -> None:
        self.asked += 1
        await self.gate.wait()


async def test_a_reply_goes_to_the_process_that_asked_and_not_to_the_next(tmp_path: Path) -> None:
    """The channel to the controller is connected again, to another controller, while a call is being answered."""
    async with listening(tmp_path) as (address, accepted):
        files = tls(tmp_path, "b")
        channel = SlowEnds()
        await dial(address, files, hello(), "a", lambda: channel)
        first = asyncio.ensure_future(SLOW.remote(accepted[0]).wait())
        await until(lambda: channel.asked == 1)
        accepted[0].abort()
        await until(lambda: channel.is_lost)
        with pytest.raises(ChannelClosed):
            await first
        await dial(address, files, hello(), "a", lambda: channel)
        assert channel.is_connected
        second = asyncio.ensure_future(SLOW.remote(accepted[1]).wait())
        await until(lambda: channel.asked == 2)
        replies: list[object] = []
        taken = accepted[1]._take
        accepted[1]._take = lambda frame: (replies.append(frame), taken(frame))[1]  # type: ignore[method-assign, func-returns-value]
        channel.gate.set()
        await second
        await asyncio.sleep(0)
        assert len(replies) == 1, "the first call was asked over another connection"
