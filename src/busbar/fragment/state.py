"""The state of a fragment in memory, and the elementary moves of a message that all its rules use.

Each sub-queue (sub_queues.py) has a window. Where the entity requires sessions, the main sub-queue has one for each session
that is held, and none of its own.

A message leaves its sub-queue for good in one place, `delete`, where taps may keep it (taps.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Head, Lock, OutboxRow, TapRow
from busbar.fragment.consumers import Consumer
from busbar.fragment.duplicates import DuplicateDetector
from busbar.fragment.figures import FragmentWork
from busbar.fragment.history import StepLog
from busbar.fragment.ledger import Ledger
from busbar.fragment.locks import LockTable
from busbar.fragment.outbox import Outbox
from busbar.fragment.reads import Read
from busbar.fragment.sessions import Key, MessageSessions
from busbar.fragment.sub_queues import in_dead_letter_queue
from busbar.fragment.taps import TapSet
from busbar.fragment.text import EXPIRED, merged, reason_of
from busbar.fragment.window import Window
from busbar.fragment.writers import Writers
from busbar.model.commands import Command, StoreCopies
from busbar.model.effects import DEAD_LETTERED, FORWARDED, RECEIVED_AND_DELETED, Effect, Refused
from busbar.model.effects import EXPIRED as EXPIRED_AND_DROPPED
from busbar.model.message import (
    ACTIVE,
    DEAD,
    OUTBOX,
    SCHEDULED,
    TRANSFER_DEAD,
    TRANSFER_DEAD_DEFERRED,
    Draft,
    Overlay,
    Record,
    SharedCopies,
)
from busbar.model.settings import ForwardSettings, FragmentSettings

NO_TAPS: Final = (SCHEDULED, OUTBOX, TRANSFER_DEAD, TRANSFER_DEAD_DEFERRED)
"""The lanes of messages that no tap sees, now or later."""


@final
class State:
    def __init__(
        self,
        settings: FragmentSettings,
        head: Head,
        due: i64,
        locks: list[Lock],
        bounds: Bounds,
        segments: list[int],
        taps: list[TapRow],
        writers: dict[str, tuple[int, int]],
        outbox: dict[int, OutboxRow],
        draft_of: Callable[[bytes], Draft] | None,
        sizes_of: Callable[[bytes], tuple[int, int]] | None,
        figures: FragmentWork,
    ) -> None:
        self.settings = settings
        self.figures = figures
        self.now: i64 = 0  # of the turn
        self.bounds = bounds
        self.ledger = Ledger(head)
        self.sessions: MessageSessions | None = None
        if settings.requires_session:
            self.sessions = MessageSessions(bounds, head.counts[ACTIVE] == 0)
            # A session lock ends with the process, and the message locks under it too.
            locks = [lock for lock in locks if in_dead_letter_queue(lock.lane)]
        self.locks = LockTable(locks)
        self.main = Window(ACTIVE, bounds)
        self.dead = Window(DEAD, bounds)
        self.transfer_dead = Window(TRANSFER_DEAD, bounds)
        self.due = (
            due  # when to look for scheduled messages (never later than the first is due); 0: there are none
        )
        self.holds_due = False  # what is due waits: the store is full
        self.duplicates = DuplicateDetector(bounds, segments, head.ids, head.dropped)
        self.taps: TapSet | None = None  # while there are any, or something is left of them
        found = TapSet(bounds, taps, settings)
        if settings.taps or not found.idle(head):
            self.taps = found
        self.writers = Writers(bounds, writers)
        self.outbox = Outbox(bounds, outbox)
        self.draft_of = draft_of
        self.sizes_of = sizes_of
        self.not_forwarded: ForwardSettings | None = None  # dead letters came back from there (moving.py)
        self.forward_again: i64 = 0  # when they are forwarded again
        self.back_pause: i64 = 0  # how long that was last
        self.reserved: dict[int, bool] = {}  # numbers that were given to no message so far, in their order
        self.consumers: dict[tuple[int, int], Consumer] = {}
        self.copies: dict[int, StoreCopies] = {}  # of a topic: by the fragments of its subscriptions
        self.shared_copies: SharedCopies | None = None  # of a topic: what all its subscriptions get
        self.topic_bytes: i64 = (
            0  # that other fragments keep towards the same quota: a topic and its subscriptions
        )
        self.shared_quota: i64 = 0  # of a subscription: its topic's
        self.effects: list[Effect] = []
        self.history: StepLog | None = None  # while the entity records what happens to messages
        self.supplied: list[Read] = []

    def window(self, sub: i64) -> Window:
        if sub == TRANSFER_DEAD:
            return self.transfer_dead
        return self.dead if sub == DEAD else self.main

    def window_of(self, consumer: Consumer) -> Window:
        """Where the consumer stands in line."""
        sessions = self.sessions
        if sessions is not None and consumer.sub == ACTIVE:
            key: Key = (consumer.origin, consumer.consumer)
            session = sessions.by_consumer.get(key)
            if session is not None:
                return session.window
        return self.window(consumer.sub)

    def serves(self, sub: i64) -> bool:
        """Whether receivers may get messages of the sub-queue now."""
        if (sub == ACTIVE and self.settings.forward is not None) or (
            sub == DEAD and self.settings.forward_dead_letters is not None
        ):
            return False
        return self.lets_out(sub)

    def lets_out(self, sub: i64) -> bool:
        """Whether messages may leave the sub-queue now, by their number or by forwarding."""
        if not self.settings.can_receive:
            return False
        taps = self.taps
        return taps is None or sub == TRANSFER_DEAD or not taps.leased(sub, self.now)

    def unread(self, window: Window) -> i64:
        """How many available messages of the window's lane are only in the store."""
        head = self.ledger.head
        if window.cursor > head.last:
            return 0
        return head.counts[window.lane] - self.locks.counts[window.lane] - window.available()

    def known_numbers(self, numbers: list[int]) -> list[int]:
        """Each number once, and only those that were ever given: the rest needs no read."""
        last: int = self.ledger.head.last
        return [n for n in dict.fromkeys(numbers) if 0 < n <= last]

    def room(self) -> i64:
        """Bytes that may still be kept for locked and returned messages."""
        room = self.bounds.kept_bytes - self.locks.bytes - self.main.returned_bytes
        room -= self.dead.returned_bytes + self.transfer_dead.returned_bytes
        sessions = self.sessions
        return room if sessions is None else room - sessions.returned_bytes

    # ---- the moves of a message ----

    def give_back(self, lane: i64, record: Record) -> None:
        """Make a message that is no longer locked available in its lane. A deferred one stays deferred."""
        if lane in (ACTIVE, DEAD, TRANSFER_DEAD):
            if record.content is not None and record.size > self.room():
                record = record.without_content()
            sessions = self.sessions
            if sessions is not None and lane == ACTIVE:
                self._give_back_to_session(sessions, record)
            else:
                self.window(lane).give_back(record)

    def _give_back_to_session(self, sessions: MessageSessions, record: Record) -> None:
        id = record.session_id
        session = sessions.held.get(id) if id is not None else None
        if session is None:
            return  # it waits in the store until a consumer accepts the session
        if record.n <= session.doomed:
            self.expire(ACTIVE, [record])
        else:
            session.take_back(record)
            sessions.account(session)
        sessions.changed[session.id] = session

    def dead_letter(self, lane: i64, record: Record, deliveries: i64, overlay: Overlay | None) -> None:
        """Dead-letter a message of the main sub-queue. It keeps its number and its enqueued time."""
        unread = self.unread(self.dead)
        if lane == ACTIVE:
            self.leave_session(record)
        dead = self.ledger.next_dead()
        self.ledger.edit(lane, record, DEAD, deliveries, overlay, dead)
        buried = record.changed(deliveries, overlay)
        buried.dead_letter_number = dead
        reason = reason_of(overlay)
        self.figures.dead_letter(reason)
        if self.taps is not None or self.history is not None:
            self.record_event(record, DEAD_LETTERED, deliveries, reason)
        if record.n < self.dead.cursor:
            self.give_back(DEAD, buried)
        else:
            self.dead.arrive(buried, unread)

    def expire(self, lane: i64, records: list[Record]) -> None:
        """Dead-letter or delete messages whose time to live has passed, and which are in no window any more."""
        if self.settings.dead_letter_on_expiration and lane == ACTIVE:
            for record in records:
                self.dead_letter(lane, record, record.deliveries, merged(record.overlay, EXPIRED))
        else:
            self.delete(lane, records, EXPIRED_AND_DROPPED)

    def delete(self, lane: i64, records: list[Record], outcome: i64) -> None:
        """Remove messages that are in no window and under no lock. `outcome` is the reason."""
        if self.sessions is not None and lane == ACTIVE:
            for record in records:
                self.leave_session(record)
        taps = self.taps
        if taps is None or lane in NO_TAPS:
            numbers: list[int] = []
            size: i64 = 0
            for record in records:
                numbers.append(record.n)
                size += record.size
            self.ledger.delete(lane, numbers, size)
        else:
            taps.gone(self.ledger, lane, records)
            if taps.events:
                for record in records:
                    taps.record(
                        self.ledger, record.n, outcome, self.now, record.enqueued, record.deliveries, ""
                    )
        if self.history is not None and lane not in (SCHEDULED, OUTBOX):
            for record in records:
                self.note_step(record, outcome, record.deliveries, self._target(lane, outcome))

    def _target(self, lane: i64, outcome: i64) -> str:
        """The path to which a message of the lane is forwarded; empty if that is not the outcome."""
        if outcome != FORWARDED:
            return ""
        forward = self.settings.forward_dead_letters if lane == DEAD else self.settings.forward
        return "" if forward is None else forward.path

    def record_event(self, record: Record, outcome: i64, deliveries: i64, reason: str) -> None:
        """Record what has become of a message, if a tap records events, or the entity its history."""
        taps = self.taps
        if taps is not None and taps.events:
            taps.record(self.ledger, record.n, outcome, self.now, record.enqueued, deliveries, reason)
        if self.history is not None:
            self.note_step(record, outcome, deliveries, reason)

    def note_step(self, record: Record, what: i64, deliveries: i64, reason: str) -> None:
        """Note a step in the history of a message, if the entity records it. What was received and deleted is noted with
        its delivery."""
        history = self.history
        if history is not None and what != RECEIVED_AND_DELETED:
            history.note(record.n, what, self.now, deliveries, reason, record.content)

    def leave_session(self, record: Record) -> None:
        """Count a message out of its session, because it will not be active any more."""
        id = record.session_id
        if self.sessions is not None and id is not None:
            self.ledger.out_of_session(id)

    def refuse(self, command: Command, condition: str, text: str) -> None:
        self.effects.append(Refused(command.origin, command.request, condition, text))
