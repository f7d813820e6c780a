"""Reading of the catalogue: the entities that are in force, by path, by kind and by topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from busbar.catalogue.index import EntityIndex
from busbar.catalogue.watchers import Watchers
from busbar.model.api import EntityChangeSink, EntityView
from busbar.model.entities import (
    AuthorizationRule,
    EntityKind,
    NamespaceDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    authorization_rules_of,
)
from busbar.model.errors import EntityNotFound
from busbar.model.names import NAMESPACE_ENTRY, key_of


class CatalogueReader:
    """The entries that are in force, for readers. A path is found in any case."""

    def __init__(self) -> None:
        self._entries = EntityIndex()
        self._watchers = Watchers()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, path: str) -> EntityView:
        """The entry at a path. Raises EntityNotFound."""
        view = self._entries.get(path)
        if view is None:
            raise EntityNotFound(path)
        return view

    def page(self, kind: EntityKind, parent: str, skip: int, top: int) -> list[EntityView]:
        """Entries of a kind in the order of names. Raises EntityNotFound for a parent that is not there."""
        if kind is EntityKind.SUBSCRIPTION or kind is EntityKind.RULE:
            holder = self.find(parent).description
            wanted = TopicDescription if kind is EntityKind.SUBSCRIPTION else SubscriptionDescription
            if not isinstance(holder, wanted):
                raise EntityNotFound(parent)
        else:
            parent = ""
        return self._entries.page(kind, parent, skip, top)

    def entries(self) -> list[EntityView]:
        """All queues, topics, subscriptions and rules, in any order."""
        return [*self._entries]

    def entities(self) -> list[EntityView]:
        """All queues, topics and subscriptions, in the order of their paths."""
        others = RuleDescription | NamespaceDescription
        found = [view for view in self._entries if not isinstance(view.description, others)]
        return sorted(found, key=lambda view: key_of(view.path))

    def subscriptions(self, topic: str) -> list[EntityView]:
        return self._entries.children(EntityKind.SUBSCRIPTION, topic)

    def filter_count(self, topic: str, *, correlation: bool) -> int:
        """The number of rules of all subscriptions of a topic, with correlation filters or with SQL filters."""
        return self._entries.filters(topic, correlation)

    def authorization_rules(self, path: str) -> Sequence[AuthorizationRule]:
        """The authorization rules of the entity itself, or of the namespace (''); none if there is no such entity."""
        view = self._entries.get(path or NAMESPACE_ENTRY)
        return () if view is None else authorization_rules_of(view.description)

    def watch(self, changed: EntityChangeSink) -> Callable[[], None]:
        """Call `changed` for every change that is in force from now on. The result ends that."""
        return self._watchers.add(changed)
