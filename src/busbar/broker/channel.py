"""What the serving process and a broker process say to each other, over a socket that only the two of them have.

Rules:
1. Frames are read in the order in which they were written: who hears an answer knows all that was said before it, effects
   and states included.
2. Both sides may call; a call with the number 0 wants no answer. An error crosses with its kind and its text, and is raised
   at the caller.
3. When the channel ends, everyone who waits for an answer hears that the other process is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import cast

import msgspec

from busbar.broker.place import StoreMissing
from busbar.broker.wire import Frames, Int, WireError
from busbar.model.errors import BusbarError, InternalError, error_of
from busbar.store.contract import Fenced, OutcomeUnknown, StoreError, StoreFull, StoreInUse

MAX_FRAME = 2**32 - 1
"""What four bytes can say. Both sides are ours, and what crosses is bounded by those who make it."""

_log = logging.getLogger(__name__)


class ChannelLost(Exception):
    """The other process ended; what it was asked for may or may not have taken place."""


# ---- what is asked: of a store in the broker process, and (the last two) of the serving process ----


class Serve(msgspec.Struct, array_like=True, tag="serve"):
    """There is such a store, and it is yours."""


class Open(msgspec.Struct, array_like=True, tag="open"):
    pass


class Make(msgspec.Struct, array_like=True, tag="make"):
    pass


class KeepOut(msgspec.Struct, array_like=True, tag="keep out"):
    reason: str


class KeepTrying(msgspec.Struct, array_like=True, tag="keep trying"):
    pass


class Return(msgspec.Struct, array_like=True, tag="return"):
    """The broker process was started again: open the store when that is possible, and as the operator wants it."""

    reason: str
    offline: bool
    reset: bool


class Add(msgspec.Struct, array_like=True, tag="add"):
    settings: bytes


class Change(msgspec.Struct, array_like=True, tag="change"):
    settings: bytes


class Remove(msgspec.Struct, array_like=True, tag="remove"):
    fragment: int


class ReadCatalogue(msgspec.Struct, array_like=True, tag="read catalogue"):
    pass


class RepairCatalogue(msgspec.Struct, array_like=True, tag="repair catalogue"):
    rows: dict[str, bytes | None]


class WriteCatalogue(msgspec.Struct, array_like=True, tag="write catalogue"):
    rows: dict[str, bytes | None]


class TakeOffline(msgspec.Struct, array_like=True, tag="offline"):
    pass


class BringOnline(msgspec.Struct, array_like=True, tag="online"):
    pass


class Reset(msgspec.Struct, array_like=True, tag="reset"):
    pass


class WindDown(msgspec.Struct, array_like=True, tag="wind down"):
    pass


class Drain(msgspec.Struct, array_like=True, tag="drain"):
    timeout: float


class Close(msgspec.Struct, array_like=True, tag="close"):
    pass


class Admit(msgspec.Struct, array_like=True, tag="admit"):
    """A store was opened, or made anew: may it serve?"""

    anew: bool


class TakenAway(msgspec.Struct, array_like=True, tag="taken away"):
    """Another owner has the store."""


Operation = (
    Serve
    | Open
    | Make
    | KeepOut
    | KeepTrying
    | Return
    | Add
    | Change
    | Remove
    | ReadCatalogue
    | RepairCatalogue
    | WriteCatalogue
    | TakeOffline
    | BringOnline
    | Reset
    | WindDown
    | Drain
    | Close
    | Admit
    | TakenAway
)


# ---- frames: four bytes of length, then one of these ----


class Call(msgspec.Struct, array_like=True, tag=1):
    number: Int
    store: str
    operation: Operation


class Answer(msgspec.Struct, array_like=True, tag=2):
    number: Int
    value: msgspec.Raw


class Failure(msgspec.Struct, array_like=True, tag=3):
    number: Int
    kind: str
    """The class of a StoreError, or empty: a BusbarError with this condition."""
    condition: str
    text: str
    certain: bool


class Submit(msgspec.Struct, array_like=True, tag=4):
    store: str
    commands: msgspec.Raw


class Perform(msgspec.Struct, array_like=True, tag=5):
    store: str
    effects: msgspec.Raw


class State(msgspec.Struct, array_like=True, tag=6):
    """Of a store in the broker process. `loss` is what Loss has."""

    store: str
    state: str
    reason: str
    loss: tuple[Int, Int, Int] | None


Frame = Call | Answer | Failure | Submit | Perform | State
_frames = msgspec.msgpack.Decoder(Frame)
_STORE_ERRORS = {
    kind.__name__: kind for kind in (StoreError, StoreFull, OutcomeUnknown, Fenced, StoreInUse, StoreMissing)
}


def _decode(body: bytes) -> Frame:
    try:
        frame: Frame = _frames.decode(body)
        return frame
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(str(error)) from None


class Channel(asyncio.Protocol):
    """One end. Who has it says what becomes of frames (`received`), calls (`perform`) and the end (`lost`)."""

    def __init__(self) -> None:
        self._frames = Frames(_decode, MAX_FRAME)
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._last_call = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_lost = False

    def received(self, frame: Submit | Perform | State) -> None:
        raise NotImplementedError

    def perform(self, store: str, operation: Operation) -> Coroutine[None, None, object] | None:
        """Do it now (None), or begin: what the coroutine returns is the answer."""
        raise NotImplementedError

    def lost(self) -> None:
        raise NotImplementedError

    # ---- speaking ----

    def write(self, frame: Frame) -> None:
        if self._transport is not None and not self._transport.is_closing():
            body = msgspec.msgpack.encode(frame)
            self._transport.write(len(body).to_bytes(4, "big") + body)

    def tell(self, store: str, operation: Operation) -> None:
        self.write(Call(0, store, operation))

    async def call(self, store: str, operation: Operation) -> msgspec.Raw:
        """The answer. Raises what the other side raised, or ChannelLost."""
        if self.is_lost:
            raise ChannelLost
        self._last_call += 1
        number = self._last_call
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        self.write(Call(number, store, operation))
        return await answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # ---- the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._take(frame)
        except (WireError, msgspec.DecodeError) as error:
            _log.error("the channel between brokers: %s; it is closed", error)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        calls, self._calls = self._calls, {}
        for answer in calls.values():
            if not answer.done():
                answer.set_exception(ChannelLost())
        self.lost()

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, Submit | Perform | State):
            self.received(frame)
        elif isinstance(frame, Call):
            self._begin(frame)
        else:
            answer = self._calls.pop(frame.number, None)
            if answer is not None and not answer.done():
                if isinstance(frame, Answer):
                    answer.set_result(frame.value)
                else:
                    answer.set_exception(_error(frame))

    def _begin(self, call: Call) -> None:
        work = self.perform(call.store, call.operation)
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
            self.write(Answer(call.number, msgspec.Raw(msgspec.msgpack.encode(value))))


def _failure(call: Call, error: Exception) -> Failure:
    if isinstance(error, BusbarError):
        return Failure(call.number, "", error.condition, error.text, error.certain)
    if isinstance(error, StoreError | OSError):
        kind = next((name for name, one in _STORE_ERRORS.items() if type(error) is one), StoreError.__name__)
        return Failure(call.number, kind, "", str(error) or type(error).__name__, True)
    if not isinstance(error, ChannelLost):
        _log.error("%s of %s failed", type(call.operation).__name__, call.store, exc_info=error)
    return Failure(call.number, "", InternalError.condition, type(error).__name__, False)


def _error(failure: Failure) -> Exception:
    if failure.kind:
        return _STORE_ERRORS.get(failure.kind, StoreError)(failure.text)
    return error_of(failure.condition, failure.text, failure.certain)
