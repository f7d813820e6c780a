"""A link on which a client sends to an entity.

Every complete delivery of one read becomes one Send command; a Service Bus batch is a Send of its own, all or none.
A delivery is answered once it is durable: accepted, or rejected with the error - never anything else (SDKs hang on it).
"""

from __future__ import annotations

from busbar.amqp.envelope import message_format_batch, parse_batch, parse_message
from busbar.amqp.events import Delivery
from busbar.amqp.link import Link
from busbar.gateway.peer import Peer
from busbar.model.commands import Send
from busbar.model.effects import Effect, Refused, Sent
from busbar.model.errors import BusbarError, MessageSizeExceeded, NotImplementedHere
from busbar.model.message import Draft
from busbar.model.port import EntityView

CREDIT = 1_000


class IncomingLink:
    """Client to entity. Credit is topped up at half, so that the client never waits for it."""

    def __init__(self, peer: Peer, link: Link, entity: EntityView, max_message_size: int) -> None:
        self._peer = peer
        self._link = link
        self._fragment = entity.fragments[0]
        self._max_message_size = max_message_size
        self._max_id = peer.service.limits.max_id_length

    def opened(self) -> None:
        self._link.grant(CREDIT)

    def closed(self) -> None:
        """Nothing to give back: what was sent is answered by nobody, but it is stored."""

    def arrived(self, deliveries: list[Delivery]) -> None:
        drafts: list[Draft] = []
        ids: list[int] = []
        size = 0
        peer = self._peer
        for delivery in deliveries:
            try:
                self._check(delivery)
                payload = delivery.payload
                if delivery.format == message_format_batch:
                    self._send(drafts, ids, size, atomic=False)
                    drafts, ids, size = [], [], 0
                    batch = parse_batch(payload, peer.fresh_id, self._max_id)
                    answer = [] if delivery.settled else [delivery.id]
                    self._send(batch, answer, len(payload), atomic=True)
                    continue
                drafts.append(parse_message(payload, 0, len(payload), peer.fresh_id(), self._max_id))
                ids.append(-1 if delivery.settled else delivery.id)
                size += len(payload)
            except BusbarError as error:
                if not delivery.settled:
                    self._link.reject_delivery(delivery.id, error.condition, error.text)
        self._send(drafts, ids, size, atomic=False)
        if self._link.credit <= CREDIT // 2:
            self._link.grant(CREDIT)

    def _check(self, delivery: Delivery) -> None:
        if delivery.oversized:
            raise MessageSizeExceeded(
                f"The message is larger than the limit of {self._max_message_size} bytes on this link."
            )
        if delivery.txn is not None:
            raise NotImplementedHere("Transactions are not served by this version of Busbar.")

    def _send(self, drafts: list[Draft], ids: list[int], size: int, *, atomic: bool) -> None:
        if not drafts:
            return
        peer = self._peer
        peer.arriving(size)
        request = peer.expect(_Awaited(peer, self._link, ids, size, atomic))
        peer.command(Send(self._fragment, peer.origin, request, drafts, atomic))


class _Awaited:
    """Deliveries whose messages are on their way to the store."""

    __slots__ = ("_atomic", "_ids", "_link", "_peer", "_size")

    def __init__(self, peer: Peer, link: Link, ids: list[int], size: int, atomic: bool) -> None:
        self._peer = peer
        self._link = link
        self._ids = ids  # -1: settled by the sender, who wants no answer
        self._size = size
        self._atomic = atomic

    def answered(self, effect: Effect) -> None:
        self._peer.arriving(-self._size)
        link, ids = self._link, self._ids
        if isinstance(effect, Refused):
            for delivery_id in ids:
                if delivery_id >= 0:
                    link.reject_delivery(delivery_id, effect.condition, effect.text)
            return
        assert isinstance(effect, Sent)
        if effect.refused:
            if self._atomic:
                _index, condition, text = effect.refused[0]
                for delivery_id in ids:
                    link.reject_delivery(delivery_id, condition, text)
                return
            refused = {index: (condition, text) for index, condition, text in effect.refused}
            for index, (condition, text) in refused.items():
                if ids[index] >= 0:
                    link.reject_delivery(ids[index], condition, text)
            ids = [delivery_id for index, delivery_id in enumerate(ids) if index not in refused]
        if -1 in ids:
            ids = [delivery_id for delivery_id in ids if delivery_id >= 0]
        if ids:
            link.accept_deliveries(ids)
