"""Messages come into a fragment with one command: what is decided about each, and what is stored of them.

Rules
- A message gets the next number, the time of its arrival, and the smaller of its own and the entity's time to live.
- A message scheduled for later stands in SCHEDULED with a number of its own: one that was reserved for it, or the next.
- A message that would take the entity over its quota is refused; an atomic command is then refused as a whole. The quota
  counts every message kept, in whatever lane, and every id that duplicate detection remembers. Otherwise a sender whose
  messages are soon received could fill the disk with ids.
- Where the entity detects duplicates (duplicates.py), a message whose id is remembered is dropped. It is neither counted nor
  numbered, and its sender gets the answer of a successful send.
- What a writer sends again (writers.py) is dropped in the same way; the number of the original is not known then (0).
- Where the entity requires sessions a message without a session id is refused, an atomic command with one as a whole.
- A topic passes on what it does not schedule, as its rules have selected it (publishing.py). With `only_selected` it refuses
  what no subscription selects. There, message i gets the number last + 1 + i.
- A message with another destination (Draft.kind) is not one of this entity. Only the quota is checked, and the message
  enters the outbox.

Three commands use it: Send (sending.py), TakeMoved (taking.py) and Transact (transacting.py). Each first asks for a refusal
of the whole, then takes the messages one by one, then stores.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.arriving import put_active
from busbar.fragment.changes import ID_SIZE, OVERHEAD, IdRow
from busbar.fragment.history import StepLog
from busbar.fragment.publishing import AT_ONCE, PassedOn, note_published
from busbar.fragment.state import State
from busbar.fragment.text import NEEDS_SESSION
from busbar.model.effects import (
    ARRIVED,
    DUPLICATE_DROPPED,
    MOVER_ORIGIN,
    SCHEDULED_FOR_LATER,
    SENT,
    SENT_VIA,
)
from busbar.model.errors import (
    BatchOver,
    EntityDisabled,
    InvalidOperation,
    NoMatchingSubscription,
    QuotaExceeded,
    ServerBusy,
)
from busbar.model.message import SCHEDULED, Draft, Publication, Record, Selection, copy_count

Refusal = tuple[str, str]
"""Condition and text."""

NOT_SELECTED: Final = "No subscription of the topic selects the message."
TOO_MUCH_TO_JUDGE: Final = (
    "The rules of the topic take too long for so many messages at once; send fewer in one batch."
)
NOT_RESERVED: Final = "The sequence number of a scheduled message is not reserved (any more)."
NOT_EVALUATED: Final = Selection()
"""Of a queue, and of a topic whose command publishes nothing."""
NO_IDS: Final[list[bytes]] = []
NO_IDS_SENT: Final[set[bytes]] = set()


@final
class Intake:
    def __init__(self, state: State, drafts: list[Draft], now: i64, atomic: bool) -> None:
        settings = state.settings
        head = state.ledger.head
        self._state = state
        self._drafts = drafts
        self._now = now
        self._atomic = atomic
        # What is known before
        self.kept = head.size + state.topic_bytes + head.ids * ID_SIZE
        self.room: i64 = settings.quota_bytes - self.kept if settings.quota_bytes > 0 else 1 << 62
        self._ttl_ms = settings.ttl_ms
        self._needs_session = settings.requires_session
        self._horizon = now - settings.duplicate_window_ms
        self._ids = NO_IDS  # of duplicate detection, one for each message
        self._written = NO_IDS  # of a writer's messages, one for each
        self._sent_before = NO_IDS_SENT  # of a writer
        self._writer: str | None = None
        self._batch: i64 = 0
        self._looks_up = False
        self._selected = NOT_EVALUATED
        self._topic: PassedOn | None = None
        # What was decided
        self._first = head.last + 1
        self._last = head.last
        self.numbers: list[int] = []  # one for each message
        self.refused: list[tuple[int, str, str]] = []
        self.repeated: list[int] | None = None
        self._puts: list[Record] = []
        self._put_bytes: i64 = 0
        self._put_drafts: list[Draft] | None = None
        self._published_bytes: i64 = 0  # of messages that a topic passes on
        self._later: list[Record] | None = None
        self._later_bytes: i64 = 0
        self._moved: list[tuple[Record, str]] | None = None
        self._remembered: list[IdRow] | None = None
        self._fresh: list[bytes] | None = None  # ids of a writer
        if settings.topic is not None:
            self._topic = PassedOn(state)
        elif settings.forward is not None:
            self._put_drafts = []

    # ---- before any message is taken ----

    def refusal(self, writer: str | None = None, batch: i64 = 0) -> Refusal | None:
        """Why all messages are refused, whatever rules select; None if they are not. Also finds what was sent before."""
        state = self._state
        if not state.settings.can_send:
            return EntityDisabled.condition, "The entity is disabled for sending."
        if writer is not None:
            if batch < state.writers.committed(writer):
                return BatchOver.condition, _over(writer, batch)
            if too_many := state.writers.refusal(writer):
                return QuotaExceeded.condition, too_many
            self._writer = writer
            self._batch = batch
            self._written = state.writers.ids_of(self._drafts)
            self._sent_before = state.writers.known(writer, self._written, state.supplied)
            self._looks_up = True
        if state.settings.duplicate_window_ms > 0:
            self._ids = state.duplicates.ids_of(self._drafts, state.supplied)
            self._looks_up = True
        return self._refusal_of_all() if self._atomic else None

    def _refusal_of_all(self) -> Refusal | None:
        if self._needs_session:
            for draft in self._drafts:
                if draft.session_id is None and draft.kind == 0:
                    return InvalidOperation.condition, NEEDS_SESSION
        for draft in self._drafts:
            if draft.number > 0 and draft.scheduled > self._now and draft.number not in self._state.reserved:
                return InvalidOperation.condition, NOT_RESERVED
        asked = self._asked()
        if asked > self.room:
            return QuotaExceeded.condition, self._full(self.kept, asked)
        return None

    def _asked(self) -> i64:
        """How many bytes the messages need that are not duplicates."""
        asked: i64 = 0
        seen: set[bytes] = set()
        at: i64 = -1
        for draft in self._drafts:
            at += 1
            if self._looks_up and draft.kind == 0:
                if self._written:
                    id = self._written[at]
                    if id and (id in seen or id in self._sent_before):
                        continue
                    seen.add(id)
                if self._ids:
                    id = self._ids[at]
                    if id and (id in seen or self._state.duplicates.original(id, self._horizon) >= 0):
                        continue
                    seen.add(id)
                    asked += ID_SIZE if id else 0
            asked += len(draft.content) + OVERHEAD
        return asked

    def to_publish(self) -> list[Publication]:
        """What a topic publishes of the messages, but for what is certainly refused, dropped or scheduled."""
        found: list[Publication] = []
        at: i64 = -1
        for draft in self._drafts:
            at += 1
            if draft.kind != 0 or draft.scheduled > self._now or self._original(at) >= 0:
                continue
            content = draft.content
            if len(content) + OVERHEAD > self.room and not self._atomic:
                continue
            found.append(Publication(self._first + at, content, self._bounded(draft.ttl)))
        return found

    def select(self, selected: Selection | None) -> Refusal | None:
        """Set what the rules of a topic have selected. Returns why an atomic command is then refused, None if it is not."""
        if selected is not None:
            self._selected = selected
        if self._topic is None or not self._atomic or not self._state.settings.only_selected:
            return None
        at: i64 = -1
        for draft in self._drafts:
            at += 1
            if draft.kind != 0 or draft.scheduled > self._now or self._original(at) >= 0:
                continue
            refusal = _judgement(self._selected, self._first + at)
            if refusal is not None:
                return refusal
        return None

    # ---- one message ----

    def take(self, draft: Draft) -> bool:
        """Decide about the next message; False if it is refused."""
        at: i64 = len(self.numbers)
        if draft.kind != 0:
            return self._take_on_its_way(draft, at)
        if self._needs_session and draft.session_id is None:
            return self._refuse(InvalidOperation.condition, NEEDS_SESSION)
        if self._looks_up:
            original = self._original(at)
            if original >= 0:
                self._drop(draft, at, original)
                return True
        content = draft.content
        size: i64 = len(content) + OVERHEAD
        # A batch has its room, but for the further copies of a topic.
        if size > self.room and not self._atomic:
            return self._refuse_full(size)
        ttl = draft.ttl
        most = self._ttl_ms
        if most > 0 and (ttl <= 0 or ttl > most):
            ttl = most
        if draft.scheduled > self._now:
            self._schedule(draft, at, ttl, size, draft.scheduled)
            return True
        if self._topic is not None:
            return self._publish(draft, at, ttl, size, self._topic)
        n = self._last + 1
        self._last = n
        self.numbers.append(n)
        self.room -= size
        if self._looks_up:
            self._remember(at, n)
        record = Record(n, self._now, ttl, 0, 0, size, content, None)
        if self._needs_session:
            record.session_id = draft.session_id
        if draft.hops != 0:
            record.hops = draft.hops
        self._puts.append(record)
        self._put_bytes += size
        if self._put_drafts is not None:
            self._put_drafts.append(draft)
        return True

    def _bounded(self, ttl: i64) -> i64:
        most = self._ttl_ms
        return most if most > 0 and (ttl <= 0 or ttl > most) else ttl

    def _original(self, at: i64) -> i64:
        """The number of the message that message `at` repeats: 0 if it is not known, -1 if there is none."""
        if self._written:
            id = self._written[at]
            if id and id in self._sent_before:
                return 0
        if self._ids:
            id = self._ids[at]
            if id:
                return self._state.duplicates.original(id, self._horizon)
        return -1

    def _number(self, at: i64) -> i64:
        """The number of message `at`, which is taken with it."""
        n = self._last + 1 if self._topic is None else self._first + at
        self._last = n
        return n

    def _remember(self, at: i64, n: i64) -> None:
        if self._written:
            self._note_written(self._written[at])
        if self._ids:
            id = self._ids[at]
            if id:
                self.room -= ID_SIZE
                remembered = self._remembered
                if remembered is None:
                    remembered = []
                    self._remembered = remembered
                window = self._state.settings.duplicate_window_ms
                self._state.duplicates.remember(id, self._now, n, window, remembered)

    def _note_written(self, id: bytes) -> None:
        if id and id not in self._sent_before:
            self._sent_before.add(id)
            fresh = self._fresh
            if fresh is None:
                fresh = []
                self._fresh = fresh
            fresh.append(id)

    def _drop(self, draft: Draft, at: i64, original: i64) -> None:
        state = self._state
        state.duplicates.note_drop(draft, self._now, original)
        state.figures.duplicates += 1
        taps = state.taps
        if taps is not None and taps.events:
            taps.record(state.ledger, original, DUPLICATE_DROPPED, self._now, 0, 0, draft.message_id)
        if state.history is not None:
            state.history.note(original, DUPLICATE_DROPPED, self._now, 0, "", draft.content)
        repeated = self.repeated
        if repeated is None:
            repeated = []
            self.repeated = repeated
        repeated.append(at)
        self.numbers.append(original)
        if self._written:
            self._note_written(self._written[at])

    def _refuse(self, condition: str, text: str) -> bool:
        self.refused.append((len(self.numbers), condition, text))
        self.numbers.append(0)
        return False

    def _refuse_full(self, size: i64) -> bool:
        count: i64 = len(self._remembered) if self._remembered is not None else 0
        kept = self.kept + self._put_bytes + self._later_bytes + count * ID_SIZE
        return self._refuse(QuotaExceeded.condition, self._full(kept, size))

    def _full(self, kept: i64, asked: i64) -> str:
        quota = self._state.settings.quota_bytes
        ids = self._state.ledger.head.ids
        text = (
            f"The maximum entity size has been reached: the entity holds {kept} bytes, {asked} more would exceed "
            f"its maximum of {quota} bytes."
        )
        if ids > 0:
            text += (
                f" {ids * ID_SIZE} bytes of that are for the ids that duplicate detection remembers: {ids}."
            )
        return text

    def _schedule(self, draft: Draft, at: i64, ttl: i64, size: i64, due: i64) -> None:
        state = self._state
        n = draft.number
        if n > 0 and n in state.reserved and due > self._now:
            del state.reserved[n]
        else:
            n = self._number(at)
        self.numbers.append(n)
        self.room -= size
        if self._looks_up:
            self._remember(at, n)
        record = Record(n, self._now, ttl, due, 0, size, draft.content, None)
        if self._needs_session or self._topic is not None:
            record.session_id = draft.session_id
        record.hops = draft.hops
        later = self._later
        if later is None:
            later = []
            self._later = later
        later.append(record)
        self._later_bytes += size
        if state.due == 0 or due < state.due:
            state.due = due

    def _publish(self, draft: Draft, at: i64, ttl: i64, size: i64, topic: PassedOn) -> bool:
        """Pass a message on to the subscriptions of a topic, or keep it for the ticks that do so."""
        number = self._first + at
        if self._state.settings.only_selected:
            refusal = _judgement(self._selected, number)
            if refusal is not None:
                return self._refuse(refusal[0], refusal[1])
        copies = self._selected.copies.get(number)
        if copies is None:
            self._schedule(draft, at, ttl, size, AT_ONCE)
            self.room += size - topic.mean()
            return True
        n = self._number(at)
        self.numbers.append(n)
        if self._looks_up:
            self._remember(at, n)
        self.room -= topic.collect_copies(copies, ttl, draft.session_id, draft.hops)
        history = self._state.history
        if history is not None:
            history.note(n, _arrival(history), self._now, 0, "", draft.content)
            note_published(history, n, self._now, copy_count(copies), draft.content)
        self._published_bytes += size
        return True

    def _take_on_its_way(self, draft: Draft, at: i64) -> bool:
        """A message for another entity enters the outbox."""
        size: i64 = len(draft.content) + OVERHEAD
        if size > self.room and not self._atomic:
            return self._refuse_full(size)
        n = self._number(at)
        self.numbers.append(n)
        self.room -= size
        record = Record(n, self._now, draft.ttl, 0, 0, size, draft.content, None)
        record.hops = draft.hops
        record.target = draft.target
        record.kind = draft.kind
        moved = self._moved
        if moved is None:
            moved = []
            self._moved = moved
        moved.append((record, draft.path))
        return True

    # ---- all of them ----

    def _note(self, history: StepLog) -> None:
        """Note what is put in the history of each message."""
        history.note_all(self._puts, _arrival(history), self._now)
        if self._later is not None:
            for record in self._later:
                what = SCHEDULED_FOR_LATER if record.due > AT_ONCE else _arrival(history)
                history.note(record.n, what, self._now, 0, "", record.content)
        if self._moved is not None:
            for record, path in self._moved:
                history.note(record.n, SENT_VIA, self._now, 0, path, record.content)

    def store(self) -> None:
        """Put what was taken."""
        state = self._state
        ledger = state.ledger
        count: i64 = len(self._puts)
        size = self._put_bytes
        if self._later is not None:
            count += len(self._later)
            size += self._later_bytes
        if self._topic is not None:
            count += self._topic.messages
            size += self._published_bytes
        figures = state.figures
        figures.messages_in += count
        figures.bytes_in += size - count * OVERHEAD
        straight = self._moved is None
        if state.history is not None:
            self._note(state.history)
        put_active(state, self._puts, self._put_bytes, self._now, self._put_drafts, straight)
        if self._later is not None:
            self._later.sort(key=_number_of)  # those that were reserved are the lowest
            ledger.put(SCHEDULED, self._later, self._later_bytes)
        if self._moved is not None:
            for record, path in self._moved:
                state.outbox.add(ledger, [record], record.size, path)
        if self._topic is not None and self._topic.messages > 0:
            ledger.passed_on(self._topic.messages)
        ledger.given(self._last)
        if self._ids:
            if self._remembered is not None:
                ledger.remember(self._remembered)
            state.duplicates.rotate()
        if self._writer is not None and self._fresh is not None:
            state.writers.remember(ledger, self._writer, self._batch, self._fresh, self._now)
        if self.repeated is not None:
            ledger.head.dropped = state.duplicates.dropped


def _arrival(history: StepLog) -> i64:
    return ARRIVED if history.by == MOVER_ORIGIN else SENT


def _number_of(record: Record) -> int:
    return record.n


def _judgement(selected: Selection, n: i64) -> Refusal | None:
    """Why a topic that accepts only selected messages refuses message `n`; None if it does not."""
    copies = selected.copies.get(n)
    if copies is None:
        return (ServerBusy.condition, TOO_MUCH_TO_JUDGE) if n > selected.evaluated else None
    return None if copies else (NoMatchingSubscription.condition, NOT_SELECTED)


def _over(writer: str, batch: i64) -> str:
    return f"Batch {batch} of the writer '{writer}' is over: a later one is committed. Nothing was sent."
