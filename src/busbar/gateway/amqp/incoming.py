"""A link on which a client sends to an entity.

All complete deliveries of one read become one Send command for each fragment that they concern (routing.py). On a regular
entity that is one command. A Service Bus batch is a Send of its own, all or none. A delivery is answered once it is durable:
accepted, or rejected with the error. SDKs hang on any other outcome.

A client can ask for the link capability MIXED_BATCHES, which the broker then offers. With it, the messages of a batch to a
partitioned entity may have different keys (sends.py). A rejection because a store is unavailable then also states whether
nothing was stored (NOT_STORED). A link with the properties of a writer is a link of that writer (writers.py).

A client can also ask for the link capability DUPLICATES. The answer to a delivery then states how many of its messages were
dropped, because the entity remembers their ids. Other clients get the same answer for these as for stored messages.

A delivery that names a transaction joins it. It is answered at once, or with a discharge that came in the same turn. Its
messages are stored when the transaction is committed. Writers cannot take part: what they repeat is recognised when it is
stored, not before.
"""

from __future__ import annotations

from busbar.amqp.events import Delivery
from busbar.amqp.link import Link
from busbar.amqp.outcomes import annotated_state
from busbar.amqp.types import Int, Symbol
from busbar.clock import wall_clock
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.routers import new_router
from busbar.gateway.tracing import SendSpans
from busbar.message.parsing import message_format_batch, parse_batch, parse_incoming
from busbar.model.api import EntityView
from busbar.model.errors import (
    ArgumentError,
    BusbarError,
    InvalidOperation,
    MessageSizeExceeded,
    ServerBusy,
)
from busbar.model.message import Draft
from busbar.partitions.sends import FailoverSend, MixedBatch, PendingSend, WriterBatch, send_of
from busbar.partitions.transaction import TransactionalSender

CREDIT = 1_000
MIXED_BATCHES = "busbar:mixed-batches"
FAILED = "busbar:failed"
UNKNOWN = "busbar:unknown"
"""Keys of the error info of a mixed batch: lists of the indexes of its messages."""
DUPLICATES = "busbar:duplicates"
"""A link capability, and the key of the number of dropped messages in an answer."""
NOT_STORED = "busbar:not-stored"
"""A key of the error info of a delivery that can be sent again at once, since certainly nothing of it was stored."""


class IncomingLink:
    """Client to entity. Credit is topped up at half, so that the client never waits for it."""

    def __init__(
        self,
        peer: LinkConnection,
        link: Link,
        entity: EntityView,
        max_message_size: int,
        resource: str,
        mixed_batches: bool = False,
        writer: WriterBatch | None = None,
        counts_duplicates: bool = False,
    ) -> None:
        self._peer = peer
        self._link = link
        self._counts_duplicates = counts_duplicates
        self._router = new_router(peer.service.broker, entity, writer is not None)
        self._sender = TransactionalSender(entity, self._router, [resource])
        self._writer = writer
        self._fresh_id = peer.fresh_id if writer is None else _no_id
        self._max_message_size = max_message_size
        self._max_id = peer.service.limits.max_id_length
        self._max_header = peer.service.limits.max_header_size
        self._mixed_batches = mixed_batches
        self._accepted: list[int] = []
        tracer = peer.service.tracer
        self._spans = SendSpans(tracer, entity.path) if tracer is not None else None

    def opened(self, now: int) -> None:
        self._link.grant(CREDIT)

    def closed(self) -> None:
        """Release nothing: messages that were sent are stored, though their client gets no answer."""

    def arrived(self, deliveries: list[Delivery]) -> None:
        if self._spans is not None:
            self._spans.begin(deliveries)
        drafts: list[Draft] = []
        ids: list[int] = []
        size = 0
        joining: list[Delivery] = []
        for delivery in deliveries:
            if joining and delivery.txn != joining[0].txn:
                self._enlist_all(joining)
                joining = []
            if delivery.txn is not None:
                joining.append(delivery)
                continue
            try:
                self._check(delivery)
                payload = delivery.payload
                if delivery.format == message_format_batch:
                    self._send_each(drafts, ids, size)
                    drafts, ids, size = [], [], 0
                    batch = parse_batch(payload, self._fresh_id, self._max_id, self._max_header)
                    if self._writer is not None:
                        _check_ids(batch, self._writer)
                    self._send_batch(batch, -1 if delivery.settled else delivery.id, len(payload))
                    continue
                draft = parse_incoming(
                    payload, 0, len(payload), self._fresh_id, self._max_id, self._max_header
                )
                if self._writer is not None:
                    _check_ids([draft], self._writer)
                drafts.append(draft)
                ids.append(-1 if delivery.settled else delivery.id)
                size += len(payload)
            except BusbarError as error:
                self._refuse(delivery, error)
        if joining:
            self._enlist_all(joining)
        self._send_each(drafts, ids, size)
        if self._link.credit <= CREDIT // 2:
            self._link.grant(CREDIT)

    def _check(self, delivery: Delivery) -> None:
        if delivery.oversized:
            raise MessageSizeExceeded(
                f"The message is larger than the limit of {self._max_message_size} bytes on this link."
            )

    def _enlist_all(self, deliveries: list[Delivery]) -> None:
        """Let deliveries join a transaction, together if they can. If not, each one can or cannot by itself."""
        try:
            self._enlist(deliveries)
        except BusbarError as error:
            if len(deliveries) == 1:
                self._refuse(deliveries[0], error)
                return
            for delivery in deliveries:
                self._enlist_all([delivery])

    def _enlist(self, deliveries: list[Delivery]) -> None:
        """Let the messages of deliveries join a transaction. The client is answered, but nothing is stored yet."""
        peer = self._peer
        txn = deliveries[0].txn
        assert txn is not None, "it names a transaction"
        drafts: list[Draft] = []
        fresh_id, max_id, max_header = self._fresh_id, self._max_id, self._max_header
        for delivery in deliveries:
            self._check(delivery)
            payload = delivery.payload
            if delivery.format == message_format_batch:
                drafts += parse_batch(payload, fresh_id, max_id, max_header)
            else:
                drafts.append(parse_incoming(payload, 0, len(payload), fresh_id, max_id, max_header))
        transaction = peer.transactions.find(txn)
        if self._writer is not None:
            raise InvalidOperation(f"The writer '{self._writer.name}' cannot send in a transaction.")
        operation = transaction.send(self._sender, drafts, wall_clock())
        answered = [delivery.id for delivery in deliveries if not delivery.settled]
        peer.transactions.join(transaction, operation, _EnlistedSend(self._link, answered, txn))

    def _refuse(self, delivery: Delivery, error: BusbarError) -> None:
        """Reject a delivery. If the client has settled it and gets no answer, its transaction fails."""
        if not delivery.settled:
            self._reject(delivery.id, error)
        elif delivery.txn is not None:
            self._peer.transactions.fail(delivery.txn, error)

    def _reject(self, delivery_id: int, error: BusbarError) -> None:
        self._note_refusal(delivery_id, error.condition)
        if delivery_id >= 0:
            self._link.reject_delivery(delivery_id, error.condition, error.text)

    def _note_refusal(self, delivery_id: int, condition: str) -> None:
        self._peer.service.refusals.add(condition)
        if self._spans is not None:
            self._spans.end([delivery_id], condition)

    # Outcomes of sends

    def accept_deliveries(self, ids: list[int]) -> None:
        """Answer now, or, where several fragments may answer in a turn, at its end: then neighbours share a frame."""
        if self._spans is not None:
            self._spans.end(ids)
        if not self._router.partitioned:
            self._link.accept_deliveries(ids)
            return
        if not self._accepted:
            self._peer.answer_at_end(self)
        self._accepted += ids

    def answer(self) -> None:
        accepted, self._accepted = self._accepted, []
        accepted.sort()
        self._link.accept_deliveries(accepted)

    def accept_repetition(self, delivery_id: int, duplicates: int) -> None:
        if self._spans is not None:
            self._spans.end([delivery_id])
        if self._counts_duplicates:
            self._link.dispose([delivery_id], annotated_state({Symbol(DUPLICATES): Int(duplicates)}))
        else:
            self._link.accept_deliveries([delivery_id])

    def reject_delivery(
        self,
        delivery_id: int,
        condition: str,
        text: str,
        failed: list[int] | None = None,
        unknown: list[int] | None = None,
        *,
        certain: bool = False,
        duplicates: int = 0,
    ) -> None:
        self._note_refusal(delivery_id, condition)
        info: dict[object, object] | None = None
        if failed is not None and unknown is not None:
            info = {Symbol(FAILED): [Int(n) for n in failed], Symbol(UNKNOWN): [Int(n) for n in unknown]}
            if duplicates and self._counts_duplicates:
                info[Symbol(DUPLICATES)] = Int(duplicates)
        elif certain and self._mixed_batches and condition == ServerBusy.condition:
            info = {Symbol(NOT_STORED): True}
        self._link.reject_delivery(delivery_id, condition, text, info)

    # Messages that are answered one by one

    def _send_each(self, drafts: list[Draft], ids: list[int], size: int) -> None:
        if not drafts:
            return
        if not self._router.partitioned:
            self._send(0, drafts, ids, size, atomic=False)
            return
        router = self._router
        if router.keyless(drafts):
            self._send_any(drafts, ids, size, atomic=False)
            return
        by_index: dict[int, _FragmentPart] = {}
        at = 0
        for draft in drafts:
            delivery_id = ids[at]
            at += 1
            try:
                index = router.index(draft)
            except BusbarError as error:
                self._reject(delivery_id, error)
                continue
            part = by_index.get(index)
            if part is None:
                by_index[index] = part = _FragmentPart()
            part.drafts.append(draft)
            part.ids.append(delivery_id)
            part.size += len(draft.content)
        for index, part in by_index.items():
            if index >= 0:
                self._send(index, part.drafts, part.ids, part.size, atomic=False)
            else:
                self._send_any(part.drafts, part.ids, part.size, atomic=False)

    # Batches

    def _send_batch(self, drafts: list[Draft], delivery_id: int, size: int) -> None:
        router = self._router
        if not router.partitioned:
            self._send(0, drafts, [delivery_id], size, atomic=True)
            return
        if self._mixed_batches:
            MixedBatch(self._peer, self, router, delivery_id, drafts, self._writer).send()
            return
        index = router.index_of_batch(drafts)
        if index >= 0:
            self._send(index, drafts, [delivery_id], size, atomic=True)
        else:
            self._send_any(drafts, [delivery_id], size, atomic=True)

    # Commands

    def _send(self, index: int, drafts: list[Draft], ids: list[int], size: int, *, atomic: bool) -> None:
        """Send to this fragment and no other."""
        peer = self._peer
        peer.arriving(size)
        request = peer.expect(PendingSend(peer, self, ids, size, atomic))
        fragment = self._router.fragments[index]
        peer.command(send_of(self._writer, fragment, peer.origin, request, drafts, atomic))

    def _send_any(self, drafts: list[Draft], ids: list[int], size: int, *, atomic: bool) -> None:
        """Send to any fragment that takes it."""
        self._peer.arriving(size)
        FailoverSend(self._peer, self, ids, size, atomic, self._router, drafts).send()


class _FragmentPart:
    """The messages of one turn that go to one fragment."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.ids: list[int] = []
        self.size = 0


class _EnlistedSend:
    """Deliveries of a link whose messages have joined a transaction. No fragment has to agree to them before the commit."""

    __slots__ = ("_ids", "_link", "_txn")

    def __init__(self, link: Link, ids: list[int], txn: bytes) -> None:
        self._link = link
        self._ids = ids
        self._txn = txn

    def ask(self) -> None:
        self.accept()

    def accept(self) -> None:
        if self._ids:
            self._link.accept_in_txn(self._ids, self._txn)


def _no_id() -> str:
    return ""


def _check_ids(drafts: list[Draft], writer: WriterBatch) -> None:
    if not all(draft.message_id for draft in drafts):
        raise ArgumentError(
            f"A message of the writer '{writer.name}' has no message id, by which it would be known again."
        )
