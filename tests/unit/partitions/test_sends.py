"""Sends to several fragments, one of which says no: what is tried elsewhere, and what the sender is told."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.model.api import EntityView
from busbar.model.commands import Send
from busbar.model.effects import Effect, Refused, Sent
from busbar.model.entities import QueueDescription
from busbar.model.errors import InvalidOperation, QuotaExceeded, ServerBusy
from busbar.model.message import Draft
from busbar.model.partitioning import index_of_key
from busbar.partitions.routing import FAILOVER_MS, Router
from busbar.partitions.sends import BatchSend, FailoverSend, MixedBatch

ENTITY = EntityView("q", QueueDescription(enable_partitioning=True), tuple(range(100, 116)))


class Told:
    """A link that remembers what its client is told."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.rejected: dict[int, tuple[str, str, list[int] | None, list[int] | None]] = {}
        self.not_stored: list[int] = []
        self.repeated: dict[int, int] = {}
        self.repeated_of_rejected: dict[int, int] = {}

    def accept_deliveries(self, ids: list[int]) -> None:
        self.accepted += ids

    def accept_repetition(self, delivery_id: int, duplicates: int) -> None:
        self.repeated[delivery_id] = duplicates

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
        self.rejected[delivery_id] = (condition, text, failed, unknown)
        self.repeated_of_rejected[delivery_id] = duplicates
        if certain:
            self.not_stored.append(delivery_id)


class Asking:
    """A connection whose commands a test answers."""

    def __init__(self) -> None:
        self.origin = 1
        self.sends: list[Send] = []
        self.bytes = 0
        self.now = 1_000
        self._waiting: dict[int, Any] = {}

    def arriving(self, size: int) -> None:
        self.bytes += size

    def expect(self, who: Any) -> int:
        self._waiting[len(self._waiting) + 1] = who
        return len(self._waiting)

    def command(self, command: Send) -> None:
        self.sends.append(command)

    def answer(self, send: Send, effect: Effect) -> None:
        self._waiting[send.request].answered(effect, self.now)


def draft(partition: str | None = None, session: str | None = None) -> Draft:
    return Draft(b"content", "id", session, partition, 0, 0)


def roaming(peer: Any, link: Any, count: int = 2, *, atomic: bool = False) -> None:
    drafts = [draft() for _ in range(count)]
    ids = [7] if atomic else [*range(count)]
    peer.arriving(50)
    FailoverSend(peer, link, ids, 50, atomic, Router(ENTITY, 0), drafts).send()


def busy(certain: bool = True) -> Refused:
    return Refused(1, 0, ServerBusy.condition, "unavailable", certain)


def test_a_run_that_was_certainly_not_taken_goes_to_the_next_fragment() -> None:
    peer, link = Asking(), Told()
    roaming(peer, link)
    peer.answer(peer.sends[0], busy())
    peer.answer(peer.sends[1], busy())
    first, second, third = (send.fragment for send in peer.sends)
    assert (second - first) % 16 == (third - second) % 16 == 1
    assert not link.accepted and not link.rejected
    peer.answer(peer.sends[2], Sent(1, 0, [5, 6], []))
    assert link.accepted == [0, 1] and peer.bytes == 0


def test_the_sender_gets_the_number_of_dropped_messages() -> None:
    peer, link = Asking(), Told()
    roaming(peer, link, 4)
    full = [(1, QuotaExceeded.condition, "full")]
    peer.answer(peer.sends[0], Sent(1, 0, [5, 0, 3, 6], full, [2]))
    assert (link.accepted, link.repeated) == ([0, 3], {2: 1})
    peer.answer(peer.sends[1], Sent(1, 0, [5], [], [0]))
    assert (link.accepted, link.repeated, link.rejected) == ([0, 3], {2: 1, 1: 1}, {})
    roaming(peer, link, 3, atomic=True)
    peer.answer(peer.sends[2], Sent(1, 0, [5, 2, 3], [], [1, 2]))
    assert link.repeated[7] == 2 and 7 not in link.accepted


def test_of_an_unknown_outcome_the_sender_is_told() -> None:
    peer, link = Asking(), Told()
    roaming(peer, link)
    peer.answer(peer.sends[0], busy(certain=False))
    assert len(peer.sends) == 1
    assert link.rejected.keys() == {0, 1} and peer.bytes == 0
    assert not link.not_stored


def test_every_fragment_is_asked_once() -> None:
    peer, link = Asking(), Told()
    roaming(peer, link, atomic=True)
    for _ in range(16):
        peer.answer(peer.sends[-1], busy())
    assert len({send.fragment for send in peer.sends}) == len(peer.sends) == 16
    assert link.rejected[7][0] == ServerBusy.condition and peer.bytes == 0
    assert link.not_stored == [7]


def test_after_its_time_no_other_fragment_is_asked() -> None:
    peer, link = Asking(), Told()
    roaming(peer, link)
    peer.answer(peer.sends[0], busy())
    peer.now += FAILOVER_MS
    peer.answer(peer.sends[1], busy())
    assert len(peer.sends) == 3, "its time is counted from the first refusal, and not over yet"
    peer.now += 1
    peer.answer(peer.sends[2], busy())
    assert len(peer.sends) == 3
    assert link.rejected.keys() == {0, 1} and peer.bytes == 0


def test_what_a_full_fragment_has_no_room_for_is_tried_elsewhere() -> None:
    peer, link = Asking(), Told()
    roaming(peer, link, 3)
    peer.answer(peer.sends[0], Sent(1, 0, [5, 0, 6], [(1, QuotaExceeded.condition, "full")]))
    assert link.accepted == [0, 2]
    assert len(peer.sends[1].drafts) == 1
    peer.answer(peer.sends[1], Sent(1, 0, [1], []))
    assert link.accepted == [0, 2, 1] and not link.rejected and peer.bytes == 0


class Waiting:
    """A request that waits until its messages are stored."""

    def __init__(self) -> None:
        self.done: list[tuple[int, Effect]] = []

    def batch_done(self, index: int, effect: Effect) -> None:
        self.done.append((index, effect))


def test_the_messages_of_a_request_go_to_the_next_fragment_that_takes_them() -> None:
    peer, request = Asking(), Waiting()
    BatchSend(peer, Router(ENTITY, 0), [draft(), draft()], request).send()  # type: ignore[arg-type]
    peer.answer(peer.sends[0], busy())
    peer.answer(peer.sends[1], Refused(1, 0, QuotaExceeded.condition, "full"))
    assert not request.done
    stored = Sent(1, 0, [5, 6], [])
    peer.answer(peer.sends[2], stored)
    assert request.done == [(peer.sends[2].fragment - 100, stored)]
    assert len({send.fragment for send in peer.sends}) == 3 and all(send.atomic for send in peer.sends)


@pytest.mark.parametrize("certain", [True, False])
def test_the_messages_of_a_request_stay_with_their_key_or_with_an_unknown_outcome(certain: bool) -> None:
    peer, request = Asking(), Waiting()
    drafts = [draft("a" if certain else None)]
    BatchSend(peer, Router(ENTITY, 0), drafts, request).send()  # type: ignore[arg-type]
    peer.answer(peer.sends[0], busy(certain))
    assert len(peer.sends) == 1
    assert [type(effect) for _index, effect in request.done] == [Refused]


def mixed(peer: Any, link: Any, *drafts: Draft) -> None:
    MixedBatch(peer, link, Router(ENTITY, 0), 9, list(drafts)).send()


def keys_of_other_fragments() -> tuple[str, str]:
    first = "a"
    second = next(key for key in "bcdefgh" if index_of_key(key, 16) != index_of_key(first, 16))
    return first, second


def test_a_mixed_batch_is_accepted_when_all_its_parts_are_durable() -> None:
    peer, link = Asking(), Told()
    one, other = keys_of_other_fragments()
    mixed(peer, link, draft(one), draft(other), draft(), draft(one))
    assert sorted(len(send.drafts) for send in peer.sends) == [1, 1, 2]
    for send in peer.sends[:2]:
        peer.answer(send, Sent(1, 0, [1] * len(send.drafts), []))
    assert not link.accepted
    peer.answer(peer.sends[2], busy())  # the one without a key goes elsewhere
    peer.answer(peer.sends[3], Sent(1, 0, [1], []))
    assert link.accepted == [9] and peer.bytes == 0


def test_a_mixed_batch_counts_the_dropped_messages_of_all_parts() -> None:
    peer, link = Asking(), Told()
    one, other = keys_of_other_fragments()
    for delivery in range(2):
        mixed(peer, link, draft(one), draft(other), draft(one))
        first, second = peer.sends[2 * delivery :]
        peer.answer(first, Sent(1, 0, [1, 2], [], [0, 1]))
        peer.answer(second, Sent(1, 0, [4], [], [0]) if delivery == 0 else busy())
    assert (link.accepted, link.repeated) == ([], {9: 3})
    assert link.rejected[9][2:] == ([1], []) and link.repeated_of_rejected[9] == 2


def test_a_mixed_batch_names_what_failed_and_what_is_unknown() -> None:
    peer, link = Asking(), Told()
    one, other = keys_of_other_fragments()
    mixed(peer, link, draft(one), draft(other), draft(one), draft("x", session="y"), draft(other))
    first, second = peer.sends
    peer.answer(first, busy())
    peer.answer(second, busy(certain=False))
    condition, text, failed, unknown = link.rejected[9]
    assert condition == ServerBusy.condition
    assert (failed, unknown) == ([0, 2, 3], [1, 4])
    assert "(0, 2, 3)" in text and "(1, 4)" in text and peer.bytes == 0


def test_a_mixed_batch_of_impossible_messages_is_answered_too() -> None:
    peer, link = Asking(), Told()
    mixed(peer, link, draft("x", session="y"))
    assert link.rejected[9][0] == InvalidOperation.condition and not peer.sends
