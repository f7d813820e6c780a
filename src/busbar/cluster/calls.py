"""Calls of the methods of an object in another process, derived from the annotations of a protocol.

Rules:
1. Every public method of the protocol can be called: its parameters are the arguments, its result is the reply. A method
   that is added to the protocol needs nothing else.
2. A coroutine is answered with its result or its error. The call of a plain method has no reply.
3. The frame is written when the method is called, not when its result is awaited. So calls cross in the order in which they
   are made.
4. A name that the protocol does not have, or arguments that do not fit it, are a WireError and call nothing.
5. A method that came with a later version of the protocol is marked with it (`since`). Over a channel of a lower level it is
   not sent: a call without a reply is dropped, and one with a reply raises NotAtThisLevel.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, cast, get_type_hints

import msgspec

from busbar.cluster.codec import WireError
from busbar.cluster.crossings import crossing_of

T = TypeVar("T")


class NotAtThisLevel(Exception):
    """The other process is of an earlier release, and does not have this call."""


def since(level: int) -> Callable[[T], T]:
    """Marks a method of a protocol that came with that version of it."""

    def mark(function: T) -> T:
        function.level = level  # type: ignore[attr-defined]  # functions take attributes
        return function

    return mark


class CallingChannel(Protocol):
    """What carries calls to the other process."""

    @property
    def level(self) -> int: ...

    def notify(self, target: str, method: str, arguments: msgspec.Raw) -> None: ...

    def start_call(self, target: str, method: str, arguments: msgspec.Raw) -> asyncio.Future[msgspec.Raw]: ...


class RemoteMethod:
    """One method, as it crosses."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function.__name__
        self.has_reply = inspect.iscoroutinefunction(function)
        self.level: int = getattr(function, "level", 1)
        self._signature = inspect.signature(function)
        hints = get_type_hints(function)
        result, self._encode_result, self._decode_result = crossing_of(hints.pop("return"))
        self._results: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(result)
        self._crossings = [crossing_of(hint) for hint in hints.values()]
        self._arguments: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            tuple[tuple(wire for wire, _, _ in self._crossings)]  # type: ignore[misc]  # made by the annotations
        )

    def encode(self, *arguments: Any, **named: Any) -> msgspec.Raw:
        bound = self._signature.bind(None, *arguments, **named)
        bound.apply_defaults()
        pairs = zip(self._crossings, bound.args[1:], strict=True)
        return msgspec.Raw(msgspec.msgpack.encode([encode(value) for (_, encode, _), value in pairs]))

    def decode(self, arguments: msgspec.Raw) -> list[Any]:
        try:
            values = self._arguments.decode(arguments)
            return [decode(value) for (_, _, decode), value in zip(self._crossings, values, strict=True)]
        except (msgspec.DecodeError, RecursionError) as error:
            raise WireError(f"arguments of '{self.name}': {error}") from None

    async def reply(self, work: Coroutine[Any, Any, Any]) -> object:
        """The result of the method, ready to be encoded."""
        return self._encode_result(await work)

    async def result(self, reply: asyncio.Future[msgspec.Raw]) -> Any:
        """What the method returned in the other process. Raises what it raised there, or ChannelClosed."""
        return self._decode_result(self._results.decode(await reply))


class RemoteInterface(Generic[T]):
    """The methods of a protocol that can be called from another process."""

    def __init__(
        self,
        protocol: type[T],
        without: Collection[str] = (),
        later: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`later` are methods that came with a later version, for protocols of other rooms, which cannot be marked."""
        self.methods = {
            name: RemoteMethod(function)
            for part in reversed(protocol.__mro__)
            for name, function in vars(part).items()
            if inspect.isfunction(function) and not name.startswith("_") and name not in without
        }
        for name, level in later.items():
            self.methods[name].level = level

    def perform(
        self, target: object, method: str, arguments: msgspec.Raw, level: int | None = None
    ) -> Coroutine[None, None, object] | None:
        """Call a method of `target`, over a channel of that level. The coroutine, if there is one, gives the reply. Raises
        WireError."""
        known = self.methods.get(method)
        if known is None or (level is not None and known.level > level):
            raise WireError(f"'{method}' is not a call of this channel.")
        done = getattr(target, method)(*known.decode(arguments))
        return known.reply(done) if known.has_reply else None

    def remote(self, channel: CallingChannel, target: str = "") -> T:
        """The object of that name in the other process."""
        return cast(T, _Remote(self.methods, channel, target))


async def _refuse(name: str, level: int) -> None:
    raise NotAtThisLevel(f"The other process has level {level} and no '{name}'.")


class _Remote:
    def __init__(self, methods: dict[str, RemoteMethod], channel: CallingChannel, target: str) -> None:
        self._methods = methods
        self._channel = channel
        self._target = target

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = self._methods.get(name)
        if method is None:
            raise AttributeError(name)
        channel, target = self._channel, self._target

        def call(*arguments: Any, **named: Any) -> Coroutine[Any, Any, Any] | None:
            if method.level > channel.level:
                return _refuse(name, channel.level) if method.has_reply else None
            encoded = method.encode(*arguments, **named)
            if method.has_reply:
                return method.result(channel.start_call(target, name, encoded))
            channel.notify(target, name, encoded)
            return None

        return call
