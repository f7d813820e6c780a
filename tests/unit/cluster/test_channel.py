"""The channel between processes: frames out of any pieces, calls answered, and what is heard when the other one ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.cluster import protocol
from busbar.cluster.calls import RemoteInterface
from busbar.cluster.channel import Channel, ChannelClosed, FrameReader, encode_frame
from busbar.cluster.codec import WireError, commands_codec
from busbar.model.commands import Inspect
from busbar.model.errors import QuotaExceeded
from busbar.store.location import StoreMissing


@given(st.integers(1, 9), st.integers(0, 5))
def test_frames_are_found_however_the_stream_is_cut(step: int, extra: int) -> None:
    commands = commands_codec.encode([Inspect(1, 2, 3)])
    sent: list[protocol.Frame] = [
        protocol.Call(1, "", "entity", msgspec.Raw(msgspec.msgpack.encode(["queue"]))),
        protocol.CommandsFrame("store-0", msgspec.Raw(commands)),
        protocol.Call(2, "", "entity", msgspec.Raw(msgspec.msgpack.encode(["x" * extra]))),
    ]
    stream = b"".join(encode_frame(frame) for frame in sent)
    frames = FrameReader()
    got = [frame for i in range(0, len(stream), step) for frame in frames.feed(stream[i : i + step])]
    assert [type(frame) for frame in got] == [protocol.Call, protocol.CommandsFrame, protocol.Call]
    assert isinstance(got[1], protocol.CommandsFrame) and bytes(got[1].commands) == commands


def test_what_is_no_frame_is_an_error() -> None:
    with pytest.raises(WireError):
        FrameReader().feed(b"\x00\x00\x00\x01\xc1")


class EndApi(Protocol):
    """What either end can be asked for."""

    async def open(self) -> str: ...

    async def drain(self, timeout: float) -> str: ...

    async def ping(self) -> None: ...

    def sessions_resumed(self, store: str) -> None: ...

    def origin_closed(self, origin: int) -> None: ...

    def introduce(self, broker: str) -> None: ...


END = RemoteInterface[EndApi](EndApi)  # type: ignore[type-abstract]


class End(Channel):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[object, ...]] = []
        self.over = asyncio.Event()
        self.problem: Exception | None = None
        self.held = asyncio.Event()
        self.other = END.remote(self)

    def handle_frame(self, frame: protocol.StoreFrame) -> None:
        raise WireError(f"{type(frame).__name__} is nothing for us.")

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        return END, self

    def sessions_resumed(self, store: str) -> None:
        self.asked.append(("sessions_resumed", store))

    def origin_closed(self, origin: int) -> None:
        self.asked.append(("origin_closed", origin))

    async def ping(self) -> None:
        pass

    def introduce(self, broker: str) -> None:
        self.asked.append(("introduce", broker))

    def open(self) -> Any:
        self.asked.append(("open",))
        return self._answer_to()

    async def _answer_to(self) -> str:
        if self.problem is not None:
            raise self.problem
        return "done"

    def drain(self, timeout: float) -> Any:
        self.asked.append(("drain", timeout))
        return self._drained()

    async def _drained(self) -> str:
        await self.held.wait()
        return "done"

    def closed(self) -> None:
        self.over.set()


@asynccontextmanager
async def two_ends() -> AsyncIterator[tuple[End, End]]:
    loop = asyncio.get_running_loop()
    ends = End(), End()
    for end, one in zip(ends, socket.socketpair(), strict=True):
        await loop.create_unix_connection(lambda end=end: end, sock=one)  # type: ignore[misc]
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


async def test_calls_are_answered_out_of_order_and_errors_raised_where_they_are_heard() -> None:
    async with two_ends() as (here, there):
        slow = asyncio.ensure_future(here.other.drain(timeout=1))
        here.other.origin_closed(7)
        assert await here.other.open() == "done"
        assert not slow.done()
        there.held.set()
        assert await slow == "done"
        assert there.asked == [("drain", 1), ("origin_closed", 7), ("open",)]
        there.problem = QuotaExceeded("full")
        with pytest.raises(QuotaExceeded, match="full"):
            await here.other.open()
        there.problem = StoreMissing("no file")
        with pytest.raises(StoreMissing, match="no file"):
            await here.other.open()


async def test_who_waits_hears_of_the_end_and_so_do_later_calls() -> None:
    async with two_ends() as (here, there):
        slow = asyncio.ensure_future(here.other.drain(1))
        await here.other.open()
        there.close()
        with pytest.raises(ChannelClosed):
            await slow
        with pytest.raises(ChannelClosed):
            await here.other.open()
        here.other.origin_closed(1)
        await here.over.wait()


@pytest.mark.parametrize(("method", "arguments"), [("close", []), ("_answer_to", []), ("origin_closed", [])])
async def test_an_unknown_name_or_arguments_that_do_not_fit_end_the_channel(
    method: str, arguments: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    async with two_ends() as (here, there):
        here.notify("", method, msgspec.Raw(msgspec.msgpack.encode(arguments)))
        await asyncio.wait_for(here.over.wait(), 10)
        assert there.is_lost and there.asked == []
        assert f"'{method}'" in caplog.text


async def test_what_is_not_of_the_protocol_ends_the_channel(caplog: pytest.LogCaptureFixture) -> None:
    async with two_ends() as (here, there):
        here.write(protocol.CommandsFrame("store-0", msgspec.Raw(commands_codec.encode([]))))
        await asyncio.wait_for(here.over.wait(), 10)
        assert there.is_lost
        assert "CommandsFrame is nothing for us" in caplog.text


async def test_whatever_goes_wrong_while_a_frame_is_read_ends_the_channel(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with two_ends() as (here, there):

        def fail(target: str) -> None:
            raise KeyError("a mistake of ours")

        there.served = fail  # type: ignore[assignment,method-assign]
        with pytest.raises(ChannelClosed):
            await asyncio.wait_for(here.other.open(), 10)
        assert there.is_lost and "a mistake of ours" in caplog.text
