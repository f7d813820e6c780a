"""Routes commands to the hosts of their fragments, and effects back to the gateway connections (origins) they are for.

Rules:
1. A sink is called once for each batch of effects, with its own effects in their order. If it raises, other sinks are not
   affected. Then it is not known which effects were performed, so the connection is ended: its client has to ask again.
2. When an origin is gone, its consumers leave the fragments they asked for messages from. Messages that were on their way
   to it are released at once, so that another consumer gets them without waiting for a lock to end.
3. A command goes to the host of its fragment (`FragmentRoutes`). If no host has the fragment, it is refused as an unknown
   entity.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Generic, Protocol, TypeVar

from busbar.broker.offline_buffer import ALL_CREDIT
from busbar.fragment.figures import FiguresOfFragments
from busbar.model.api import Commands, Effects, EffectSink
from busbar.model.commands import (
    RELEASE,
    AcceptSession,
    AwaitSession,
    Command,
    Demand,
    Leave,
    Settle,
)
from busbar.model.effects import HISTORY_ORIGIN, MOVER_ORIGIN, Delivered, Effect, Refused
from busbar.model.errors import EntityNotFound
from busbar.model.hold_commands import ResumeSession
from busbar.model.message import ACTIVE

_log = logging.getLogger(__name__)

BROKER_ORIGIN = 0
"""The origin of what the broker itself asks: that does not use an entity."""
REGISTERING = (Demand, AwaitSession, AcceptSession, ResumeSession)
"""Commands by which a fragment registers their origin, until the origin leaves."""


class CommandRouter(Protocol):
    def submit(self, commands: Commands) -> Commands:
        """Hand commands to the hosts of their fragments; those whose fragment no host has are returned."""


class HangingHost(Protocol):
    """The host of a store of this process."""

    @property
    def hanging_for(self) -> float: ...


class EffectDispatcher:
    """The fragments' half of a BrokerApi. Store hosts emit effects with `dispatch`."""

    def __init__(self) -> None:
        self.routes: CommandRouter | None = None
        """Where commands go; set before any comes."""
        self._sinks: dict[int, EffectSink] = {}
        self._failed: dict[int, Callable[[], None]] = {}  # by origin: what ends its connection
        self._consuming: dict[int, set[int]] = {}  # by origin: fragments it asked for messages or sessions
        self._last_origin = BROKER_ORIGIN
        self.served: set[int] = set()
        """Origins that stand for connections of other processes."""
        self._stands_for: dict[int, tuple[str, int]] = {}
        self.own_hosts: Callable[[], Iterable[HangingHost]] = tuple
        """The hosts of the stores that this process has."""
        self.fragment_figures = FiguresOfFragments()
        """What the fragments of these stores have done."""

    def hanging_for(self) -> float:
        return min((host.hanging_for for host in self.own_hosts()), default=0.0)

    def is_near(self, store: str) -> bool:
        return True

    def connect(self, sink: EffectSink, failed: Callable[[], None] | None = None) -> int:
        self._last_origin += 1
        self._sinks[self._last_origin] = sink
        if failed is not None:
            self._failed[self._last_origin] = failed
        self._consuming[self._last_origin] = set()
        return self._last_origin

    def connect_served(
        self, sink: EffectSink, failed: Callable[[], None], gateway: str = "", number: int = 0
    ) -> int:
        """An origin that stands for a connection of another process, which uses stores of this one: that of this number, of
        that gateway."""
        origin = self.connect(sink, failed)
        self.served.add(origin)
        self._stands_for[origin] = (gateway, number)
        return origin

    def client_of(self, origin: int) -> tuple[str, int]:
        """The gateway (empty: of this process) and the number there of the connection that an origin stands for."""
        return self._stands_for.get(origin, ("", origin))

    def connect_history(self, sink: EffectSink) -> None:
        """Pass what happens to messages to `sink`."""
        self._sinks[HISTORY_ORIGIN] = sink

    def connect_mover(self, sink: EffectSink) -> None:
        """Pass effects for the mover of this process to `sink`."""
        self._sinks[MOVER_ORIGIN] = sink

    def disconnect(self, origin: int) -> None:
        if origin not in self._sinks:
            return
        fragments = self._consuming.pop(origin, None)
        if fragments:
            self.submit([Leave(fragment, origin, 0) for fragment in sorted(fragments)])
        self.forget(origin)

    def forget(self, origin: int) -> None:
        """Remove an origin that no fragment has any more."""
        self._sinks.pop(origin, None)
        self._consuming.pop(origin, None)
        self._failed.pop(origin, None)
        self.served.discard(origin)
        self._stands_for.pop(origin, None)

    def strand(self, origin: int, holding: Collection[tuple[int, int]]) -> None:
        """Remove the consumers of an origin that cannot be reached, except these, each given with its fragment.

        The origin may still rely on the message sessions that they hold. So they stay, without credit, until `disconnect`.
        All others leave, and messages for them are released."""
        if origin not in self._sinks:
            return
        kept = {fragment for fragment, _ in holding}
        leaving = self._consuming[origin] - kept
        self._consuming[origin] = kept
        self._sinks[origin] = self._release
        commands: Commands = [Leave(fragment, origin, 0) for fragment in sorted(leaving)]
        commands += [
            Demand(fragment, origin, consumer, ACTIVE, -ALL_CREDIT, False, False)
            for fragment, consumer in holding
        ]
        self.submit(commands)

    def _release(self, effects: Effects) -> None:
        releases = releases_of(effects)
        if releases:
            self.submit(releases)

    def submit(self, commands: Commands) -> None:
        assert self.routes is not None, "routes are set before commands come"
        for command in commands:
            if type(command) in REGISTERING:
                fragments = self._consuming.get(command.origin)
                if fragments is None:
                    # Its origin is gone, and no `disconnect` would ever remove the consumer.
                    commands = [other for other in commands if other is not command]
                else:
                    fragments.add(command.fragment)
        unknown = self.routes.submit(commands)
        if unknown:
            asyncio.get_running_loop().call_soon(self.dispatch, _refusals(unknown))

    def dispatch(self, effects: Effects) -> None:
        """Perform effects: hand each origin its own, in one batch."""
        by_origin: dict[int, list[Effect]] = {}
        for effect in effects:
            batch = by_origin.get(effect.origin)
            if batch is None:
                by_origin[effect.origin] = [effect]
            else:
                batch.append(effect)
        for origin, batch in by_origin.items():
            sink = self._sinks.get(origin)
            if sink is None:
                self._release(batch)
                continue
            try:
                sink(batch)
            except Exception:
                _log.exception("connection %d failed on %d effects", origin, len(batch))
                self._end(origin, batch)

    def _end(self, origin: int, effects: list[Effect]) -> None:
        """End an origin whose handler failed, and release the messages among the effects.

        If the client has got some of them, it gets them once more."""
        failed = self._failed.get(origin)
        if failed is not None:
            self.disconnect(origin)
            self._release(effects)
            failed()


def _refusals(unknown: Commands) -> Effects:
    """Refusals for commands whose fragment is not here any more."""
    return [
        Refused(
            command.origin,
            command.request,
            EntityNotFound.condition,
            EntityNotFound(f"fragment {command.fragment}").text,
        )
        for command in unknown
        if command.request > 0
    ]


def releases_of(effects: list[Effect]) -> list[Command]:
    """Commands that release the messages of effects whose receiver is gone. Messages that were received and deleted are
    lost: that mode promises at most once."""
    return [
        Settle(
            effect.fragment,
            0,
            0,
            RELEASE,
            [record.n for record in effect.records],
            [effect.nonce] * len(effect.records),
            None,
            False,
        )
        for effect in effects
        if type(effect) is Delivered and effect.until
    ]


class CommandSink(Protocol):
    """A host of a store's fragments, in this process or in another one, which takes their commands."""

    name: str

    def submit(self, commands: Iterable[Command]) -> None: ...


T = TypeVar("T", bound=CommandSink)


class FragmentRoutes(Generic[T]):
    """Which host has which fragment."""

    def __init__(self) -> None:
        self._routes: dict[int, T] = {}

    def assign(self, fragments: Iterable[int], hosts: Iterable[T]) -> None:
        """Note which host each fragment has."""
        self._routes.update(zip(fragments, hosts, strict=True))

    def remove(self, fragments: Iterable[int]) -> None:
        """Remove fragments that no entity has any more."""
        for fragment in fragments:
            self._routes.pop(fragment, None)

    def sink_of(self, fragment: int) -> T | None:
        return self._routes.get(fragment)

    def count(self, host: T) -> int:
        return sum(1 for sink in self._routes.values() if sink is host)

    def submit(self, commands: list[Command]) -> list[Command]:
        """Hand commands to their hosts, one batch for each; those of unknown fragments are returned."""
        routes = self._routes
        if len(commands) == 1:
            sink = routes.get(commands[0].fragment)
            if sink is None:
                return commands
            sink.submit(commands)
            return []
        groups: dict[T | None, list[Command]] = {}
        for command in commands:
            host = routes.get(command.fragment)
            group = groups.get(host)
            if group is None:
                groups[host] = [command]
            else:
                group.append(command)
        unknown = groups.pop(None, [])
        for host, group in groups.items():
            assert host is not None
            host.submit(group)
        return unknown
