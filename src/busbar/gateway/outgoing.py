"""A link on which a client receives from an entity.

The client's credit becomes demand on the fragment, in slices: never more than the client can take now (credit, unsettled
deliveries, a socket that keeps up) and about a mebibyte of messages at a time, so that a slow reader costs little memory.

    outstanding   demand that the fragment has not answered yet
    draining      the fragment was told to forget the rest of our demand (the client drains, or lowered its credit)

A settlement takes the same road as a send: the client is answered when the fragment's change is durable.
"""

from __future__ import annotations

from busbar.amqp.codec import encode_value
from busbar.amqp.envelope import encode_deliveries, split_tags
from busbar.amqp.link import Link
from busbar.amqp.outcomes import ACCEPTED, MODIFIED, REJECTED, RELEASED, Outcome
from busbar.gateway.peer import Peer
from busbar.model.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    RELEASE,
    Demand,
    Leave,
    Settle,
)
from busbar.model.effects import Delivered, Effect, Refused, Settled
from busbar.model.errors import ArgumentOutOfRange, BusbarError, MessageLockLost, NotImplementedHere
from busbar.model.limits import Limits
from busbar.model.message import Overlay
from busbar.model.port import EntityView

MAX_SLICE = 1_000
FIRST_SLICE = 16
SLICE_BYTES = 1024 * 1024

DEAD_LETTER_REASON = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION = "DeadLetterErrorDescription"


class OutgoingLink:
    """Entity to client."""

    def __init__(self, peer: Peer, link: Link, entity: EntityView, sub: int, delete: bool) -> None:
        self._peer = peer
        self._link = link
        self._fragment = entity.fragments[0]
        self._sub = sub
        self._delete = delete
        self._consumer = peer.consumer(self)
        self._outstanding = 0
        self._draining = False
        self._client_drains = False
        self._slice = FIRST_SLICE
        self._max_unsettled = peer.service.limits.max_unsettled

    def opened(self) -> None:
        """Clients may grant credit in the same breath as they attach."""
        if self._link.credit > 0 or self._link.drain:
            self.credit_changed(self._link.drain)

    def closed(self) -> None:
        self._peer.forget_consumer(self._consumer)
        self._peer.command(Leave(self._fragment, self._peer.origin, self._consumer))

    # Demand

    def credit_changed(self, drain: bool) -> None:
        if drain:
            self._client_drains = True
        self.replenish()

    def replenish(self) -> None:
        """Bring the demand on the fragment in line with what the client can take."""
        if self._draining:
            return
        link = self._link
        takes = self._max_unsettled - link.unsettled
        if self._client_drains:
            self._demand(max(0, min(link.credit, takes) - self._outstanding), drain=True)
            return
        want = 0
        if self._peer.writable:
            want = min(link.credit, takes, self._slice - link.queued)
            if link.queued:
                self._peer.retry(self)  # the client's session window is shut: look again when it has spoken
        if want > self._outstanding:
            # Small top-ups are left to gather: half a slice at a time, or all there is to ask for.
            if want - self._outstanding >= self._slice // 2 or want >= link.credit or not self._outstanding:
                self._demand(want - self._outstanding, drain=False)
        elif link.credit < self._outstanding:
            self._demand(0, drain=True)

    def _demand(self, credit: int, *, drain: bool) -> None:
        self._outstanding += credit
        self._draining = drain
        self._peer.command(
            Demand(self._fragment, self._peer.origin, self._consumer, self._sub, credit, drain, self._delete)
        )

    def drained(self) -> None:
        """The fragment has given what there was and has forgotten the rest of our demand."""
        self._draining = False
        self._outstanding = 0
        if self._client_drains:
            self._client_drains = False
            self._link.drained()
        self.replenish()

    # Deliveries

    def delivered(self, effect: Effect) -> None:
        assert isinstance(effect, Delivered)
        records = effect.records
        self._outstanding = max(0, self._outstanding - len(records))
        link = self._link
        if not self._delete and link.credit < len(records):
            # The client has lowered its credit meanwhile: the rest goes back as if it had never left.
            kept = max(0, link.credit)
            back = records[kept:]
            records = records[:kept]
            numbers = [record.n for record in back]
            nonces = [effect.nonce] * len(back)
            self._settle(0, RELEASE, numbers, nonces, None)
        if records:
            tags, payloads = encode_deliveries(records, effect.fragment, 0, effect.nonce, effect.until, -1)
            link.deliver(tags, payloads, self._delete)
            mean = max(1, sum(record.size for record in records) // len(records))
            self._slice = max(1, min(MAX_SLICE, SLICE_BYTES // mean))
        self.replenish()

    # Settlement

    def disposed(self, ids: list[int], tags: list[bytes], settled: bool, outcome: Outcome | None) -> None:
        if self._delete:
            return  # deleted when they were delivered: nothing to settle
        try:
            code, action, overlay = _action(outcome, self._peer.service.limits)
        except BusbarError as error:
            if settled:
                code, action, overlay = RELEASED, RELEASE, None
            else:
                for delivery_id in ids:
                    self._link.deny(delivery_id, error.condition, error.text)
                return
        if action < 0:
            return  # `received`: a progress report, not an outcome
        numbers, nonces = split_tags(tags)
        request = 0 if settled else self._peer.expect(_Settling(self, self._link, ids, code))
        self._settle(request, action, numbers, nonces, overlay)
        if settled:
            self.replenish()

    def _settle(
        self, request: int, action: int, numbers: list[int], nonces: list[int], overlay: Overlay | None
    ) -> None:
        self._peer.command(
            Settle(self._fragment, self._peer.origin, request, action, numbers, nonces, overlay, False)
        )


class _Settling:
    """Deliveries whose settlement is on its way to the store."""

    __slots__ = ("_code", "_ids", "_link", "_owner")

    def __init__(self, owner: OutgoingLink, link: Link, ids: list[int], code: int) -> None:
        self._owner = owner
        self._link = link
        self._ids = ids
        self._code = code

    def answered(self, effect: Effect) -> None:
        link, ids = self._link, self._ids
        if isinstance(effect, Refused):
            for delivery_id in ids:
                link.deny(delivery_id, effect.condition, effect.text)
        else:
            assert isinstance(effect, Settled)
            if effect.lost:
                lost = set(effect.lost)
                for index in effect.lost:
                    link.deny(ids[index], MessageLockLost.condition, LOCK_LOST)
                ids = [delivery_id for index, delivery_id in enumerate(ids) if index not in lost]
            if ids:
                link.confirm(ids, self._code)
        self._owner.replenish()


LOCK_LOST = "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."


def _action(outcome: Outcome | None, limits: Limits) -> tuple[int, int, Overlay | None]:
    """The code to confirm with, the settlement it asks for (-1: none), and the properties it sets."""
    if outcome is None:
        return RELEASED, RELEASE, None
    if outcome.txn is not None:
        raise NotImplementedHere("Transactions are not served by this version of Busbar.")
    if outcome.code == ACCEPTED:
        return ACCEPTED, COMPLETE, None
    if outcome.code == MODIFIED:
        # Only undeliverable-here tells defer from abandon: SDKs leave delivery-failed as it comes.
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
