"""A link on which a client sends to one entity via another (link property `com.microsoft:transfer-destination-address`).

The link is to the entity that keeps the messages in its outbox, which moves them on. Rules:
1. The client needs Send on both entities, for as long as it sends.
2. Messages go to the outbox in a transaction and outside of one. partitions/via.py chooses the fragments.
3. A batch is stored whole in the outbox, so on a partitioned entity all its messages have the same key there, or none has
   one. Its messages may go to different fragments of the destination.
"""

from __future__ import annotations

from busbar.amqp.events import Delivery
from busbar.amqp.link import Link
from busbar.gateway.amqp.incoming import IncomingLink
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.routers import new_router
from busbar.model.api import EntityView
from busbar.model.errors import BusbarError, InvalidOperation, Unauthorized
from busbar.model.message import Draft
from busbar.model.partitioning import index_of_key
from busbar.model.sas import SEND
from busbar.partitions.routing import DISTINCT_KEYS
from busbar.partitions.transaction import TransactionalSender
from busbar.partitions.via import check_session, set_targets, via_key


class ViaLink(IncomingLink):
    """Client to the outbox of an entity."""

    def __init__(
        self,
        peer: LinkConnection,
        link: Link,
        entity: EntityView,
        destination: EntityView,
        max_message_size: int,
        resources: list[str],
    ) -> None:
        super().__init__(peer, link, entity, max_message_size, resources[0])
        self._entity = entity
        self._destination = destination
        self._resources = resources
        self._targets = new_router(peer.service.broker, destination)
        self._sender = TransactionalSender(destination, self._targets, resources, entity)

    def arrived(self, deliveries: list[Delivery]) -> None:
        for resource in self._resources:
            if not self._peer.may(SEND, resource):
                text = f"The token for '{resource}' has expired or was withdrawn."
                self._peer.end_link(self._link, Unauthorized.condition, text)
                return
        super().arrived(deliveries)

    def _send_each(self, drafts: list[Draft], ids: list[int], size: int) -> None:
        by_index: dict[int, tuple[list[Draft], list[int]]] = {}
        for draft, delivery_id in zip(drafts, ids, strict=True):
            try:
                index = self._index([draft])
            except BusbarError as error:
                self._reject(delivery_id, error)
                continue
            part = by_index.setdefault(index, ([], []))
            part[0].append(draft)
            part[1].append(delivery_id)
        for index, (theirs, their_ids) in by_index.items():
            self._send_to(index, theirs, their_ids, atomic=False)

    def _send_batch(self, drafts: list[Draft], delivery_id: int, size: int) -> None:
        self._send_to(self._index(drafts), drafts, [delivery_id], atomic=True)

    def _index(self, drafts: list[Draft]) -> int:
        """The fragment whose outbox takes messages, which get their targets; -1: any. Raises InvalidOperation."""
        check_session(self._destination, drafts)
        keys: set[str | None] = {None}
        if self._router.partitioned:
            keys = {via_key(draft, self._entity) for draft in drafts}
        if len(keys) > 1:
            raise InvalidOperation(DISTINCT_KEYS)
        set_targets(drafts, self._destination, self._targets)
        key = keys.pop()
        if key is None:
            return -1 if self._router.partitioned else 0
        return index_of_key(key, len(self._router.fragments))

    def _send_to(self, index: int, drafts: list[Draft], ids: list[int], *, atomic: bool) -> None:
        size = sum([len(draft.content) for draft in drafts])
        if index >= 0:
            self._send(index, drafts, ids, size, atomic=atomic)
        else:
            self._send_any(drafts, ids, size, atomic=atomic)
