"""What clients of an express entity were told of its messages, and whether that holds.

Every message has a tag in its content. For each tag the book has the places where the message can be, by all that clients
were told. One place is left where the answers are certain. What is checked:

- A message is delivered only from a place where it can be. So what was completed, or was refused for certain, never comes.
- A lock that has not ended is held: no other receiver gets the message, and its settlement is not refused as lost.
- Messages come in the order of their numbers, in a message session by itself. A number is given to one message.
- A crash loses only what was acknowledged without ForcePersistence and had not been written. Nothing else changes its place.
- While nothing fails, a message that stays is written in time (`check_written`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, DEFERRED, SCHEDULED, Record
from harness.checked_fragment import CheckedFragment


class Place(Enum):
    NOWHERE = auto()  # it never came, or a crash has lost it
    SCHEDULED = auto()  # or its topic has yet to pass it on
    ACTIVE = auto()
    DEFERRED = auto()
    DEAD = auto()
    GONE = auto()  # a receiver has completed it


LANES = {
    SCHEDULED: Place.SCHEDULED,
    ACTIVE: Place.ACTIVE,
    DEFERRED: Place.DEFERRED,
    DEAD: Place.DEAD,
}


@dataclass(eq=False)
class HeldLock:
    """A lock that a receiver was told of."""

    number: int
    nonce: int
    until: int
    consumer: int
    place: Place
    is_sure: bool = True
    """Not after a settlement whose outcome is not known."""


@dataclass(eq=False)
class Told:
    """A message, as clients were told of it."""

    tag: int
    session: str | None
    is_durable: bool
    """Sent with ForcePersistence, in a transaction or as a scheduled one, or written since."""
    places: set[Place]
    scheduled: int = 0
    """When it is due. If it was due before the broker got to it, it is a message like others."""
    is_acknowledged: bool = False
    answered_at: int = 0
    number: int = 0
    lock: HeldLock | None = None
    settling: Place | None = None
    """Where the settlement puts it that is not answered yet."""
    failed_deliveries: int = 0
    has_come: bool = False
    """A receiver, or the store, has had it."""
    is_available: bool = True
    """No receiver has it, for all that is known."""

    @property
    def place(self) -> Place | None:
        """Where it certainly is."""
        return next(iter(self.places)) if len(self.places) == 1 else None

    def unlock(self, is_available: bool = True) -> None:
        self.lock, self.settling, self.is_available = None, None, is_available


def tag_of(content: bytes | None) -> int:
    found = re.search(rb"tag-(\d{6})", content or b"")
    assert found is not None, content
    return int(found[1])


def target_of(outcome: int, place: Place) -> Place:
    """Where a settlement puts a message that was received from a place."""
    if outcome == c.COMPLETE:
        return Place.GONE
    if outcome == c.DEAD_LETTER:
        return Place.DEAD
    return Place.DEFERRED if outcome == c.DEFER else place


def _end_lock(told: Told) -> None:
    """A settlement that was asked for before is still answered."""
    if told.settling is None:
        told.unlock(is_available=False)
    elif told.lock is not None:
        told.lock.is_sure = False


class ExpressBook:
    """The messages of one fragment that clients receive from."""

    def __init__(self, fragment: int, requires_session: bool = False) -> None:
        self.fragment = fragment
        self.requires_session = requires_session
        self.told: dict[int, Told] = {}
        self.numbers: dict[int, int] = {}
        self.left: set[int] = set()
        """Consumers of sessions that have left, or lost their session."""
        self.deliveries = 0
        self.losses = 0
        self.may_vanish = False
        """Some receive in ReceiveAndDelete mode: after a commit of unknown outcome, what they were to get can be gone."""

    # ---- senders ----

    def expect(
        self,
        tag: int,
        *,
        is_durable: bool,
        session: str | None = None,
        scheduled: int = 0,
        may_wait: bool = False,
    ) -> None:
        """A message is sent that may come here. `may_wait`: its topic may pass it on later."""
        places = {Place.NOWHERE, Place.ACTIVE, *([Place.SCHEDULED] if may_wait or scheduled else [])}
        self.told[tag] = Told(tag, session if self.requires_session else None, is_durable, places, scheduled)

    def acknowledged(self, tag: int, now: int) -> None:
        told = self.told[tag]
        told.is_acknowledged, told.answered_at = True, now
        told.is_durable = told.is_durable or told.scheduled > now
        told.places.discard(Place.NOWHERE)

    def refused(self, tag: int) -> None:
        """For certain."""
        told = self.told[tag]
        assert not told.has_come, f"{tag} was refused, and has come to {self.fragment}"
        told.places = {Place.NOWHERE}

    def give_number(self, tag: int, number: int) -> None:
        told = self.told[tag]
        assert self.numbers.setdefault(number, tag) == tag, f"the number {number} was given twice"
        assert told.number in (0, number), f"{tag} has the numbers {told.number} and {number}"
        told.number = number

    # ---- receivers ----

    def delivered(
        self, effect: e.Delivered | e.DeferredReceived, consumer: int, place: Place, now: int
    ) -> None:
        for record in effect.records:
            tag = tag_of(record.content)
            assert tag in self.told, f"{tag} is not for {self.fragment}"
            told = self.told[tag]
            if place is Place.ACTIVE and Place.SCHEDULED in told.places:
                told.places = {Place.ACTIVE}
            assert place in told.places, f"{tag} comes from {place}; it was in {told.places}"
            self._check_delivery(told, record, place, now)
            self.give_number(tag, int(record.n))
            self.deliveries += 1
            told.has_come, told.places = True, {place}
            told.unlock(is_available=False)
            if effect.until == 0:
                told.places = {Place.GONE}
            elif consumer not in self.left:
                told.lock = HeldLock(int(record.n), int(effect.nonce), int(effect.until), consumer, place)

    def _check_delivery(self, told: Told, record: Record, place: Place, now: int) -> None:
        lock = told.lock
        assert lock is None or not lock.is_sure or lock.until <= now, f"{told.tag} is locked, and comes again"
        assert record.deliveries >= told.failed_deliveries, f"deliveries of {told.tag} were forgotten"
        if place is not Place.ACTIVE:
            return
        for other in self.told.values():
            is_before = 0 < other.number < record.n and other.session == told.session
            if is_before and other.is_available and other.is_acknowledged and other.place is Place.ACTIVE:
                raise AssertionError(f"{told.tag} comes before {other.tag}")

    def settling(self, told: Told, outcome: int) -> HeldLock:
        """A settlement begins. Returns the lock that it names."""
        lock = told.lock
        assert lock is not None
        told.settling = target_of(outcome, lock.place)
        return lock

    def settled(self, told: Told, lock: HeldLock, outcome: int, is_lost: bool, now: int) -> None:
        if told.lock is not lock:
            return  # the message came again meanwhile, or its lock has ended
        if is_lost:
            assert lock.until <= now or not lock.is_sure, f"the lock of {told.tag} had not ended"
            told.unlock(is_available=False)
            return
        told.places = {target_of(outcome, lock.place)}
        told.unlock()
        told.failed_deliveries += outcome == c.ABANDON

    def settlement_refused(self, told: Told, lock: HeldLock, outcome: int, certain: bool) -> None:
        """What was released may stay released, also if that is refused for certain."""
        if told.lock is lock:
            told.settling = None
            if not certain:
                told.places = {*told.places, target_of(outcome, lock.place)}
            if not certain or outcome == c.RELEASE:
                lock.is_sure = False

    def consumer_left(self, consumer: int) -> None:
        """The locks of a session's consumer end. What is delivered to it before that still comes."""
        self.left.add(consumer)
        for told in self.told.values():
            if told.lock is not None and told.lock.consumer == consumer:
                _end_lock(told)

    def session_accepted(self, session: str) -> None:
        """No other consumer has messages of the session."""
        for told in self.told.values():
            if told.session == session and (told.lock is None or told.lock.place is not Place.DEAD):
                _end_lock(told)
                told.is_available = told.lock is None

    def outcome_unknown(self) -> None:
        """A commit was made or not."""
        if self.may_vanish:
            for told in self.told.values():
                if told.places != {Place.NOWHERE}:
                    told.places = {*told.places, Place.GONE}

    # ---- the store ----

    def found_in(self, stored: CheckedFragment, waiting: Iterable[int]) -> dict[int, Place]:
        """Where the store has each message. `waiting` are those that the topic has yet to pass on."""
        found = {tag: Place.SCHEDULED for tag in waiting if tag in self.told}
        for lane, place in LANES.items():
            for record in stored.lanes[lane].records.values():
                tag = tag_of(record.content)
                assert tag not in found, f"{tag} is in the store twice"
                found[tag] = place
        return found

    def written(self, stored: CheckedFragment, waiting: Iterable[int]) -> None:
        """A commit was made. What the store has stays."""
        for tag in self.found_in(stored, waiting):
            self.told[tag].is_durable = self.told[tag].has_come = True
        for lane in (ACTIVE, DEFERRED, DEAD):
            for record in stored.lanes[lane].records.values():
                self.give_number(tag_of(record.content), int(record.n))

    def check_written(
        self, stored: CheckedFragment, waiting: Iterable[int], now: int, since: int, delay: int
    ) -> None:
        """Nothing is under way, and nothing has failed since then: what is older than the delay is in the store."""
        found = self.found_in(stored, waiting)
        for told in self.told.values():
            is_passed_on = told.is_acknowledged and found.get(told.tag) is not Place.SCHEDULED
            if is_passed_on and Place.SCHEDULED in told.places:
                told.places = {*told.places - {Place.SCHEDULED}, Place.ACTIVE}
            if told.is_acknowledged and not told.places & {Place.GONE, Place.NOWHERE}:
                in_time = now < max(told.answered_at, since) + delay
                assert told.tag in found or in_time, f"{told.tag} has not been written"
                assert told.tag in found or not told.is_durable, f"{told.tag} is not in the store"

    def process_ended(self, stored: CheckedFragment, waiting: Iterable[int], is_clean: bool) -> None:
        """Compare all messages with the store: what was in memory is gone. A clean stop has written it, and keeps locks."""
        found = self.found_in(stored, waiting)
        for told in self.told.values():
            place = found.get(told.tag, Place.NOWHERE)
            allowed = {*told.places, *([] if told.settling is None else [told.settling])}
            if Place.SCHEDULED in allowed:
                allowed.add(Place.ACTIVE)
            if Place.GONE in allowed:
                allowed = {*allowed - {Place.GONE}, Place.NOWHERE}
            if not is_clean and not told.is_durable:
                allowed.add(Place.NOWHERE)
            assert place in allowed, f"{told.tag} is in {place}; it was in {told.places}"
            if told.place is not Place.GONE:
                was_there = told.is_acknowledged and Place.GONE not in told.places
                self.losses += was_there and told.settling is not Place.GONE and place is Place.NOWHERE
                told.places = {place}
            told.unlock(is_available=not is_clean)
