"""The same port over a byte stream: the gateway in one process, the fragments in another.

Rules:
1. One frame for each call: `submit` stays one batch on the wire, and so do the effects of one sink call.
2. Each side numbers its own origins; the fragments' side translates.
3. Changes of the catalogue are told to every gateway, which passes them on to whoever watches there.
4. When the stream ends, the fragments' side disconnects its origins; the gateway's side refuses every request that has no
   answer yet as retryable, since its outcome is unknown, and every later one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import cast

import msgspec

from busbar.broker import calls
from busbar.broker.definition import decode_definition, encode_definition
from busbar.broker.port import releases_of
from busbar.broker.wire import (
    Answered,
    Ask,
    Changed,
    Connect,
    Disconnect,
    Failed,
    Frame,
    Frames,
    InUse,
    Perform,
    Submit,
    WireError,
    commands_codec,
    decode_frame,
    effects_codec,
    encode_frame,
)
from busbar.model.effects import Effect, Refused
from busbar.model.entities import Description, EntityKind
from busbar.model.errors import BusbarError, InternalError, ServerBusy, error_of
from busbar.model.port import (
    ChangeSink,
    Commands,
    Effects,
    EffectSink,
    EntityView,
    FragmentView,
    NamedRule,
    NamespacePort,
    NamespaceProperties,
    RuntimeProperties,
    StoreView,
)
from busbar.model.taps import TapChange, TapDescription

STREAM_LOST = "The broker's fragments are out of reach; the operation may or may not have taken place. Retry."

Answers = list[bytes]
Sinks = list[ChangeSink]
_log = logging.getLogger(__name__)


class _Stream(asyncio.Protocol):
    """Frames over a transport."""

    def __init__(self) -> None:
        self._frames = Frames(decode_frame)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self.received(frame)
        except WireError as error:
            _log.error("port: %s; the stream is closed", error)
            self.close()

    def write(self, frame: Frame) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(frame))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def received(self, frame: Frame) -> None:
        raise NotImplementedError


class RemotePort(_Stream):
    """A NamespacePort whose broker is at the other end of a stream."""

    def __init__(self) -> None:
        super().__init__()
        self._sinks: dict[int, EffectSink] = {}
        self._last_origin = 0
        self._unanswered: set[tuple[int, int]] = set()
        self._questions: dict[int, asyncio.Future[Answers]] = {}
        self._last_question = 0
        self._watching: Sinks = []
        self._lost = False

    @classmethod
    async def over_unix_socket(cls, path: str) -> RemotePort:
        _, port = await asyncio.get_running_loop().create_unix_connection(cls, path)
        return port

    @classmethod
    async def over_tcp(cls, host: str, port: int) -> RemotePort:
        _, remote = await asyncio.get_running_loop().create_connection(cls, host, port)
        return remote

    def connect(self, sink: EffectSink) -> int:
        self._last_origin += 1
        self._sinks[self._last_origin] = sink
        self.write(Connect(self._last_origin))
        return self._last_origin

    def disconnect(self, origin: int) -> None:
        if self._sinks.pop(origin, None) is not None:
            self._unanswered = {pair for pair in self._unanswered if pair[0] != origin}
            self.write(Disconnect(origin))

    def submit(self, commands: Commands) -> None:
        requests = [(command.origin, command.request) for command in commands if command.request > 0]
        if self._lost:
            asyncio.get_running_loop().call_soon(self._refuse, requests)
            return
        self._unanswered.update(requests)
        self.write(Submit(msgspec.Raw(commands_codec.encode(commands))))

    async def entity(self, path: str) -> EntityView:
        return calls.views(await self._ask(calls.FindEntity(path)))[0]

    async def create(
        self, path: str, description: Description, default_rule: NamedRule | None = None
    ) -> EntityView:
        return calls.views(await self._ask(calls.create(path, description, default_rule)))[0]

    async def update(self, path: str, description: Description) -> EntityView:
        return calls.views(await self._ask(calls.update(path, description)))[0]

    async def delete(self, path: str) -> None:
        await self._ask(calls.Delete(path))

    async def list(self, kind: EntityKind, parent: str, skip: int, top: int) -> Sequence[EntityView]:
        return calls.views(await self._ask(calls.ListEntities(kind, parent, skip, top)))

    async def create_tap(self, path: str, tap: TapDescription) -> EntityView:
        return calls.views(await self._ask(calls.CreateTap(path, tap)))[0]

    async def change_tap(self, path: str, name: str, dead_letter: bool, change: TapChange) -> EntityView:
        return calls.views(await self._ask(calls.ChangeTap(path, name, dead_letter, change)))[0]

    async def runtime(self, path: str) -> RuntimeProperties:
        return calls.runtime(await self._ask(calls.AskRuntime(path)))

    async def namespace(self) -> NamespaceProperties:
        return calls.namespace(await self._ask(calls.AskNamespace()))

    async def fragments(self, path: str) -> Sequence[FragmentView]:
        return calls.fragments(await self._ask(calls.AskFragments(path)))

    async def stores(self) -> Sequence[StoreView]:
        return calls.stores(await self._ask(calls.AskStores()))

    async def change_store(self, name: str, to: str) -> StoreView:
        return calls.stores(await self._ask(calls.ChangeStore(name, to)))[0]

    def watch(self, changed: ChangeSink) -> Callable[[], None]:
        self._watching.append(changed)

        def stop() -> None:
            if changed in self._watching:
                self._watching.remove(changed)

        return stop

    def in_use(self, paths: Sequence[str]) -> None:
        self.write(InUse([*paths]))

    async def _ask(self, request: calls.Request) -> Answers:
        if self._lost:
            raise ServerBusy(STREAM_LOST)
        self._last_question += 1
        answer: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self._questions[self._last_question] = answer
        self.write(Ask(self._last_question, request))
        return await answer

    def received(self, frame: Frame) -> None:
        if isinstance(frame, Perform):
            self._perform(effects_codec.decode(frame.effects))
        elif isinstance(frame, Answered):
            answer = self._questions.pop(frame.question, None)
            if answer is not None and not answer.done():
                answer.set_result(frame.answers)
        elif isinstance(frame, Failed):
            answer = self._questions.pop(frame.question, None)
            if answer is not None and not answer.done():
                answer.set_exception(error_of(frame.condition, frame.text))
        elif isinstance(frame, Changed):
            self._tell(frame.path, None if frame.definition is None else _definition(frame.definition))
        else:
            raise WireError(f"A gateway got {type(frame).__name__}.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        requests, self._unanswered = sorted(self._unanswered), set()
        self._refuse(requests)
        questions, self._questions = self._questions, {}
        for answer in questions.values():
            if not answer.done():
                answer.set_exception(ServerBusy(STREAM_LOST))

    def _tell(self, path: str, view: EntityView | None) -> None:
        for changed in tuple(self._watching):
            try:
                changed(path, view)
            except Exception:
                _log.exception("a change of '%s' could not be told to one who watches", path)

    def _perform(self, effects: Effects) -> None:
        for effect in effects:
            if effect.request > 0:
                self._unanswered.discard((effect.origin, effect.request))
        if effects:
            # The fragments' side sends the effects of one origin in a frame of their own (rule 1).
            self._hand_over(effects[0].origin, effects)

    def _hand_over(self, origin: int, effects: Effects) -> None:
        sink = self._sinks.get(origin)
        if sink is None:
            releases = releases_of(effects)
            if releases and not self._lost:
                self.submit(releases)
            return
        try:
            sink(effects)
        except Exception:
            _log.exception("connection %d failed on %d effects", origin, len(effects))

    def _refuse(self, requests: Sequence[tuple[int, int]]) -> None:
        by_origin: dict[int, Effects] = {}
        for origin, request in requests:
            refused = Refused(origin, request, ServerBusy.condition, STREAM_LOST, False)
            by_origin.setdefault(origin, []).append(refused)
        for origin, effects in by_origin.items():
            self._hand_over(origin, effects)


class _Peer(_Stream):
    """The fragments' side of one stream."""

    def __init__(self, server: PortServer, port: NamespacePort) -> None:
        super().__init__()
        self._unwatch: Callable[[], None] | None = None
        self._server = server
        self._port = port
        self._origins: dict[int, int] = {0: 0}  # theirs to ours; 0 is nobody, on both sides

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.peers.add(self)
        self._unwatch = self._port.watch(self._changed)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.peers.discard(self)
        if self._unwatch is not None:
            self._unwatch()
        origins, self._origins = self._origins, {0: 0}
        for ours in origins.values():
            self._port.disconnect(ours)

    def received(self, frame: Frame) -> None:
        if isinstance(frame, Submit):
            self._submit(commands_codec.decode(frame.commands))
        elif isinstance(frame, Connect):
            self._connect(frame.origin)
        elif isinstance(frame, Disconnect):
            ours = self._origins.pop(frame.origin, None)
            if ours:
                self._port.disconnect(ours)
        elif isinstance(frame, Ask):
            self._server.spawn(self._answer(frame))
        elif isinstance(frame, InUse):
            self._port.in_use(frame.paths)
        else:
            raise WireError(f"The fragments' side got {type(frame).__name__}.")

    def _connect(self, theirs: int) -> None:
        if theirs in self._origins:
            raise WireError(f"Origin {theirs} is connected already.")

        def sink(effects: list[Effect]) -> None:
            for effect in effects:
                effect.origin = theirs  # ours alone once they were handed to us
            self.write(Perform(msgspec.Raw(effects_codec.encode(effects))))

        self._origins[theirs] = self._port.connect(sink)

    def _changed(self, path: str, view: EntityView | None) -> None:
        self.write(Changed(path, None if view is None else encode_definition(view)))

    def _submit(self, commands: Commands) -> None:
        for command in commands:
            ours = self._origins.get(command.origin)
            if ours is None:
                raise WireError(f"Origin {command.origin} is not connected.")
            command.origin = ours
        self._port.submit(commands)

    async def _answer(self, question: Ask) -> None:
        try:
            answers = await calls.perform(self._port, question.request)
        except BusbarError as error:
            self.write(Failed(question.question, error.condition, error.text))
        except Exception as error:
            _log.exception("a call of the catalogue failed")
            self.write(Failed(question.question, InternalError.condition, type(error).__name__))
        else:
            self.write(Answered(question.question, answers))


class PortServer:
    """Serves a port of this process to gateways of other processes."""

    def __init__(self, port: NamespacePort) -> None:
        self.peers: set[_Peer] = set()
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen_unix(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Peer(self, self._port), path)

    async def listen_tcp(self, host: str, port: int) -> int:
        """The port (0 asks for a free one)."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Peer(self, self._port), host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for peer in list(self.peers):
            peer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run until done; nobody waits for it (it answers by itself)."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _definition(encoded: bytes) -> EntityView:
    try:
        return decode_definition(encoded)
    except msgspec.DecodeError as error:
        raise WireError(str(error)) from None
