"""The port of a broker process that has a gateway of its own: some fragments are here, the others in other broker processes.

Rules:
1. All entities of the namespace are known here, as the serving process tells of them (members.py). What is not known is
   asked for: the serving process has the last word on what there is.
2. Everything that changes the catalogue, or sums up what fragments hold, is asked of the serving process.
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

import msgspec

from busbar.broker import calls, says
from busbar.broker.channel import Channel, ChannelLost
from busbar.broker.definition import decode_definition
from busbar.broker.exchange import OURSELVES, Exchange
from busbar.broker.far_store import FarStore, PeerChannel
from busbar.broker.homes import Homes, Taker
from busbar.broker.peer_watch import PeerWatch
from busbar.broker.watchers import Watchers
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
from busbar.model.port import (
    ChangeSink,
    Commands,
    EntityView,
    FragmentView,
    NamedRule,
    NamespaceProperties,
    RuntimeProperties,
    StoreView,
)
from busbar.model.taps import TapChange, TapDescription

SERVING_ENDED = "The namespace is out of reach; the operation may or may not have taken place. Retry."
MEETING_SECONDS = 5.0

Answers = list[bytes]
_answers = msgspec.msgpack.Decoder(Answers)


class MemberPort(Exchange):
    """A NamespacePort."""

    def __init__(self) -> None:
        super().__init__()
        self.homes: Homes[Taker] = Homes()
        self._serving: Channel | None = None
        self._takers: dict[str, Taker] = {}
        self._peers: dict[str, PeerChannel] = {}
        self._introduced: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._views: dict[str, EntityView] = {}
        self._watchers = Watchers()
        self._peer_watch = PeerWatch(self._ask_for_peer)

    # ---- the other processes ----

    def serve(self, serving: Channel, takers: Iterable[Taker]) -> None:
        """`serving` leads to the serving process; `takers` are all stores of the namespace, here and elsewhere."""
        self._serving = serving
        self._takers = {taker.name: taker for taker in takers}
        for broker in {taker.broker for taker in self._takers.values() if isinstance(taker, FarStore)}:
            self._peer_watch.is_missing(broker)

    def introduce(self, broker: str) -> PeerChannel:
        """Another broker process is there: the channel to its stores, to be connected."""
        stores = {
            name: taker
            for name, taker in self._takers.items()
            if isinstance(taker, FarStore) and taker.broker == broker
        }

        def ended() -> None:
            if self._peers.get(broker) is channel:
                del self._peers[broker]
                self._introduced[broker].clear()
                self._peer_watch.is_missing(broker)

        before = self._peers.get(broker)
        if before is not None:
            before.abort()  # rule 4
        channel = self._peers[broker] = PeerChannel(stores, ended)
        self._introduced[broker].set()
        self._peer_watch.is_there(broker)
        return channel

    def _ask_for_peer(self, broker: str) -> None:
        if self._serving is not None:
            self._serving.tell("", says.Introduce(broker))

    async def meet(self, brokers: Sequence[str]) -> None:
        """Wait until these can be reached, or have ended, but not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MEETING_SECONDS):
                for broker in brokers:
                    await self._introduced[broker].wait()
                    channel = self._peers.get(broker)
                    if channel is not None:
                        await channel.met.wait()

    def disconnect(self, origin: int) -> None:
        super().disconnect(origin)
        for channel in self._peers.values():
            channel.tell("", says.Gone(origin))
        for taker in self._takers.values():
            if isinstance(taker, FarStore):
                taker.gone(origin)

    def submit(self, commands: Commands) -> None:
        sinks = self._sinks
        for command in commands:
            if command.origin not in sinks and command.origin != OURSELVES:
                commands = self._without_the_gone(commands)
                break
        super().submit(commands)

    def _without_the_gone(self, commands: Commands) -> Commands:
        """Rule 5."""
        left: Commands = []
        for command in commands:
            if command.origin not in self._sinks and command.origin != OURSELVES:
                if not isinstance(command, Settle) or command.request > 0:
                    continue
                command.origin = OURSELVES
            left.append(command)
        return left

    # ---- what the serving process tells ----

    def know(self, definitions: Iterable[bytes]) -> None:
        for definition in definitions:
            self._put(decode_definition(definition))

    def changed(self, path: str, definition: bytes | None) -> None:
        view = None if definition is None else decode_definition(definition)
        if view is not None:
            self._put(view)
        else:
            self._remove(path)
        self._watchers.tell(path, view)

    def _put(self, view: EntityView) -> None:
        if not isinstance(view.description, RuleDescription):
            self._views[key_of(view.path)] = view
            self.homes.settle(view.fragments, [self._takers[store] for store in view.stores])

    def _remove(self, path: str) -> None:
        view = self._views.pop(key_of(path), None)
        if view is None:
            return
        for fragment in view.fragments:
            home = self.homes.of(fragment)
            if isinstance(home, FarStore):
                home.forget(fragment)  # rule 3
        self.homes.leave(view.fragments)

    # ---- entities ----

    async def entity(self, path: str) -> EntityView:
        """Rule 1."""
        view = self._views.get(key_of(path))
        return view if view is not None else calls.views(await self._ask(calls.FindEntity(path)))[0]

    def authorization_rules(self, path: str) -> Sequence[AuthorizationRule]:
        """Those of the entity itself; none if there is no such entity."""
        view = self._views.get(key_of(path))
        if view is None or not isinstance(view.description, QueueDescription | TopicDescription):
            return ()
        return view.description.authorization_rules

    def watch(self, changed: ChangeSink) -> Callable[[], None]:
        return self._watchers.add(changed)

    def in_use(self, paths: Sequence[str]) -> None:
        if self._serving is not None:
            self._serving.tell("", says.InUse([*paths], True))

    def out_of_use(self, paths: Sequence[str]) -> None:
        if self._serving is not None:
            self._serving.tell("", says.InUse([*paths], False))

    # ---- rule 2 ----

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

    async def stores_out(self) -> Sequence[str]:
        return sorted(view.name for view in await self.stores() if view.state != "open")

    async def change_store(self, name: str, to: str) -> StoreView:
        return calls.stores(await self._ask(calls.ChangeStore(name, to)))[0]

    async def _ask(self, request: calls.Request) -> Answers:
        if self._serving is None:
            raise ServerBusy(SERVING_ENDED)
        try:
            return _answers.decode(await self._serving.call("", says.Ask(request)))
        except ChannelLost:
            raise ServerBusy(SERVING_ENDED) from None
