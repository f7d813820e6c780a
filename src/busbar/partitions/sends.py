"""Follows deliveries on their way to the store, and reports their outcome to the sender.

    PendingSend   to one fragment: that fragment accepts or rejects
    FailoverSend  without a key: if a fragment certainly did not store a message, the next fragment gets it
    BatchSend     messages of one request that are stored together (HTTP, scheduling): to the fragment of their key, or
                  without a key as a FailoverSend
    MixedBatch    a batch of messages with different keys: a part for each fragment. It is not atomic. It is accepted
                  when all parts are durable, otherwise rejected. The rejection names, by their index in the batch, the
                  messages that failed and those with an unknown outcome. All others are stored

Outcomes of deliveries go to `SendOutcomes`, which an AMQP link implements. The effect of a BatchSend goes to the request
that waits for it. Each effect comes with its time, in ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from busbar.model.commands import Send
from busbar.model.effects import Effect, Refused, Sent
from busbar.model.errors import BusbarError, QuotaExceeded
from busbar.model.message import Draft
from busbar.partitions.origin import Origin, SendingOrigin
from busbar.partitions.routing import FAILOVER_MS, Router, may_fail_over


class SendOutcomes(Protocol):
    """The sender's end: it gets the outcome of each delivery."""

    def accept_deliveries(self, ids: list[int]) -> None:
        """All messages of these deliveries are durable."""

    def accept_repetition(self, delivery_id: int, duplicates: int) -> None:
        """All messages of the delivery are durable. So many of them were there before, and were dropped."""

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
        """Reject a delivery that was not stored. Of a mixed batch: which messages failed, which have an unknown outcome, and
        how many were dropped as duplicates. If `certain`, the store has nothing of the delivery."""


@dataclass(frozen=True, slots=True)
class WriterBatch:
    """A writer that may repeat a batch, and the batch (model/commands.py has the rules)."""

    name: str
    batch: int


def send_of(
    writer: WriterBatch | None, fragment: int, origin: int, request: int, drafts: list[Draft], atomic: bool
) -> Send:
    """The command for messages, with or without a writer."""
    if writer is None:
        return Send(fragment, origin, request, drafts, atomic)
    return Send(fragment, origin, request, drafts, atomic, writer.name, writer.batch)


class PendingSend:
    """Deliveries that one fragment answers."""

    __slots__ = ("_atomic", "_ids", "_outcomes", "_peer", "_size")

    def __init__(
        self, peer: SendingOrigin, outcomes: SendOutcomes, ids: list[int], size: int, atomic: bool
    ) -> None:
        self._peer = peer
        self._outcomes = outcomes
        self._ids = ids  # -1: settled by the sender, which gets no answer
        self._size = size
        self._atomic = atomic

    def answered(self, effect: Effect, now: int) -> None:
        self._peer.arriving(-self._size)
        self._report(effect)

    def _report(self, effect: Effect) -> None:
        ids = self._ids
        if isinstance(effect, Refused):
            for delivery_id in ids:
                self._reject(delivery_id, effect.condition, effect.text, effect.certain)
            return
        assert isinstance(effect, Sent)
        if effect.refused:
            if self._atomic:
                _index, condition, text = effect.refused[0]
                self._reject(ids[0], condition, text)
                return
            refused = {index: (condition, text) for index, condition, text in effect.refused}
            for index, (condition, text) in refused.items():
                self._reject(ids[index], condition, text)
            ids = [-1 if index in refused else delivery_id for index, delivery_id in enumerate(ids)]
        if effect.duplicates:
            ids = self._accept_repetitions(ids, effect.duplicates)
        if -1 in ids:
            ids = [delivery_id for delivery_id in ids if delivery_id >= 0]
        if ids:
            self._outcomes.accept_deliveries(ids)

    def _accept_repetitions(self, ids: list[int], duplicates: list[int]) -> list[int]:
        """Accept the deliveries with duplicates; returns the others, with -1 in the places of these."""
        if self._atomic:
            if ids[0] >= 0:
                self._outcomes.accept_repetition(ids[0], len(duplicates))
            return []
        dropped = set(duplicates)
        for index in duplicates:
            if ids[index] >= 0:
                self._outcomes.accept_repetition(ids[index], 1)
        return [-1 if index in dropped else delivery_id for index, delivery_id in enumerate(ids)]

    def _reject(self, delivery_id: int, condition: str, text: str, certain: bool = True) -> None:
        if delivery_id >= 0:
            self._outcomes.reject_delivery(delivery_id, condition, text, certain=certain)


class Failover:
    """The fragments to try one after the other: each once, within FAILOVER_MS after the first refusal."""

    __slots__ = ("_left", "_router", "_until")

    def __init__(self, router: Router, left: int = -1, until: int = 0) -> None:
        self._router = router
        self._left = len(router.fragments) - 1 if left < 0 else left
        self._until = until

    def copy(self) -> Failover:
        return Failover(self._router, self._left, self._until)

    def next_index(self, index: int, now: int) -> int:
        """The fragment to try after this one refused; -1 if there is none, or no time."""
        if not self._until:
            self._until = now + FAILOVER_MS
        if not self._left or now > self._until:
            return -1
        self._left -= 1
        self._router.end_turn(index)
        return self._router.next_index_after(index)


class FailoverSend(PendingSend):
    """Deliveries that any fragment may answer."""

    __slots__ = ("_count", "_drafts", "_failover", "_index", "_router")

    def __init__(
        self,
        peer: SendingOrigin,
        outcomes: SendOutcomes,
        ids: list[int],
        size: int,
        atomic: bool,
        router: Router,
        drafts: list[Draft],
        rest_of: FailoverSend | None = None,
    ) -> None:
        """`rest_of` has tried some fragments already, and reports to the router for its messages."""
        super().__init__(peer, outcomes, ids, size, atomic)
        self._router = router
        self._drafts = drafts
        self._count = len(ids) if rest_of is None else 0
        self._index: int = (
            router.pick_keyless(len(ids), len(drafts), size) if rest_of is None else rest_of._index
        )
        self._failover: Failover | None = None
        if rest_of is not None and rest_of._failover is not None:
            self._failover = rest_of._failover.copy()

    def send(self) -> None:
        peer = self._peer
        fragment = self._router.fragments[self._index]
        peer.command(Send(fragment, peer.origin, peer.expect(self), self._drafts, self._atomic))

    def answered(self, effect: Effect, now: int) -> None:
        if isinstance(effect, Refused):
            if may_fail_over(effect) and self._try_next(now):
                return
        elif isinstance(effect, Sent) and effect.refused and not self._atomic:
            effect = self._retry_part(effect, now)
        self._router.answered(self._count)
        super().answered(effect, now)

    def _try_next(self, now: int) -> bool:
        """Try the next fragment; False if there is none, or no time."""
        if self._failover is None:
            self._failover = Failover(self._router)
        index = self._failover.next_index(self._index, now)
        if index < 0:
            return False
        self._index = index
        self.send()
        return True

    def _retry_part(self, effect: Sent, now: int) -> Sent:
        """The fragment had room for some of the messages: try the others elsewhere, and return the answer for the rest."""
        full = [index for index, condition, _text in effect.refused if condition == QuotaExceeded.condition]
        if not full:
            return effect
        drafts = [self._drafts[index] for index in full]
        ids = [self._ids[index] for index in full]
        rest = FailoverSend(self._peer, self._outcomes, ids, 0, False, self._router, drafts, rest_of=self)
        if not rest._try_next(now):
            return effect
        gone = set(full)
        self._ids = [delivery_id for index, delivery_id in enumerate(self._ids) if index not in gone]
        places = [index for index in range(len(effect.numbers)) if index not in gone]
        refused = [
            (places.index(index), condition, text)
            for index, condition, text in effect.refused
            if index not in gone
        ]
        duplicates = [places.index(index) for index in effect.duplicates]
        numbers = [effect.numbers[index] for index in places]
        return Sent(effect.origin, effect.request, numbers, refused, duplicates)


class BatchWaiter(Protocol):
    """The request that waits until its messages are stored."""

    def batch_done(self, index: int, effect: Effect) -> None:
        """The fragment with this index has stored the messages, or refused them."""


class BatchSend:
    """Messages of one request that are stored together."""

    __slots__ = ("_drafts", "_failover", "_index", "_origin", "_router", "_waiter")

    def __init__(self, origin: Origin, router: Router, drafts: list[Draft], waiter: BatchWaiter) -> None:
        self._origin = origin
        self._router = router
        self._drafts = drafts
        self._waiter = waiter
        self._index, others = router.destination(drafts)
        self._failover = Failover(router, others)

    def send(self) -> None:
        origin = self._origin
        fragment = self._router.fragments[self._index]
        origin.command(Send(fragment, origin.origin, origin.expect(self), self._drafts, True))

    def answered(self, effect: Effect, now: int) -> None:
        if isinstance(effect, Refused) and may_fail_over(effect):
            index = self._failover.next_index(self._index, now)
            if index >= 0:
                self._index = index
                self.send()
                return
        self._waiter.batch_done(self._index, effect)


class MixedBatch:
    """One delivery that is answered when the parts of all its fragments are."""

    def __init__(
        self,
        peer: SendingOrigin,
        outcomes: SendOutcomes,
        router: Router,
        delivery_id: int,
        drafts: list[Draft],
        writer: WriterBatch | None = None,
    ) -> None:
        self._writer = writer
        self._peer = peer
        self._outcomes = outcomes
        self._router = router
        self._delivery_id = delivery_id
        self._drafts = drafts
        self._pending = 0
        self._failed: dict[int, tuple[str, str]] = {}
        self._unknown: list[int] = []
        self._duplicates = 0

    def send(self) -> None:
        parts: dict[int, list[int]] = {}
        for place, draft in enumerate(self._drafts):
            try:
                parts.setdefault(self._router.index(draft), []).append(place)
            except BusbarError as error:
                self._failed[place] = (error.condition, error.text)
        self._pending = len(parts)
        for index, places in parts.items():
            _Part(self, places, self._router.next_index() if index < 0 else index, index < 0).send()
        if not parts:
            self._answer()

    def part_done(
        self,
        places: list[int],
        failed: list[tuple[int, str, str]],
        unknown: tuple[str, str] | None,
        duplicates: int = 0,
    ) -> None:
        """Record the answer of a part: which of its messages failed, or the error if the outcome of all is unknown, and how
        many were dropped as duplicates."""
        self._duplicates += duplicates
        for index, condition, text in failed:
            self._failed[places[index]] = (condition, text)
        if unknown is not None:
            self._unknown += places
            self._failed.setdefault(-1, unknown)
        self._pending -= 1
        if not self._pending:
            self._answer()

    def _answer(self) -> None:
        if self._delivery_id < 0:
            return
        if not self._failed:
            if self._duplicates:
                self._outcomes.accept_repetition(self._delivery_id, self._duplicates)
            else:
                self._outcomes.accept_deliveries([self._delivery_id])
            return
        condition, text = self._failed[min(self._failed)]
        failed = sorted(place for place in self._failed if place >= 0)
        unknown = sorted(self._unknown)
        said = (
            f"Of the {len(self._drafts)} messages of the batch {len(failed)} were not stored ({_format_indexes(failed)}) "
            f"and of {len(unknown)} it is not known ({_format_indexes(unknown)}). {text}"
        )
        self._outcomes.reject_delivery(
            self._delivery_id, condition, said, failed, unknown, duplicates=self._duplicates
        )

    # For its parts

    def command(self, part: _Part, index: int, drafts: list[Draft]) -> None:
        peer = self._peer
        peer.arriving(sum([len(draft.content) for draft in drafts]))
        fragment = self._router.fragments[index]
        peer.command(send_of(self._writer, fragment, peer.origin, peer.expect(part), drafts, atomic=False))

    def arrived(self, drafts: list[Draft]) -> None:
        self._peer.arriving(-sum([len(draft.content) for draft in drafts]))

    def drafts(self, places: list[int]) -> list[Draft]:
        return [self._drafts[place] for place in places]

    def after(self, index: int) -> int:
        return self._router.next_index_after(index)

    @property
    def fragments(self) -> int:
        return len(self._router.fragments)


class _Part:
    """The messages of a mixed batch that go to one fragment. Those without a key can go to the next one."""

    def __init__(self, batch: MixedBatch, places: list[int], index: int, roams: bool) -> None:
        self._batch = batch
        self._places = places
        self._index = index
        self._left = batch.fragments - 1 if roams else 0
        self._drafts = batch.drafts(places)

    def send(self) -> None:
        self._batch.command(self, self._index, self._drafts)

    def answered(self, effect: Effect, now: int) -> None:
        self._batch.arrived(self._drafts)
        if isinstance(effect, Refused):
            if self._left and may_fail_over(effect):
                self._left -= 1
                self._index = self._batch.after(self._index)
                self.send()
            elif effect.certain:
                failed = [(index, effect.condition, effect.text) for index in range(len(self._places))]
                self._batch.part_done(self._places, failed, None)
            else:
                self._batch.part_done(self._places, [], (effect.condition, effect.text))
            return
        assert isinstance(effect, Sent)
        self._batch.part_done(self._places, effect.refused, None, len(effect.duplicates))


def _format_indexes(places: list[int]) -> str:
    shown = ", ".join(str(place) for place in places[:20])
    return f"{shown}, ..." if len(places) > 20 else shown or "none"
