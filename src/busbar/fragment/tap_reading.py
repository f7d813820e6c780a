"""Commands of the readers of taps: pages, the positions of taps, and moving them.

Rules
- A tap of the main sub-queue sees every message of the fragment behind its position, in any state, by rising number. It does
  not see scheduled ones, which get a new number when they are due. A tap of the dead-letter sub-queue sees dead-lettered
  messages, in the order in which they were dead-lettered.
- The end is the last number given, at a moment at which all before it is durable: effects are performed only when the
  changes before them are durable. So nothing at or below an end that a reader got appears later. A page up to that end is
  the same whenever it is read, until the tap has passed it.
- If messages behind the start of a page were lost, or the tap has passed them, the page is refused. So a reader never skips
  a gap without an error.
- Only the owner moves a tap, never back, and never beyond the end.
- A tap that consumes sees what is available, up to the first message that a receiver has locked. From the moment at which it
  reads until its lease ends, no receiver is served. The messages that it passes are deleted, some in each tick. No receiver
  is served before all of them are gone.
- Without a tap (0), a reader sees what the sub-queue holds, without what is kept for taps.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from busbar.fragment.reads import Read, ReadEvents, ReadKept, ReadSpan, ReadTapPage, ReadTime
from busbar.fragment.state import State
from busbar.fragment.taps import EVENT_BYTES, Tap
from busbar.model.commands import EVENTS, AdvanceTap, Command, FindTime, ReadTap, ResumeTap
from busbar.model.effects import (
    CONSUMED,
    Done,
    EventPage,
    MessageEvent,
    PositionFound,
    TapPage,
    TapState,
    TapStates,
)
from busbar.model.errors import (
    ArgumentOutOfRange,
    EntityNotFound,
    InvalidOperation,
    TapOwned,
    TapPassed,
    TapTruncated,
)
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, DEFERRED, KEPT, KEPT_DEAD, Overlay

STREAM: Final = [ACTIVE, DEFERRED, DEAD, DEAD_DEFERRED, KEPT]
DEAD_STREAM: Final = [DEAD, DEAD_DEFERRED, KEPT, KEPT_DEAD]
HELD: Final = [ACTIVE, DEFERRED]
DEAD_HELD: Final = [DEAD, DEAD_DEFERRED]


def _find(state: State, id: i64) -> Tap | None:
    taps = state.taps
    return None if taps is None else taps.taps.get(id)


def _refuse_unknown(state: State, command: Command) -> None:
    state.refuse(command, EntityNotFound.condition, "The entity has no such tap (any more).")


def _end(state: State, sub: i64, tap: Tap | None) -> i64:
    """The position up to which a tap may read and move."""
    head = state.ledger.head
    dead = sub == DEAD
    end = head.last_dead if dead else head.last
    if tap is not None and tap.settings.consumes:
        lane: i64 = DEAD if dead else ACTIVE
        for lock in state.locks.held.values():
            if lock.lane == lane:
                position = lock.record.dead_letter_number if dead else lock.record.n
                if tap.row.position < position <= end:
                    end = position - 1
    return end


# ---- reading ----


def tap_reads(state: State, command: ReadTap) -> list[Read]:
    tap = _find(state, command.tap)
    if command.tap != 0 and tap is None:
        return []  # unknown, or it begins with this command: then it has nothing behind it
    bounds = state.bounds
    limit = command.count if command.count < bounds.span_records else bounds.span_records
    size = command.max_bytes if command.max_bytes < bounds.span_bytes else bounds.span_bytes
    sub = command.sub if tap is None else tap.settings.sub
    head = state.ledger.head
    upto = head.last_event if command.stream == EVENTS else _end(state, sub, tap)
    if command.upto < upto:
        upto = command.upto
    after: i64 = command.after if command.after > 0 else 0
    if limit <= 0 or after >= upto:
        return []
    if command.stream == EVENTS:
        return [ReadEvents(after, upto, limit)]
    dead = sub == DEAD
    if tap is None:
        lanes = DEAD_HELD if dead else HELD
    elif tap.settings.consumes:
        lanes = [DEAD if dead else ACTIVE]
    else:
        lanes = DEAD_STREAM if dead else STREAM
    return [ReadTapPage(list(lanes), dead, after, upto, limit, size)]


def read_tap(state: State, command: ReadTap, now: i64) -> None:
    taps = state.taps
    tap = _find(state, command.tap)
    if command.tap != 0:
        if taps is None or tap is None:
            _refuse_unknown(state, command)
            return
        if tap.settings.consumes:
            other = taps.lease_of_other(tap, now)
            if other is not None:
                text = f"The tap '{other.settings.name}' consumes the entity; its lease must end first."
                state.refuse(command, TapOwned.condition, text)
                return
            taps.renew_lease(tap, now)
        if not _is_there(state, command, tap):
            return
    after: i64 = command.after if command.after > 0 else 0
    if command.stream == EVENTS:
        _show_events(state, command, after)
        return
    upto = after
    heads = b""
    contents: list[bytes] = []
    overlays: dict[int, Overlay] = {}
    for read in state.supplied:
        if isinstance(read, ReadTapPage):
            packing = read.packing
            heads = packing.heads()
            contents = packing.contents
            overlays = packing.overlays
            upto = read.upto
            if packing.count > 0 and not read.complete:
                upto = read.last()
    state.effects.append(TapPage(command.origin, command.request, heads, contents, overlays, upto))


def _is_there(state: State, command: ReadTap, tap: Tap) -> bool:
    """Whether everything behind the position from which the page is asked for is there. If not, the command is refused."""
    row = tap.row
    events = command.stream == EVENTS
    if events and not tap.settings.events:
        text = f"The tap '{tap.settings.name}' was made without events."
        state.refuse(command, InvalidOperation.condition, text)
        return False
    position = row.event_position if events else row.position
    lost: i64 = row.event_lost if events else 0 if tap.settings.consumes else row.lost
    what = "Events" if events else "Messages"
    if command.after < lost:
        text = (
            f"{what} of the tap '{tap.settings.name}' were lost: a limit of the tap was reached, and not all up to "
            f"position {lost} is there any more. It was passed up to {position}, and asked for from {command.after}."
        )
        state.refuse(command, TapTruncated.condition, text)
        return False
    if command.after < position:
        text = (
            f"The tap '{tap.settings.name}' has passed position {position}; what lies before it need not be there any "
            f"more, and was asked for from {command.after}."
        )
        state.refuse(command, TapPassed.condition, text)
        return False
    return True


def _show_events(state: State, command: ReadTap, after: i64) -> None:
    upto = after
    shown: list[MessageEvent] = []
    for read in state.supplied:
        if isinstance(read, ReadEvents):
            upto = read.upto
            size: i64 = 0
            for event in read.events:
                size += EVENT_BYTES + len(event.reason)
                if shown and size > command.max_bytes:
                    break
                shown.append(event)
            if shown and (len(shown) < len(read.events) or len(shown) >= read.limit):
                upto = shown[-1].at
    state.effects.append(EventPage(command.origin, command.request, shown, upto))


def time_reads(state: State, command: FindTime) -> list[Read]:
    dead = command.sub == DEAD
    return [ReadTime(list(DEAD_STREAM if dead else STREAM), dead, command.at)]


def find_time(state: State, command: FindTime) -> None:
    position: i64 = 0
    for read in state.supplied:
        if isinstance(read, ReadTime):
            position = read.position
    state.effects.append(PositionFound(command.origin, command.request, position))


# ---- where they stand ----


def show(state: State, command: Command) -> None:
    """Answer with the position of every tap, and the ends."""
    head = state.ledger.head
    shown: list[TapState] = []
    taps = state.taps
    if taps is not None:
        for tap in taps.taps.values():
            shown.append(_state_of(state, tap))
    state.effects.append(
        TapStates(command.origin, command.request, shown, head.last, head.last_dead, head.last_event)
    )


def _state_of(state: State, tap: Tap) -> TapState:
    """The state of a tap. The kept messages are counted for all taps together, so the number of positions bounds `kept`."""
    head = state.ledger.head
    row = tap.row
    end = _end(state, tap.settings.sub, tap)
    kept: i64 = 0
    size: i64 = 0
    if tap.holds():
        if tap.settings.sub == DEAD:
            kept = head.counts[KEPT_DEAD]
            size = head.kept_dead_size
        else:
            kept = head.counts[KEPT]
            size = head.kept_size - head.kept_dead_size
        if end - row.position < kept:
            kept = end - row.position
        if kept == 0:
            size = 0
    lost: i64 = 0 if tap.settings.consumes else row.lost
    return TapState(
        row.id,
        row.position,
        lost,
        row.event_position,
        row.event_lost,
        row.truncated,
        kept,
        size,
        end,
        tap.truncations,
    )


# ---- moving ----


def _owned(state: State, command: Command, tap: Tap, owner: str) -> bool:
    if tap.settings.owner == owner:
        return True
    holder = f"belongs to '{tap.settings.owner}'" if tap.settings.owner else "has no owner yet"
    text = f"The tap '{tap.settings.name}' {holder}; '{owner}' must take it over first."
    state.refuse(command, TapOwned.condition, text)
    return False


def advance(state: State, command: AdvanceTap, now: i64) -> None:
    taps = state.taps
    tap = _find(state, command.tap)
    if taps is None or tap is None:
        _refuse_unknown(state, command)
        return
    if not _owned(state, command, tap, command.owner):
        return
    if command.stream == EVENTS:
        end = state.ledger.head.last_event
        position = tap.row.event_position
    else:
        end = _end(state, tap.settings.sub, tap)
        position = tap.row.position
    if command.position > end and command.position > position:
        text = f"The tap '{tap.settings.name}' cannot move to position {command.position}: it can read up to {end} now."
        state.refuse(command, ArgumentOutOfRange.condition, text)
        return
    taps.renew_lease(tap, now)
    if command.position > position:
        if command.stream == EVENTS:
            tap.row.event_position = command.position
        else:
            tap.row.position = command.position
        state.ledger.set_tap(tap.row)
        taps.look()
    state.effects.append(Done(command.origin, command.request))


def resume(state: State, command: ResumeTap) -> None:
    taps = state.taps
    tap = _find(state, command.tap)
    if taps is None or tap is None:
        _refuse_unknown(state, command)
        return
    if not _owned(state, command, tap, command.owner):
        return
    row = tap.row
    if row.truncated:
        row.truncated = False
        if row.lost > row.position and not tap.settings.consumes:
            row.position = row.lost
        if row.event_lost > row.event_position:
            row.event_position = row.event_lost
        state.ledger.set_tap(row)
        taps.look()
    show(state, command)


# ---- ticks ----


def tick(state: State) -> None:
    """Do the work of a tick for taps. It comes first in its turn, while what was read is still what the store has."""
    taps = state.taps
    if taps is None:
        return
    for read in state.supplied:
        if isinstance(read, ReadKept):
            taps.sweep(state.ledger, read)
        elif isinstance(read, ReadEvents):
            taps.see_event(read)
        elif isinstance(read, ReadSpan):
            _consume(state, read)
    taps.forget_events(state.ledger)


def _consume(state: State, read: ReadSpan) -> None:
    """Delete messages that a tap which consumes has passed."""
    taps = state.taps
    if taps is None:
        return
    for tap in taps.taps.values():
        if tap.behind() and tap.row.lost == read.after and (tap.settings.sub == DEAD) == read.by_dead:
            _delete_passed(state, tap, read)
            taps.look()
            return


def _delete_passed(state: State, tap: Tap, read: ReadSpan) -> None:
    row = tap.row
    held = state.locks.held
    gone = [record for record in read.records if record.n not in held]
    lane: i64 = DEAD if read.by_dead else ACTIVE
    state.delete(lane, gone, CONSUMED)
    if read.complete or not read.records:
        row.lost = read.upto
    else:
        row.lost = read.records[-1].dead_letter_number if read.by_dead else read.records[-1].n
    state.ledger.set_tap(row)
    sessions = state.sessions
    if lane == ACTIVE and sessions is not None:
        sessions.forget_read()
    else:
        state.window(lane).forget(1)
