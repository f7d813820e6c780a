"""A channel between two processes of a namespace: over a socket that only the two of them have, or over TLS (node_port.py).

Rules:
1. Frames are read in the order in which they were written. When a process gets a reply, it has all that the other process
   wrote before it, effects and states included.
2. Both sides may call (calls.py); a call with the number 0 has no reply. An error crosses with its kind and its text, and is
   raised at the caller.
3. When the channel ends, every call that waits for a reply raises ChannelClosed, whether the other process has ended or not.
4. If anything goes wrong while a frame is read, the channel ends: what the frame would have done is unknown. Between two
   broker processes another channel is made (peer_watch.py). Without the channel to the controller a broker process ends,
   unless the controller can be on another machine. Then the same channel is connected again.
5. On the wire a frame has at most LARGEST_PART bytes. A larger one is sent in parts, one behind the other.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, cast

import msgspec

from busbar.cluster.calls import RemoteInterface
from busbar.cluster.codec import WireError
from busbar.cluster.failures import ChannelClosed, decode_error, encode_error
from busbar.cluster.hello import PROTOCOL_VERSIONS
from busbar.cluster.protocol import (
    Call,
    CallError,
    CallReply,
    CommandsFrame,
    EffectsFrame,
    Frame,
    StoreFrame,
    StoreStatus,
)

__all__ = ["Channel", "ChannelClosed", "FrameReader", "decode_frame", "encode_frame"]

_log = logging.getLogger(__name__)
_frames = msgspec.msgpack.Decoder(Frame)


LARGEST_PART = 8 * 1024 * 1024
CONTINUES = 1 << 31
"""In the length of a part: the rest of the frame follows in the next part."""
LARGEST_FRAME = 1 << 30
"""Of a frame in parts; messages are smaller by far."""


def encode_frame(frame: Frame) -> bytes:
    body = msgspec.msgpack.encode(frame)
    if len(body) <= LARGEST_PART:
        return len(body).to_bytes(4, "big") + body
    parts = []
    for start in range(0, len(body), LARGEST_PART):
        part = body[start : start + LARGEST_PART]
        continues = CONTINUES if start + LARGEST_PART < len(body) else 0
        parts += [(len(part) | continues).to_bytes(4, "big"), part]
    return b"".join(parts)


def decode_frame(body: bytes) -> Frame:
    try:
        frame: Frame = _frames.decode(body)
        return frame
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(str(error)) from None


class FrameReader:
    """Cuts a stream of bytes into frames, and puts those in parts together."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._parts = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now. Raises WireError; the stream is of no use after it."""
        buffer = self._buffer
        buffer += data
        frames = []
        start = 0
        while len(buffer) - start >= 4:
            size = int.from_bytes(buffer[start : start + 4], "big")
            continues, size = size & CONTINUES, size & ~CONTINUES
            if size > LARGEST_PART:
                raise WireError(f"a frame has {size} bytes, more than {LARGEST_PART}")
            end = start + 4 + size
            if len(buffer) < end:
                break
            body = bytes(memoryview(buffer)[start + 4 : end])
            start = end
            if continues or self._parts:
                self._parts += body
                if len(self._parts) > LARGEST_FRAME:
                    raise WireError(f"a frame in parts has more than {LARGEST_FRAME} bytes")
                if continues:
                    continue
                body, self._parts = bytes(self._parts), bytearray()
            frames.append(decode_frame(body))
        del buffer[:start]
        return frames


class Channel(asyncio.Protocol, ABC):
    """One end of a channel. A subclass handles frames, calls and the end of the channel."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._last_call = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_lost = False
        self.is_aborted = False
        self.level = max(PROTOCOL_VERSIONS)
        """The version that both ends have (hello.py)."""

    @property
    def is_silent(self) -> bool:
        """Whether the other process does not answer. Only channels that ping it notice."""
        return False

    @abstractmethod
    def handle_frame(self, frame: StoreFrame) -> None: ...

    @abstractmethod
    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        """The methods that can be called of a target, and the object that has them. Raises WireError."""

    @abstractmethod
    def closed(self) -> None:
        """Handle the end of the channel: nothing more comes, and nothing can be written."""

    # ---- writing ----

    def write(self, frame: Frame) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(frame))

    def notify(self, target: str, method: str, arguments: msgspec.Raw) -> None:
        """Call a method of the other process that has no reply."""
        self.write(Call(0, target, method, arguments))

    def start_call(self, target: str, method: str, arguments: msgspec.Raw) -> asyncio.Future[msgspec.Raw]:
        """Call a method of the other process. The reply raises what the other process raised, or ChannelClosed."""
        reply: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        if self.is_lost:
            reply.set_exception(ChannelClosed())
            return reply
        self._last_call += 1
        self._calls[self._last_call] = reply
        self.write(Call(self._last_call, target, method, arguments))
        return reply

    @property
    def is_connected(self) -> bool:
        return self._transport is not None and not self.is_lost and not self.is_aborted

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the channel now, without what was not written yet. If it has not begun, it ends when it begins."""
        self.is_aborted = True
        if self._transport is not None:
            self._transport.abort()

    # ---- the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from asyncio's
        if self.is_lost:  # it is connected again
            self._frames, self.is_lost, self.is_aborted = FrameReader(), False, False
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
                    answer.set_exception(decode_error(frame.failure))

    def _begin(self, call: Call) -> None:
        interface, target = self.served(call.target)
        work = interface.perform(target, call.method, call.arguments, self.level)
        if work is not None:
            task = asyncio.get_running_loop().create_task(self._answer(call, work))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: Call, work: Coroutine[None, None, object]) -> None:
        asked_over = self._transport
        reply: CallReply | CallError
        try:
            value = await work
        except Exception as error:
            reply = CallError(call.number, encode_error(error))
        else:
            reply = CallReply(call.number, msgspec.Raw(msgspec.msgpack.encode(value)))
        if self._transport is asked_over:
            self.write(reply)
