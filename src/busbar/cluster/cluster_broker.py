"""The broker API in a broker process with a gateway of its own. Some fragments are in this process, the others in other
broker processes.

Rules:
1. All entities and rules of the namespace are known here, as the controller has sent them (catalogue_publisher.py). Lists
   are answered from that. The controller is asked for an entity that is not known here.
2. The controller answers everything that changes the catalogue, or sums up what fragments hold. The counts of a page are one
   request.
3. Every store has a route (store_route.py). When a fragment is deleted, nothing is kept for the consumers that waited for it
   in another process.
4. The controller is asked for a channel to another broker process that is missing (peer_watch.py). A new channel takes the
   place of the old one, which is ended: the other process drops what was asked over it.
5. Commands of a connection that has ended are dropped, except for those that return messages. So no other process gets a
   command of a connection after the report of its end.
6. Other brokers may not have the last change yet that the controller sent. If an entity of that change is asked for, or a
   list, the controller is asked, which answers when all have it. When the next change comes, all have this one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from busbar.broker.dispatcher import BROKER_ORIGIN, EffectDispatcher, FragmentRoutes
from busbar.broker.refusals import NO_STORE, NOT_LOADED
from busbar.catalogue.change import EntityChange
from busbar.catalogue.replica import CatalogueReplica
from busbar.cluster import protocol
from busbar.cluster.calls import NotAtThisLevel
from busbar.cluster.channel import ChannelClosed
from busbar.cluster.peer_watch import PeerWatch
from busbar.cluster.remote_store import PeerClient
from busbar.cluster.store_route import StoreRoute
from busbar.model.api import Commands, EntityChangeSink, EntityListing, EntityView
from busbar.model.commands import Settle
from busbar.model.entities import AuthorizationRule, EntityKind
from busbar.model.errors import InvalidOperation, ServerBusy
from busbar.model.names import key_of

CONTROLLER_ENDED = "The namespace is out of reach; the operation may or may not have taken place. Retry."
CONTROLLER_OF_EARLIER_RELEASE = (
    "The controller of the cluster is a node of the release before, which cannot do that. Upgrade all nodes."
)
MEETING_SECONDS = 5.0


class ClusterBroker(EffectDispatcher):
    """A BrokerApi. The controller answers every method that is not defined here."""

    def __init__(self) -> None:
        super().__init__()
        self.routes: FragmentRoutes[StoreRoute] = FragmentRoutes()
        self._controller: protocol.ControllerApi | None = None
        self._stores: dict[str, StoreRoute] = {}
        self._peers: dict[str, PeerClient] = {}
        self._introduced: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.replica = CatalogueReplica()
        """The entities of the namespace."""
        self._namespace = ""
        self._undecided: set[str] = set()
        """Keys of the entities in the last change. It may be under way elsewhere (rule 6)."""
        self.introduce_peer: Callable[[str], None] = lambda broker: self._tell("introduce", broker)
        """Makes a channel to another broker process."""
        self._peer_watch = PeerWatch(lambda broker: self.introduce_peer(broker))

    # ---- the other processes ----

    def configure(
        self,
        controller: protocol.ControllerApi,
        stores: Iterable[StoreRoute],
        others: Iterable[str],
        namespace: str = "busbar",
    ) -> None:
        """`stores` are all stores of the namespace, here and elsewhere, and `others` all other broker processes."""
        self._namespace = namespace
        self._controller = controller
        self._stores.update({store.name: store for store in stores})  # channels have the same mapping
        for store in self._stores.values():
            store.serves = self.served.__contains__
            store.is_connected = lambda origin: origin == BROKER_ORIGIN or origin in self._sinks
            store.on_left = self._attach_stores
        for broker in sorted(others):
            self.expect_peer(broker)

    def expect_peer(self, broker: str) -> None:
        """Get a channel to another broker process, if there is none."""
        if broker not in self._peers:
            self._peer_watch.is_missing(broker)

    def peer_joined(self, broker: str) -> None:
        """Get a channel to a broker process that has just come, if there is none."""
        if broker not in self._peers:
            self._peer_watch.has_joined(broker)

    def drop_peer(self, broker: str) -> None:
        """End the channel to another broker process; another one is made when that is possible."""
        channel = self._peers.get(broker)
        if channel is not None:
            channel.abort()

    def add_peer(self, broker: str) -> PeerClient:
        """The channel to the stores of another broker process that is there. It is not connected yet."""

        def ended() -> None:
            if self._peers.get(broker) is channel:
                del self._peers[broker]
                self._introduced[broker].clear()
                self._peer_watch.is_missing(broker)
            self._attach_stores()

        before = self._peers.get(broker)
        if before is not None:
            before.abort()  # rule 4
        channel = self._peers[broker] = PeerClient(broker, self._stores, ended)
        self._introduced[broker].set()
        self._peer_watch.is_there(broker)
        return channel

    def reason_not_to_serve(self) -> str:
        if not self.replica.is_loaded:
            return NOT_LOADED
        return "" if any(store.is_available for store in self._stores.values()) else NO_STORE

    @property
    def peers(self) -> Sequence[str]:
        """The names of the other broker processes that can be reached."""
        return sorted(name for name, channel in self._peers.items() if channel.is_connected)

    def route_to(self, store: str) -> StoreRoute | None:
        return self._stores.get(store)

    def is_near(self, store: str) -> bool:
        route = self._stores.get(store)
        return route is not None and route.is_own

    def store_moved(self, store: str, broker: str) -> None:
        """Note that another broker process owns a store from now on."""
        route = self._stores.get(store)
        if route is not None:
            route.owner_changed(broker)
            self._attach_stores()

    def _attach_stores(self) -> None:
        """Use the channels to the owners of stores that are out of reach. If the channel to the last owner has not ended,
        that is waited for."""
        for store in self._stores.values():
            channel = self._peers.get(store.broker)
            if not store.has_channel and channel is not None and channel.is_connected:
                channel.attach(store)

    async def wait_for_peers(self, brokers: Sequence[str]) -> None:
        """Wait until these broker processes can be reached or have ended, but not longer than MEETING_SECONDS."""
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
            protocol.PEER.remote(channel).origin_closed(origin)
        for store in self._stores.values():
            store.gone(origin)

    def submit(self, commands: Commands) -> None:
        sinks = self._sinks
        for command in commands:
            if command.origin not in sinks and command.origin != BROKER_ORIGIN:
                commands = self._without_the_gone(commands)
                break
        super().submit(commands)

    def _without_the_gone(self, commands: Commands) -> Commands:
        """Commands without those of origins that have ended, except for those that return messages."""
        left: Commands = []
        for command in commands:
            if command.origin not in self._sinks and command.origin != BROKER_ORIGIN:
                if not isinstance(command, Settle) or command.request > 0:
                    continue
                command.origin = BROKER_ORIGIN
            left.append(command)
        return left

    # ---- what the controller sends ----

    def load_entities(self, version: int, entities: Sequence[EntityView]) -> None:
        self.replica.load(version, entities)
        for view in entities:
            self._assign(view)

    def reload_entities(self, version: int, entities: Sequence[EntityView]) -> None:
        """Take over all entities from another controller. What is different is a change, of which watchers are notified."""
        there = {key_of(view.path): view for view in entities}
        changes: list[EntityChange] = [
            (view.path, None) for view in self.replica.entries() if key_of(view.path) not in there
        ]
        changes += [(view.path, view) for view in entities if self.replica.get(view.path) != view]
        self.replica.version = version - 1
        self.entities_changed(version, changes)
        self._undecided = set()

    def entities_changed(self, version: int, entities: Sequence[EntityChange]) -> None:
        """Entities are created, updated or deleted. All brokers have the changes before this one. Raises ReplicaFault."""
        gone = self.replica.apply(version, entities)
        self._undecided = {key_of(path) for path, _ in entities}
        for view in gone:
            self._unassign(view)
        for _, changed in entities:
            if changed is not None:
                self._assign(changed)
        self.replica.tell(entities)

    def _assign(self, view: EntityView) -> None:
        self.routes.assign(view.fragments, [self._stores[store] for store in view.stores])

    def _unassign(self, view: EntityView) -> None:
        for fragment in view.fragments:
            store = self.routes.sink_of(fragment)
            if store is not None:
                store.drop_fragment(fragment)  # rule 3
        self.routes.remove(view.fragments)
        self.fragment_figures.forget(view.fragments)

    # ---- entities ----

    async def entity(self, path: str) -> EntityView:
        """The entity at a path. The controller is asked for one that is not known here, or whose change may be under way
        elsewhere (rule 6)."""
        key = key_of(path)
        view = self.replica.get(path)
        if view is not None and key not in self._undecided:
            return view
        undecided = self._undecided
        found: EntityView = await self._ask("entity", path)
        undecided.discard(key)
        return found

    async def decided_entity(self, path: str) -> EntityView:
        """The entity at a path. If a change of it is under way, its outcome is awaited, by the controller."""
        return await self.entity(path)

    async def list(self, kind: EntityKind, parent: str, skip: int, top: int) -> Sequence[EntityView]:
        await self._until_decided()
        return self.replica.page(kind, parent, skip, top)

    async def page(self, kind: EntityKind, parent: str, skip: int, top: int) -> EntityListing:
        while True:
            # One entry more than the page has: if it is there, there is a next page.
            found = self.replica.page(kind, parent, skip, top + 1)
            views, version, undecided = found[:top], self.replica.version, self._undecided
            counts = await self._ask("runtimes", [view.path for view in views])
            undecided.clear()  # the controller answers when all have the last change
            if version == self.replica.version:
                pairs = [(view, one) for view, one in zip(views, counts, strict=True) if one is not None]
                entities, runtimes = [view for view, _ in pairs], [one for _, one in pairs]
                return EntityListing(self._namespace, entities, runtimes, len(found) > top)

    async def _until_decided(self) -> None:
        """Wait until all brokers have the last change (rule 6)."""
        while self._undecided:
            undecided = self._undecided
            await self._ask("changes_decided")
            undecided.clear()

    def authorization_rules(self, path: str) -> Sequence[AuthorizationRule]:
        """The authorization rules of the entity itself; none if there is no such entity."""
        return self.replica.authorization_rules(path)

    def watch(self, changed: EntityChangeSink) -> Callable[[], None]:
        return self.replica.watch(changed)

    # ---- what the controller answers (rule 2) ----

    def __getattr__(self, name: str) -> Any:
        method = protocol.CONTROLLER.methods.get(name)
        if method is None:
            raise AttributeError(name)
        return partial(self._ask if method.has_reply else self._tell, name)

    async def _ask(self, method: str, *arguments: object, **named: object) -> Any:
        try:
            if self._controller is not None:
                return await getattr(self._controller, method)(*arguments, **named)
        except ChannelClosed:
            pass
        except NotAtThisLevel:
            raise InvalidOperation(CONTROLLER_OF_EARLIER_RELEASE) from None
        raise ServerBusy(CONTROLLER_ENDED)

    def _tell(self, method: str, *arguments: object, **named: object) -> None:
        if self._controller is not None:
            getattr(self._controller, method)(*arguments, **named)
