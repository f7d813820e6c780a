"""Messages that one entity keeps for another one: its outbox moves them there (send via).

1. The message is never a message of the entity that keeps it. The fragment whose outbox takes it is that of its
   ViaPartitionKey, else of its own key.
2. The fragment of the destination is chosen here, as for a direct send: by the key, else round robin. It never changes. The
   ViaPartitionKey plays no part there.
3. What the destination would refuse and the gateway can see is refused at once: a SessionId that is missing, keys that
   contradict each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from busbar.model.api import EntityView
from busbar.model.entities import QueueDescription, SubscriptionDescription, TopicDescription
from busbar.model.errors import InvalidOperation
from busbar.model.message import VIA, Draft
from busbar.model.partitioning import key_of
from busbar.partitions.routing import Router

VIA_KEYS = "A ViaPartitionKey does as well for a message that goes on to another entity."


def check_session(entity: EntityView, drafts: Sequence[Draft]) -> None:
    """An entity with sessions takes messages with a SessionId, and with no other PartitionKey. Raises InvalidOperation."""
    description = entity.description
    if not isinstance(description, QueueDescription | SubscriptionDescription):
        return
    if not description.requires_session:
        return
    for draft in drafts:
        if draft.session_id is None:
            raise InvalidOperation(f"'{entity.path}' requires sessions: a message needs a SessionId.")
        key_of(draft, False)  # which raises if the PartitionKey is another one


def direct_key(draft: Draft, entity: EntityView) -> str | None:
    """The key by which an entity keeps a message; None if it has none. Raises InvalidOperation."""
    description = entity.description
    detects_duplicates = (
        isinstance(description, QueueDescription | TopicDescription)
        and description.requires_duplicate_detection
    )
    return key_of(draft, detects_duplicates)


def via_key(draft: Draft, entity: EntityView) -> str | None:
    """The key by which an entity keeps a message that is for another one."""
    return draft.via_key or direct_key(draft, entity)


def set_targets(drafts: Sequence[Draft], destination: EntityView, router: Router) -> None:
    """Set the fragment to which each message goes. `router` is the destination's. Raises InvalidOperation."""
    for draft in drafts:
        draft.via_key = None
    indexes = [router.index(draft) if router.partitioned else 0 for draft in drafts]
    for draft, index in zip(drafts, indexes, strict=True):
        draft.kind = VIA
        draft.path = destination.path
        draft.target = router.fragments[index if index >= 0 else router.next_index()]
