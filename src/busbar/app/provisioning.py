"""Makes the namespace what its configuration says.

Rules:
1. What the file names becomes as it says; what it does not name stays as it is, authorization rules of entities included.
2. What is forwarded to comes before what forwards to it, wherever they stand in the file.
3. A new subscription gets the first of its rules in the file instead of the one that lets everything through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from busbar.app.config import ConfigError, NamespaceConfig
from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.planning import ChangePlanner
from busbar.model.api import NamedRule
from busbar.model.entities import (
    Description,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.errors import BusbarError, EntityNotFound, ServerBusy
from busbar.model.names import key_of, parent_and_name

_WITH_RIGHTS = QueueDescription | TopicDescription


async def provision(catalogue: Catalogue, namespace: NamespaceConfig) -> list[str]:
    """Returns what could not be done for now, since a store is unavailable."""
    first_rules: dict[str, NamedRule] = {}
    for path, description in namespace.entities:
        if isinstance(description, RuleDescription):
            parent, name = parent_and_name(path)
            first_rules.setdefault(key_of(parent), (name, description))
    later: list[str] = []
    try:
        async with catalogue.batch() as plan:
            for path, description in _in_order(namespace):
                try:
                    _ensure(plan, path, description, first_rules.get(key_of(path)))
                except ServerBusy as error:
                    later.append(
                        f"the entity '{path}' is not as the configuration says: {error} Start again then."
                    )
    except BusbarError as error:
        raise ConfigError(f"The entities of the configuration could not be created: {error}") from None
    return later


def _in_order(namespace: NamespaceConfig) -> Iterator[tuple[str, Description]]:
    waiting = list(namespace.entities)
    while waiting:
        named = {key_of(path) for path, _ in waiting}
        now = [item for item in waiting if not _needs(item, named)]
        if not now:
            now = waiting  # they wait for each other: the first one's error says so
        done = {key_of(path) for path, _ in now}
        yield from now
        waiting = [item for item in waiting if key_of(item[0]) not in done]


def _needs(item: tuple[str, Description], named: set[str]) -> bool:
    """Does it need another one of those that wait?"""
    path, description = item
    needs = {key_of(parent_and_name(path)[0])}
    if isinstance(description, QueueDescription | SubscriptionDescription):
        needs |= {key_of(description.forward_to), key_of(description.forward_dead_lettered_messages_to)}
    return bool(needs & (named - {key_of(path)}))


def _ensure(plan: ChangePlanner, path: str, description: Description, first_rule: NamedRule | None) -> None:
    try:
        try:
            there = plan.find(path).description
        except EntityNotFound:
            plan.create(path, description, first_rule)
            return
        if isinstance(there, _WITH_RIGHTS) and isinstance(description, _WITH_RIGHTS):
            description = replace(description, authorization_rules=there.authorization_rules)
        if there != description:
            plan.update(path, description)
    except ServerBusy:
        raise
    except BusbarError as error:
        raise ConfigError(f"The entity '{path}' of the configuration cannot be used: {error}") from None
