"""Whether the catalogue takes a new or changed description, and in which form.

Rules:
1. Values keep the rules of model/checks.py and of the namespace's tier.
2. The numbers of queues and topics, of partitioned ones among them, of subscriptions of a topic and of rules of a
   subscription are limited.
3. Whether an entity has message sessions, detects duplicates or is partitioned is decided at its creation.
4. The target of forwarding exists and is a queue or a topic. It may be the entity itself, and the source may require
   sessions: that matters only when messages flow.
5. A client that reads a partitioned entity gets its size times 16, and may send that back.
6. An authorization rule without keys gets two; an update that names none keeps them. An entity that forwards is never idle.
7. Taps are on entities that messages are received from: a queue, a subscription, or its dead-letter queue. Each has names of
   its own. One tap may consume, and not on a dead-letter queue. It begins with the first message that is there, since it
   deletes what it passes.
8. A tap has the owner that took it first, until another client takes it over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

from busbar.catalogue.access_rules import changed_rules, check_manageable, new_key
from busbar.catalogue.staged_index import EntityEntries
from busbar.model.access import AccessChange
from busbar.model.api import EntityView
from busbar.model.checks import (
    check_authorization_rules,
    check_name,
    check_path,
    check_queue,
    check_rule,
    check_subscription,
    check_topic,
)
from busbar.model.entities import (
    AuthorizationRule,
    Description,
    EntityKind,
    NamespaceDescription,
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    Tier,
    TopicDescription,
    authorization_rules_of,
    kind_of,
)
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    TapNotFound,
    TapOwned,
)
from busbar.model.limits import Limits
from busbar.model.names import NAMESPACE_ENTRY, key_of, parent_and_name, rule_path, subscription_path
from busbar.model.partitioning import FRAGMENTS
from busbar.model.properties import FIXED
from busbar.model.taps import TapChange, TapDescription

LONGEST_OWNER = 1024
MOST = 2**62
"""The highest value of a tap's times and sizes."""

D = TypeVar("D", bound=Description)


class Admission:
    def __init__(self, entries: EntityEntries, limits: Limits, tier: Tier) -> None:
        self._entries = entries
        self._limits = limits
        self._tier = tier

    def path_of_new(self, path: str, description: Description) -> str:
        """The path of a new entry: its own spelling below that of its parent."""
        kind = kind_of(description)
        if kind is EntityKind.NAMESPACE:
            return NAMESPACE_ENTRY
        if kind is EntityKind.QUEUE or kind is EntityKind.TOPIC:
            return check_path(path, self._limits)
        parent, name = parent_and_name(path)
        below_rule = parent_and_name(parent)[0] != ""
        if not parent or below_rule != (kind is EntityKind.RULE):
            raise ArgumentError(f"'{path}' is not the path of a {kind.lower()}.")
        check_name(name, kind.lower(), self._limits)
        view = self._entries.get(parent)
        wanted = TopicDescription if kind is EntityKind.SUBSCRIPTION else SubscriptionDescription
        if view is None or not isinstance(view.description, wanted):
            raise EntityNotFound(parent)
        join = subscription_path if kind is EntityKind.SUBSCRIPTION else rule_path
        return join(view.path, name)

    def created(self, path: str, description: D, now: int) -> D:
        """The description that is written for a new entry."""
        if self._entries.get(path) is not None:
            raise EntityAlreadyExists(f"The messaging entity '{path}' exists already.")
        admitted = _complete(description, (), now)
        self._check(path, admitted)
        self._check_quota(path, admitted)
        return admitted

    def check_first_rule(self, path: str, name: str, rule: RuleDescription) -> None:
        """Check the first rule of a new subscription."""
        check_name(name, "rule", self._limits)
        self._check_rule(path, rule)

    def _check_rule(self, path: str, rule: RuleDescription) -> None:
        check_rule(path, rule, self._limits)
        if isinstance(rule.filter, SqlFilter) or rule.action is not None:
            from busbar.rules.syntax import (  # parsers are built when they are needed
                check_action,
                check_filter,
            )

            if isinstance(rule.filter, SqlFilter):
                check_filter(rule.filter.expression)
            if rule.action is not None:
                check_action(rule.action.expression)

    def updated(self, old: EntityView, description: D, now: int) -> D:
        """The description that is written for a changed entry."""
        before = old.description
        if type(before) is not type(description):
            raise InvalidOperation(f"'{old.path}' cannot become an entity of another kind.")
        _check_fixed(old, description)
        admitted = _true_size(description, before, self._limits)
        admitted = _complete(admitted, authorization_rules_of(before), now)
        self._check(old.path, admitted)
        return admitted

    def access_changed(self, old: EntityView, name: str, change: AccessChange, now: int) -> EntityView:
        """The entry with another authorization rule, or with one of its rules changed."""
        description = old.description
        if not isinstance(description, QueueDescription | TopicDescription | NamespaceDescription):
            raise InvalidOperation(
                f"'{old.path}' has no authorization rules; queues, topics and the namespace have."
            )
        rules = changed_rules(_named(old.path), description.authorization_rules, name, change)
        changed = _complete(
            replace(description, authorization_rules=rules), description.authorization_rules, now
        )
        self._check(old.path, changed)
        return replace(old, description=changed, updated=max(now, old.updated))

    def tap_created(self, entity: EntityView, tap: TapDescription) -> tuple[TapDescription, ...]:
        """The taps of the entity with a new one."""
        if not isinstance(entity.description, QueueDescription | SubscriptionDescription):
            raise InvalidOperation(
                f"'{entity.path}' is neither a queue nor a subscription; taps are on those and their dead-letter queues."
            )
        check_name(tap.name, "tap", self._limits)
        _check_tap(tap)
        if _tap_of(entity, tap.name, tap.dead_letter) is not None:
            raise EntityAlreadyExists(f"'{entity.path}' has a tap '{tap.name}' already.")
        _below(len(entity.taps), self._limits.max_taps, entity.path, "taps")
        if tap.consumes:
            other = next((known for known in entity.taps if known.consumes), None)
            if other is not None:
                raise InvalidOperation(
                    f"The tap '{other.name}' consumes '{entity.path}' already; there can be one that does."
                )
            tap = replace(tap, from_earliest=True)
        return (*entity.taps, tap)

    def taps_changed(
        self, entity: EntityView, name: str, dead_letter: bool, change: TapChange
    ) -> tuple[TapDescription, ...]:
        """The taps of the entity with one of them changed, or without it."""
        tap = _tap_of(entity, name, dead_letter)
        if tap is None:
            raise TapNotFound(entity.path, name)
        if change.delete:
            return tuple(other for other in entity.taps if other is not tap)
        if tap.owner and tap.owner != change.owner and not change.take_over:
            raise TapOwned(
                f"The tap '{tap.name}' of '{entity.path}' belongs to '{tap.owner}', not to '{change.owner}'. "
                "Take it over if that reader is gone."
            )
        changed = replace(tap, owner=change.owner, reader=change.reader or tap.reader)
        _check_tap(changed)
        return tuple(changed if other is tap else other for other in entity.taps)

    def _check(self, path: str, description: Description) -> None:
        if isinstance(description, QueueDescription):
            check_queue(path, description, self._limits, self._tier)
        elif isinstance(description, TopicDescription):
            check_topic(path, description, self._limits, self._tier)
        elif isinstance(description, SubscriptionDescription):
            check_subscription(path, description, self._limits, self._tier)
        elif isinstance(description, NamespaceDescription):
            check_authorization_rules(_named(path), description.authorization_rules, self._limits)
            check_manageable(description.authorization_rules)
        else:
            self._check_rule(path, description)
        if isinstance(description, QueueDescription | SubscriptionDescription):
            self._check_target(path, "ForwardTo", description.forward_to)
            self._check_target(
                path, "ForwardDeadLetteredMessagesTo", description.forward_dead_lettered_messages_to
            )

    def _check_target(self, path: str, name: str, target: str) -> None:
        if not target:
            return
        found = self._entries.get(target)
        if found is None or not isinstance(found.description, QueueDescription | TopicDescription):
            raise ArgumentError(f"'{path}': {name} is '{target}'; there is no queue or topic of that name.")

    def _check_quota(self, path: str, description: Description) -> None:
        entries, limits = self._entries, self._limits
        parent = parent_and_name(path)[0]
        if isinstance(description, SubscriptionDescription):
            _below(
                entries.count(EntityKind.SUBSCRIPTION, parent),
                limits.max_subscriptions,
                parent,
                "subscriptions",
            )
        elif isinstance(description, RuleDescription):
            _below(entries.count(EntityKind.RULE, parent), limits.max_rules, parent, "rules")
        elif isinstance(description, QueueDescription | TopicDescription):
            if limits.max_entities:
                count = entries.count(EntityKind.QUEUE) + entries.count(EntityKind.TOPIC)
                _below(count, limits.max_entities, "", "queues and topics")
            if description.enable_partitioning:
                _below(entries.partitioned, limits.max_partitioned_entities, "", "partitioned entities")


def _below(count: int, most: int, parent: str, what: str) -> None:
    if count >= most:
        where = f"'{parent}'" if parent else "The namespace"
        raise QuotaExceeded(f"{where} has {count} {what}; more than {most} are not allowed.")


def _tap_of(entity: EntityView, name: str, dead_letter: bool) -> TapDescription | None:
    """The tap of that name, which is compared in any case."""
    for tap in entity.taps:
        if tap.dead_letter == dead_letter and key_of(tap.name) == key_of(name):
            return tap
    return None


def _check_tap(tap: TapDescription) -> None:
    for what, value in (("maximum age", tap.max_age), ("maximum size", tap.max_size)):
        if not 0 <= value <= MOST:
            raise ArgumentOutOfRange(
                f"The {what} of the tap '{tap.name}' is {value}; it is 0 (no limit) or more."
            )
    if not 1 <= tap.lease <= MOST:
        raise ArgumentOutOfRange(f"The lease of the tap '{tap.name}' is {tap.lease} ms; it is at least 1 ms.")
    if len(tap.owner) > LONGEST_OWNER:
        raise ArgumentOutOfRange(
            f"The owner of the tap '{tap.name}' has {len(tap.owner)} characters; at most {LONGEST_OWNER} are allowed."
        )
    if len(tap.reader) > LONGEST_OWNER:
        raise ArgumentOutOfRange(
            f"The reader of the tap '{tap.name}' has {len(tap.reader)} characters; at most {LONGEST_OWNER} are allowed."
        )
    if tap.consumes and tap.dead_letter:
        raise InvalidOperation(
            f"The tap '{tap.name}' cannot consume: that is for queues, not dead-letter queues."
        )


def _check_fixed(old: EntityView, new: Description) -> None:
    there = {field.name for field in fields(new)}
    for row in FIXED:
        if row.attribute not in there:
            continue
        was, wanted = getattr(old.description, row.attribute), getattr(new, row.attribute)
        if was != wanted:
            raise ArgumentError(
                f"'{old.path}': {row.element} is {_word(was)} since its creation and cannot be changed to "
                f"{_word(wanted)}; delete the entity and create it again."
            )


def _word(flag: bool) -> str:
    return "true" if flag else "false"


def _true_size(description: D, before: Description, limits: Limits) -> D:
    """The size of a partitioned entity, also if the client sent back the 16-fold one that it got."""
    if (
        not isinstance(description, QueueDescription | TopicDescription)
        or not description.enable_partitioning
    ):
        return description
    size = description.max_size_in_megabytes
    assert isinstance(before, QueueDescription | TopicDescription)
    seen = size == FRAGMENTS * before.max_size_in_megabytes
    of_all = size > limits.max_size_in_megabytes and size % FRAGMENTS == 0
    of_one = size // FRAGMENTS
    if seen or (of_all and limits.min_size_in_megabytes <= of_one <= limits.max_size_in_megabytes):
        return replace(description, max_size_in_megabytes=of_one)
    return description


def _complete(description: D, keep: Sequence[AuthorizationRule], now: int) -> D:
    """The description with keys for rules that have none, and without an idle time if the entity forwards."""
    if isinstance(description, QueueDescription | SubscriptionDescription) and description.forward_to:
        description = replace(description, auto_delete_on_idle=0)
    if (
        isinstance(description, QueueDescription | TopicDescription | NamespaceDescription)
        and description.authorization_rules
    ):
        known = {rule.name: rule for rule in keep}
        rules = tuple(_with_keys(rule, known.get(rule.name), now) for rule in description.authorization_rules)
        description = replace(description, authorization_rules=rules)
    return description


def _with_keys(rule: AuthorizationRule, old: AuthorizationRule | None, now: int) -> AuthorizationRule:
    primary = rule.primary_key or (old.primary_key if old else new_key())
    secondary = rule.secondary_key or (old.secondary_key if old else new_key())
    if old is not None and (rule.rights, primary, secondary) == (
        old.rights,
        old.primary_key,
        old.secondary_key,
    ):
        return old
    return AuthorizationRule(rule.name, rule.rights, primary, secondary, old.created if old else now, now)


def _named(path: str) -> str:
    return "The namespace" if path == NAMESPACE_ENTRY else f"'{path}'"
