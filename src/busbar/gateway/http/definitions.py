"""Serves all entities of the namespace as a Config.json document. JSON, with the Manage right:

GET   /$busbar/definitions[?keys=true]      with the keys of authorization rules, if that is asked for

A change that is made meanwhile may be in the document or not; each entity is described as it was at one time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import fields

from busbar.model.api import BrokerApi, EntityView
from busbar.model.config_document import Json, access_document, entity_document, rules_document
from busbar.model.entities import (
    EntityKind,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    authorization_rules_of,
)
from busbar.model.errors import EntityNotFound
from busbar.model.limits import SHARED_LIMITS, Limits, limits_of
from busbar.model.names import NAMESPACE_ENTRY, parent_and_name

PAGE = 100


async def definitions(broker: BrokerApi, limits: Limits, *, keys: bool = False) -> Json:
    """The document, with the limits that differ from those of the tier."""
    namespace = await broker.namespace()
    usual = limits_of(namespace.tier)
    names = [
        field.name for field in fields(Limits) if getattr(limits, field.name) != getattr(usual, field.name)
    ]
    queues, topics = [], []
    async for view in _all(broker, EntityKind.QUEUE, ""):
        if isinstance(view.description, QueueDescription):
            queues.append(entity_document(view.path, view.description, view.taps, keys=keys))
    async for view in _all(broker, EntityKind.TOPIC, ""):
        if isinstance(view.description, TopicDescription):
            topics.append(await _topic(broker, view.path, view.description, keys))
    rules = authorization_rules_of((await broker.entity(NAMESPACE_ENTRY)).description)
    return {
        "UserConfig": {"Namespaces": [{"Name": namespace.name, "Queues": queues, "Topics": topics}]},
        "Busbar": {
            "Tier": namespace.tier.value,
            "Limits": {name: getattr(limits, name) for name in names if name not in SHARED_LIMITS},
            "AuthorizationRules": [access_document(rule, keys=keys) for rule in rules],
        },
    }


async def _topic(broker: BrokerApi, path: str, description: TopicDescription, keys: bool) -> Json:
    document = entity_document(path, description, keys=keys)
    subscriptions = []
    async for view in _all(broker, EntityKind.SUBSCRIPTION, path):
        if not isinstance(view.description, SubscriptionDescription):
            continue
        one = entity_document(parent_and_name(view.path)[1], view.description, view.taps)
        rules = [
            (parent_and_name(rule.path)[1], rule.description)
            async for rule in _all(broker, EntityKind.RULE, view.path)
            if isinstance(rule.description, RuleDescription)
        ]
        one["Rules"] = rules_document(rules)
        subscriptions.append(one)
    if subscriptions:
        document["Subscriptions"] = subscriptions
    return document


async def _all(broker: BrokerApi, kind: EntityKind, parent: str) -> AsyncIterator[EntityView]:
    """All entries below a parent, page by page. If the parent is deleted meanwhile, there are no more."""
    skip = 0
    while True:
        try:
            page = await broker.list(kind, parent, skip, PAGE)
        except EntityNotFound:
            return
        for view in page:
            yield view
        if len(page) < PAGE:
            return
        skip += PAGE
