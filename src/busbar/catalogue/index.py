"""The catalogue in memory: every entry by its path in any case, and the entries of each kind in the order of their names.

Nothing is sorted or scanned to answer: a namespace may have ten thousand queues, a topic two thousand subscriptions.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator

from busbar.model.api import EntityView
from busbar.model.entities import (
    CorrelationFilter,
    EntityKind,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    kind_of,
)
from busbar.model.names import key_of, parent_and_name


class EntityIndex:
    def __init__(self) -> None:
        self._views: dict[str, EntityView] = {}
        self._ordered: dict[tuple[EntityKind, str], list[str]] = {}  # by kind and parent: keys in their order
        self._filters: Counter[tuple[str, bool]] = Counter()  # by topic, and whether they are correlations
        self._sources: dict[str, dict[str, int]] = {}
        """By the key of a target: the keys of the entities that forward to it, each once or twice."""
        self.partitioned = 0

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[EntityView]:
        return iter(list(self._views.values()))

    def get(self, path: str) -> EntityView | None:
        return self._views.get(key_of(path))

    def put(self, view: EntityView) -> None:
        """Add an entry, or set another in its place."""
        key = key_of(view.path)
        if key in self._views:
            self._forget(self._views[key])
        else:
            insort(self._ordered.setdefault(_place(view), []), key)
        self.partitioned += _partitioned(view)
        if isinstance(view.description, RuleDescription):
            self._filters[_filter_of(view.path, view.description)] += 1
        for target in targets_of(view):
            sources = self._sources.setdefault(key_of(target), {})
            sources[key] = sources.get(key, 0) + 1
        self._views[key] = view

    def remove(self, path: str) -> None:
        view = self._views.pop(key_of(path))
        ordered = self._ordered[_place(view)]
        del ordered[bisect_left(ordered, key_of(path))]
        if not ordered:
            del self._ordered[_place(view)]
        self._forget(view)

    def _forget(self, view: EntityView) -> None:
        """Count an entry no more."""
        self.partitioned -= _partitioned(view)
        if isinstance(view.description, RuleDescription):
            kind = _filter_of(view.path, view.description)
            self._filters[kind] -= 1
            if not self._filters[kind]:
                del self._filters[kind]
        key = key_of(view.path)
        for target in targets_of(view):
            sources = self._sources[key_of(target)]
            sources[key] -= 1
            if not sources[key]:
                del sources[key]
            if not sources:
                del self._sources[key_of(target)]

    def target_keys(self) -> set[str]:
        """The keys of all paths that something forwards to."""
        return set(self._sources)

    def sources(self, target: str) -> list[EntityView]:
        """The queues and subscriptions that forward messages or dead letters to this path, whether it is there or not."""
        return [self._views[key] for key in self._sources.get(key_of(target), ())]

    def filters(self, topic: str, correlation: bool) -> int:
        """The number of rules of a topic's subscriptions with a filter of that kind."""
        return self._filters[key_of(topic), correlation]

    def count(self, kind: EntityKind, parent: str = "") -> int:
        return len(self._ordered.get((kind, key_of(parent)), ()))

    def page(self, kind: EntityKind, parent: str, skip: int, top: int) -> list[EntityView]:
        ordered = self._ordered.get((kind, key_of(parent)), [])
        return [self._views[key] for key in ordered[max(0, skip) : max(0, skip) + max(0, top)]]

    def children(self, kind: EntityKind, parent: str) -> list[EntityView]:
        return [self._views[key] for key in self._ordered.get((kind, key_of(parent)), ())]


def targets_of(view: EntityView) -> list[str]:
    """The paths that an entity forwards messages and dead letters to."""
    description = view.description
    if not isinstance(description, QueueDescription | SubscriptionDescription):
        return []
    return [path for path in (description.forward_to, description.forward_dead_lettered_messages_to) if path]


def _place(view: EntityView) -> tuple[EntityKind, str]:
    return kind_of(view.description), key_of(parent_and_name(view.path)[0])


def _filter_of(path: str, rule: RuleDescription) -> tuple[str, bool]:
    topic = parent_and_name(parent_and_name(path)[0])[0]
    return key_of(topic), isinstance(rule.filter, CorrelationFilter)


def _partitioned(view: EntityView) -> int:
    description = view.description
    return int(
        isinstance(description, QueueDescription | TopicDescription) and description.enable_partitioning
    )
