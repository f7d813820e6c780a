"""The broker API of a namespace whose catalogue is in this process.

What an entity holds is the sum over the fragments that answer. A fragment that is unavailable is left out of the sum.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from busbar.broker.dispatcher import BROKER_ORIGIN, EffectDispatcher
from busbar.broker.host_api import StoreHost
from busbar.broker.inspection import FragmentCounts, FragmentInquiry
from busbar.broker.refusals import NO_STORE, NOT_LOADED
from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.store_list import LIST_CHANGES, REMOVE
from busbar.catalogue.store_set import StoreSet
from busbar.model.access import AccessChange
from busbar.model.api import (
    BACKUP_SECONDS,
    EntityChangeSink,
    EntityListing,
    EntityView,
    FragmentView,
    NamedRule,
    NamespaceProperties,
    RuleChange,
    RuntimeProperties,
    StoreView,
    TransferReport,
)
from busbar.model.commands import Command, Inspect, Peek
from busbar.model.connection_views import ConnectionQuery, ConnectionReport
from busbar.model.effects import Effect, Inspected, Peeked
from busbar.model.entities import Description, EntityKind, TopicDescription
from busbar.model.errors import ArgumentError, BusbarError, EntityNotFound, InvalidOperation
from busbar.model.figures import ProcessFigures
from busbar.model.history import ClientName, HistoryRecording, HistoryStep
from busbar.model.message import (
    ACTIVE,
    DEAD,
    DEAD_DEFERRED,
    DEFERRED,
    LANES,
    OUTBOX,
    SCHEDULED,
    TRANSFER_DEAD,
    TRANSFER_DEAD_DEFERRED,
)
from busbar.model.names import SUBSCRIPTIONS, key_of
from busbar.model.node_views import NodeView, StoreFigures, summed
from busbar.model.partitioning import wire_number
from busbar.model.taps import TapChange, TapDescription

Counts = dict[int, FragmentCounts]
"""What fragments hold, by fragment."""


class LocalBroker(EffectDispatcher):
    """A BrokerApi over the stores of a namespace, and the catalogue of this process."""

    def __init__(self) -> None:
        super().__init__()
        self._stores: StoreSet | None = None
        self._known: Catalogue | None = None
        self._inquiry = FragmentInquiry()
        self.inspect_remote: Callable[[Mapping[StoreHost, Sequence[int]]], Awaitable[Counts]] | None = None
        """Asks broker processes what fragments of their stores hold, with one request to each."""
        self.move_remote: Callable[[str, str], Awaitable[None]] | None = None
        """Moves a store to another broker process."""
        self.restart_remote: Callable[[], Awaitable[Sequence[str]]] | None = None
        """Begins to restart all broker processes."""
        self.report_transfers: Callable[[], Awaitable[TransferReport]] | None = None
        """Asks the mover of this process, or those of all broker processes."""
        self.report_nodes: Callable[[], Awaitable[Sequence[NodeView]]] | None = None
        """Asks all processes of the namespace."""
        self.report_history: Callable[[str], Awaitable[Sequence[HistoryStep]]] | None = None
        """Asks all processes what they have recorded of messages with an id."""
        self.set_recording: Callable[[HistoryRecording], None] | None = None
        """Has all processes record the history of these entities."""
        self._recording = HistoryRecording()
        self.name_clients: Callable[[Sequence[tuple[int, int]]], Sequence[ClientName | None]] | None = None
        """Finds out who clients of the gateway of this process are or were."""
        self.report_connections: Callable[[ConnectionQuery], Awaitable[ConnectionReport]] | None = None
        """Asks the gateways of all processes."""
        self.close_at_gateway: Callable[[str], Awaitable[bool]] | None = None
        """Closes a connection at the gateway that has it."""
        self.change_log_level: Callable[[str], str] = lambda level: ""
        """Changes the level of the log of all processes, if one is named; returns the level."""
        self.report_figures: Callable[[], Awaitable[Sequence[ProcessFigures]]] | None = None
        """Asks this process, or all broker processes, what they have done."""
        self._sinks[BROKER_ORIGIN] = self._inquiry.answered

    def serve(self, stores: StoreSet, catalogue: Catalogue) -> None:
        """Set where commands go and entities are found, before anything else is called."""
        self._stores = stores
        self._known = catalogue
        self.routes = stores.routes

    # ---- entities ----

    @property
    def _catalogue(self) -> Catalogue:
        assert self._known is not None, "serve() comes before any question"
        return self._known

    def entries(self) -> tuple[int, Sequence[EntityView]]:
        """The number of the last change that is in force, and all entities and rules."""
        return self._catalogue.version, self._catalogue.entries()

    async def decided_entity(self, path: str) -> EntityView:
        """Find an entity as `entity` does, after the change of it that is under way, if there is one."""
        return await self._catalogue.find_decided(path)

    def reason_not_to_serve(self) -> str:
        if self._stores is None or self._known is None:
            return NOT_LOADED
        return "" if any(host.is_open for host in self._stores.hosts) else NO_STORE

    async def changes_decided(self) -> None:
        """Wait for the change that is under way, if there is one."""
        await self._catalogue.changes_decided()

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

    async def change_access(self, path: str, name: str, change: AccessChange) -> EntityView:
        return await self._catalogue.change_access(path, name, change)

    async def change_rules(self, changes: Sequence[RuleChange]) -> None:
        await self._catalogue.change_rules(changes)

    async def check_rules(self, changes: Sequence[RuleChange]) -> None:
        self._catalogue.check_rules(changes)

    async def list(self, kind: EntityKind, parent: str, skip: int, top: int) -> Sequence[EntityView]:
        return self._catalogue.page(kind, parent, skip, top)

    async def create_tap(self, path: str, tap: TapDescription) -> EntityView:
        return await self._catalogue.create_tap(path, tap)

    async def change_tap(self, path: str, name: str, dead_letter: bool, change: TapChange) -> EntityView:
        return await self._catalogue.change_tap(path, name, dead_letter, change)

    async def namespace(self) -> NamespaceProperties:
        return self._catalogue.properties

    def watch(self, changed: EntityChangeSink) -> Callable[[], None]:
        return self._catalogue.watch(changed)

    def in_use(self, paths: Sequence[str], gateway: Hashable = None) -> None:
        self._catalogue.usage.note_links(paths, gateway)

    def out_of_use(self, paths: Sequence[str], gateway: Hashable = None) -> None:
        self._catalogue.usage.note_no_links(paths, gateway)

    def gateway_ended(self, gateway: Hashable) -> None:
        self._catalogue.usage.note_gateway_ended(gateway)

    async def page(self, kind: EntityKind, parent: str, skip: int, top: int) -> EntityListing:
        # One entry more than the page has: if it is there, there is a next page.
        found = self._catalogue.page(kind, parent, skip, top + 1)
        views = [*found[:top]]
        runtimes = await self._runtimes(views)
        return EntityListing(self._catalogue.properties.name, views, runtimes, len(found) > top)

    async def runtime(self, path: str) -> RuntimeProperties:
        (found,) = await self._runtimes([self._catalogue.find(path)])
        return found

    async def runtimes(self, paths: Sequence[str]) -> Sequence[RuntimeProperties | None]:
        views: dict[str, EntityView] = {}
        for path in paths:
            with contextlib.suppress(EntityNotFound):
                views[path] = self._catalogue.find(path)
        found = dict(zip(views, await self._runtimes([*views.values()]), strict=True))
        return [found.get(path) for path in paths]

    async def _runtimes(self, views: Sequence[EntityView]) -> Sequence[RuntimeProperties]:
        """What entities hold. All fragments are asked at once, since each may have to wait for a commit."""
        fragments = {fragment for view in views for fragment in view.fragments}
        for view in views:
            fragments.update(self._fragments_of_copies(view))
        counts = await self._counts([*fragments])
        there = {fragment: one for fragment, one in counts.items() if one.counts}
        return [self._runtime(view, there) for view in views]

    async def _counts(self, fragments: Sequence[int]) -> Counts:
        """What fragments hold, by fragment; those that are unavailable have no counts."""
        assert self._stores is not None
        if self.inspect_remote is not None:
            return await self.inspect_remote(self._stores.by_host(fragments))
        with contextlib.suppress(BusbarError):  # then the times of use are those of the last refresh
            await self._stores.refresh_last_used(fragments)
        # One after the other: all answers come together, and a future that is done costs less than one in `gather`.
        answers = [await answer for answer in self._ask(fragments, Inspect)]
        return {
            fragment: FragmentCounts(0, answer.counts, answer.size, answer.locked, answer.oldest)
            for fragment, answer in zip(fragments, answers, strict=True)
            if isinstance(answer, Inspected)
        }

    def _runtime(self, view: EntityView, there: Counts) -> RuntimeProperties:
        """What an entity holds. `there` has its fragments that are available."""
        inspected = [there[fragment] for fragment in view.fragments if fragment in there]
        counts = _sum_of_counts(inspected)
        size = sum([answer.size for answer in inspected])
        is_topic = isinstance(view.description, TopicDescription)
        if is_topic:
            size += sum(there[one].size for one in self._fragments_of_copies(view) if one in there)
        return RuntimeProperties(
            active=counts[ACTIVE],
            locked=sum([answer.locked for answer in inspected]),
            oldest=_oldest(inspected),
            dead_letter=counts[DEAD] + counts[DEAD_DEFERRED],
            scheduled=counts[SCHEDULED],
            deferred=counts[DEFERRED],
            transfer=counts[OUTBOX],
            transfer_dead_letter=counts[TRANSFER_DEAD] + counts[TRANSFER_DEAD_DEFERRED],
            size=size,
            accessed=self._catalogue.usage.last_used(view),
            subscriptions=len(self._catalogue.subscriptions(view.path)) if is_topic else 0,
            available=len(inspected) == len(view.fragments),
            sql_filters=self._catalogue.filter_count(view.path, correlation=False) if is_topic else 0,
            correlation_filters=self._catalogue.filter_count(view.path, correlation=True) if is_topic else 0,
        )

    def _fragments_of_copies(self, view: EntityView) -> Sequence[int]:
        """The fragments of a topic's subscriptions: their messages are part of its size."""
        if not isinstance(view.description, TopicDescription):
            return []
        return [fragment for one in self._catalogue.subscriptions(view.path) for fragment in one.fragments]

    async def fragments(self, path: str) -> Sequence[FragmentView]:
        view = self._catalogue.find(path)
        inspected = self._ask(view.fragments, Inspect)
        peeked = self._ask(view.fragments, _peek_first)
        answers = zip(await asyncio.gather(*inspected), await asyncio.gather(*peeked), strict=True)
        found = []
        for index, (counters, first) in enumerate(answers):
            id, store = view.fragments[index], view.stores[index]
            assert self._stores is not None
            sink = self._stores.routes.sink_of(id)
            broker = sink.broker if sink is not None else ""
            if not isinstance(counters, Inspected):
                reason = sink.reason if sink is not None else ""
                found.append(FragmentView(index, id, store, "unavailable", reason, broker=broker))
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
                    transfer=counts[OUTBOX],
                    transfer_dead_letter=counts[TRANSFER_DEAD] + counts[TRANSFER_DEAD_DEFERRED],
                    size=counters.size,
                    oldest=first.records[0].enqueued if isinstance(first, Peeked) and first.records else 0,
                    broker=broker,
                )
            )
        return found

    async def stores(self) -> Sequence[StoreView]:
        assert self._stores is not None
        views, nodes = await asyncio.gather(self._stores.views(), self.nodes())
        return [self._with_drained(_with_figures(view, summed(nodes, view.name))) for view in views]

    async def nodes(self) -> Sequence[NodeView]:
        return await self.report_nodes() if self.report_nodes is not None else ()

    async def begin_backup(self) -> Sequence[str]:
        return await self._catalogue.freeze(BACKUP_SECONDS)

    async def end_backup(self) -> bool:
        return await self._catalogue.thaw()

    async def connection_report(self, query: ConnectionQuery) -> ConnectionReport:
        query.check()
        if self.report_connections is None:
            return ConnectionReport([], 0)
        return await self.report_connections(query)

    async def close_connection(self, id: str) -> bool:
        return self.close_at_gateway is not None and await self.close_at_gateway(id)

    async def log_level(self, level: str) -> str:
        return self.change_log_level(level)

    async def figures(self) -> Sequence[ProcessFigures]:
        return await self.report_figures() if self.report_figures is not None else ()

    async def unavailable_stores(self) -> Sequence[str]:
        assert self._stores is not None
        return sorted(self._stores.unavailable())

    async def transfers(self) -> TransferReport:
        """What movers report, with what the catalogue and the fragments of the sources add to it."""
        if self.report_transfers is None:
            return TransferReport(0, [])
        report = await self.report_transfers()
        if not report.transfers:
            return report
        sources = {view.fragment for view in report.transfers}
        both = sources | {view.target_fragment for view in report.transfers}
        places = {
            fragment: (entity.path, index)
            for entity in self._catalogue.entities()
            for index, fragment in enumerate(entity.fragments)
            if fragment in both
        }
        asked = [fragment for fragment in places if fragment in sources]
        answers = dict(zip(asked, await asyncio.gather(*self._ask(asked, Inspect)), strict=True))
        found = []
        for view in report.transfers:
            if view.fragment in places:
                path, index = places[view.fragment]
                _, target_index = places.get(view.target_fragment, ("", 0))
                found.append(
                    replace(
                        view,
                        source=path,
                        index=index,
                        target_index=target_index,
                        waiting=_waiting(answers[view.fragment], view.target_fragment),
                    )
                )
        found.sort(key=lambda view: (key_of(view.source), view.index, view.target_fragment))
        return TransferReport(report.moved, found)

    async def history(self, message_id: str, entity: str = "") -> Sequence[HistoryStep]:
        if self.report_history is None:
            return ()
        steps = await self.report_history(message_id)
        if entity:
            key = key_of(self._catalogue.find(entity).path)
            steps = [step for step in steps if is_within(key_of(step.entity), key)]
        wanted = {step.fragment for step in steps}
        indexes = {
            fragment: index
            for view in self._catalogue.entities()
            for index, fragment in enumerate(view.fragments)
            if fragment in wanted
        }
        shown = [_with_sequence_number(step, indexes.get(step.fragment)) for step in steps]
        return sorted(shown, key=lambda step: step.time)

    async def recording(self) -> HistoryRecording:
        return self._recording

    async def record_history(self, entity: str, on: bool) -> HistoryRecording:
        if self.set_recording is None:
            raise InvalidOperation("This process records no history.")
        recording = HistoryRecording(on)
        if entity:
            path = self._catalogue.find(entity).path
            others = [one for one in self._recording.entities if key_of(one) != key_of(path)]
            if not on and self._recording.everything:
                raise InvalidOperation(
                    f"All entities record their history, so '{path}' alone cannot stop; stop all of them."
                )
            recording = replace(self._recording, entities=(*others, *([path] if on else [])))
        self._recording = recording
        self.set_recording(recording)
        return recording

    async def change_store(self, name: str, to: str) -> StoreView:
        assert self._stores is not None
        if to not in LIST_CHANGES:
            return await self._stores.change(name, to)
        if name not in self._stores.names:
            raise ArgumentError(f"There is no store '{name}'; there are {', '.join(self._stores.names)}.")
        before = await self._stores.view(name)
        await self._catalogue.change_store_list(name, to)
        return replace(before, state="removed") if to == REMOVE else await self._view_of(name)

    async def _view_of(self, name: str) -> StoreView:
        assert self._stores is not None
        return self._with_drained(await self._stores.view(name))

    def _with_drained(self, view: StoreView) -> StoreView:
        is_drained = view.name in self._catalogue.store_list.drained
        return replace(view, drained=True) if is_drained else view

    async def move_store(self, name: str, broker: str) -> StoreView:
        assert self._stores is not None
        if self.move_remote is None:
            raise InvalidOperation("There is one broker, which has all stores; `--brokers` starts several.")
        await self.move_remote(name, broker)
        return await self._stores.view(name)

    async def restart_brokers(self) -> Sequence[str]:
        if self.restart_remote is None:
            raise InvalidOperation("There is one process; start it again to restart it.")
        return await self.restart_remote()

    def _ask(
        self, fragments: Sequence[int], question: Callable[[int, int, int], Command]
    ) -> Sequence[asyncio.Future[Effect]]:
        """Ask fragments something, as the broker itself."""
        commands, answers = self._inquiry.questions(fragments, question)
        if commands:
            self.submit(commands)
        return answers


def is_within(key: str, whole: str) -> bool:
    """Whether the entity of a key is the one of another key, or a subscription of it."""
    return key == whole or key.startswith(f"{whole}/{SUBSCRIPTIONS.lower()}/")


def _with_sequence_number(step: HistoryStep, index: int | None) -> HistoryStep:
    if index is None or not step.number:
        return step
    return replace(step, sequence_number=wire_number(index, step.number))


def _with_figures(view: StoreView, figures: StoreFigures) -> StoreView:
    return replace(
        view,
        epoch=figures.epoch,
        commit_p50=figures.commit_p50,
        commit_p99=figures.commit_p99,
        group=figures.group,
    )


def _sum_of_counts(inspected: Sequence[FragmentCounts]) -> Sequence[int]:
    """What some fragments hold together, by lane."""
    if len(inspected) == 1:
        return inspected[0].counts
    return [sum([answer.counts[lane] for answer in inspected]) for lane in range(LANES)]


def _oldest(inspected: Sequence[FragmentCounts]) -> int:
    """When the first active message of an entity was enqueued; 0 if one of its fragments has messages and does not know."""
    times = [answer.oldest for answer in inspected if answer.counts[ACTIVE]]
    return min(times, default=0)


def _waiting(answer: Effect, target: int) -> int:
    """How many messages of a fragment wait for a target, by the answer of the fragment."""
    return (answer.outbox or {}).get(target, 0) if isinstance(answer, Inspected) else 0


def _peek_first(fragment: int, origin: int, request: int) -> Command:
    return Peek(fragment, origin, request, ACTIVE, 1, 1, 1)
