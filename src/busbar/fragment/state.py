"""What a fragment knows, and the elementary moves of a message that all its rules are made of.

The two sub-queues, main and dead-letter, each have a lane of available and a lane of deferred messages:
main ACTIVE and DEFERRED, dead-letter DEAD and DEAD_DEFERRED. Only the available lanes have a window.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Head, Lock
from busbar.fragment.consumers import Consumer
from busbar.fragment.duplicates import Duplicates
from busbar.fragment.lane import Window
from busbar.fragment.ledger import Ledger
from busbar.fragment.locks import LockTable
from busbar.fragment.reads import Read
from busbar.fragment.text import EXPIRED, merged
from busbar.model.commands import Command
from busbar.model.effects import Effect, Refused
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, DEFERRED, Overlay, Record
from busbar.model.settings import FragmentSettings


@final
class State:
    def __init__(
        self,
        settings: FragmentSettings,
        head: Head,
        due: i64,
        locks: list[Lock],
        bounds: Bounds,
        shelves: list[int],
    ) -> None:
        self.settings = settings
        self.bounds = bounds
        self.ledger = Ledger(head)
        self.locks = LockTable(locks)
        self.main = Window(ACTIVE, bounds)
        self.dead = Window(DEAD, bounds)
        self.due = (
            due  # when to look for scheduled messages (never later than the first is due); 0: there are none
        )
        self.duplicates = Duplicates(bounds, shelves, head.ids, head.dropped)
        self.consumers: dict[tuple[int, int], Consumer] = {}
        self.effects: list[Effect] = []
        self.supplied: list[Read] = []

    def window(self, sub: i64) -> Window:
        return self.dead if sub == DEAD else self.main

    def unread(self, window: Window) -> i64:
        """How many available messages of the window's lane are only in the store."""
        head = self.ledger.head
        if window.cursor > head.last:
            return 0
        return head.counts[window.lane] - self.locks.counts[window.lane] - window.available()

    def room(self) -> i64:
        """Bytes that may still be kept for locked and returned messages."""
        return self.bounds.kept_bytes - self.locks.bytes - self.main.returned_bytes - self.dead.returned_bytes

    # ---- the moves of a message ----

    def give_back(self, lane: i64, record: Record) -> None:
        """The message, no longer locked, is available in its lane (a deferred one just stays deferred)."""
        if lane in (ACTIVE, DEAD):
            if record.content is not None and record.size > self.room():
                record = record.without_content()
            self.window(lane).give_back(record)

    def bury(self, lane: i64, record: Record, deliveries: i64, overlay: Overlay | None) -> None:
        """Dead-letter a message of the main sub-queue. It keeps its number and its enqueued time."""
        unread = self.unread(self.dead)
        self.ledger.edit(lane, record.n, DEAD, deliveries, overlay)
        buried = record.changed(deliveries, overlay)
        if record.n < self.dead.cursor:
            self.give_back(DEAD, buried)
        else:
            self.dead.arrive(buried, unread)

    def expire(self, lane: i64, records: list[Record]) -> None:
        """Messages whose time to live has passed, and which are in no window any more: bury or drop them."""
        if self.settings.dead_letter_on_expiration and lane == ACTIVE:
            for record in records:
                self.bury(lane, record, record.deliveries, merged(record.overlay, EXPIRED))
        else:
            self.delete(lane, records)

    def delete(self, lane: i64, records: list[Record]) -> None:
        """Remove messages that are in no window and under no lock."""
        numbers: list[int] = []
        size: i64 = 0
        for record in records:
            numbers.append(record.n)
            size += record.size
        self.ledger.delete(lane, numbers, size)

    def refuse(self, command: Command, condition: str, text: str) -> None:
        self.effects.append(Refused(command.origin, command.request, condition, text))


def in_dead_letter_queue(lane: i64) -> bool:
    return lane in (DEAD, DEAD_DEFERRED)


def deferred_lane(sub: i64) -> i64:
    """The lane of the deferred messages of a sub-queue, named by its available lane or by the deferred one itself."""
    return DEAD_DEFERRED if in_dead_letter_queue(sub) else DEFERRED
