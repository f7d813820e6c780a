"""The entities of a namespace: by path in any case, kept in the store with the fragments they live in.

Rules:
1. A path is found in any case and keeps the spelling it was created with.
2. A fragment id is given once and never again, also when its entity is deleted: the counter is part of the catalogue.
3. A change is in force when it is durable, and whoever watches hears of it then. Creation makes the fragments first, then
   writes the definition, a subscription's together with its first rule; deletion removes the definitions of all that goes
   in one write, together with a note of the fragments still to be emptied, which a restart finds.
4. What may be created and changed stands in admission.py.
5. An entity with AutoDeleteOnIdle is deleted when nothing was done with it for that long (since its last change or the
   broker's start) and no link was attached to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec

from busbar.broker.admission import PARTITIONS, Admission
from busbar.broker.definition import decode_definition, decode_nested, encode_definition
from busbar.broker.entries import Entries
from busbar.broker.host import StoreHost
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
from busbar.model.names import key_of, rule_path
from busbar.model.port import ChangeSink, EntityView, NamedRule, NamespaceProperties
from busbar.model.settings import FragmentSettings

MAX_FRAGMENT = 2**32 - 1
LONGEST_WATCH = 30_000
"""Idle entities are looked for at least this often, in ms."""

_ENTITY = "entity/"
_EMPTYING = "emptying/"
_COUNTER = "last-fragment"
_NAMESPACE = "namespace"

_namespaces = msgspec.json.Decoder(NamespaceProperties)
_log = logging.getLogger(__name__)


class Catalogue:
    """The entities whose fragments one store host serves."""

    def __init__(
        self, host: StoreHost, limits: Limits, tier: Tier = Tier.STANDARD, name: str = "busbar"
    ) -> None:
        self.properties = NamespaceProperties(name, tier, 0, 0)
        self._host = host
        self._limits = limits
        self._entries = Entries()
        self._admission = Admission(self._entries, limits, tier)
        self._last_fragment = 0
        self._emptying: set[int] = set()
        self._changing = asyncio.Lock()
        self._cleaner: asyncio.Task[None] | None = None
        self._idler: asyncio.Task[None] | None = None
        self._watching: list[ChangeSink] = []
        self._loaded = 0
        self._accessed: dict[str, int] = {}
        self._in_use: dict[str, int] = {}

    # ---- opening and closing ----

    async def load(self) -> None:
        """Read the catalogue of the (open) store and take its fragments into service."""
        entries = await self._host.on_store(lambda store: store.catalogue())
        self._loaded = self._host.clock()
        changes: dict[str, bytes | None] = {}
        for key, value in entries.items():
            if key == _COUNTER:
                self._last_fragment = int(value)
            elif key.startswith(_EMPTYING):
                self._emptying.add(int(key.removeprefix(_EMPTYING)))
            elif key.startswith(_ENTITY):
                view = decode_definition(value)
                if view.created:
                    self._entries.put(view)
                else:
                    changes.update(self._convert(view, value))
        changes.update(self._know_namespace(entries.get(_NAMESPACE)))
        if changes:
            await self._write(changes)
        fragments: dict[int, FragmentSettings] = {}
        for view in self._entries:
            fragments.update(_settings_by_fragment(view))
        await self._host.add(fragments)
        self._clean()
        self._idler = asyncio.get_running_loop().create_task(self._delete_idle())

    def _convert(self, view: EntityView, encoded: bytes) -> dict[str, bytes | None]:
        """Definitions of version 1 have no times, and subscriptions inside topics."""
        found = [view, *decode_nested(encoded)]
        for subscription in [v for v in found if isinstance(v.description, SubscriptionDescription)]:
            rules = rule_path(subscription.path, "")
            if not any(other.path.startswith(rules) for other in found):
                found.append(EntityView(rules + DEFAULT_RULE, RuleDescription(), ()))
        dated = [replace(v, created=self._loaded, updated=self._loaded) for v in found]
        for one in dated:
            self._entries.put(one)
        return _definitions(dated)

    def _know_namespace(self, encoded: bytes | None) -> dict[str, bytes | None]:
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
        """Stop emptying deleted fragments; the next start goes on with it."""
        tasks = [task for task in (self._cleaner, self._idler) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- looking ----

    def __len__(self) -> int:
        return len(self._entries)

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
        """All queues and topics, in the order of their paths."""
        found = [
            view
            for view in self._entries
            if isinstance(view.description, QueueDescription | TopicDescription)
        ]
        return sorted(found, key=lambda view: key_of(view.path))

    def subscription_count(self, topic: str) -> int:
        return self._entries.count(EntityKind.SUBSCRIPTION, topic)

    def authorization_rules(self, path: str) -> Sequence[AuthorizationRule]:
        """Those of the entity itself; none if there is no such entity."""
        view = self._entries.get(path)
        if view is None or not isinstance(view.description, QueueDescription | TopicDescription):
            return ()
        return view.description.authorization_rules

    def note_access(self, view: EntityView) -> None:
        self._accessed[key_of(view.path)] = self._host.clock()

    def note_use(self, paths: Iterable[str]) -> None:
        """Links are attached to these entities now."""
        now = self._host.clock()
        for path in paths:
            if self._entries.get(path) is not None:
                self._in_use[key_of(path)] = now

    def accessed(self, view: EntityView) -> int:
        """When the entity was last looked up or used, since the broker started (0: not yet)."""
        return max(self._accessed.get(key_of(view.path), 0), self._used(view))

    def _used(self, view: EntityView) -> int:
        applied = [self._host.active(fragment) for fragment in view.fragments]
        return max(self._in_use.get(key_of(view.path), 0), *applied, 0)

    def watch(self, changed: ChangeSink) -> Callable[[], None]:
        self._watching.append(changed)

        def stop() -> None:
            if changed in self._watching:
                self._watching.remove(changed)

        return stop

    # ---- changing ----

    async def create(
        self, path: str, description: Description, default_rule: NamedRule | None = None
    ) -> EntityView:
        async with self._changing:
            path = self._admission.path_of_new(path, description)
            now = self._host.clock()
            admitted = self._admission.created(path, description, now)
            view = EntityView(path, admitted, self._take_ids(admitted), now, now)
            new = [view]
            if isinstance(admitted, SubscriptionDescription):
                new.append(self._first_rule(path, default_rule, now))
            await self._host.add(_settings_by_fragment(view))
            changes = _definitions(new)
            if view.fragments:
                changes[_COUNTER] = str(self._last_fragment).encode()
            await self._write(changes)
            for one in new:
                self._entries.put(one)
                self._tell(one.path, one)
            return view

    def _take_ids(self, description: Description) -> tuple[int, ...]:
        """Taken even if a later write fails: a gap in the ids is harmless, an id given twice is not."""
        if not isinstance(description, QueueDescription):
            return ()  # topics and subscriptions get their fragments when they are served
        first = self._last_fragment + 1
        last = self._last_fragment + (PARTITIONS if description.enable_partitioning else 1)
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
        async with self._changing:
            old = self.find(path)
            now = self._host.clock()
            view = replace(
                old, description=self._admission.updated(old, description, now), updated=max(now, old.updated)
            )
            await self._write(_definitions([view]))
            self._entries.put(view)
            for fragment, settings in _settings_by_fragment(view).items():
                self._host.change(fragment, settings)
            self._tell(view.path, view)
            return view

    async def delete(self, path: str) -> None:
        async with self._changing:
            await self._delete(self.find(path))
        self._clean()

    async def _delete(self, view: EntityView) -> None:
        gone = self._entries.with_children(view)
        changes: dict[str, bytes | None] = {_ENTITY + key_of(one.path): None for one in gone}
        fragments = [fragment for one in gone for fragment in one.fragments]
        changes.update({f"{_EMPTYING}{fragment}": b"" for fragment in fragments})
        await self._write(changes)
        self._emptying.update(fragments)
        for one in reversed(gone):
            self._entries.remove(one.path)
            self._accessed.pop(key_of(one.path), None)
            self._in_use.pop(key_of(one.path), None)
        for one in gone:
            self._tell(one.path, None)

    async def _write(self, changes: dict[str, bytes | None]) -> None:
        await self._host.on_store(lambda store: store.write_catalogue(changes))

    def _tell(self, path: str, view: EntityView | None) -> None:
        for changed in list(self._watching):
            try:
                changed(path, view)
            except Exception:
                _log.exception("a change of '%s' could not be told to one who watches", path)

    # ---- what time brings ----

    def _clean(self) -> None:
        if self._emptying and (self._cleaner is None or self._cleaner.done()):
            self._cleaner = asyncio.get_running_loop().create_task(self._empty_deleted())

    async def _empty_deleted(self) -> None:
        """Delete the messages of deleted entities, a slice at a time; a failure is tried again at the next start."""
        while self._emptying:
            fragment = min(self._emptying)
            try:
                await self._host.remove(fragment)
                await self._write({f"{_EMPTYING}{fragment}": None})
            except Exception as error:
                _log.warning("fragment %d could not be emptied yet: %s", fragment, error)
                return
            self._emptying.discard(fragment)

    async def _delete_idle(self) -> None:
        """Rule 5. Topics and subscriptions wait until they are served: nobody could use them in time."""
        pause = max(10, min(LONGEST_WATCH, self._limits.min_auto_delete_on_idle // 4)) / 1000
        while True:
            await asyncio.sleep(pause)
            for view in self._entries:
                if not self._idle(view):
                    continue
                try:
                    async with self._changing:
                        current = self._entries.get(view.path)
                        if current is not None and self._idle(current):
                            _log.info("'%s' was idle for too long and is deleted", view.path)
                            await self._delete(current)
                except BusbarError as error:
                    _log.warning("'%s' is idle and could not be deleted yet: %s", view.path, error)
            self._clean()

    def _idle(self, view: EntityView) -> bool:
        description = view.description
        if not isinstance(description, QueueDescription) or not description.auto_delete_on_idle:
            return False
        since = max(self._used(view), view.updated, self._loaded)
        return self._host.clock() - since >= description.auto_delete_on_idle


def _definitions(views: Iterable[EntityView]) -> dict[str, bytes | None]:
    return {_ENTITY + key_of(view.path): encode_definition(view) for view in views}


def _settings_by_fragment(view: EntityView) -> dict[int, FragmentSettings]:
    if not isinstance(view.description, QueueDescription):
        return {}
    settings = view.description.fragment_settings()
    return dict.fromkeys(view.fragments, settings)
