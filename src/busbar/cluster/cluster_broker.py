"""The broker API in a broker process with a gateway of its own: some fragments are here, the others in other broker
processes.

Rules:
1. All entities of the namespace are known here, as the controller tells of them (catalogue_publisher.py). What is
   not known is asked for: the controller has the last word on what there is.
2. Everything that changes the catalogue, or sums up what fragments hold, is asked of the controller.
3. When a fragment is no more, nothing is kept for those who waited for it in another process.
4. A channel to another broker process that is missing is asked for (peer_watch.py). A new one takes the place of the old
   one, which is ended: the other process lets go of what was asked over it.
5. Who has left asks for nothing: what a connection still says after its end is dropped, but for messages that it gives back.
   So no other process hears of it after it has heard that it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from busbar.broker.dispatcher import BROKER_ORIGIN, CommandSink, EffectDispatcher, FragmentRoutes
from busbar.catalogue.definition import decode_definition
from busbar.catalogue.watchers import Watchers
from busbar.cluster import protocol
from busbar.cluster.channel import Channel, ChannelClosed
from busbar.cluster.peer_watch import PeerWatch
from busbar.cluster.remote_store import PeerClient, RemoteStore
from busbar.model.api import (
    Commands,
    EntityChangeSink,
    EntityListing,
    EntityView,
    FragmentView,
    NamedRule,
    NamespaceProperties,
    RuntimeProperties,
    StoreView,
)
from busbar.model.commands import Settle
from busbar.model.entities import (
    AuthorizationRule,
    Description,
    EntityKind,
    QueueDescription,
    RuleDescription,
    TopicDescription,
)
from busbar.model.errors import ServerBusy
from busbar.model.names import key_of
from busbar.model.taps import TapChange, TapDescription

SERVING_ENDED = "The namespace is out of reach; the operation may or may not have taken place. Retry."
MEETING_SECONDS = 5.0

P = ParamSpec("P")
T = TypeVar("T")


class ClusterBroker(EffectDispatcher):
    """A BrokerApi."""

    def __init__(self) -> None:
        super().__init__()
        self.routes: FragmentRoutes[CommandSink] = FragmentRoutes()
        self._serving: Channel | None = None
        self._takers: dict[str, CommandSink] = {}
        self._peers: dict[str, PeerClient] = {}
        self._introduced: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._views: dict[str, EntityView] = {}
        self._watchers = Watchers()
        self._peer_watch = PeerWatch(self._ask_for_peer)

    # ---- the other processes ----

    def configure(self, serving: Channel, takers: Iterable[CommandSink]) -> None:
        """`serving` leads to the controller; `takers` are all stores of the namespace, here and elsewhere."""
        self._serving = serving
        self._takers = {taker.name: taker for taker in takers}
        for broker in sorted({one.broker for one in self._takers.values() if isinstance(one, RemoteStore)}):
            self._peer_watch.is_missing(broker)

    def add_peer(self, broker: str) -> PeerClient:
        """Another broker process is there: the channel to its stores, to be connected."""
        stores = {
            name: taker
            for name, taker in self._takers.items()
            if isinstance(taker, RemoteStore) and taker.broker == broker
        }

        def ended() -> None:
            if self._peers.get(broker) is channel:
                del self._peers[broker]
                self._introduced[broker].clear()
                self._peer_watch.is_missing(broker)

        before = self._peers.get(broker)
        if before is not None:
            before.abort()  # rule 4
        channel = self._peers[broker] = PeerClient(stores, ended)
        self._introduced[broker].set()
        self._peer_watch.is_there(broker)
        return channel

    def _ask_for_peer(self, broker: str) -> None:
        if self._serving is not None:
            self._serving.notify("", protocol.Introduce(broker))

    async def wait_for_peers(self, brokers: Sequence[str]) -> None:
        """Wait until these can be reached, or have ended, but not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MEETING_SECONDS):
                for broker in brokers:
                    await self._introduced[broker].wait()
                    channel = self._peers.get(broker)
                    if channel is not None:
                        await channel.connected.wait()

    def disconnect(self, origin: int) -> None:
        super().disconnect(origin)
        for channel in self._peers.values():
            channel.notify("", protocol.OriginClosed(origin))
        for taker in self._takers.values():
            if isinstance(taker, RemoteStore):
                taker.gone(origin)

    def submit(self, commands: Commands) -> None:
        sinks = self._sinks
        for command in commands:
            if command.origin not in sinks and command.origin != BROKER_ORIGIN:
                commands = self._without_the_gone(commands)
                break
        super().submit(commands)

    def _without_the_gone(self, commands: Commands) -> Commands:
        """Commands without those of origins that have ended, except for messages that they give back."""
        left: Commands = []
        for command in commands:
            if command.origin not in self._sinks and command.origin != BROKER_ORIGIN:
                if not isinstance(command, Settle) or command.request > 0:
                    continue
                command.origin = BROKER_ORIGIN
            left.append(command)
        return left

    # ---- what the controller tells ----

    def load_entities(self, definitions: Iterable[bytes]) -> None:
        for definition in definitions:
            self._put(decode_definition(definition))

    def entity_changed(self, path: str, definition: bytes | None) -> None:
        view = None if definition is None else decode_definition(definition)
        if view is not None:
            self._put(view)
        else:
            self._remove(path)
        self._watchers.tell(path, view)

    def _put(self, view: EntityView) -> None:
        if not isinstance(view.description, RuleDescription):
            self._views[key_of(view.path)] = view
            self.routes.assign(view.fragments, [self._takers[store] for store in view.stores])

    def _remove(self, path: str) -> None:
        view = self._views.pop(key_of(path), None)
        if view is None:
            return
        for fragment in view.fragments:
            sink = self.routes.sink_of(fragment)
            if isinstance(sink, RemoteStore):
                sink.drop_fragment(fragment)  # rule 3
        self.routes.remove(view.fragments)

    # ---- entities ----

    async def entity(self, path: str) -> EntityView:
        """The entity at a path; the controller is asked for one that is not known here."""
        view = self._views.get(key_of(path))
        return view if view is not None else await self._call(protocol.ENTITY, path)

    def authorization_rules(self, path: str) -> Sequence[AuthorizationRule]:
        """Those of the entity itself; none if there is no such entity."""
        view = self._views.get(key_of(path))
        if view is None or not isinstance(view.description, QueueDescription | TopicDescription):
            return ()
        return view.description.authorization_rules

    def watch(self, changed: EntityChangeSink) -> Callable[[], None]:
        return self._watchers.add(changed)

    def in_use(self, paths: Sequence[str]) -> None:
        if self._serving is not None:
            self._serving.notify("", protocol.ReportInUse([*paths], True))

    def out_of_use(self, paths: Sequence[str]) -> None:
        if self._serving is not None:
            self._serving.notify("", protocol.ReportInUse([*paths], False))

    # ---- rule 2 ----

    async def create(
        self, path: str, description: Description, default_rule: NamedRule | None = None
    ) -> EntityView:
        return await self._call(protocol.CREATE, path, description, default_rule)

    async def update(self, path: str, description: Description) -> EntityView:
        return await self._call(protocol.UPDATE, path, description)

    async def delete(self, path: str) -> None:
        await self._call(protocol.DELETE, path)

    async def list(self, kind: EntityKind, parent: str, skip: int, top: int) -> Sequence[EntityView]:
        return await self._call(protocol.LIST, kind, parent, skip, top)

    async def create_tap(self, path: str, tap: TapDescription) -> EntityView:
        return await self._call(protocol.CREATE_TAP, path, tap)

    async def change_tap(self, path: str, name: str, dead_letter: bool, change: TapChange) -> EntityView:
        return await self._call(protocol.CHANGE_TAP, path, name, dead_letter, change)

    async def page(self, kind: EntityKind, parent: str, skip: int, top: int) -> EntityListing:
        return await self._call(protocol.PAGE, kind, parent, skip, top)

    async def runtime(self, path: str) -> RuntimeProperties:
        return await self._call(protocol.RUNTIME, path)

    async def runtimes(self, paths: Sequence[str]) -> Sequence[RuntimeProperties | None]:
        return await self._call(protocol.RUNTIMES, paths)

    async def namespace(self) -> NamespaceProperties:
        return await self._call(protocol.NAMESPACE)

    async def fragments(self, path: str) -> Sequence[FragmentView]:
        return await self._call(protocol.FRAGMENTS, path)

    async def stores(self) -> Sequence[StoreView]:
        return await self._call(protocol.STORES)

    async def unavailable_stores(self) -> Sequence[str]:
        return sorted(view.name for view in await self.stores() if view.state != "open")

    async def change_store(self, name: str, to: str) -> StoreView:
        return await self._call(protocol.CHANGE_STORE, name, to)

    async def _call(self, call: protocol.ApiCall[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        if self._serving is None:
            raise ServerBusy(SERVING_ENDED)
        try:
            return call.result(await self._serving.call("", call.request(*arguments, **named)))
        except ChannelClosed:
            raise ServerBusy(SERVING_ENDED) from None
