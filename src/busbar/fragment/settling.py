"""Locks end: settlement, renewal and expiry.

Rules
- A lock is named by number and nonce and is valid until its time; anything else is a lost lock. Locks are
  settled each by itself (the lost ones are reported) or, if atomic, all or none.
- | outcome     | main sub-queue                             | dead-letter sub-queues     |
  | COMPLETE    | deleted                                    | deleted                    |
  | ABANDON     | delivery count + 1, back to where it stood | the same                   |
  | RELEASE     | back to where it stood, nothing is counted | the same                   |
  | DEFER       | to DEFERRED                                | to their deferred lane     |
  | DEAD_LETTER | to DEAD                                    | refused                    |
  | expiry      | as ABANDON                                 | the same                   |
- "Where it stood": an available message is available again at its old place in the order, a deferred one is
  deferred.
- When a count reaches the maximum in the main sub-queue, the message is dead-lettered instead of going
  back.
- Properties given with an outcome are merged by name into the message's overlay. If the result were larger
  than Bounds.overlay_bytes, the command is refused and changes nothing. Properties count in the size of the entity.
  If they would take it over its quota, the command is refused, unless they are small: a reason is always accepted.
- The lock of a message of a session is valid while the session is held (sessions.py), and cannot be renewed by itself.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from busbar.fragment.changes import Lock
from busbar.fragment.locks import FOREVER
from busbar.fragment.state import NO_TAPS, State
from busbar.fragment.sub_queues import deferred_lane, in_dead_letter_queue
from busbar.fragment.text import merged, too_many_deliveries
from busbar.model.commands import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE, Renew, Settle
from busbar.model.effects import (
    ABANDONED,
    COMPLETED,
    DEFERRED_BY_RECEIVER,
    LOCK_EXPIRED,
    LOCK_LOST,
    RELEASED,
    Renewed,
    Settled,
)
from busbar.model.errors import ArgumentError, InvalidOperation, MessageLockLost, QuotaExceeded
from busbar.model.message import ACTIVE, Overlay, Record, overlay_size

NO_SENSE: Final = "A settlement with the outcome {} makes no sense."
LOST: Final = (
    "The lock of message {} is not held any more: it has expired, or the message was settled already."
)


def settle(state: State, command: Settle, now: i64) -> None:
    if _makes_no_sense(command):
        state.refuse(command, ArgumentError.condition, NO_SENSE.format(command.outcome))
        return
    numbers = command.numbers
    nonces = command.nonces
    held = state.locks.held
    ended: list[Lock] = []
    lost: list[int] = []
    for i in range(len(numbers)):
        n = numbers[i]
        lock = held.get(n)
        if lock is not None and _is_valid(state, lock, nonces[i], now):
            del held[n]
            ended.append(lock)
        else:
            lost.append(i)
    if lost and command.atomic:
        _hold_again(state, ended)
        state.refuse(command, MessageLockLost.condition, LOST.format(numbers[lost[0]]))
        return
    if ended:
        overlays = _overlays(command, ended)
        refusal = _objection(state, command, ended, overlays)
        if refusal is not None:
            _hold_again(state, ended)
            state.refuse(command, refusal[0], refusal[1])
            return
        _end(state, command, ended, overlays, numbers if not lost else None)
    if lost and state.history is not None:
        for n in state.known_numbers([numbers[i] for i in lost]):  # a forged one may have any size
            state.history.note(n, LOCK_LOST, now, 0, "", None)
    state.effects.append(Settled(command.origin, command.request, lost))


def _makes_no_sense(command: Settle) -> bool:
    return len(command.numbers) != len(command.nonces) or not COMPLETE <= command.outcome <= RELEASE


def _is_valid(state: State, lock: Lock, given: int, now: i64) -> bool:
    nonce: int = lock.nonce  # compared as Python's int: a forged one may have any size
    if nonce != given or lock.until <= now:
        return False
    sessions = state.sessions
    return sessions is None or sessions.valid(lock, now)


def refusal(state: State, command: Settle, now: i64, seen: set[int]) -> tuple[str, str] | None:
    """Why an atomic settlement cannot be done; None if it can. `seen` has the numbers that others settle with it."""
    if _makes_no_sense(command):
        return ArgumentError.condition, NO_SENSE.format(command.outcome)
    locks: list[Lock] = []
    for i in range(len(command.numbers)):
        n = command.numbers[i]
        lock = state.locks.held.get(n)
        if lock is None or n in seen or not _is_valid(state, lock, command.nonces[i], now):
            return MessageLockLost.condition, LOST.format(n)
        seen.add(n)
        locks.append(lock)
    return _objection(state, command, locks, _overlays(command, locks))


def end_checked(state: State, command: Settle) -> None:
    """Do an atomic settlement that `refusal` has no objection to."""
    if command.numbers:
        ended = [state.locks.held.pop(n) for n in command.numbers]
        _end(state, command, ended, _overlays(command, ended), command.numbers)


def _overlays(command: Settle, ended: list[Lock]) -> list[Overlay | None]:
    """The overlays of the messages afterwards; none for those that go."""
    if command.outcome == COMPLETE:
        return []
    return [merged(lock.record.overlay, command.overlay) for lock in ended]


def _objection(
    state: State, command: Settle, ended: list[Lock], overlays: list[Overlay | None]
) -> tuple[str, str] | None:
    """Why locks that are held cannot end with this outcome; None if they can."""
    outcome = command.outcome
    if outcome == COMPLETE:
        return None
    for i in range(len(ended)):
        lock = ended[i]
        if outcome == DEAD_LETTER and in_dead_letter_queue(lock.lane):
            text = f"Message {lock.record.n} is already in the dead-letter queue and cannot be dead-lettered again."
            return InvalidOperation.condition, text
        overlay = overlays[i]
        if command.overlay and overlay is not None and overlay_size(overlay) > state.bounds.overlay_bytes:
            text = (
                f"The properties of message {lock.record.n} that were set by settlements would take "
                f"{overlay_size(overlay)} bytes; at most {state.bounds.overlay_bytes} are allowed."
            )
            return InvalidOperation.condition, text
    if command.overlay and not _has_room(state, ended, overlays):
        text = "The maximum entity size has been reached: the properties set by this settlement do not fit."
        return QuotaExceeded.condition, text
    return None


def _end(
    state: State,
    command: Settle,
    ended: list[Lock],
    overlays: list[Overlay | None],
    numbers: list[int] | None,
) -> None:
    """End locks with an outcome. `numbers` are theirs, if they are known."""
    outcome = command.outcome
    state.figures.settled[outcome] += len(ended)
    _released(state, ended)
    if outcome == COMPLETE:
        _complete(state, ended, numbers)
        state.ledger.note_unlocked(ended)
        return
    for i in range(len(ended)):
        lock = ended[i]
        overlay = overlays[i]
        if outcome == ABANDON:
            fail_delivery(state, lock, overlay, ABANDONED)
        elif outcome == DEAD_LETTER:
            state.dead_letter(lock.lane, lock.record, lock.record.deliveries, overlay)
        elif outcome == DEFER:
            _defer(state, command, lock, overlay)
        else:
            _release(state, command, lock, overlay)
    state.ledger.note_unlocked(ended)


def _defer(state: State, command: Settle, lock: Lock, overlay: Overlay | None) -> None:
    record = lock.record
    lane = lock.lane
    to = deferred_lane(lane)
    if lane == ACTIVE:
        state.leave_session(record)
    if to != lane or command.overlay:
        state.ledger.edit(lane, record, to, record.deliveries, overlay, record.dead_letter_number)
    if lane not in NO_TAPS:
        state.record_event(record, DEFERRED_BY_RECEIVER, record.deliveries, "")
    else:
        state.note_step(record, DEFERRED_BY_RECEIVER, record.deliveries, "")


def _release(state: State, command: Settle, lock: Lock, overlay: Overlay | None) -> None:
    record = lock.record
    lane = lock.lane
    if command.overlay:
        state.ledger.edit(lane, record, lane, record.deliveries, overlay, record.dead_letter_number)
        record = record.changed(record.deliveries, overlay)
    state.note_step(record, RELEASED, record.deliveries, "")
    state.give_back(lane, record)


def _has_room(state: State, ended: list[Lock], overlays: list[Overlay | None]) -> bool:
    """Whether the quota allows what these properties add, or they are small."""
    quota = state.settings.quota_bytes if state.shared_quota == 0 else state.shared_quota
    more: i64 = 0
    for i in range(len(ended)):
        record = ended[i].record
        more += record.size_with(overlays[i]) - record.size
    kept = state.ledger.head.size + state.topic_bytes
    return quota <= 0 or more <= len(ended) * state.bounds.free_overlay or kept + more <= quota


def _released(state: State, ended: list[Lock]) -> None:
    state.locks.released(ended)
    sessions = state.sessions
    if sessions is not None:
        for lock in ended:
            sessions.unlocked(lock)


def _complete(state: State, ended: list[Lock], numbers: list[int] | None) -> None:
    """Delete messages; nearly always all of one lane."""
    lane = ended[0].lane
    size: i64 = 0
    same = numbers is not None and state.sessions is None and state.taps is None
    same = same and state.history is None
    for lock in ended:
        size += lock.record.size
        if lock.lane != lane:
            same = False
    if same and numbers is not None:
        state.ledger.delete(lane, numbers, size)
        return
    by_lane: dict[int, list[Lock]] = {}
    for lock in ended:
        by_lane.setdefault(lock.lane, []).append(lock)
    for each, locks in by_lane.items():
        state.delete(each, [lock.record for lock in locks], COMPLETED)


def _hold_again(state: State, locks: list[Lock]) -> None:
    for lock in locks:
        state.locks.held[lock.record.n] = lock


def fail_delivery(state: State, lock: Lock, overlay: Overlay | None, outcome: i64) -> Record | None:
    """Count a failed delivery. The message goes back to its lane and is returned with the count, or dead-lettered (None)."""
    record = lock.record
    lane = lock.lane
    deliveries = record.deliveries + 1
    most = state.settings.max_deliveries
    if most > 0 and deliveries >= most and not in_dead_letter_queue(lane):
        state.note_step(record, outcome, deliveries, "")
        state.dead_letter(lane, record, deliveries, merged(overlay, too_many_deliveries(deliveries)))
        return None
    state.ledger.edit(lane, record, lane, deliveries, overlay, record.dead_letter_number)
    if lane not in NO_TAPS:
        state.record_event(record, outcome, deliveries, "")
    else:
        state.note_step(record, outcome, deliveries, "")
    record = record.changed(deliveries, overlay)
    state.give_back(lane, record)
    return record


def expire_locks(state: State, now: i64, limit: i64) -> i64:
    """End the locks whose time has come; returns how many. If that is `limit`, there may be more."""
    expired = state.locks.expire(now, limit)
    if expired:
        state.figures.locks_lost += len(expired)
        for lock in expired:
            fail_delivery(state, lock, lock.record.overlay, LOCK_EXPIRED)
        state.ledger.note_unlocked(expired)
    return len(expired)


def renew(state: State, command: Renew, now: i64) -> None:
    numbers = command.numbers
    if len(numbers) != len(command.nonces):
        state.refuse(command, ArgumentError.condition, "A renewal names a nonce for each message.")
        return
    locks: list[Lock] = []
    for i in range(len(numbers)):
        lock = state.locks.held.get(numbers[i])
        if lock is not None and lock.until == FOREVER:
            text = f"The lock of message {numbers[i]} ends with its session: renew the session lock."
            state.refuse(command, InvalidOperation.condition, text)
            return
        if lock is not None:
            nonce: int = lock.nonce
            if nonce == command.nonces[i] and lock.until > now:
                locks.append(lock)
                continue
        state.refuse(command, MessageLockLost.condition, LOST.format(numbers[i]))
        return
    until = now + state.settings.lock_ms
    state.locks.renew(locks, until)
    state.effects.append(Renewed(command.origin, command.request, until))
