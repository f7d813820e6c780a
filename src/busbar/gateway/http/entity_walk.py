"""All entities of a namespace in the order of their names: queues, then topics, each with its subscriptions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from busbar.model.api import BrokerApi, EntityView
from busbar.model.entities import EntityKind
from busbar.model.errors import EntityNotFound

LISTED_AT_ONCE: Final = 1_000


async def entities_of(broker: BrokerApi) -> AsyncIterator[EntityView]:
    async for queue in _listed(broker, EntityKind.QUEUE):
        yield queue
    async for topic in _listed(broker, EntityKind.TOPIC):
        yield topic
        with suppress(EntityNotFound):  # it was deleted in between
            async for subscription in _listed(broker, EntityKind.SUBSCRIPTION, topic.path):
                yield subscription


async def _listed(broker: BrokerApi, kind: EntityKind, parent: str = "") -> AsyncIterator[EntityView]:
    skip = 0
    while listed := await broker.list(kind, parent, skip, LISTED_AT_ONCE):
        skip += len(listed)
        for entity in listed:
            yield entity
        if len(listed) < LISTED_AT_ONCE:
            return
