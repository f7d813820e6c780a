"""The port of fragments in this process: commands go to the hosts, effects to the connections that asked.

Rules:
1. A sink is called once for each batch of effects, with its own effects in their order; what it raises hurts no other.
2. When an origin is gone, its consumers leave the fragments they asked for messages from, and messages that were on
   their way to it are released at once, so that another consumer gets them without waiting for a lock to end.
3. A command for a fragment that nobody hosts is refused as an unknown entity.
4. What an entity holds is the sum over the fragments that answer; one that is out makes it less available, not unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from busbar.broker.catalogue import Catalogue
from busbar.broker.stores import Stores
from busbar.model.commands import (
    RELEASE,
    AcceptSession,
    AwaitSession,
    Command,
    Demand,
    Inspect,
    Leave,
    Peek,
    Settle,
)
from busbar.model.effects import Delivered, Effect, Inspected, Peeked, Refused
from busbar.model.entities import Description, EntityKind, TopicDescription
from busbar.model.errors import EntityNotFound
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, DEFERRED, LANES, SCHEDULED
from busbar.model.port import (
    ChangeSink,
    Commands,
    Effects,
    EffectSink,
    EntityView,
    FragmentView,
    NamedRule,
    NamespaceProperties,
    RuntimeProperties,
    StoreView,
)
from busbar.model.taps import TapChange, TapDescription

_log = logging.getLogger(__name__)


OURSELVES = 0
"""The origin of what the broker itself asks: that does not use an entity."""
STAYING = (Demand, AwaitSession, AcceptSession)
"""Commands that a fragment remembers their origin by, until it leaves."""


class LocalPort:
    """A NamespacePort over the stores of this process. `emit` is what their hosts perform effects with."""

    def __init__(self) -> None:
        self._sinks: dict[int, EffectSink] = {}
        self._consuming: dict[int, set[int]] = {}  # by origin: fragments it asked for messages or sessions
        self._last_origin = 0
        self._stores: Stores | None = None
        self._known: Catalogue | None = None
        self._inspecting: dict[int, asyncio.Future[Effect]] = {}
        self._last_inspection = 0
        self._sinks[OURSELVES] = self._inspected

    def serve(self, stores: Stores, catalogue: Catalogue) -> None:
        """Where commands go and entities are found."""
        self._stores = stores
        self._known = catalogue

    def connect(self, sink: EffectSink) -> int:
        self._last_origin += 1
        self._sinks[self._last_origin] = sink
        self._consuming[self._last_origin] = set()
        return self._last_origin

    def disconnect(self, origin: int) -> None:
        if self._sinks.pop(origin, None) is None:
            return
        fragments = self._consuming.pop(origin, None)
        if fragments:
            self.submit([Leave(fragment, origin, 0) for fragment in sorted(fragments)])

    def submit(self, commands: Commands) -> None:
        assert self._stores is not None, "serve() comes before any command"
        for command in commands:
            if type(command) in STAYING:
                fragments = self._consuming.get(command.origin)
                if fragments is None:
                    # Its origin is gone: nobody would ever take the consumer away again.
                    commands = [other for other in commands if other is not command]
                else:
                    fragments.add(command.fragment)
        unknown = self._stores.submit(commands)
        if unknown:
            asyncio.get_running_loop().call_soon(self.emit, _refusals(unknown))

    # ---- entities ----

    @property
    def _catalogue(self) -> Catalogue:
        assert self._known is not None, "serve() comes before any question"
        return self._known

    async def entity(self, path: str) -> EntityView:
        return self._catalogue.find(path)

    async def create(
        self, path: str, description: Description, default_rule: NamedRule | None = None
    ) -> EntityView:
        return await self._catalogue.create(path, description, default_rule)

    async def update(self, path: str, description: Description) -> EntityView:
        return await self._catalogue.update(path, description)

    async def delete(self, path: str) -> None:
        await self._catalogue.delete(path)

    async def list(self, kind: EntityKind, parent: str, skip: int, top: int) -> Sequence[EntityView]:
        return self._catalogue.page(kind, parent, skip, top)

    async def create_tap(self, path: str, tap: TapDescription) -> EntityView:
        return await self._catalogue.create_tap(path, tap)

    async def change_tap(self, path: str, name: str, dead_letter: bool, change: TapChange) -> EntityView:
        return await self._catalogue.change_tap(path, name, dead_letter, change)

    async def namespace(self) -> NamespaceProperties:
        return self._catalogue.properties

    def watch(self, changed: ChangeSink) -> Callable[[], None]:
        return self._catalogue.watch(changed)

    def in_use(self, paths: Sequence[str]) -> None:
        self._catalogue.note_use(paths)

    async def runtime(self, path: str) -> RuntimeProperties:
        """Rule 4."""
        view = self._catalogue.find(path)
        answers = await asyncio.gather(*self._ask(view.fragments, _inspect))
        inspected = [answer for answer in answers if isinstance(answer, Inspected)]
        counts = [sum(answer.counts[lane] for answer in inspected) for lane in range(LANES)]
        return RuntimeProperties(
            active=counts[ACTIVE],
            dead_letter=counts[DEAD] + counts[DEAD_DEFERRED],
            scheduled=counts[SCHEDULED],
            deferred=counts[DEFERRED],
            size=sum(answer.size for answer in inspected) + await self._size_of_copies(view),
            accessed=self._catalogue.used(view),
            subscriptions=len(self._catalogue.subscriptions(view.path)),
            available=len(inspected) == len(view.fragments),
            sql_filters=self._catalogue.filter_count(view.path, correlation=False),
            correlation_filters=self._catalogue.filter_count(view.path, correlation=True),
        )

    async def _size_of_copies(self, topic: EntityView) -> int:
        """What the subscriptions of a topic keep is part of its size."""
        if not isinstance(topic.description, TopicDescription):
            return 0
        fragments = [
            fragment for one in self._catalogue.subscriptions(topic.path) for fragment in one.fragments
        ]
        answers = await asyncio.gather(*self._ask(fragments, _inspect))
        return sum(answer.size for answer in answers if isinstance(answer, Inspected))

    async def fragments(self, path: str) -> Sequence[FragmentView]:
        view = self._catalogue.find(path)
        inspected = self._ask(view.fragments, _inspect)
        peeked = self._ask(view.fragments, _peek_first)
        answers = zip(await asyncio.gather(*inspected), await asyncio.gather(*peeked), strict=True)
        found = []
        for index, (counters, first) in enumerate(answers):
            id, store = view.fragments[index], view.stores[index]
            assert self._stores is not None
            home = self._stores.home(id)
            broker = home.broker if home is not None else ""
            if not isinstance(counters, Inspected):
                reason = home.reason if home is not None else ""
                found.append(FragmentView(index, id, store, "out", reason, broker=broker))
                continue
            counts = counters.counts
            found.append(
                FragmentView(
                    index,
                    id,
                    store,
                    "open",
                    active=counts[ACTIVE],
                    dead_letter=counts[DEAD] + counts[DEAD_DEFERRED],
                    scheduled=counts[SCHEDULED],
                    deferred=counts[DEFERRED],
                    size=counters.size,
                    oldest=first.records[0].enqueued if isinstance(first, Peeked) and first.records else 0,
                    broker=broker,
                )
            )
        return found

    async def stores(self) -> Sequence[StoreView]:
        assert self._stores is not None
        return self._stores.views()

    async def change_store(self, name: str, to: str) -> StoreView:
        assert self._stores is not None
        return await self._stores.change(name, to)

    def _ask(
        self, fragments: Sequence[int], question: Callable[[int, int, int], Command]
    ) -> Sequence[asyncio.Future[Effect]]:
        """Questions of our own to fragments."""
        loop = asyncio.get_running_loop()
        commands: Commands = []
        answers = []
        for fragment in fragments:
            self._last_inspection += 1
            answers.append(loop.create_future())
            self._inspecting[self._last_inspection] = answers[-1]
            commands.append(question(fragment, OURSELVES, self._last_inspection))
        if commands:
            self.submit(commands)
        return answers

    def _inspected(self, effects: Effects) -> None:
        for effect in effects:
            answer = self._inspecting.pop(effect.request, None)
            if answer is not None and not answer.done():
                answer.set_result(effect)

    def emit(self, effects: Effects) -> None:
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
                releases = releases_of(batch)
                if releases:
                    self.submit(releases)
                continue
            try:
                sink(batch)
            except Exception:
                _log.exception("connection %d failed on %d effects", origin, len(batch))


def _refusals(unknown: Commands) -> Effects:
    """Rule 3."""
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


def _inspect(fragment: int, origin: int, request: int) -> Command:
    return Inspect(fragment, origin, request)


def _peek_first(fragment: int, origin: int, request: int) -> Command:
    return Peek(fragment, origin, request, ACTIVE, 1, 1, 1)


def releases_of(effects: list[Effect]) -> list[Command]:
    """Rule 2: what gives messages back that nobody is there to receive. What was received and deleted is gone: at most
    once is what that mode promises."""
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
