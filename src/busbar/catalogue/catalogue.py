"""The entities of a namespace: by path in any case, kept in the store with the fragments they live in.

Rules:
1. A path is found in any case and keeps the spelling it was created with.
2. A fragment id is given once and never again, also when its entity is deleted: the counter is part of the catalogue, and
   what a store has is looked at too.
3. A change is in force when it is durable (replication.py says in which stores), and whoever watches hears of it then. A
   change that has begun is carried to its end, also when the client that asked for it is gone (change_runner.py).
   Creation makes the fragments first, then writes the definition, a subscription's together with its first rule; deletion
   removes the definitions of all that goes in one write, together with a note of the fragments still to be emptied, which
   a restart finds. Of a creation that failed, or was cut short by a crash, at most empty fragments are left, which nobody
   uses.
4. What may be created and changed stands in admission.py.
5. An entity with AutoDeleteOnIdle is deleted when nothing was done with it for that long (since its last change or the
   broker's start) and no link is attached to it (idleness.py).
6. An entity is there as long as the catalogue has it, whether its stores are or not.
7. Taps are part of their entity's entry, and a change of one is a change like others. Their ids are given once, like those
   of fragments.
8. The fragments of a subscription lie beside those of its topic, in the same stores. A topic hears of every change of its
   subscriptions and their rules when it is durable, and passes messages on accordingly from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from busbar.broker.host_api import StoreHost
from busbar.catalogue.admission import Admission
from busbar.catalogue.bootstrap import StoreBootstrap
from busbar.catalogue.change_runner import ChangeRunner
from busbar.catalogue.definition import decode_definition, encode_definition
from busbar.catalogue.fragment_settings import FragmentSettingsBuilder, fragment_count
from busbar.catalogue.idleness import IdleWatch
from busbar.catalogue.index import EntityIndex
from busbar.catalogue.placement import place
from busbar.catalogue.replication import decode_entry
from busbar.catalogue.store_set import StoreSet
from busbar.catalogue.watchers import Watchers
from busbar.model.api import EntityChangeSink, EntityView, NamedRule, NamespaceProperties
from busbar.model.entities import (
    DEFAULT_RULE,
    AuthorizationRule,
    Description,
    EntityKind,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    Tier,
    TopicDescription,
)
from busbar.model.errors import BusbarError, EntityNotFound, QuotaExceeded
from busbar.model.limits import Limits
from busbar.model.names import key_of, parent_and_name, rule_path
from busbar.model.settings import FragmentSettings
from busbar.model.taps import TapChange, TapDescription
from busbar.store.contract import StoreError

MAX_FRAGMENT = 2**32 - 1

_ENTITY = "entity/"
_EMPTYING = "emptying/"
_COUNTER = "last-fragment"
_TAP_COUNTER = "last-tap"
_NAMESPACE = "namespace"

_namespaces = msgspec.json.Decoder(NamespaceProperties)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Gathered:
    """Changes that will be written together."""

    changes: dict[str, bytes | None] = field(default_factory=dict)
    holders: set[str] = field(default_factory=set)
    new: list[EntityView] = field(default_factory=list)
    updated: list[EntityView] = field(default_factory=list)


class Catalogue:
    """The entities of a namespace."""

    def __init__(
        self,
        stores: StoreSet,
        limits: Limits,
        tier: Tier = Tier.STANDARD,
        name: str = "busbar",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.properties = NamespaceProperties(name, tier, 0, 0)
        self._stores = stores
        self._assembly = StoreBootstrap(stores)
        self._copies = self._assembly.copies
        self._limits = limits
        self._entries = EntityIndex()
        self._settings = FragmentSettingsBuilder(self._entries)
        self._admission = Admission(self._entries, limits, tier)
        self._last_fragment = 0
        self._last_tap = 0
        self._emptying: dict[int, str] = {}
        self._changes = ChangeRunner()
        self._gathered: _Gathered | None = None
        self._cleaner: asyncio.Task[None] | None = None
        self._idler: asyncio.Task[None] | None = None
        self._watchers = Watchers()
        self._loaded = 0
        self._in_use: dict[str, int] = {}
        self._idle = IdleWatch(self._entries, stores, limits.min_auto_delete_on_idle, monotonic)

    # ---- opening and closing ----

    async def load(self, wanted: Sequence[str] = ()) -> None:
        """Open the stores, read the catalogue and take the fragments into service. Stores of `wanted` that are not there
        yet are made. Raises StoreError if not enough stores can be opened."""
        entries = await self._assembly.open_all(wanted)
        self._loaded = self._clock()
        self._read(entries)
        changes = self._load_properties(entries.get(_NAMESPACE))
        if changes:
            await self._copies.write(changes, ())
        for host in self._stores.hosts:
            host.admit = self._admit
        await self._take_into_service()
        for host in self._stores.hosts:
            host.start_reopening()
        self._clean()
        self._idler = asyncio.get_running_loop().create_task(self._delete_idle())

    def _read(self, entries: dict[str, bytes]) -> None:
        """Take over the entries of the catalogue. Raises StoreError if one cannot be read."""
        for key, value in entries.items():
            if key == _COUNTER:
                self._last_fragment = max(self._last_fragment, int(value))
            elif key == _TAP_COUNTER:
                self._last_tap = max(self._last_tap, int(value))
            elif key.startswith(_EMPTYING):
                self._emptying[int(key.removeprefix(_EMPTYING))] = value.decode()
            elif key.startswith(_ENTITY):
                self._entries.put(_readable(key, value))

    async def _take_into_service(self) -> None:
        for view in self._entries:
            self._stores.assign(view.fragments, view.stores)
        here = [host for host in self._stores.hosts if host.is_open]
        adding = [host.add_fragments(self._fragments_in(host.name)) for host in here]
        for outcome in await asyncio.gather(*adding, return_exceptions=True):
            # A store that failed is unavailable now; its fragments follow when it comes back.
            if isinstance(outcome, BaseException) and not isinstance(outcome, BusbarError):
                raise outcome

    def _fragments_in(self, store: str) -> dict[int, FragmentSettings]:
        found: dict[int, FragmentSettings] = {}
        for view in self._entries:
            if store in view.stores:
                found.update(self._settings.by_store(view).get(store, {}))
        return found

    async def _admit(self, host: StoreHost, anew: bool) -> None:
        """A store comes back: is it that one, does it know all that is in force, are its fragments in service?"""
        async with self._changes.turn:
            await self._assembly.admit(host, anew)
            await host.add_fragments(self._fragments_in(host.name))
        self._clean()

    def _clock(self) -> int:
        return self._stores.hosts[0].clock()

    def _load_properties(self, encoded: bytes | None) -> dict[str, bytes | None]:
        now = self._loaded
        asked = self.properties
        known = (
            NamespaceProperties("", asked.tier, now, now) if encoded is None else _namespaces.decode(encoded)
        )
        if (known.name, known.tier) == (asked.name, asked.tier):
            self.properties = known
            return {}
        self.properties = replace(asked, created=known.created, modified=now)
        return {_NAMESPACE: msgspec.json.encode(self.properties)}

    async def close(self) -> None:
        """Finish the change under way, and stop emptying deleted fragments; the next start goes on with it."""
        tasks = [task for task in (self._cleaner, self._idler) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._changes.close()

    # ---- looking ----

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def notes(self) -> list[str]:
        """What an operator should know of the stores that were found."""
        return self._assembly.notes

    def find(self, path: str) -> EntityView:
        view = self._entries.get(path)
        if view is None:
            raise EntityNotFound(path)
        return view

    def page(self, kind: EntityKind, parent: str, skip: int, top: int) -> list[EntityView]:
        if kind is EntityKind.SUBSCRIPTION or kind is EntityKind.RULE:
            holder = self.find(parent).description
            wanted = TopicDescription if kind is EntityKind.SUBSCRIPTION else SubscriptionDescription
            if not isinstance(holder, wanted):
                raise EntityNotFound(parent)
        else:
            parent = ""
        return self._entries.page(kind, parent, skip, top)

    def entities(self) -> list[EntityView]:
        """All queues, topics and subscriptions, in the order of their paths."""
        found = [view for view in self._entries if not isinstance(view.description, RuleDescription)]
        return sorted(found, key=lambda view: key_of(view.path))

    def subscriptions(self, topic: str) -> list[EntityView]:
        return self._entries.children(EntityKind.SUBSCRIPTION, topic)

    def filter_count(self, topic: str, *, correlation: bool) -> int:
        """Rules of all its subscriptions, with a filter of the one kind or of the other."""
        return self._entries.filters(topic, correlation)

    def authorization_rules(self, path: str) -> Sequence[AuthorizationRule]:
        """Those of the entity itself; none if there is no such entity."""
        view = self._entries.get(path)
        if view is None or not isinstance(view.description, QueueDescription | TopicDescription):
            return ()
        return view.description.authorization_rules

    def note_links(self, paths: Iterable[str], gateway: Hashable = None) -> None:
        """Links of this gateway are attached to these entities now."""
        now = self._clock()
        for path in paths:
            if self._entries.get(path) is not None:
                self._in_use[key_of(path)] = now
                self._idle.times.attached(key_of(path), gateway)

    def note_no_links(self, paths: Iterable[str], gateway: Hashable = None) -> None:
        """The last link of this gateway to each of these entities has ended."""
        for path in paths:
            self._idle.times.detached(key_of(path), gateway)

    def note_gateway_ended(self, gateway: Hashable) -> None:
        """And all its links with it."""
        self._idle.times.gateway_ended(gateway)

    def last_used(self, view: EntityView) -> int:
        """When links or requests last had to do with its messages, since the broker started (0: not yet). Who looks at its
        description does not use it."""
        applied = [self._stores.last_used(fragment) for fragment in view.fragments]
        return max(self._in_use.get(key_of(view.path), 0), *applied, 0)

    async def refresh_last_used(self, views: Sequence[EntityView]) -> None:
        """Bring `last_used` up to date with what brokers know. Raises a BusbarError."""
        await self._stores.refresh_last_used([fragment for view in views for fragment in view.fragments])

    def watch(self, changed: EntityChangeSink) -> Callable[[], None]:
        return self._watchers.add(changed)

    # ---- changing ----

    async def create(
        self, path: str, description: Description, default_rule: NamedRule | None = None
    ) -> EntityView:
        return await self._changes.run(lambda: self._create(path, description, default_rule))

    async def _create(
        self, path: str, description: Description, default_rule: NamedRule | None
    ) -> EntityView:
        path = self._admission.path_of_new(path, description)
        now = self._clock()
        admitted = self._admission.created(path, description, now)
        stores = place(path, fragment_count(admitted), self._stores.names)
        if isinstance(admitted, SubscriptionDescription):
            stores = self.find(parent_and_name(path)[0]).stores
        self._copies.require_writable(stores)
        view = EntityView(path, admitted, self._take_ids(len(stores)), now, now, stores)
        new = [view]
        if isinstance(admitted, SubscriptionDescription):
            new.append(self._first_rule(path, default_rule, now))
        changes = _definitions(new)
        if view.fragments:
            changes[_COUNTER] = str(self._last_fragment).encode()
        await self._apply(new, changes)
        return view

    async def _apply(self, new: list[EntityView], changes: dict[str, bytes | None]) -> None:
        """Make new entries durable and put them in force, now or with the others of `batch`."""
        if self._gathered is not None:
            self._gathered.changes.update(changes)
            self._gathered.holders |= _holders(new)
            self._gathered.new += new
        else:
            try:
                await self._make_fragments(new)
                await self._copies.write(changes, _holders(new))
            except BusbarError:
                self._emptying.update(_routes(new))
                self._clean()
                raise
        for view in new:
            self._stores.assign(view.fragments, view.stores)
            self._entries.put(view)
            self._idle.changed(view)
        if self._gathered is None:
            self._update_topics(new)
        for view in new:
            self._watchers.tell(view.path, view)

    def _update_topics(self, changed: Iterable[EntityView]) -> None:
        """Tell topics of changes of their subscriptions and rules."""
        topics = [self._settings.changed(view) for view in changed]
        for topic in {view.path: view for view in topics if view is not None}.values():
            self._update_fragments(topic)

    def _update_fragments(self, view: EntityView) -> None:
        """Other settings from now on."""
        for store, fragments in self._settings.by_store(view).items():
            self._stores.host(store).change_fragments(fragments)

    async def _make_fragments(self, views: Iterable[EntityView]) -> None:
        by_store: dict[str, dict[int, FragmentSettings]] = {}
        for view in views:
            for store, fragments in self._settings.by_store(view).items():
                by_store.setdefault(store, {}).update(fragments)
        work = [self._stores.host(store).add_fragments(fragments) for store, fragments in by_store.items()]
        await asyncio.gather(*work)

    @contextlib.asynccontextmanager
    async def batch(self) -> AsyncIterator[None]:
        """What is created inside is written at once, at the end. For the start, when nobody is served yet: entries are
        found before they are durable, and if the write fails the catalogue is not to be used."""
        self._gathered = _Gathered()
        try:
            yield
            gathered = self._gathered
        finally:
            self._gathered = None
        if gathered.changes:
            async with self._changes.turn:
                await self._make_fragments(gathered.new)
                await self._copies.write(gathered.changes, gathered.holders)
                for view in gathered.updated:
                    self._update_fragments(view)
                self._update_topics(gathered.new + gathered.updated)

    def _take_ids(self, count: int) -> tuple[int, ...]:
        """Taken even if a later write fails: a gap in the ids is harmless, an id given twice is not."""
        self._last_fragment = max(self._last_fragment, self._assembly.last_fragment)
        first = self._last_fragment + 1
        last = self._last_fragment + count
        if last > MAX_FRAGMENT:
            raise QuotaExceeded("All fragment ids of this namespace have been used.")
        self._last_fragment = last
        return tuple(range(first, last + 1))

    def _first_rule(self, subscription: str, rule: NamedRule | None, now: int) -> EntityView:
        name, description = rule or (DEFAULT_RULE, RuleDescription())
        path = rule_path(subscription, name)
        self._admission.check_first_rule(path, name, description)
        return EntityView(path, description, (), now, now)

    async def update(self, path: str, description: Description) -> EntityView:
        return await self._changes.run(lambda: self._update(path, description))

    async def _update(self, path: str, description: Description) -> EntityView:
        old = self.find(path)
        now = self._clock()
        view = replace(
            old, description=self._admission.updated(old, description, now), updated=max(now, old.updated)
        )
        return await self._rewrite(view, {})

    async def create_tap(self, path: str, tap: TapDescription) -> EntityView:
        return await self._changes.run(lambda: self._create_tap(path, tap))

    async def _create_tap(self, path: str, tap: TapDescription) -> EntityView:
        old = self.find(path)
        self._last_tap += 1  # a gap is harmless, as with fragments
        taps = self._admission.tap_created(old, replace(tap, id=self._last_tap, created=self._clock()))
        return await self._rewrite(replace(old, taps=taps), {_TAP_COUNTER: str(self._last_tap).encode()})

    async def change_tap(self, path: str, name: str, dead_letter: bool, change: TapChange) -> EntityView:
        return await self._changes.run(lambda: self._change_tap(path, name, dead_letter, change))

    async def _change_tap(self, path: str, name: str, dead_letter: bool, change: TapChange) -> EntityView:
        old = self.find(path)
        taps = self._admission.taps_changed(old, name, dead_letter, change)
        return old if taps == old.taps else await self._rewrite(replace(old, taps=taps), {})

    async def _rewrite(self, view: EntityView, others: dict[str, bytes | None]) -> EntityView:
        """Put a changed entry in force, with other changes of the catalogue that belong to it."""
        self._copies.require_writable(view.stores)
        changes = {**_definitions([view]), **others}
        if self._gathered is not None:
            self._gathered.changes.update(changes)
            self._gathered.holders |= {*view.stores}
            self._gathered.updated.append(view)
        else:
            await self._copies.write(changes, view.stores)
        self._entries.put(view)
        self._idle.changed(view)
        if self._gathered is None:
            self._update_fragments(view)
            self._update_topics([view])
        self._watchers.tell(view.path, view)
        return view

    async def delete(self, path: str) -> None:
        await self._changes.run(lambda: self._delete(path))

    async def _delete(self, path: str) -> None:
        await self._remove(self.find(path))
        self._clean()

    async def _remove(self, view: EntityView) -> None:
        gone = self._entries.with_children(view)
        changes: dict[str, bytes | None] = {_ENTITY + key_of(one.path): None for one in gone}
        routes = _routes(gone)
        changes.update({f"{_EMPTYING}{fragment}": store.encode() for fragment, store in routes.items()})
        await self._copies.write(changes, _holders(gone))
        self._emptying.update(routes)
        self._stores.routes.remove(routes)
        for one in reversed(gone):
            self._entries.remove(one.path)
            self._in_use.pop(key_of(one.path), None)
            self._idle.times.forget(key_of(one.path))
        self._idle.changed(view)
        self._update_topics(gone)
        for one in gone:
            self._watchers.tell(one.path, None)

    # ---- what time brings ----

    def _clean(self) -> None:
        if self._emptying and not self._changes.closed and (self._cleaner is None or self._cleaner.done()):
            self._cleaner = asyncio.get_running_loop().create_task(self._purge_deleted())

    async def _purge_deleted(self) -> None:
        """Delete the messages of deleted entities, a slice at a time. What fails, or is in a store that is unavailable,
        is tried again when a store comes back, at the next deletion or the next start."""
        failed: set[int] = set()
        while True:
            out = self._stores.unavailable()
            now = [f for f, store in sorted(self._emptying.items()) if store not in out and f not in failed]
            if not now:
                return
            emptied = []
            for fragment in now:
                try:
                    await self._stores.host(self._emptying[fragment]).remove_fragment(fragment)
                    emptied.append(fragment)
                except BusbarError as error:
                    _log.warning("fragment %d could not be emptied yet: %s", fragment, error)
                    failed.add(fragment)
            try:
                await self._changes.run(partial(self._forget_emptied, emptied))
            except BusbarError as error:
                _log.warning("%d deleted fragments will be looked at again: %s", len(emptied), error)
                return

    async def _forget_emptied(self, fragments: Sequence[int]) -> None:
        await self._copies.write({f"{_EMPTYING}{fragment}": None for fragment in fragments}, ())
        for fragment in fragments:
            del self._emptying[fragment]

    async def _delete_idle(self) -> None:
        """Delete the entities that have been idle for their AutoDeleteOnIdle."""
        while True:
            await asyncio.sleep(self._idle.pause)
            try:
                idle = await self._idle.look()
            except BusbarError as error:
                _log.warning("idle entities could not be looked for: %s", error)
                continue
            for view in idle:
                try:
                    await self._changes.run(partial(self._delete_if_idle, view.path))
                except BusbarError as error:
                    _log.warning("'%s' is idle and could not be deleted yet: %s", view.path, error)
            self._clean()

    async def _delete_if_idle(self, path: str) -> None:
        view = self._entries.get(path)
        if view is not None and await self._idle.confirms(view):
            _log.info("'%s' was idle for too long and is deleted", path)
            await self._remove(view)


def _definitions(views: Iterable[EntityView]) -> dict[str, bytes | None]:
    return {_ENTITY + key_of(view.path): encode_definition(view) for view in views}


def _holders(views: Iterable[EntityView]) -> set[str]:
    return {store for view in views for store in view.stores}


def _routes(views: Iterable[EntityView]) -> dict[int, str]:
    return {
        fragment: store for view in views for fragment, store in zip(view.fragments, view.stores, strict=True)
    }


def served_fragments(catalogue: Mapping[str, bytes]) -> set[int]:
    """The fragments that a store's copy of the catalogue knows, those that are still to be emptied among them. A store has
    every change of an entity that it holds a part of."""
    found: set[int] = set()
    for name, encoded in catalogue.items():
        if not name.startswith((_ENTITY, _EMPTYING)):
            continue
        value = decode_entry(encoded).value
        if value is not None and name.startswith(_ENTITY):
            found.update(decode_definition(value).fragments)
        elif value is not None:
            found.add(int(name.removeprefix(_EMPTYING)))
    return found


def _readable(key: str, encoded: bytes) -> EntityView:
    try:
        view = decode_definition(encoded)
    except msgspec.DecodeError as error:
        raise StoreError(f"the catalogue's entry '{key}' cannot be read: {error}") from None
    if len(view.stores) != len(view.fragments):
        raise StoreError(
            f"the catalogue's entry '{key}' names {len(view.stores)} stores for {len(view.fragments)} fragments; "
            "each fragment has one"
        )
    return view
