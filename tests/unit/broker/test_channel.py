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

from busbar.broker import says
from busbar.broker.calls import FindEntity
from busbar.broker.channel import Channel, ChannelLost, Frames, encode_frame
from busbar.broker.place import StoreMissing
from busbar.broker.wire import WireError, commands_codec
from busbar.model.commands import Inspect
from busbar.model.errors import QuotaExceeded


@given(st.integers(1, 9), st.integers(0, 5))
def test_frames_are_found_however_the_stream_is_cut(step: int, extra: int) -> None:
    commands = commands_codec.encode([Inspect(1, 2, 3)])
    sent: list[says.Frame] = [
        says.Call(1, "", says.Ask(FindEntity("queue"))),
        says.Submit("store-0", msgspec.Raw(commands)),
        says.Call(2, "", says.Ask(FindEntity("x" * extra))),
    ]
    stream = b"".join(encode_frame(frame) for frame in sent)
    frames = Frames()
    got = [frame for i in range(0, len(stream), step) for frame in frames.feed(stream[i : i + step])]
    assert [type(frame) for frame in got] == [says.Call, says.Submit, says.Call]
    assert isinstance(got[1], says.Submit) and bytes(got[1].commands) == commands


def test_what_is_no_frame_is_an_error() -> None:
    with pytest.raises(WireError):
        Frames().feed(b"\x00\x00\x00\x01\xc1")


class End(Channel):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[says.Operation] = []
        self.over = asyncio.Event()
        self.problem: Exception | None = None
        self.held = asyncio.Event()

    def received(self, frame: says.Submit | says.Perform | says.State) -> None:
        raise WireError(f"{type(frame).__name__} is nothing for us.")

    def perform(self, store: str, operation: says.Operation) -> Coroutine[None, None, object] | None:
        self.asked.append(operation)
        return None if isinstance(operation, says.Gone) else self._work(operation)

    async def _work(self, operation: says.Operation) -> object:
        if self.problem is not None:
            raise self.problem
        if isinstance(operation, says.Drain):
            await self.held.wait()
        return "done"

    def lost(self) -> None:
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
        slow = here.begin("", says.Drain(1))
        here.tell("", says.Gone(7))
        assert msgspec.msgpack.decode(await here.call("", says.Open())) == "done"
        assert not slow.done()
        there.held.set()
        assert msgspec.msgpack.decode(await slow) == "done"
        assert [type(one) for one in there.asked] == [says.Drain, says.Gone, says.Open]
        there.problem = QuotaExceeded("full")
        with pytest.raises(QuotaExceeded, match="full"):
            await here.call("", says.Open())
        there.problem = StoreMissing("no file")
        with pytest.raises(StoreMissing, match="no file"):
            await here.call("store-1", says.Open())


async def test_who_waits_hears_of_the_end_and_so_do_later_calls() -> None:
    async with two_ends() as (here, there):
        slow = here.begin("", says.Drain(1))
        await here.call("", says.Open())
        there.close()
        with pytest.raises(ChannelLost):
            await slow
        with pytest.raises(ChannelLost):
            await here.call("", says.Open())
        here.tell("", says.Gone(1))
        await here.over.wait()


async def test_what_is_not_of_the_protocol_ends_the_channel(caplog: pytest.LogCaptureFixture) -> None:
    async with two_ends() as (here, there):
        here.write(says.Submit("store-0", msgspec.Raw(commands_codec.encode([]))))
        await asyncio.wait_for(here.over.wait(), 10)
        assert there.is_lost
        assert "Submit is nothing for us" in caplog.text


async def test_whatever_goes_wrong_while_a_frame_is_read_ends_the_channel(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with two_ends() as (here, there):

        def fail(store: str, operation: says.Operation) -> None:
            raise KeyError("a mistake of ours")

        there.perform = fail  # type: ignore[assignment]
        waiting = here.begin("", says.Open())
        with pytest.raises(ChannelLost):
            await asyncio.wait_for(waiting, 10)
        assert there.is_lost and "a mistake of ours" in caplog.text
