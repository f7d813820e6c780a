"""Serves all entities of the namespace as a Config.json document, without keys. JSON, with the Manage right:

GET   /$busbar/definitions

A change that is made meanwhile may be in the document or not; each entity is described as it was at one time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import fields

from busbar.model.api import BrokerApi, EntityView
from busbar.model.config_document import Json, entity_document, rules_document
from busbar.model.entities import (
    EntityKind,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.errors import EntityNotFound
from busbar.model.limits import SHARED_LIMITS, Limits, limits_of
from busbar.model.names import parent_and_name

PAGE = 100


async def definitions(broker: BrokerApi, limits: Limits) -> Json:
    """The document, with the limits that differ from those of the tier."""
    namespace = await broker.namespace()
    usual = limits_of(namespace.tier)
    names = [
        field.name for field in fields(Limits) if getattr(limits, field.name) != getattr(usual, field.name)
    ]
    queues, topics = [], []
    async for view in _all(broker, EntityKind.QUEUE, ""):
        if isinstance(view.description, QueueDescription):
            queues.append(entity_document(view.path, view.description))
    async for view in _all(broker, EntityKind.TOPIC, ""):
        if isinstance(view.description, TopicDescription):
            topics.append(await _topic(broker, view.path, view.description))
    return {
        "UserConfig": {"Namespaces": [{"Name": namespace.name, "Queues": queues, "Topics": topics}]},
        "Busbar": {
            "Tier": namespace.tier.value,
            "Limits": {name: getattr(limits, name) for name in names if name not in SHARED_LIMITS},
        },
    }


async def _topic(broker: BrokerApi, path: str, description: TopicDescription) -> Json:
    document = entity_document(path, description)
    subscriptions = []
    async for view in _all(broker, EntityKind.SUBSCRIPTION, path):
        if not isinstance(view.description, SubscriptionDescription):
            continue
        one = entity_document(parent_and_name(view.path)[1], view.description)
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
