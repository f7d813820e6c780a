"""The settings of fragments, from the entries of the catalogue.

All fragments of a queue have the same settings, and so have those of a subscription. If the entity forwards, each fragment
gets its own index, the fragments of the target, and whether the target takes messages.

A fragment of a topic gets, for each subscription, the fragment that is beside it and the rules by which it selects. Both lie
in the same store, so that a message and its copies are one commit. Rules stay descriptions here; the broker that has the
fragments compiles them (rules/selection.py).

A change can give other settings to fragments of entities that it does not name. `_dependents` finds these entities.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from busbar.catalogue.change import BrokerUpdate, CatalogueChange
from busbar.catalogue.index import targets_of
from busbar.catalogue.staged_index import EntityEntries
from busbar.model.api import EntityView
from busbar.model.entities import (
    Description,
    EntityKind,
    NamespaceDescription,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.limits import Limits
from busbar.model.names import key_of, parent_and_name
from busbar.model.partitioning import FRAGMENTS
from busbar.model.settings import (
    TARGET_DISABLED,
    TARGET_MISSING,
    TARGET_OPEN,
    ForwardSettings,
    FragmentSettings,
)
from busbar.model.topic_settings import RuleSet, TopicRules, TopicSettings

Subscribers = dict[str, tuple[tuple[int, ...], RuleSet]]
"""By the key of a subscription: its fragments and its rules."""
Topics = dict[str, Subscribers | None]
"""By the key of a topic; None: it is deleted."""
_Fragments = dict[int, FragmentSettings]
_ByStore = dict[str, _Fragments]


@dataclass(frozen=True, slots=True)
class SettingsPlan:
    """The settings that a change brings, and the subscribers of topics after it."""

    update: BrokerUpdate
    topics: Topics


class FragmentSettingsBuilder:
    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._topics: Topics = {}
        """As they are in force. A rule set that did not change stays the same object, which saves its compilation."""

    def plan(self, change: CatalogueChange, entries: EntityEntries) -> SettingsPlan:
        """The settings of all fragments that a change concerns; `entries` are those after the change."""
        topics = self._changed_topics(change, entries)
        created = change.new_fragments
        new: _ByStore = {}
        changed: _ByStore = {}
        for view in (*change.after, *_dependents(change, entries)):
            for store, fragments in self._by_store(view, entries, topics).items():
                for fragment, settings in fragments.items():
                    target = new if fragment in created else changed
                    target.setdefault(store, {})[fragment] = settings
        return SettingsPlan(BrokerUpdate(new, changed, change.entities), topics)

    def adopt(self, plan: SettingsPlan) -> None:
        """Keep the subscribers of topics after a change that is in force now."""
        self._topics.update(plan.topics)
        for topic in [topic for topic, subscribers in plan.topics.items() if subscribers is None]:
            del self._topics[topic]

    def in_store(self, store: str, views: Iterable[EntityView], entries: EntityEntries) -> _Fragments:
        """The settings of all fragments of a store, for entries that are in force."""
        found: _Fragments = {}
        for view in views:
            if store in view.stores:
                found.update(self._by_store(view, entries, self._topics).get(store, {}))
        return found

    def _by_store(self, view: EntityView, entries: EntityEntries, topics: Topics) -> _ByStore:
        """The settings of an entity's fragments, by store and fragment; nothing for what has none."""
        description = view.description
        found: _ByStore = {}
        if isinstance(description, RuleDescription | NamespaceDescription):
            return found
        if isinstance(description, TopicDescription):
            beside = list(self._of_topic(view.path, entries, topics).values())
            rules = TopicRules(tuple([rules for _fragments, rules in beside]))
            for index, (fragment, store) in enumerate(zip(view.fragments, view.stores, strict=True)):
                settings = self._plain(view, description, entries)
                settings.topic = TopicSettings(
                    index, tuple([fragments[index] for fragments, _rules in beside]), rules
                )
                found.setdefault(store, {})[fragment] = settings
            return found
        shared = self._plain(view, description, entries)
        for index, (fragment, store) in enumerate(zip(view.fragments, view.stores, strict=True)):
            settings = shared
            if targets_of(view):
                settings = self._plain(view, description, entries)
                settings.forward = _forward(description.forward_to, index, entries)
                settings.forward_dead_letters = _forward(
                    description.forward_dead_lettered_messages_to, index, entries
                )
            found.setdefault(store, {})[fragment] = settings
        return found

    def _plain(
        self,
        view: EntityView,
        description: QueueDescription | TopicDescription | SubscriptionDescription,
        entries: EntityEntries,
    ) -> FragmentSettings:
        """The settings of a fragment without where it forwards to, and without subscriptions."""
        settings = description.fragment_settings()
        settings.express_ms = self._limits.express_delay if _is_express(view, entries) else 0
        settings.path = view.path
        settings.taps = [tap.settings() for tap in view.taps]
        settings.transfer_patience_ms = self._limits.transfer_patience
        if not isinstance(description, SubscriptionDescription):
            settings.max_message_bytes = self._limits.message_size(description.max_message_size)
            settings.max_header_bytes = self._limits.max_header_size
        return settings

    def _changed_topics(self, change: CatalogueChange, entries: EntityEntries) -> Topics:
        """The topics that are deleted, or have a subscription or a rule in the change."""
        topics: Topics = {
            key_of(view.path): None for view in change.gone if isinstance(view.description, TopicDescription)
        }
        for view in (*change.before, *change.after):
            topic = key_of(topic_of(view))
            if not topic or topics.get(topic, {}) is None:
                continue
            known = topics.get(topic)
            if known is None:
                known = topics[topic] = dict(self._of_topic(topic, entries, {}))
            subscription = _subscription_of(view.path)
            found = entries.get(subscription)
            if found is None:
                known.pop(key_of(subscription), None)
            else:
                known[key_of(subscription)] = _subscriber(found, entries)
        return topics

    def _of_topic(self, path: str, entries: EntityEntries, topics: Topics) -> Subscribers:
        """The subscribers of a topic: from `topics`, as they are in force, or from its entries. `topics` has them then."""
        known = topics.get(key_of(path))
        if known is None:
            known = self._topics.get(key_of(path))
        if known is None:
            below = entries.children(EntityKind.SUBSCRIPTION, path)
            known = {key_of(view.path): _subscriber(view, entries) for view in below}
        topics[key_of(path)] = known
        return known


def _dependents(change: CatalogueChange, entries: EntityEntries) -> list[EntityView]:
    """Entities outside the change whose settings follow from it.

    These are the topics of changed subscriptions and rules, the subscriptions of topics whose EnableExpress changes, and the
    entities that forward to what comes, goes, is enabled or disabled.
    """
    named = {key_of(view.path) for view in change.after}
    found: dict[str, EntityView | None] = {}
    for view in (*change.before, *change.after):
        topic = topic_of(view)
        if topic:
            found[key_of(topic)] = entries.get(topic)
    was_express = {key_of(view.path) for view in change.before if _is_express(view, entries)}
    for view in change.after:
        is_changed = _is_express(view, entries) != (key_of(view.path) in was_express)
        if is_changed and isinstance(view.description, TopicDescription):
            below = entries.children(EntityKind.SUBSCRIPTION, view.path)
            found.update({key_of(one.path): one for one in below})
    before = {key_of(view.path): _as_target(view) for view in change.before}
    after = {key_of(view.path): _as_target(view) for view in change.after}
    for target in before.keys() | after.keys():
        if before.get(target) != after.get(target):
            found.update({key_of(view.path): view for view in entries.sources(target)})
    return [view for key, view in found.items() if view is not None and key not in named]


def _is_express(view: EntityView, entries: EntityEntries) -> bool:
    """Whether messages of the entity are in memory alone at first. A subscription is as its topic is."""
    topic = entries.get(topic_of(view)) if isinstance(view.description, SubscriptionDescription) else view
    description = None if topic is None else topic.description
    return isinstance(description, QueueDescription | TopicDescription) and description.enable_express


def _as_target(view: EntityView) -> tuple[tuple[int, ...], bool] | None:
    """What entities that forward to this one depend on. None: it is no target."""
    if not isinstance(view.description, QueueDescription | TopicDescription):
        return None
    return view.fragments, view.description.status.can_send


def _forward(path: str, index: int, entries: EntityEntries) -> ForwardSettings | None:
    """Where the fragment with this index forwards to. A target that was deleted is missing until one is created there."""
    if not path:
        return None
    target = entries.get(path)
    if target is None or not isinstance(target.description, QueueDescription | TopicDescription):
        return ForwardSettings(path, [], False, index, TARGET_MISSING)
    description = target.description
    takes = TARGET_OPEN if description.status.can_send else TARGET_DISABLED
    detects = description.requires_duplicate_detection
    return ForwardSettings(target.path, list(target.fragments), detects, index, takes)


def _subscriber(view: EntityView, entries: EntityEntries) -> tuple[tuple[int, ...], RuleSet]:
    description = view.description
    assert isinstance(description, SubscriptionDescription)
    rules = []
    for one in entries.children(EntityKind.RULE, view.path):
        assert isinstance(one.description, RuleDescription)
        rules.append((parent_and_name(one.path)[1], one.description))
    letters = description.dead_lettering_on_filter_evaluation_exceptions
    return view.fragments, RuleSet(tuple(rules), letters)


def _subscription_of(path: str) -> str:
    """The path of a subscription, from its own or from that of one of its rules."""
    parent = parent_and_name(path)[0]
    return parent if parent_and_name(parent)[0] else path


def topic_of(view: EntityView) -> str:
    """The path of the topic whose settings follow from this entry: a subscription's or a rule's. Else ''."""
    if isinstance(view.description, SubscriptionDescription):
        return parent_and_name(view.path)[0]
    if isinstance(view.description, RuleDescription):
        return parent_and_name(parent_and_name(view.path)[0])[0]
    return ""


def fragment_count(description: Description) -> int:
    """The number of fragments of a queue or a topic. A subscription has as many as its topic, a rule none."""
    if not isinstance(description, QueueDescription | TopicDescription):
        return 0
    return FRAGMENTS if description.enable_partitioning else 1
