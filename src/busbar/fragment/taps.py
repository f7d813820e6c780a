"""Taps of a fragment: what is kept for them, how long, and what they lose.

Rules
- A tap has a position: of the main sub-queue a number, of the dead-letter sub-queue a Record.dead_letter_number. It holds
  every message behind its position, unless it was truncated or consumes.
- If a tap of the main sub-queue holds a message that receivers are done with, the message goes to KEPT. Otherwise, if a tap
  of the dead-letter sub-queue holds it, it goes to KEPT_DEAD. Otherwise it is deleted. When no tap holds it any more, it is
  deleted, some messages in each tick.
- Limits apply to the taps that are furthest behind. If the first message kept is too old for such a tap, or there are more
  bytes than it may keep, it is truncated and holds nothing from then on. `lost` is the highest position that was deleted
  before the tap had passed it, so everything behind `lost` is still there.
- The taps are those of the entity's settings. A tap that is new for the fragment begins at 0 or at the end. The row of a tap
  that the settings do not have any more is deleted.
- A tap that consumes (tap_reading.py) holds nothing, since what it has not passed is available. Its row uses `lost`
  for how far the messages that it has passed were deleted.
- Events are recorded while there is a tap with events that is not truncated. They are deleted when all such taps have passed
  them. Kept events have positions without gaps. If all taps with events are truncated, they lose events: a position is
  given, and nothing is written.
- The lease of a tap that consumes is in memory only. After a start it is unknown, so it is assumed to run.

The position and time of the first message in each lane of kept messages are in memory: the time of the next work follows
from them. They are read when they are not known: after a start, an undo, or when the first messages have gone.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Head, TapRow
from busbar.fragment.ledger import Ledger
from busbar.fragment.reads import Read, ReadEvents, ReadKept, ReadSpan
from busbar.model.message import ACTIVE, DEAD, KEPT, KEPT_DEAD, Record
from busbar.model.settings import EARLIEST, FragmentSettings, TapSettings

NEVER: Final = 1 << 62
"""Beyond every position and every time."""
NOW: Final = 1
"""A time that has come."""
EVENT_BYTES: Final = 128
"""What an event counts against the limit of a tap."""
REASON_LENGTH: Final = 256


@final
class Tap:
    def __init__(self, row: TapRow, settings: TapSettings, leased_until: i64) -> None:
        self.row = row
        self.settings = settings
        self.leased_until = leased_until  # of one that consumes
        self.truncations: i64 = 0  # since the fragment was opened: memory, as counters of a process are

    def holds(self) -> bool:
        return not self.row.truncated and not self.settings.consumes

    def behind(self) -> bool:
        """Whether the tap consumes and has passed messages that are not deleted yet."""
        return self.settings.consumes and self.row.lost < self.row.position


@final
class FirstKept:
    """The first of the messages kept in a lane; nothing is kept: NEVER."""

    def __init__(self) -> None:
        self.known = False
        self.position: i64 = NEVER
        self.enqueued: i64 = 0

    def set(self, position: i64, enqueued: i64) -> None:
        self.known = True
        self.position = position
        self.enqueued = enqueued

    def come(self, position: i64, enqueued: i64, alone: bool) -> None:
        """Note that a message is kept; `alone`: there were none."""
        if alone or (self.known and position < self.position):
            self.set(position, enqueued)


@final
class TapSet:
    def __init__(self, bounds: Bounds, rows: list[TapRow], settings: FragmentSettings) -> None:
        self.taps: dict[int, Tap] = {}  # as the settings have them
        self.events = False  # there is a tap with events
        self.recording = False  # ... that is not truncated
        self._bounds = bounds
        self._rows: dict[int, TapRow] = {row.id: row for row in rows}
        self._loaded = True  # the rows come from the store, and no lease is known
        self._settings: FragmentSettings | None = None  # those of which the taps are
        self._holding: list[Tap] = []
        self._truncated: list[Tap] = []
        self._low: i64 = 0  # what is behind it is held
        self._low_dead: i64 = 0
        self._low_event: i64 = 0
        self._kept = FirstKept()
        self._kept_dead = FirstKept()
        self._event_known = False
        self._event_time: i64 = 0  # of the first one kept
        self._lease: i64 = 0
        self._lease_dead: i64 = 0
        for tap in settings.taps:
            if tap.id in self._rows:
                self.taps[tap.id] = Tap(self._rows[tap.id], tap, 0)

    # ---- which taps there are ----

    def reconcile(self, settings: FragmentSettings, ledger: Ledger, now: i64) -> None:
        """Create and remove taps, so that they are those of the settings."""
        if settings is self._settings:
            return
        self._settings = settings
        rows = self._rows
        wanted: set[int] = {tap.id for tap in settings.taps}
        for id in [id for id in rows if id not in wanted]:
            ledger.drop_tap(id)
            del rows[id]
        old = self.taps
        self.taps = {}
        for tap in settings.taps:
            id = tap.id
            leased: i64 = 0
            row = rows.get(id)
            if row is None:
                row = _begin(tap, ledger.head)
                rows[id] = row
                ledger.set_tap(row)
            elif self._loaded:
                leased = now + tap.lease_ms if tap.consumes else 0
            elif id in old:
                leased = old[id].leased_until
            self.taps[id] = Tap(row, tap, leased)
            if id in old:
                self.taps[id].truncations = old[id].truncations
        self._loaded = False
        self.look()

    def stale(self, settings: FragmentSettings) -> bool:
        """Whether the settings may have other taps than these."""
        return settings is not self._settings and (len(settings.taps) > 0 or len(self._rows) > 0)

    def idle(self, head: Head) -> bool:
        """Whether there are no taps, and nothing is left of any."""
        counts = head.counts
        return not self._rows and counts[KEPT] == 0 and counts[KEPT_DEAD] == 0 and head.events == 0

    def look(self) -> None:
        """Compute again which taps hold what, after something has changed."""
        self._holding = []
        self._truncated = []
        self.events = False
        low: i64 = NEVER
        low_dead: i64 = NEVER
        low_event: i64 = NEVER
        lease: i64 = 0
        lease_dead: i64 = 0
        for tap in self.taps.values():
            row = tap.row
            settings = tap.settings
            if settings.events:
                self.events = True
            if settings.consumes:
                until: i64 = NEVER if tap.behind() else tap.leased_until
                if settings.sub == DEAD:
                    lease_dead = max(until, lease_dead)
                else:
                    lease = max(until, lease)
            if row.truncated:
                self._truncated.append(tap)
                continue
            if settings.events and row.event_position < low_event:
                low_event = row.event_position
            if settings.consumes:
                if not settings.events:
                    continue
            elif settings.sub == DEAD:
                low_dead = min(row.position, low_dead)
            else:
                low = min(row.position, low)
            self._holding.append(tap)
        self._low = low
        self._low_dead = low_dead
        self._low_event = low_event
        self.recording = low_event != NEVER
        self._lease = lease
        self._lease_dead = lease_dead

    # ---- leases ----

    def leased(self, sub: i64, now: i64) -> bool:
        """Whether a tap consumes the sub-queue, so that no receiver is served."""
        return (self._lease_dead if sub == DEAD else self._lease) > now

    def renew_lease(self, tap: Tap, now: i64) -> None:
        if tap.settings.consumes:
            tap.leased_until = now + tap.settings.lease_ms
            self.look()

    def lease_of_other(self, tap: Tap, now: i64) -> Tap | None:
        """Another tap that consumes the same sub-queue now."""
        for other in self.taps.values():
            if other is not tap and other.settings.sub == tap.settings.sub and other.leased_until > now:
                return other
        return None

    def end_leases(self, now: i64) -> None:
        ended = False
        for tap in self.taps.values():
            if 0 < tap.leased_until <= now:
                tap.leased_until = 0
                ended = True
        if ended:
            self.look()

    # ---- messages go ----

    def gone(self, ledger: Ledger, lane: i64, records: list[Record]) -> None:
        """Keep messages of a lane for taps, or delete them: receivers are done with them."""
        low = self._low
        low_dead = self._low_dead
        kept: list[int] = []
        kept_dead: list[int] = []
        deleted: list[int] = []
        kept_size: i64 = 0
        dead_size: i64 = 0
        deleted_size: i64 = 0
        lost: i64 = 0
        lost_dead: i64 = 0
        counts = ledger.head.counts
        first: Record | None = None
        first_dead: Record | None = None
        for record in records:
            n: int = record.n
            if record.n > low:
                kept.append(n)
                kept_size += record.size
                if first is None or record.n < first.n:
                    first = record
                continue
            lost = max(record.n, lost)
            if record.dead_letter_number > low_dead:
                kept_dead.append(n)
                dead_size += record.size
                if first_dead is None or record.dead_letter_number < first_dead.dead_letter_number:
                    first_dead = record
            else:
                deleted.append(n)
                deleted_size += record.size
                lost_dead = max(record.dead_letter_number, lost_dead)
        if first is not None:
            self._kept.come(first.n, first.enqueued, counts[KEPT] == 0)
            ledger.keep(lane, KEPT, kept, kept_size)
        if first_dead is not None:
            self._kept_dead.come(first_dead.dead_letter_number, first_dead.enqueued, counts[KEPT_DEAD] == 0)
            ledger.keep(lane, KEPT_DEAD, kept_dead, dead_size)
        ledger.delete(lane, deleted, deleted_size)
        if self._truncated:
            self._lose(ledger, lost, lost_dead)

    def _lose(self, ledger: Ledger, lost: i64, lost_dead: i64) -> None:
        """Note for truncated taps that messages up to these positions are lost."""
        for tap in self._truncated:
            row = tap.row
            position = lost_dead if tap.settings.sub == DEAD else lost
            if position > row.position and position > row.lost and not tap.settings.consumes:
                row.lost = position
                ledger.set_tap(row)

    # ---- deleting what no tap holds ----

    def tick_reads(self, head: Head) -> list[Read]:
        reads: list[Read] = []
        if self._must_sweep(head, KEPT_DEAD):
            reads.append(ReadKept(KEPT_DEAD, NEVER, self._bounds.swept))
        if self._must_sweep(head, KEPT):
            reads.append(ReadKept(KEPT, NEVER, self._bounds.swept))
        if self._must_see_event(head):
            first = head.last_event - head.events
            reads.append(ReadEvents(first, first + 1, 1))
        for tap in self.taps.values():
            if tap.behind():
                dead = tap.settings.sub == DEAD
                bounds = self._bounds
                reads.append(
                    ReadSpan(
                        [DEAD if dead else ACTIVE],
                        dead,
                        tap.row.lost,
                        tap.row.position,
                        bounds.page_records,
                        bounds.page_bytes,
                    )
                )
                break
        return reads

    def _must_sweep(self, head: Head, lane: i64) -> bool:
        if head.counts[lane] == 0:
            return False
        front = self._kept_dead if lane == KEPT_DEAD else self._kept
        low = self._low_dead if lane == KEPT_DEAD else self._low
        return not front.known or front.position <= low

    def _must_see_event(self, head: Head) -> bool:
        return head.events > 0 and not self._event_known and self.recording

    def sweep(self, ledger: Ledger, read: ReadKept) -> None:
        """Delete the first messages that were read, as far as no tap holds them."""
        lane = read.lane
        low = self._low_dead if lane == KEPT_DEAD else self._low
        front = self._kept_dead if lane == KEPT_DEAD else self._kept
        front.known = False
        deleted: list[int] = []
        moved: list[int] = []
        deleted_size: i64 = 0
        moved_size: i64 = 0
        lost: i64 = 0
        lost_dead: i64 = 0
        counts = ledger.head.counts
        first: i64 = NEVER
        first_enqueued: i64 = 0
        for n, dead, size, enqueued in read.rows:
            position: i64 = dead if lane == KEPT_DEAD else n
            if position > low:
                front.set(position, enqueued)
                break
            lost = max(n, lost)
            if lane == KEPT and dead > self._low_dead:
                moved.append(n)
                moved_size += size
                if dead < first:
                    first = dead
                    first_enqueued = enqueued
            else:
                deleted.append(n)
                deleted_size += size
                lost_dead = max(dead, lost_dead)
        if not front.known and len(read.rows) < read.limit:
            front.set(NEVER, 0)
        if moved:
            self._kept_dead.come(first, first_enqueued, counts[KEPT_DEAD] == 0)
            ledger.keep(KEPT, KEPT_DEAD, moved, moved_size)
        ledger.delete(lane, deleted, deleted_size)
        if self._truncated:
            self._lose(ledger, lost if lane == KEPT else 0, lost_dead)

    # ---- events ----

    def record(
        self, ledger: Ledger, n: i64, outcome: i64, now: i64, enqueued: i64, deliveries: i64, reason: str
    ) -> None:
        """Record what has happened to a message. If every tap with events is truncated and no event is kept, lose it."""
        if self.recording or ledger.head.events > 0:  # events to be deleted are still before this one
            if ledger.head.events == 0:
                self._event_known = True
                self._event_time = now
            ledger.record(n, outcome, now, enqueued, deliveries, reason[:REASON_LENGTH])
        else:
            position = ledger.skip_event()
            self._lose_events(ledger, position)

    def _lose_events(self, ledger: Ledger, upto: i64) -> None:
        for tap in self._truncated:
            row = tap.row
            if tap.settings.events and upto > row.event_position and upto > row.event_lost:
                row.event_lost = upto
                ledger.set_tap(row)

    def see_event(self, read: ReadEvents) -> None:
        self._event_known = True
        self._event_time = read.events[0].time if read.events else NEVER

    def forget_events(self, ledger: Ledger) -> None:
        """Delete some of the events that no tap holds any more."""
        head = ledger.head
        before = head.last_event - head.events
        upto = min(self._low_event, min(head.last_event, before + self._bounds.swept))
        if head.events > 0 and upto > before:
            ledger.forget_events(upto, upto - before)
            self._event_known = False
            self._lose_events(ledger, upto)

    # ---- limits ----

    def enforce(self, ledger: Ledger, now: i64) -> None:
        """Truncate the taps that reached a limit."""
        truncated = False
        for tap in self._holding:
            if self._limit_at(ledger.head, tap) <= now:
                tap.row.truncated = True
                tap.truncations += 1
                ledger.set_tap(tap.row)
                truncated = True
        if truncated:
            self.look()

    def _limit_at(self, head: Head, tap: Tap) -> i64:
        """When a tap that holds something reaches a limit. Never before everything that can be deleted is deleted."""
        row = tap.row
        settings = tap.settings
        at: i64 = NEVER
        if not settings.consumes:
            dead = settings.sub == DEAD
            front = self._kept_dead if dead else self._kept
            low = self._low_dead if dead else self._low
            if front.known and low < front.position < NEVER and row.position < front.position:
                size = head.kept_dead_size if dead else head.kept_size - head.kept_dead_size
                if settings.max_bytes > 0 and row.position == low and size > settings.max_bytes:
                    return NOW
                if settings.max_age_ms > 0:
                    at = front.enqueued + settings.max_age_ms
        if settings.events and head.events > 0:
            before = head.last_event - head.events
            if self._low_event <= before and row.event_position <= before:
                size = head.events * EVENT_BYTES
                if (
                    settings.max_bytes > 0
                    and size > settings.max_bytes
                    and row.event_position == self._low_event
                ):
                    return NOW
                if settings.max_age_ms > 0 and self._event_known:
                    at = min(at, self._event_time + settings.max_age_ms)
        return at

    def due(self, head: Head) -> i64:
        """When there is something to do in a tick; 0: never."""
        if self._must_sweep(head, KEPT) or self._must_sweep(head, KEPT_DEAD) or self._must_see_event(head):
            return NOW
        if head.events > 0 and head.last_event - head.events < self._low_event:
            return NOW
        at: i64 = NEVER
        for tap in self.taps.values():
            if tap.behind():
                return NOW
            if tap.leased_until > 0:
                at = min(at, tap.leased_until)
        for tap in self._holding:
            at = min(at, self._limit_at(head, tap))
        return 0 if at == NEVER else at

    # ---- when commits have failed ----

    def rows(self) -> list[TapRow]:
        return list(self._rows.values())

    def undo(self, rows: list[TapRow]) -> None:
        """Return to the rows of the store. Leases stay: they were never durable."""
        self._rows = {row.id: row for row in rows}
        self._settings = None
        self._kept = FirstKept()
        self._kept_dead = FirstKept()
        self._event_known = False
        for id, row in self._rows.items():
            tap = self.taps.get(id)
            if tap is not None:
                if tap.row.truncated and not row.truncated:
                    tap.truncations -= 1  # it will be once more
                tap.row = row
        self.look()


def _begin(tap: TapSettings, head: Head) -> TapRow:
    if tap.start == EARLIEST:
        return TapRow(tap.id, 0)
    position = head.last_dead if tap.sub == DEAD else head.last
    return TapRow(tap.id, position, position if tap.consumes else 0, head.last_event)
