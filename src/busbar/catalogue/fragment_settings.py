"""What the fragments of each entity are told of it, from the catalogue's entries.

A queue's fragments and a subscription's all hear the same. A fragment of a topic hears which fragment of each subscription
is beside it, and by which rules that selects: they lie in the same store, so that what the one passes on and the others take
in is one commit. Rules stay descriptions here; whoever has the fragments compiles them (rules/selection.py).
"""

from __future__ import annotations

from busbar.catalogue.index import EntityIndex
from busbar.model.api import EntityView
from busbar.model.entities import (
    Description,
    EntityKind,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.names import key_of, parent_and_name
from busbar.model.partitioning import FRAGMENTS
from busbar.model.settings import FragmentSettings
from busbar.model.topic_settings import RuleSet, TopicRules, TopicSettings


class FragmentSettingsBuilder:
    def __init__(self, entries: EntityIndex) -> None:
        self._entries = entries
        self._subscribers: dict[str, dict[str, tuple[tuple[int, ...], RuleSet]]] = {}
        """By the keys of topics and of their subscriptions: the fragments and the rules of each."""

    def by_store(self, view: EntityView) -> dict[str, dict[int, FragmentSettings]]:
        """By store and fragment; nothing for a rule."""
        description = view.description
        found: dict[str, dict[int, FragmentSettings]] = {}
        if isinstance(description, RuleDescription):
            return found
        if isinstance(description, TopicDescription):
            beside = list(self._of_topic(view.path).values())
            rules = TopicRules(tuple([rules for _fragments, rules in beside]))
            for index, (fragment, store) in enumerate(zip(view.fragments, view.stores, strict=True)):
                settings = description.fragment_settings()
                settings.topic = TopicSettings(
                    index, tuple([fragments[index] for fragments, _rules in beside]), rules
                )
                found.setdefault(store, {})[fragment] = settings
            return found
        settings = description.fragment_settings()
        settings.taps = [tap.settings() for tap in view.taps]
        for fragment, store in zip(view.fragments, view.stores, strict=True):
            found.setdefault(store, {})[fragment] = settings
        return found

    def changed(self, view: EntityView) -> EntityView | None:
        """An entry was put or removed. The topic that has to hear of it, since it is of one of its subscriptions."""
        if isinstance(view.description, TopicDescription) and self._entries.get(view.path) is None:
            self._subscribers.pop(key_of(view.path), None)
        topic = topic_of(view)
        known = self._subscribers.get(key_of(topic)) if topic else None
        if known is not None:
            subscription = _subscription_of(view.path)
            found = self._entries.get(subscription)
            if found is None:
                known.pop(key_of(subscription), None)
            else:
                known[key_of(subscription)] = self._subscriber(found)
        return self._entries.get(topic) if topic else None

    def _of_topic(self, path: str) -> dict[str, tuple[tuple[int, ...], RuleSet]]:
        known = self._subscribers.get(key_of(path))
        if known is None:
            below = self._entries.children(EntityKind.SUBSCRIPTION, path)
            known = {key_of(view.path): self._subscriber(view) for view in below}
            self._subscribers[key_of(path)] = known
        return known

    def _subscriber(self, view: EntityView) -> tuple[tuple[int, ...], RuleSet]:
        description = view.description
        assert isinstance(description, SubscriptionDescription)
        rules = []
        for one in self._entries.children(EntityKind.RULE, view.path):
            assert isinstance(one.description, RuleDescription)
            rules.append((parent_and_name(one.path)[1], one.description))
        letters = description.dead_lettering_on_filter_evaluation_exceptions
        return view.fragments, RuleSet(tuple(rules), letters)


def _subscription_of(path: str) -> str:
    """The path of a subscription, from its own or from that of one of its rules."""
    parent = parent_and_name(path)[0]
    return parent if parent_and_name(parent)[0] else path


def topic_of(view: EntityView) -> str:
    """The path of the topic that hears of a change of this entry: a subscription's or a rule's. Else ''."""
    if isinstance(view.description, SubscriptionDescription):
        return parent_and_name(view.path)[0]
    if isinstance(view.description, RuleDescription):
        return parent_and_name(parent_and_name(view.path)[0])[0]
    return ""


def fragment_count(description: Description) -> int:
    """Of a queue or a topic. A subscription has as many as its topic, a rule none."""
    if not isinstance(description, QueueDescription | TopicDescription):
        return 0
    return FRAGMENTS if description.enable_partitioning else 1
