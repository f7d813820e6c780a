"""Plans changes of the catalogue: which entries they add, replace and remove. Nothing is written here.

Rules:
1. Every operation sees the entries as the operations before it left them. So one plan can hold one change or many.
2. An operation that raises leaves the plan as it was.
3. A fragment id is given once and never again, also when its entity is deleted or was never made. The same holds for taps.
4. A subscription is created together with its first rule, and its fragments lie in the stores of its topic's fragments. A
   topic is deleted with its subscriptions, a subscription with its rules.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from busbar.catalogue.admission import Admission
from busbar.catalogue.change import FRAGMENT_COUNTER, TAP_COUNTER, CatalogueChange
from busbar.catalogue.fragment_settings import fragment_count
from busbar.catalogue.index import EntityIndex
from busbar.catalogue.placement import place
from busbar.catalogue.staged_index import StagedIndex, with_children
from busbar.model.access import AccessChange
from busbar.model.api import EntityView, NamedRule, RuleChange
from busbar.model.entities import (
    DEFAULT_RULE,
    Description,
    RuleDescription,
    SubscriptionDescription,
    Tier,
)
from busbar.model.errors import EntityNotFound, QuotaExceeded, ServerBusy
from busbar.model.limits import Limits
from busbar.model.names import parent_and_name, rule_path
from busbar.model.taps import TapChange, TapDescription

MAX_FRAGMENT = 2**32 - 1


class IdCounters:
    """The last ids that were given. A gap is harmless, an id that is given twice is not."""

    def __init__(self) -> None:
        self.fragment = 0
        self.tap = 0

    def take_fragments(self, count: int) -> tuple[int, ...]:
        first, last = self.fragment + 1, self.fragment + count
        if last > MAX_FRAGMENT:
            raise QuotaExceeded("All fragment ids of this namespace have been used.")
        self.fragment = last
        return tuple(range(first, last + 1))

    def take_tap(self) -> int:
        self.tap += 1
        return self.tap


class ChangePlanner:
    def __init__(
        self,
        in_force: EntityIndex,
        limits: Limits,
        tier: Tier,
        ids: IdCounters,
        stores: Sequence[str],
        unavailable: Collection[str],
        now: int,
    ) -> None:
        """`stores` are all of the namespace, in their order. New fragments and taps need their stores. All other changes
        are made without those that are unavailable."""
        self.entries = StagedIndex(in_force)
        self._admission = Admission(self.entries, limits, tier)
        self._ids = ids
        self._stores = stores
        self._unavailable = unavailable
        self._now = now
        self._counters: dict[str, bytes] = {}

    @property
    def change(self) -> CatalogueChange:
        """All that was planned so far."""
        return CatalogueChange(tuple(self.entries.before), tuple(self.entries.after), self._counters)

    def find(self, path: str) -> EntityView:
        """The entry at a path, as planned so far. Raises EntityNotFound."""
        view = self.entries.get(path)
        if view is None:
            raise EntityNotFound(path)
        return view

    def create(
        self, path: str, description: Description, default_rule: NamedRule | None = None
    ) -> EntityView:
        path = self._admission.path_of_new(path, description)
        admitted = self._admission.created(path, description, self._now)
        if isinstance(admitted, SubscriptionDescription):
            stores = self.find(parent_and_name(path)[0]).stores
        else:
            stores = place(path, fragment_count(admitted), self._stores, self._unavailable)
        self._require_open(stores)
        new = []
        if isinstance(admitted, SubscriptionDescription):
            new.append(self._first_rule(path, default_rule))
        view = EntityView(path, admitted, self._ids.take_fragments(len(stores)), self._now, self._now, stores)
        for one in (view, *new):
            self.entries.put(one)
        if view.fragments:
            self._counters[FRAGMENT_COUNTER] = str(self._ids.fragment).encode()
        return view

    def _first_rule(self, subscription: str, rule: NamedRule | None) -> EntityView:
        name, description = rule or (DEFAULT_RULE, RuleDescription())
        path = rule_path(subscription, name)
        self._admission.check_first_rule(path, name, description)
        return EntityView(path, description, (), self._now, self._now)

    def update(self, path: str, description: Description) -> EntityView:
        old = self.find(path)
        admitted = self._admission.updated(old, description, self._now)
        return self._replace(replace(old, description=admitted, updated=max(self._now, old.updated)))

    def change_access(self, path: str, name: str, change: AccessChange) -> EntityView:
        return self._replace(self._admission.access_changed(self.find(path), name, change, self._now))

    def change_rules(self, changes: Sequence[RuleChange]) -> None:
        for path, rule in changes:
            if rule is None:
                self.delete(path)
            else:
                self.create(path, rule)

    def create_tap(self, path: str, tap: TapDescription) -> EntityView:
        old = self.find(path)
        taps = self._admission.tap_created(old, replace(tap, id=self._ids.take_tap(), created=self._now))
        self._require_open(old.stores)
        view = self._replace(replace(old, taps=taps))
        self._counters[TAP_COUNTER] = str(self._ids.tap).encode()
        return view

    def change_tap(self, path: str, name: str, dead_letter: bool, change: TapChange) -> EntityView:
        old = self.find(path)
        taps = self._admission.taps_changed(old, name, dead_letter, change)
        return old if taps == old.taps else self._replace(replace(old, taps=taps))

    def _replace(self, view: EntityView) -> EntityView:
        self.entries.put(view)
        return view

    def delete(self, path: str) -> None:
        gone = with_children(self.entries, self.find(path))
        for view in gone:
            self.entries.remove(view.path)

    def _require_open(self, stores: Sequence[str]) -> None:
        """Check that all these stores are open, since something begins there. Raises ServerBusy."""
        missing = sorted({*self._unavailable} & {*stores})
        if missing:
            raise ServerBusy(
                f"The messaging store {missing[0]} is unavailable, which has to hold a part of it; nothing was changed. "
                "Retry later."
            )
