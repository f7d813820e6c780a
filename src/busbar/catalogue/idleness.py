"""Measures how long entities have been idle.

Rules:
1. An entity is not idle while a link is attached to it, or to a subscription of it. Gateways report their first link to an
   entity and the end of the last one. When a broker process ends, its links have ended.
2. Idle time is the time between two looks at an entity, on the monotonic clock, if the entity was not used meanwhile. Then
   no link was attached, and the last use of its fragments (`stamp`) is the same. The wall clock may jump.
3. Idle time begins at the first look after a use. A look that comes late counts for LATE pauses, since clients could use
   nothing while the process was stopped. So an entity is deleted a little later than it could be, never earlier.
4. While a store of the entity is unavailable, the entity is not idle: clients could not use it. Broker processes are asked
   for its last use; if one does not answer, the look does not count.
5. A start begins with no idle time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from busbar.catalogue.index import EntityIndex
from busbar.catalogue.store_set import StoreSet
from busbar.model.api import EntityView
from busbar.model.entities import EntityKind, NamespaceDescription, RuleDescription
from busbar.model.names import key_of, parent_and_name

LATE = 2
LONGEST_PAUSE = 30_000
"""Idle entities are looked for at least this often, in ms."""


@dataclass(slots=True)
class _Looked:
    stamp: Hashable
    idle: float = 0.0


class Idleness:
    """Entities by their keys (names.key_of). A gateway is any value that identifies it."""

    def __init__(self, pause: float, clock: Callable[[], float]) -> None:
        """`pause` is the time between two looks, `clock` a monotonic clock; both in seconds."""
        self._most = LATE * pause
        self._clock = clock
        self._last = clock()
        self._passed = 0.0
        self._looked: dict[str, _Looked] = {}
        self._links: dict[str, set[Hashable]] = {}

    # ---- use ----

    def used(self, key: str) -> None:
        self._looked.pop(key, None)

    def attached(self, key: str, gateway: Hashable) -> None:
        self._links.setdefault(key, set()).add(gateway)
        self.used(key)

    def detached(self, key: str, gateway: Hashable) -> None:
        gateways = self._links.get(key)
        if gateways is not None:
            gateways.discard(gateway)
            if not gateways:
                del self._links[key]
            self.used(key)

    def gateway_ended(self, gateway: Hashable) -> None:
        for key in [key for key, gateways in self._links.items() if gateway in gateways]:
            self.detached(key, gateway)

    def has_links(self, key: str) -> bool:
        return key in self._links

    def forget(self, key: str) -> None:
        """Remove an entity that does not exist any more."""
        self._looked.pop(key, None)
        self._links.pop(key, None)

    # ---- looking ----

    def begin(self) -> None:
        """Begin one more look at all entities."""
        now = self._clock()
        self._passed = min(now - self._last, self._most)
        self._last = now

    def look(self, key: str, stamp: Hashable) -> None:
        """Look at one entity. This is called once for each entity."""
        known = self._looked.get(key)
        if known is None or known.stamp != stamp or key in self._links:
            self._looked[key] = _Looked(stamp)
        else:
            known.idle += self._passed

    def is_idle(self, key: str, stamp: Hashable, seconds: float) -> bool:
        """Whether the entity has been idle for so long, and still is."""
        known = self._looked.get(key)
        return known is not None and key not in self._links and known.stamp == stamp and known.idle >= seconds


class IdleWatch:
    """The use of the catalogue's entities, and for how long they have been idle."""

    def __init__(
        self, entries: EntityIndex, stores: StoreSet, shortest: int, monotonic: Callable[[], float]
    ) -> None:
        """`shortest` is the least AutoDeleteOnIdle that is allowed, in ms."""
        self.pause = max(10, min(LONGEST_PAUSE, shortest // 4)) / 1000
        """Seconds from one look to the next."""
        self.times = Idleness(self.pause, monotonic)
        self._entries = entries
        self._stores = stores
        self._linked: dict[str, int] = {}
        """By the key of an entity: when a gateway last reported links to it, in ms."""

    # ---- use ----

    def note_links(self, paths: Iterable[str], gateway: Hashable = None) -> None:
        """Note that links of this gateway are attached to these entities now."""
        now = self._stores.clock()
        for path in paths:
            if self._entries.get(path) is not None:
                self._linked[key_of(path)] = now
                self.times.attached(key_of(path), gateway)

    def note_no_links(self, paths: Iterable[str], gateway: Hashable = None) -> None:
        """Note that the last link of this gateway to each of these entities has ended."""
        for path in paths:
            self.times.detached(key_of(path), gateway)

    def note_gateway_ended(self, gateway: Hashable) -> None:
        """Note that a gateway has ended, and all its links with it."""
        self.times.gateway_ended(gateway)

    def last_used(self, view: EntityView) -> int:
        """When links or requests last used messages of the entity, since the broker started (0: not yet). Reading its
        description is no use."""
        latest = self._linked.get(key_of(view.path), 0) if self._linked else 0
        for fragment in view.fragments:
            used = self._stores.last_used(fragment)
            if used > latest:
                latest = used
        return latest

    async def refresh_last_used(self, views: Sequence[EntityView]) -> None:
        """Bring `last_used` up to date with the broker processes. Raises a BusbarError."""
        await self._stores.refresh_last_used([fragment for view in views for fragment in view.fragments])

    def deleted(self, view: EntityView) -> None:
        self._linked.pop(key_of(view.path), None)
        self.times.forget(key_of(view.path))

    def changed(self, view: EntityView) -> None:
        """Note a change of an entity, which is a use of it. A change of a rule is a use of its subscription."""
        is_rule = isinstance(view.description, RuleDescription)
        self.times.used(key_of(parent_and_name(view.path)[0] if is_rule else view.path))

    # ---- looking ----

    async def look(self) -> list[EntityView]:
        """Look at all entities. Returns those that have been idle for too long. Raises a BusbarError."""
        out = self._stores.unavailable()
        temporary = [view for view in self._entries if _limit(view)]
        reachable = [view for view in temporary if not out & {*view.stores}]
        await self._stores.refresh_last_used([fragment for view in reachable for fragment in view.fragments])
        self.times.begin()
        for view in temporary:
            if out & {*view.stores}:
                self.times.used(key_of(view.path))
            else:
                self.times.look(key_of(view.path), self._stamp(view))
        return [view for view in temporary if self._is_idle(view)]

    async def confirms(self, view: EntityView) -> bool:
        """Whether the entity is still idle. Raises a BusbarError."""
        await self._stores.refresh_last_used(view.fragments)
        return self._is_idle(view)

    def _is_idle(self, view: EntityView) -> bool:
        limit = _limit(view)
        if not limit or self._stores.unavailable() & {*view.stores}:
            return False
        below = self._entries.children(EntityKind.SUBSCRIPTION, view.path)
        if any(self.times.has_links(key_of(one.path)) for one in below):
            return False
        return self.times.is_idle(key_of(view.path), self._stamp(view), limit / 1000)

    def _stamp(self, view: EntityView) -> Hashable:
        """A value that is another one after every command of a gateway."""
        return tuple([self._stores.last_used(fragment) for fragment in view.fragments])


def _limit(view: EntityView) -> int:
    """After this many ms without use the entity is deleted (0: never)."""
    description = view.description
    if isinstance(description, RuleDescription | NamespaceDescription):
        return 0
    return description.auto_delete_on_idle
