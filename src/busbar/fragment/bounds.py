"""How much a fragment does at once, and how much it keeps in memory.

Fixed in service; values of an object so that a simulation reaches every bound with a handful of messages.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64


@final
class Bounds:
    def __init__(self) -> None:
        self.turn_messages: i64 = 1_000  # touched by one turn, beyond those that its command names
        self.burst_bytes: i64 = 256 * 1024  # to one consumer before the next has its turn (seed 004: a fetch)
        # Read in advance, or just sent. 1,000 messages of 1 KiB in flight have to fit: what is beyond is read again.
        self.ready_records: i64 = 2_000
        self.ready_bytes: i64 = 2 * 1024 * 1024
        self.page_records: i64 = 500
        self.page_bytes: i64 = 1024 * 1024
        self.returned_records: i64 = 10_000  # unlocked again, before they are left to the store
        self.kept_bytes: i64 = (
            8 * 1024 * 1024
        )  # of locked and returned messages; beyond it they are read again
        # Topics: what one turn passes on. A message is never split, so the last one may go beyond.
        self.fan_out_copies: i64 = 40_000
        self.fan_out_bytes: i64 = 32 * 1024 * 1024
        self.judging_steps: i64 = 128 * 1024 * 1024  # of rules, while a sender waits for them
        # The outbox
        self.outbox_records: i64 = 6_000  # for one target in memory
        self.outbox_bytes: i64 = 6 * 1024 * 1024
        self.forwarded_records: i64 = 5_000  # for a single target; beyond it messages stay in the entity
        self.forwarded_bytes: i64 = 5 * 1024 * 1024
        self.outbox_run: i64 = 256  # messages without a key to one fragment of a target before the next
        self.reserved_numbers: i64 = 10_000  # for transactions that schedule; the oldest are forgotten
        # Express entities: what only memory has; beyond it, all of it is written
        self.unwritten_messages: i64 = 20_000  # and changed sessions
        self.unwritten_bytes: i64 = 16 * 1024 * 1024
        # Message sessions
        self.line_page: i64 = 500  # waiting sessions read at once
        self.line_sessions: i64 = 2_000  # waiting sessions in memory, and a page
        self.session_page: i64 = 16  # messages of a session read at once at least, if there are as many
        self.session_locks: i64 = 5_000  # messages of a session in flight: they end together
        self.session_bytes: i64 = 16 * 1024 * 1024  # read in advance, of all sessions
        self.sessions_at_once: i64 = 50  # read for, or expired, by one turn
        self.offer_ms: i64 = 100  # for which an offer of a session is good before it goes to others
        # Duplicate detection
        self.recent_ids: i64 = 4_096  # known without asking the store; twice as many at most
        self.segment_ids: i64 = 1_024  # on one segment, while there are few (duplicates.py)
        self.id_page: i64 = 4_096  # read at once when the filter is made again
        self.expired_ids: i64 = 1_000  # forgotten by one turn
        self.filter_bytes: i64 = 80 * 1024  # at first; grows fourfold, up to:
        self.filter_most: i64 = 20 * 1024 * 1024  # for 10 million ids: docs/adr/0005-ids-on-shelves.md
        self.filter_slice: i64 = 1024 * 1024  # cleared by one turn
        # Taps and writers
        self.swept: i64 = (
            1_000  # kept messages, or events, that go in one turn since every tap has passed them
        )
        self.span_records: i64 = 20_000  # shown to a tap at once
        self.span_bytes: i64 = 4 * 1024 * 1024
        self.writers: i64 = 20_000  # remembered, those that are done for FENCE_MS included
        self.written_ids: i64 = 50_000  # of writers, known without asking the store
        self.overlay_bytes: i64 = 64 * 1024  # properties that settlements add to one message
        self.free_overlay: i64 = 1024  # of them to one message where the entity is full
