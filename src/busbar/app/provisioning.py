"""Creates and updates the entities of the namespace as its configuration declares.

1. An entity in the file becomes as the file describes it. An entity that is not in the file stays as it is. Authorization
   rules of entities stay, too, beside those of the file. A tap of the file is created, unless it is there.
2. The target of a forward is created before the entity that forwards to it, in any order in the file.
3. A new subscription gets the first of its rules in the file instead of the default rule, which matches every message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from busbar.app.config import ConfigError, NamespaceConfig
from busbar.app.namespace_rules import ensure_rules
from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.planning import ChangePlanner
from busbar.model.api import NamedRule
from busbar.model.entities import (
    AuthorizationRule,
    Description,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.errors import BusbarError, EntityNotFound, ServerBusy
from busbar.model.names import key_of, parent_and_name
from busbar.model.sas import SasRule
from busbar.model.taps import TapDescription

_WITH_RIGHTS = QueueDescription | TopicDescription


async def provision(
    catalogue: Catalogue, namespace: NamespaceConfig, rules: Sequence[SasRule] = ()
) -> list[str]:
    """Apply the configuration; `rules` are those of the namespace. Returns the entities that could not be changed now,
    because a store is unavailable."""
    first_rules: dict[str, NamedRule] = {}
    for path, description in namespace.entities:
        if isinstance(description, RuleDescription):
            parent, name = parent_and_name(path)
            first_rules.setdefault(key_of(parent), (name, description))
    taps: dict[str, list[TapDescription]] = {}
    for path, tap in namespace.taps:
        taps.setdefault(path, []).append(tap)
    later = [
        f"the authorization rule '{rule.name}' has no key in the configuration and was left out; `busbar apply` makes it."
        for rule in namespace.keyless_rules
        if rules and rule.name not in {known.name for known in rules}
    ]
    try:
        async with catalogue.batch() as plan:
            if rules:
                ensure_rules(plan, rules)
            for path, description in in_order(namespace.entities):
                try:
                    _ensure(plan, path, description, first_rules.get(key_of(path)))
                    _ensure_taps(plan, path, taps.get(path, ()))
                except ServerBusy as error:
                    later.append(
                        f"the entity '{path}' is not as the configuration says: {error} Start again then."
                    )
    except BusbarError as error:
        raise ConfigError(f"The entities of the configuration could not be created: {error}") from None
    return later


def _rules(there: _WITH_RIGHTS, wanted: _WITH_RIGHTS) -> tuple[AuthorizationRule, ...]:
    """The rules that an entity has, with those of the file beside or in place of them. Keys stay."""
    known = {rule.name: rule for rule in there.authorization_rules}
    for rule in wanted.authorization_rules:
        old = known.get(rule.name)
        known[rule.name] = rule if old is None else replace(old, rights=rule.rights)
    return tuple(known.values())


def in_order(entities: Sequence[tuple[str, Description]]) -> Iterator[tuple[str, Description]]:
    """Entities in an order in which they can be created (rule 2)."""
    waiting = list(entities)
    while waiting:
        named = {key_of(path) for path, _ in waiting}
        now = [item for item in waiting if not _needs(item, named)]
        if not now:
            now = waiting  # they need each other: the error of the first one states it
        done = {key_of(path) for path, _ in now}
        yield from now
        waiting = [item for item in waiting if key_of(item[0]) not in done]


def _needs(item: tuple[str, Description], named: set[str]) -> bool:
    """Whether it needs another one of those that wait."""
    path, description = item
    needs = {key_of(parent_and_name(path)[0])}
    if isinstance(description, QueueDescription | SubscriptionDescription):
        needs |= {key_of(description.forward_to), key_of(description.forward_dead_lettered_messages_to)}
    return bool(needs & (named - {key_of(path)}))


def _ensure_taps(plan: ChangePlanner, path: str, taps: Sequence[TapDescription]) -> None:
    there = {(key_of(known.name), known.dead_letter) for known in plan.find(path).taps} if taps else ()
    for tap in taps:
        if (key_of(tap.name), tap.dead_letter) not in there:
            plan.create_tap(path, tap)


def _ensure(plan: ChangePlanner, path: str, description: Description, first_rule: NamedRule | None) -> None:
    try:
        try:
            there = plan.find(path).description
        except EntityNotFound:
            plan.create(path, description, first_rule)
            return
        if isinstance(there, _WITH_RIGHTS) and isinstance(description, _WITH_RIGHTS):
            description = replace(description, authorization_rules=_rules(there, description))
        if there != description:
            plan.update(path, description)
    except ServerBusy:
        raise
    except BusbarError as error:
        raise ConfigError(f"The entity '{path}' of the configuration cannot be used: {error}") from None
