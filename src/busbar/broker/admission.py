"""Whether the catalogue takes a new or changed description, and in which form.

Rules:
1. Values keep the rules of model/checks.py and of the namespace's tier.
2. Queues and topics, the partitioned ones among them, the subscriptions of a topic and the rules of a subscription have
   their numbers limited.
3. Whether an entity has message sessions, detects duplicates or is partitioned is decided at its creation.
4. What is forwarded to exists, is a queue or a topic, and is not the entity itself.
5. A client that reads a partitioned entity sees its size times 16 and may send that back.
6. An authorization rule without keys gets two; an update that names none keeps them. An entity that forwards is never idle.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

from busbar.broker.entries import Entries
from busbar.model.checks import (
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
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    Tier,
    TopicDescription,
    kind_of,
)
from busbar.model.errors import (
    ArgumentError,
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
)
from busbar.model.limits import Limits
from busbar.model.names import key_of, parent_and_name, rule_path, subscription_path
from busbar.model.partitioning import FRAGMENTS
from busbar.model.port import EntityView

FIXED = {
    "requires_session": "RequiresSession",
    "requires_duplicate_detection": "RequiresDuplicateDetection",
    "enable_partitioning": "EnablePartitioning",
}

D = TypeVar("D", bound=Description)


class Admission:
    def __init__(self, entries: Entries, limits: Limits, tier: Tier) -> None:
        self._entries = entries
        self._limits = limits
        self._tier = tier

    def path_of_new(self, path: str, description: Description) -> str:
        """The path under which something new will be known: its own spelling below that of its parent."""
        kind = kind_of(description)
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
        """What is written down for a new entry."""
        if self._entries.get(path) is not None:
            raise EntityAlreadyExists(f"The messaging entity '{path}' exists already.")
        admitted = _complete(description, (), now)
        self._check(path, admitted)
        self._check_quota(path, admitted)
        return admitted

    def check_first_rule(self, path: str, name: str, rule: RuleDescription) -> None:
        """The rule that a new subscription brings."""
        check_name(name, "rule", self._limits)
        self._check_rule(path, rule)

    def _check_rule(self, path: str, rule: RuleDescription) -> None:
        check_rule(path, rule, self._limits)
        if isinstance(rule.filter, SqlFilter) or rule.action is not None:
            from busbar.rules.syntax import (  # parsers are built for those who need them
                check_action,
                check_filter,
            )

            if isinstance(rule.filter, SqlFilter):
                check_filter(rule.filter.expression)
            if rule.action is not None:
                check_action(rule.action.expression)

    def updated(self, old: EntityView, description: D, now: int) -> D:
        """What is written down for a changed one."""
        before = old.description
        if type(before) is not type(description):
            raise InvalidOperation(f"'{old.path}' cannot become an entity of another kind.")
        _check_fixed(old, description)
        admitted = _true_size(description, before, self._limits)
        keep = before.authorization_rules if isinstance(before, QueueDescription | TopicDescription) else ()
        admitted = _complete(admitted, keep, now)
        self._check(old.path, admitted)
        return admitted

    def _check(self, path: str, description: Description) -> None:
        if isinstance(description, QueueDescription):
            check_queue(path, description, self._limits, self._tier)
        elif isinstance(description, TopicDescription):
            check_topic(path, description, self._limits, self._tier)
        elif isinstance(description, SubscriptionDescription):
            check_subscription(path, description, self._limits, self._tier)
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
        if key_of(target) == key_of(path):
            raise ArgumentError(f"'{path}': {name} is '{target}', the entity itself.")
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
        else:
            if limits.max_entities:
                count = entries.count(EntityKind.QUEUE) + entries.count(EntityKind.TOPIC)
                _below(count, limits.max_entities, "", "queues and topics")
            if description.enable_partitioning:
                _below(entries.partitioned, limits.max_partitioned, "", "partitioned entities")


def _below(count: int, most: int, parent: str, what: str) -> None:
    if count >= most:
        where = f"'{parent}'" if parent else "The namespace"
        raise QuotaExceeded(f"{where} has {count} {what}; more than {most} are not allowed.")


def _check_fixed(old: EntityView, new: Description) -> None:
    there = {field.name for field in fields(new)}
    for field, name in FIXED.items():
        if field in there and getattr(old.description, field) != getattr(new, field):
            raise ArgumentError(
                f"'{old.path}': {name} is {_word(getattr(old.description, field))} since its creation and cannot be "
                f"changed to {_word(getattr(new, field))}; delete the entity and create it again."
            )


def _word(flag: bool) -> str:
    return "true" if flag else "false"


def _true_size(description: D, before: Description, limits: Limits) -> D:
    """Rule 5."""
    if (
        not isinstance(description, QueueDescription | TopicDescription)
        or not description.enable_partitioning
    ):
        return description
    size = description.max_size_in_megabytes
    assert isinstance(before, QueueDescription | TopicDescription)
    seen = size == FRAGMENTS * before.max_size_in_megabytes
    if seen or (size > limits.max_size_in_megabytes and size % FRAGMENTS == 0):
        return replace(description, max_size_in_megabytes=size // FRAGMENTS)
    return description


def _complete(description: D, keep: Sequence[AuthorizationRule], now: int) -> D:
    """Rule 6."""
    if isinstance(description, QueueDescription | SubscriptionDescription) and description.forward_to:
        description = replace(description, auto_delete_on_idle=0)
    if isinstance(description, QueueDescription | TopicDescription) and description.authorization_rules:
        known = {rule.name: rule for rule in keep}
        rules = tuple(_with_keys(rule, known.get(rule.name), now) for rule in description.authorization_rules)
        description = replace(description, authorization_rules=rules)
    return description


def _with_keys(rule: AuthorizationRule, old: AuthorizationRule | None, now: int) -> AuthorizationRule:
    primary = rule.primary_key or (old.primary_key if old else _new_key())
    secondary = rule.secondary_key or (old.secondary_key if old else _new_key())
    if old is not None and (rule.rights, primary, secondary) == (
        old.rights,
        old.primary_key,
        old.secondary_key,
    ):
        return old
    return AuthorizationRule(rule.name, rule.rights, primary, secondary, old.created if old else now, now)


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()
