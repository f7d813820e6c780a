"""The entities of a namespace: by path in any case, kept in the store with the fragments they live in.

Rules:
1. A path is found in any case and keeps the spelling it was created with.
2. A fragment id is given once and never again, also when its entity is deleted: the counter is part of the catalogue.
3. A change is in force when it is durable. Creation makes the fragments first, then writes the definition; deletion removes
   the definition together with a note of the fragments still to be emptied, which a restart finds.
4. Whether an entity has message sessions, detects duplicates or is partitioned is decided at its creation.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import fields

from busbar.broker.definition import decode_definition, encode_definition
from busbar.broker.host import StoreHost
from busbar.model.entities import (
    EntityDescription,
    QueueDescription,
    TopicDescription,
    check_path,
    check_queue,
)
from busbar.model.errors import (
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
    NotImplementedHere,
    QuotaExceeded,
)
from busbar.model.limits import Limits
from busbar.model.port import EntityView
from busbar.model.settings import FragmentSettings

PARTITIONS = 16
MAX_FRAGMENT = 2**32 - 1

IMMUTABLE = ("requires_session", "requires_duplicate_detection", "enable_partitioning")

_ENTITY = "entity/"
_EMPTYING = "emptying/"
_COUNTER = "last-fragment"

_log = logging.getLogger(__name__)


class Catalogue:
    """The entities whose fragments one store host serves."""

    def __init__(self, host: StoreHost, limits: Limits) -> None:
        self._host = host
        self._limits = limits
        self._entities: dict[str, EntityView] = {}
        self._last_fragment = 0
        self._emptying: set[int] = set()
        self._changing = asyncio.Lock()
        self._cleaner: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Read the catalogue of the (open) store and take its fragments into service."""
        entries = await self._host.on_store(lambda store: store.catalogue())
        fragments: dict[int, FragmentSettings] = {}
        for key, value in entries.items():
            if key == _COUNTER:
                self._last_fragment = int(value)
            elif key.startswith(_EMPTYING):
                self._emptying.add(int(key.removeprefix(_EMPTYING)))
            elif key.startswith(_ENTITY):
                view = decode_definition(value)
                self._entities[view.path.lower()] = view
                fragments.update(_settings_by_fragment(view))
        await self._host.add(fragments)
        self._clean()

    async def close(self) -> None:
        """Stop emptying deleted fragments; the next start goes on with it."""
        if self._cleaner is not None:
            self._cleaner.cancel()
            await asyncio.gather(self._cleaner, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._entities)

    def entities(self) -> list[EntityView]:
        """All entities in the order of their paths."""
        return [self._entities[key] for key in sorted(self._entities)]

    def find(self, path: str) -> EntityView:
        view = self._entities.get(path.lower())
        if view is not None:
            return view
        topic, separator, _ = path.lower().partition("/subscriptions/")
        if separator and topic in self._entities:
            raise NotImplementedHere(f"'{path}' is a subscription; subscriptions are not served yet.")
        raise EntityNotFound(path)

    async def create(self, path: str, description: EntityDescription) -> EntityView:
        self._check(path, description)
        async with self._changing:
            key = path.lower()
            if key in self._entities:
                raise EntityAlreadyExists(f"The messaging entity '{path}' exists already.")
            if len(self._entities) >= self._limits.max_entities:
                raise QuotaExceeded(
                    f"The namespace has {len(self._entities)} entities, which is the most it may have."
                )
            count = _fragment_count(description)
            first = self._last_fragment + 1
            last = self._last_fragment + count
            if last > MAX_FRAGMENT:
                raise QuotaExceeded("All fragment ids of this namespace have been used.")
            view = EntityView(path, description, tuple(range(first, last + 1)))
            # Taken even if the write below fails: a gap in the ids is harmless, an id given twice is not.
            self._last_fragment = last
            await self._host.add(_settings_by_fragment(view))
            await self._write({_ENTITY + key: encode_definition(view), _COUNTER: str(last).encode()})
            self._entities[key] = view
            return view

    async def update(self, path: str, description: EntityDescription) -> EntityView:
        self._check(path, description)
        async with self._changing:
            old = self.find(path)
            if type(old.description) is not type(description):
                raise InvalidOperation(f"'{old.path}' cannot become an entity of another kind.")
            _check_immutable(old, description)
            view = EntityView(old.path, description, old.fragments)
            await self._write({_ENTITY + path.lower(): encode_definition(view)})
            self._entities[path.lower()] = view
            for fragment, settings in _settings_by_fragment(view).items():
                self._host.change(fragment, settings)
            return view

    async def delete(self, path: str) -> None:
        async with self._changing:
            view = self.find(path)
            changes: dict[str, bytes | None] = {_ENTITY + view.path.lower(): None}
            for fragment in view.fragments:
                changes[f"{_EMPTYING}{fragment}"] = b""
            await self._write(changes)
            del self._entities[view.path.lower()]
            self._emptying.update(view.fragments)
        self._clean()

    def _check(self, path: str, description: EntityDescription) -> None:
        check_path(path, self._limits)
        if isinstance(description, QueueDescription):
            check_queue(path, description, self._limits)

    async def _write(self, changes: dict[str, bytes | None]) -> None:
        await self._host.on_store(lambda store: store.write_catalogue(changes))

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


def _fragment_count(description: EntityDescription) -> int:
    if isinstance(description, TopicDescription):
        return 0  # a topic gets its fragments when topics are served
    return PARTITIONS if description.enable_partitioning else 1


def _settings_by_fragment(view: EntityView) -> dict[int, FragmentSettings]:
    if not isinstance(view.description, QueueDescription):
        return {}
    settings = view.description.fragment_settings()
    return dict.fromkeys(view.fragments, settings)


def _check_immutable(old: EntityView, new: EntityDescription) -> None:
    there = {field.name for field in fields(new)}
    for name in IMMUTABLE:
        if name in there and getattr(old.description, name) != getattr(new, name):
            raise InvalidOperation(
                f"'{old.path}': {name} is {getattr(old.description, name)} since its creation and cannot be changed "
                f"to {getattr(new, name)}; delete the entity and create it again."
            )
