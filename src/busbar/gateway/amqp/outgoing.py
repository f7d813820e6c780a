"""A link on which a client receives from an entity.

The client's credit becomes credit of the entity's fragments (partitions/receiver.py). It is never more than the client can
take now: credit, unsettled deliveries, a socket that keeps up. It is at most about a mebibyte of messages at a time. So a
slow reader costs little memory.

A settlement takes the same way as a send: the client is answered when the fragment's change is durable. Deliveries of
several fragments that are settled together are settled fragment by fragment. A settlement that names a transaction joins it
(enlisting.py).
"""

from __future__ import annotations

from typing import ClassVar

from busbar.amqp.codec import encode_value
from busbar.amqp.link import Link
from busbar.amqp.outcomes import ACCEPTED, MODIFIED, REJECTED, RELEASED, Outcome
from busbar.clock import wall_clock
from busbar.gateway.amqp.enlisting import EnlistedSettlement
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.tracing import SettleSpans
from busbar.message.delivery import CONTENT_HEAD, encode_deliveries
from busbar.message.lock_token import split_by_fragment, split_tags
from busbar.model.api import EntityView
from busbar.model.commands import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE, Settle
from busbar.model.effects import Effect, Refused, Settled
from busbar.model.errors import ArgumentOutOfRange, BusbarError, MessageLockLost
from busbar.model.limits import Limits
from busbar.model.message import Overlay, Record
from busbar.partitions.credit_allocation import FragmentCredit
from busbar.partitions.origin import Origin
from busbar.partitions.receiver import receiver_of
from busbar.partitions.resolver import LOCK_LOST

DEAD_LETTER_REASON = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION = "DeadLetterErrorDescription"


class OutgoingLink:
    """Entity to client."""

    lost_error: ClassVar[type[BusbarError]] = MessageLockLost
    lost_text: ClassVar[str] = LOCK_LOST

    def __init__(
        self,
        peer: LinkConnection,
        link: Link,
        entity: EntityView,
        sub: int,
        delete: bool,
        resource: str,
        asker: Origin | None = None,
        whole: EntityView | None = None,
    ) -> None:
        """`asker` asks the fragments in the place of the connection. `entity` may be a part of the `whole`."""
        self._peer = peer
        self._link = link
        self._entity = whole or entity
        self._resource = resource
        self._fragments = entity.fragments
        self.sub = sub
        self._delete = delete
        self._max_unsettled = peer.service.limits.max_unsettled
        self._times = peer.service.deliveries
        tracer = peer.service.tracer
        self.spans = SettleSpans(tracer, self._entity.path, not delete) if tracer is not None else None
        self._receiver = receiver_of(asker or peer, self, entity, sub, delete)
        peer.service.clients.linked(peer.origin, link.name, self._receiver.consumers())

    def opened(self, now: int) -> None:
        """Ask for messages at once: clients may grant credit together with the attach."""
        if self._link.credit > 0 or self._link.drain:
            self.credit_changed(self._link.drain, now)

    def closed(self) -> None:
        self._receiver.close()

    def vanished(self) -> None:
        """Release what was not delivered, since the connection is lost. It need not wait for the end of its lock."""
        self._receiver.release_all()

    def credit_changed(self, drain: bool, now: int) -> None:
        if drain:
            self._receiver.drain(now)
        else:
            self._receiver.replenish(now)

    def replenish(self, now: int) -> None:
        self._receiver.replenish(now)

    # What the client can take

    def credit(self) -> int:
        return self._link.credit

    def capacity(self) -> int:
        link = self._link
        return min(link.credit, self._max_unsettled - link.unsettled)

    def wanted(self, most: int) -> int:
        if not self._peer.writable:
            return 0
        queued = self._link.queued
        if queued:
            self._peer.retry(self)  # the session window is shut: again after the client's next bytes
        return min(self.capacity(), most - queued)

    def deliver(self, demand: FragmentCredit, records: list[Record], nonce: int, until: int) -> None:
        now = self._measure(records)
        tags, heads, contents = encode_deliveries(
            records, demand.fragment, demand.index, nonce, until, demand.partition
        )
        if self.spans is not None:
            self.spans.delivered(tags, records, now)
        self._link.deliver(tags, heads, self._delete, contents=contents, skip=CONTENT_HEAD)

    def _measure(self, records: list[Record]) -> int:
        """Note how long it took from enqueuing to delivery. Records are in the order of their numbers. Returns the time."""
        now = wall_clock()
        self._times.add_run(now - records[0].enqueued, now - records[-1].enqueued, len(records))
        return now

    def drained(self) -> None:
        self._link.drained()

    # Settlement

    def disposed(
        self, ids: list[int], tags: list[bytes], settled: bool, outcome: Outcome | None, now: int
    ) -> None:
        if self._delete:
            return  # deleted when they were delivered: nothing to settle
        spans = self.spans
        if outcome is not None and outcome.txn is not None:
            if spans is not None:
                spans.forget(tags)
            limits = self._peer.service.limits
            enlisted = EnlistedSettlement(self._peer, self, self._link, ids, not settled)
            enlisted.begin(
                outcome.txn, self._entity, self._resource, tags, lambda: _action(outcome, limits), now
            )
            return
        try:
            code, action, overlay = _action(outcome, self._peer.service.limits)
        except BusbarError as error:
            if settled:
                code, action, overlay = RELEASED, RELEASE, None
            else:
                if spans is not None:
                    spans.begin(ids, tags, DEAD_LETTER)
                self.deny(ids, error.condition, error.text)
                return
        if action < 0:
            return  # `received`: a progress report, not an outcome
        if spans is not None:
            spans.begin(ids, tags, action)
            if settled:
                spans.end(ids)  # there is no answer
        if len(self._fragments) == 1:
            numbers, nonces = split_tags(tags)
            self._settle(self._fragments[0], ids, numbers, nonces, settled, code, action, overlay)
        else:
            for fragment, indexes, numbers, nonces in split_by_fragment(tags):
                theirs = ids if len(indexes) == len(ids) else [ids[index] for index in indexes]
                self._settle(fragment, theirs, numbers, nonces, settled, code, action, overlay)
        if settled:
            self._receiver.replenish(now)

    def deny(self, ids: list[int], condition: str, text: str) -> None:
        """Answer that deliveries were not settled."""
        self._peer.service.refusals.add(condition, len(ids))
        if self.spans is not None:
            self.spans.end(ids, condition)
        for delivery_id in ids:
            self._link.deny(delivery_id, condition, text)

    def _settle(
        self,
        fragment: int,
        ids: list[int],
        numbers: list[int],
        nonces: list[int],
        settled: bool,
        code: int,
        action: int,
        overlay: Overlay | None,
    ) -> None:
        peer = self._peer
        request = 0 if settled else peer.expect(_Settling(self, self._link, ids, code))
        peer.command(Settle(fragment, peer.origin, request, action, numbers, nonces, overlay, False))


class _Settling:
    """Deliveries whose settlement is on its way to the store."""

    __slots__ = ("_code", "_ids", "_link", "_owner")

    def __init__(self, owner: OutgoingLink, link: Link, ids: list[int], code: int) -> None:
        self._owner = owner
        self._link = link
        self._ids = ids
        self._code = code

    def answered(self, effect: Effect, now: int) -> None:
        link, ids, owner = self._link, self._ids, self._owner
        if isinstance(effect, Refused):
            owner.deny(ids, effect.condition, effect.text)
        else:
            assert isinstance(effect, Settled)
            if effect.lost:
                lost = set(effect.lost)
                owner.deny([ids[index] for index in effect.lost], owner.lost_error.condition, owner.lost_text)
                ids = [delivery_id for index, delivery_id in enumerate(ids) if index not in lost]
            if ids:
                link.confirm(ids, self._code)
                if owner.spans is not None:
                    owner.spans.end(ids)
        owner.replenish(now)


def _action(outcome: Outcome | None, limits: Limits) -> tuple[int, int, Overlay | None]:
    """The code to confirm with, the settlement it asks for (-1: none), and the properties it sets."""
    if outcome is None:
        return RELEASED, RELEASE, None
    if outcome.code == ACCEPTED:
        return ACCEPTED, COMPLETE, None
    if outcome.code == MODIFIED:
        # Only undeliverable-here distinguishes defer from abandon: SDKs leave delivery-failed as it comes.
        action = DEFER if outcome.undeliverable else ABANDON
        return MODIFIED, action, overlay_of(outcome.annotations)
    if outcome.code == REJECTED:
        error = outcome.error
        info = dict(error.info or {}) if error is not None else {}
        if error is not None and error.description and DEAD_LETTER_DESCRIPTION not in info and info:
            info[DEAD_LETTER_DESCRIPTION] = error.description
        return REJECTED, DEAD_LETTER, dead_letter_overlay(info, limits)
    if outcome.code == RELEASED:
        return RELEASED, RELEASE, None
    return 0, -1, None


def overlay_of(properties: dict[object, object] | None) -> Overlay | None:
    """Properties to set on a message, encoded one by one."""
    if not properties:
        return None
    return {str(name): encode_value(value) for name, value in properties.items()}


def dead_letter_overlay(info: dict[object, object], limits: Limits) -> Overlay | None:
    """The properties of a dead-lettering; reason and description are bounded, and left out when empty."""
    kept: dict[object, object] = {}
    for name, value in info.items():
        if name in (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION):
            if value is None or value == "":
                continue
            text = str(value)
            if len(text) > limits.max_dead_letter_text:
                raise ArgumentOutOfRange(
                    f"{name} has {len(text)} characters; at most {limits.max_dead_letter_text} are allowed."
                )
            value = text
        kept[name] = value
    return overlay_of(kept)
