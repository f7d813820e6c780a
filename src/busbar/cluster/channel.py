"""What the processes of a namespace say to each other, over a socket that only the two of them have.

Rules:
1. Frames are read in the order in which they were written: who hears an answer knows all that was said before it, effects
   and states included.
2. Both sides may call; a call with the number 0 wants no answer. An error crosses with its kind and its text, and is raised
   at the caller.
3. When the channel ends, everyone who waits for an answer hears that the other process is gone, whether it is or not.
4. Whatever goes wrong while a frame is read ends the channel: nobody knows what would have come of the frame. Between two
   broker processes another one is made (peer_watch.py); without the one to the controller a broker process ends.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import cast

import msgspec

from busbar.cluster.codec import WireError
from busbar.cluster.protocol import (
    Call,
    CallError,
    CallReply,
    CommandsFrame,
    EffectsFrame,
    Frame,
    Operation,
    StoreStatus,
)
from busbar.model.errors import BusbarError, InternalError, error_of
from busbar.store.contract import Fenced, OutcomeUnknown, StoreError, StoreFull, StoreInUse
from busbar.store.location import StoreMissing

_log = logging.getLogger(__name__)


class ChannelClosed(Exception):
    """The channel ended, most likely with the other process; what it was asked for may or may not have taken place."""


_frames = msgspec.msgpack.Decoder(Frame)
_STORE_ERRORS = {
    kind.__name__: kind for kind in (StoreError, StoreFull, OutcomeUnknown, Fenced, StoreInUse, StoreMissing)
}


def encode_frame(frame: Frame) -> bytes:
    body = msgspec.msgpack.encode(frame)
    return len(body).to_bytes(4, "big") + body


def decode_frame(body: bytes) -> Frame:
    try:
        frame: Frame = _frames.decode(body)
        return frame
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(str(error)) from None


class FrameReader:
    """Cuts a stream of bytes into frames. Both sides are ours, and what crosses is bounded by those who make it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now. Raises WireError; the stream is of no use after it."""
        buffer = self._buffer
        buffer += data
        frames = []
        start = 0
        while len(buffer) - start >= 4:
            end = start + 4 + int.from_bytes(buffer[start : start + 4], "big")
            if len(buffer) < end:
                break
            frames.append(decode_frame(bytes(memoryview(buffer)[start + 4 : end])))
            start = end
        del buffer[:start]
        return frames


class Channel(asyncio.Protocol, ABC):
    """One end. A subclass handles frames, calls and the end of the channel."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._last_call = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_lost = False
        self.is_aborted = False

    @abstractmethod
    def handle_frame(self, frame: CommandsFrame | EffectsFrame | StoreStatus) -> None: ...

    @abstractmethod
    def handle_call(self, store: str, operation: Operation) -> Coroutine[None, None, object] | None:
        """Do it now (None), or begin: what the coroutine returns is the answer."""

    @abstractmethod
    def closed(self) -> None:
        """The other end is gone: nothing more comes, and nothing can be sent."""

    # ---- speaking ----

    def write(self, frame: Frame) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(frame))

    def notify(self, store: str, operation: Operation) -> None:
        self.write(Call(0, store, operation))

    async def call(self, store: str, operation: Operation) -> msgspec.Raw:
        """The answer. Raises what the other side raised, or ChannelClosed."""
        return await self.start_call(store, operation)

    def start_call(self, store: str, operation: Operation) -> asyncio.Future[msgspec.Raw]:
        """The same, said now, for an answer that may be waited for later."""
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        if self.is_lost:
            answer.set_exception(ChannelClosed())
            return answer
        self._last_call += 1
        self._calls[self._last_call] = answer
        self.write(Call(self._last_call, store, operation))
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it now, with all that was not said yet; or as soon as it begins."""
        self.is_aborted = True
        if self._transport is not None:
            self._transport.abort()

    # ---- the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from asyncio's
        if self.is_aborted:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._take(frame)
        except Exception as error:  # rule 4
            known = isinstance(error, WireError | msgspec.DecodeError)
            _log.error("a channel between processes is closed: %s", error, exc_info=None if known else error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        calls, self._calls = self._calls, {}
        for answer in calls.values():
            if not answer.done():
                answer.set_exception(ChannelClosed())
        self.closed()

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, CommandsFrame | EffectsFrame | StoreStatus):
            self.handle_frame(frame)
        elif isinstance(frame, Call):
            self._begin(frame)
        else:
            answer = self._calls.pop(frame.number, None)
            if answer is not None and not answer.done():
                if isinstance(frame, CallReply):
                    answer.set_result(frame.value)
                else:
                    answer.set_exception(_error(frame))

    def _begin(self, call: Call) -> None:
        work = self.handle_call(call.store, call.operation)
        if work is not None:
            task = asyncio.get_running_loop().create_task(self._answer(call, work))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: Call, work: Coroutine[None, None, object]) -> None:
        try:
            value = await work
        except Exception as error:
            self.write(_failure(call, error))
        else:
            self.write(CallReply(call.number, msgspec.Raw(msgspec.msgpack.encode(value))))


def _failure(call: Call, error: Exception) -> CallError:
    if isinstance(error, BusbarError):
        return CallError(call.number, "", error.condition, error.text, error.certain)
    if isinstance(error, StoreError | OSError):
        kind = next((name for name, one in _STORE_ERRORS.items() if type(error) is one), StoreError.__name__)
        return CallError(call.number, kind, "", str(error) or type(error).__name__, True)
    if not isinstance(error, ChannelClosed):
        _log.error("%s of %s failed", type(call.operation).__name__, call.store, exc_info=error)
    return CallError(call.number, "", InternalError.condition, type(error).__name__, False)


def _error(failure: CallError) -> Exception:
    if failure.kind:
        return _STORE_ERRORS.get(failure.kind, StoreError)(failure.text)
    return error_of(failure.condition, failure.text, failure.certain)
