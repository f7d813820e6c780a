"""Creates the router of a sender. The gateway draws at random the fragment at which its round robin begins."""

from __future__ import annotations

import secrets

from busbar.model.api import EntityView, FragmentApi
from busbar.partitions.routing import Router


def new_router(broker: FragmentApi, entity: EntityView, repeats: bool = False) -> Router:
    return Router(entity, secrets.randbelow(len(entity.fragments)), repeats, broker.is_near)
