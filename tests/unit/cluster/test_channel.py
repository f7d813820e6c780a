"""The channel between processes: frames out of any pieces, calls answered, and what is heard when the other one ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.cluster import protocol
from busbar.cluster.channel import Channel, ChannelClosed, FrameReader, encode_frame
from busbar.cluster.codec import WireError, commands_codec
from busbar.model.commands import Inspect
from busbar.model.errors import QuotaExceeded
from busbar.store.location import StoreMissing


@given(st.integers(1, 9), st.integers(0, 5))
def test_frames_are_found_however_the_stream_is_cut(step: int, extra: int) -> None:
    commands = commands_codec.encode([Inspect(1, 2, 3)])
    sent: list[protocol.Frame] = [
        protocol.Call(1, "", protocol.ENTITY.request("queue")),
        protocol.CommandsFrame("store-0", msgspec.Raw(commands)),
        protocol.Call(2, "", protocol.ENTITY.request("x" * extra)),
    ]
    stream = b"".join(encode_frame(frame) for frame in sent)
    frames = FrameReader()
    got = [frame for i in range(0, len(stream), step) for frame in frames.feed(stream[i : i + step])]
    assert [type(frame) for frame in got] == [protocol.Call, protocol.CommandsFrame, protocol.Call]
    assert isinstance(got[1], protocol.CommandsFrame) and bytes(got[1].commands) == commands


def test_what_is_no_frame_is_an_error() -> None:
    with pytest.raises(WireError):
        FrameReader().feed(b"\x00\x00\x00\x01\xc1")


class End(Channel):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[protocol.Operation] = []
        self.over = asyncio.Event()
        self.problem: Exception | None = None
        self.held = asyncio.Event()

    def handle_frame(
        self, frame: protocol.CommandsFrame | protocol.EffectsFrame | protocol.StoreStatus
    ) -> None:
        raise WireError(f"{type(frame).__name__} is nothing for us.")

    def handle_call(self, store: str, operation: protocol.Operation) -> Coroutine[None, None, object] | None:
        self.asked.append(operation)
        return None if isinstance(operation, protocol.OriginClosed) else self._work(operation)

    async def _work(self, operation: protocol.Operation) -> object:
        if self.problem is not None:
            raise self.problem
        if isinstance(operation, protocol.DrainStore):
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
        slow = here.start_call("", protocol.DrainStore(1))
        here.notify("", protocol.OriginClosed(7))
        assert msgspec.msgpack.decode(await here.call("", protocol.OpenStore())) == "done"
        assert not slow.done()
        there.held.set()
        assert msgspec.msgpack.decode(await slow) == "done"
        assert [type(one) for one in there.asked] == [
            protocol.DrainStore,
            protocol.OriginClosed,
            protocol.OpenStore,
        ]
        there.problem = QuotaExceeded("full")
        with pytest.raises(QuotaExceeded, match="full"):
            await here.call("", protocol.OpenStore())
        there.problem = StoreMissing("no file")
        with pytest.raises(StoreMissing, match="no file"):
            await here.call("store-1", protocol.OpenStore())


async def test_who_waits_hears_of_the_end_and_so_do_later_calls() -> None:
    async with two_ends() as (here, there):
        slow = here.start_call("", protocol.DrainStore(1))
        await here.call("", protocol.OpenStore())
        there.close()
        with pytest.raises(ChannelClosed):
            await slow
        with pytest.raises(ChannelClosed):
            await here.call("", protocol.OpenStore())
        here.notify("", protocol.OriginClosed(1))
        await here.over.wait()


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

        def fail(store: str, operation: protocol.Operation) -> None:
            raise KeyError("a mistake of ours")

        there.handle_call = fail  # type: ignore[assignment]
        waiting = here.start_call("", protocol.OpenStore())
        with pytest.raises(ChannelClosed):
            await asyncio.wait_for(waiting, 10)
        assert there.is_lost and "a mistake of ours" in caplog.text
