"""Messages come in: sends, scheduled messages and their activation.

Rules
- A message gets the next number, the time of its arrival, and the smaller of its own and the entity's time
  to live.
- A message scheduled for later stands in SCHEDULED with a number of its own. When it is due it is appended
  as a new message: new number, enqueued then, its time to live counted from then. Until then it can be
  cancelled.
- A message that would take the entity over its quota is refused; an atomic send is then refused as a whole.
  The quota counts every message kept, in whatever lane, and every id that duplicate detection remembers: a sender whose
  messages are gone soon could else fill the disk with ids. An activation is never refused: its bytes are
  counted already.
- Where the entity detects duplicates (duplicates.py), a message whose id is known is dropped: it is neither counted
  nor numbered, and its sender hears that it was sent.
- What a writer sends again (writers.py) is dropped in the same way; the number of the original is not known then (0).
- Where the entity requires sessions a message without a session id is refused, an atomic send with one as a whole.
- A topic passes on what it does not schedule, as its rules have selected it (publishing.py). With `only_selected` it refuses
  what no subscription selects.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.changes import ID_SIZE, OVERHEAD, IdRow
from busbar.fragment.publishing import AT_ONCE, PassedOn
from busbar.fragment.reads import Read, ReadByNumber, ReadDue
from busbar.fragment.session_serving import arrive
from busbar.fragment.state import State
from busbar.model.commands import CancelScheduled, CommitWrites, Send, Tick
from busbar.model.effects import COMPLETED, DUPLICATE_DROPPED, Done, Sent
from busbar.model.errors import (
    BatchOver,
    EntityDisabled,
    InvalidOperation,
    MessageNotFound,
    NoMatchingSubscription,
    QuotaExceeded,
    ServerBusy,
)
from busbar.model.message import (
    ACTIVE,
    SCHEDULED,
    Draft,
    Publication,
    Record,
    Selection,
    SubscriptionCopy,
)

NOT_SELECTED: Final = "No subscription of the topic selects the message."
TOO_MUCH_TO_JUDGE: Final = (
    "The rules of the topic take too long for so many messages at once; send fewer in one batch."
)
NO_SESSION: Final = "A message without a SessionId cannot be sent to an entity that requires sessions."
NOT_EVALUATED: Final = Selection()
"""Of a queue, and of a topic whose command publishes nothing."""


@final
class SendCheck:
    """What a fragment finds out about a send before it stores any of its messages."""

    def __init__(self, state: State) -> None:
        settings = state.settings
        head = state.ledger.head
        self.kept = head.size + state.topic_bytes + head.ids * ID_SIZE
        self.room: i64 = settings.quota_bytes - self.kept if settings.quota_bytes > 0 else 1 << 62
        self.ids: list[bytes] = []  # of duplicate detection, one for each message
        self.written: list[bytes] = []  # of a writer's messages, one for each
        self.sent_before: set[bytes] = set()  # of a writer

    def look_up(self, state: State, command: Send) -> None:
        """Find out which messages were sent before."""
        writer = command.writer
        if writer is not None:
            self.written = state.writers.ids_of(command)
            self.sent_before = state.writers.known(writer, self.written, state.supplied)
        if state.settings.duplicate_window_ms > 0:
            self.ids = state.duplicates.ids_of(command, state.supplied)

    def original(self, state: State, at: i64, now: i64) -> i64:
        """The number of the message that message `at` repeats: 0 if it is not known, -1 if there is none."""
        if self.written:
            id = self.written[at]
            if id and id in self.sent_before:
                return 0
        if self.ids:
            id = self.ids[at]
            if id:
                return state.duplicates.original(id, now - state.settings.duplicate_window_ms)
        return -1


def _refusal(state: State, command: Send, check: SendCheck, now: i64) -> tuple[str, str] | None:
    """Why a send is refused as a whole, whatever rules select: condition and text; None if it is not."""
    if not state.settings.can_send:
        return EntityDisabled.condition, "The entity is disabled for sending."
    writer = command.writer
    if writer is not None and command.batch < state.writers.committed(writer):
        return BatchOver.condition, _over(writer, command.batch)
    if writer is not None and (too_many := state.writers.refusal(writer)):
        return QuotaExceeded.condition, too_many
    check.look_up(state, command)
    if command.atomic:
        if state.sessions is not None:
            for draft in command.drafts:
                if draft.session_id is None:
                    return InvalidOperation.condition, NO_SESSION
        asked = _asked(state, command, check, now)
        if asked > check.room:
            return QuotaExceeded.condition, _full(
                check.kept, asked, state.settings.quota_bytes, state.ledger.head.ids
            )
    return None


def to_publish(state: State, command: Send, now: i64) -> list[Publication]:
    """What a send to a topic publishes, but for what is certainly refused, dropped or scheduled."""
    found: list[Publication] = []
    check = SendCheck(state)
    if _refusal(state, command, check, now) is not None:
        return found
    looks_up = len(check.ids) > 0 or len(check.written) > 0
    room = check.room
    most = state.settings.ttl_ms
    first = state.ledger.head.last + 1
    at: i64 = -1
    for draft in command.drafts:
        at += 1
        if draft.scheduled > now or (looks_up and check.original(state, at, now) >= 0):
            continue
        content = draft.content
        if len(content) + OVERHEAD > room and not command.atomic:
            continue
        ttl = draft.ttl
        if most > 0 and (ttl <= 0 or ttl > most):
            ttl = most
        found.append(Publication(first + at, content, ttl))
    return found


def send(state: State, command: Send, now: i64) -> None:
    settings = state.settings
    check = SendCheck(state)
    refusal = _refusal(state, command, check, now)
    state.duplicates.release()
    state.writers.release()
    selected = command.selected if command.selected is not None else NOT_EVALUATED
    topic = PassedOn(state) if settings.topic is not None else None
    if refusal is None and topic is not None and settings.only_selected and command.atomic:
        refusal = _not_selected(state, command, check, selected, now)
    if refusal is not None:
        state.refuse(command, refusal[0], refusal[1])
        return
    writer = command.writer
    written = check.written
    sent_before = check.sent_before
    fresh: list[bytes] = []
    ledger = state.ledger
    head = ledger.head
    quota = settings.quota_bytes
    kept = check.kept
    room = check.room
    ids = check.ids
    sessions = state.sessions
    window = state.main
    ready = window.ready
    direct = sessions is None and topic is None and state.unread(window) == 0 and window.has_room()
    puts: list[Record] = []
    copies: list[SubscriptionCopy] | None = None
    later: list[Record] = []
    numbers: list[int] = []
    refused: list[tuple[int, str, str]] = []
    repeated: list[int] | None = None
    remembered: list[IdRow] = []
    duplicates = state.duplicates
    duplicate_window = settings.duplicate_window_ms
    most = settings.ttl_ms
    n = head.last
    first = n + 1
    put_bytes: i64 = 0
    later_bytes: i64 = 0
    for draft in command.drafts:
        if sessions is not None and draft.session_id is None:
            refused.append((len(numbers), InvalidOperation.condition, NO_SESSION))
            numbers.append(0)
            continue
        id = b""
        wid = b""
        original: i64 = -1
        if written:
            wid = written[len(numbers)]
            if wid and wid in sent_before:
                original = 0
        if ids and original < 0:
            id = ids[len(numbers)]
            original = duplicates.original(id, now - duplicate_window) if id else -1
        if original >= 0:
            _drop(state, draft, original, now)
            if repeated is None:
                repeated = []
            repeated.append(len(numbers))
            numbers.append(original)
            if wid and wid not in sent_before:
                sent_before.add(wid)
                fresh.append(wid)
            continue
        content = draft.content
        size: i64 = len(content) + OVERHEAD
        if size > room and not command.atomic:  # a batch has its room, but for the further copies of a topic
            text = _full(kept + put_bytes + later_bytes + len(remembered) * ID_SIZE, size, quota, head.ids)
            refused.append((len(numbers), QuotaExceeded.condition, text))
            numbers.append(0)
            continue
        ttl = draft.ttl
        if most > 0 and (ttl <= 0 or ttl > most):
            ttl = most
        scheduled = draft.scheduled
        later_on = scheduled > now
        if topic is not None and not later_on:
            number = first + len(numbers)
            copies = selected.copies.get(number)
            if settings.only_selected:
                refusal = _judgement(selected, number)
                if refusal is not None:
                    refused.append((len(numbers), refusal[0], refusal[1]))
                    numbers.append(0)
                    continue
            if copies is None:
                later_on = True
                scheduled = AT_ONCE
        room -= size
        n = n + 1 if topic is None else first + len(numbers)
        numbers.append(n)
        if wid:
            sent_before.add(wid)
            fresh.append(wid)
        if id:
            room -= ID_SIZE
            duplicates.remember(id, now, n, duplicate_window, remembered)
        if later_on:
            session = draft.session_id if sessions is not None or topic is not None else None
            later.append(Record(n, now, ttl, scheduled, 0, size, content, None, session))
            later_bytes += size
            if topic is not None and scheduled == AT_ONCE:
                room += size - topic.mean()
            if state.due == 0 or scheduled < state.due:
                state.due = scheduled
            continue
        if topic is not None:
            assert copies is not None, "what is not scheduled was selected"
            room += size - topic.collect_copies(copies, ttl, draft.session_id)
            continue
        if sessions is None:
            record = Record(n, now, ttl, 0, 0, size, content, None)
        else:
            record = Record(n, now, ttl, 0, 0, size, content, None, draft.session_id)
        puts.append(record)
        put_bytes += size
        if direct:
            ready.append(record)
            window.bytes += size
            window.cursor = n + 1
            direct = window.has_room()
    ledger.put(ACTIVE, puts, put_bytes)
    ledger.put(SCHEDULED, later, later_bytes)
    if topic is not None and topic.messages > 0:
        ledger.passed_on(topic.messages)
    ledger.given(n)
    if sessions is not None:
        for record in puts:
            arrive(state, sessions, record)
    if ids:
        ledger.remember(remembered)
        duplicates.rotate()
    if writer is not None and fresh:
        state.writers.remember(ledger, writer, command.batch, fresh, now)
    if repeated is not None:
        head.dropped = duplicates.dropped
    state.effects.append(Sent(command.origin, command.request, numbers, refused, repeated))


def _drop(state: State, draft: Draft, original: i64, now: i64) -> None:
    state.duplicates.note_drop(draft, now, original)
    taps = state.taps
    if taps is not None and taps.events:
        taps.record(state.ledger, original, DUPLICATE_DROPPED, now, 0, 0, draft.message_id)


def _asked(state: State, command: Send, check: SendCheck, now: i64) -> i64:
    """How many bytes the messages of a send need that are not duplicates."""
    ids = check.ids
    written = check.written
    sent_before = check.sent_before
    asked: i64 = 0
    horizon = now - state.settings.duplicate_window_ms
    seen: set[bytes] = set()
    index: i64 = 0
    for draft in command.drafts:
        at = index
        index += 1
        if written:
            id = written[at]
            if id and (id in seen or id in sent_before):
                continue
            seen.add(id)
        if ids:
            id = ids[at]
            if id and (id in seen or state.duplicates.original(id, horizon) >= 0):
                continue
            seen.add(id)
            asked += ID_SIZE if id else 0
        asked += len(draft.content) + OVERHEAD
    return asked


def _not_selected(
    state: State, command: Send, check: SendCheck, selected: Selection, now: i64
) -> tuple[str, str] | None:
    """Why a batch is refused by a topic that takes only what is selected; None if it is not."""
    n = state.ledger.head.last
    at: i64 = -1
    for draft in command.drafts:
        n += 1
        at += 1
        if draft.scheduled > now or check.original(state, at, now) >= 0:
            continue
        refusal = _judgement(selected, n)
        if refusal is not None:
            return refusal
    return None


def _judgement(selected: Selection, n: i64) -> tuple[str, str] | None:
    """Why a topic that takes only what is selected refuses message `n`; None if it does not."""
    copies = selected.copies.get(n)
    if copies is None:
        return (ServerBusy.condition, TOO_MUCH_TO_JUDGE) if n > selected.evaluated else None
    return None if copies else (NoMatchingSubscription.condition, NOT_SELECTED)


def _full(size: i64, asked: i64, quota: i64, ids: i64) -> str:
    text = (
        f"The maximum entity size has been reached: the entity holds {size} bytes, {asked} more would exceed "
        f"its maximum of {quota} bytes."
    )
    if ids > 0:
        text += f" {ids * ID_SIZE} bytes of that are for the ids that duplicate detection remembers: {ids}."
    return text


def _over(writer: str, batch: i64) -> str:
    return f"Batch {batch} of the writer '{writer}' is over: a later one is committed. Nothing was sent."


def commit_writes(state: State, command: CommitWrites, now: i64) -> None:
    too_many = state.writers.refusal(command.writer)
    if too_many:
        state.refuse(command, QuotaExceeded.condition, too_many)
        return
    state.writers.commit(state.ledger, command.writer, command.batch, now)
    state.effects.append(Done(command.origin, command.request))


def due_reads(state: State, now: i64) -> list[Read]:
    if state.due == 0 or state.due > now or state.holds_due:
        return []
    return [ReadDue(now, state.bounds.page_records, state.bounds.page_bytes)]


def due_to_publish(state: State) -> list[Publication]:
    """What a tick of a topic publishes: the messages that were read because they are due, or owed."""
    found: list[Publication] = []
    most = state.settings.ttl_ms
    n = state.ledger.head.last
    for read in state.supplied:
        if isinstance(read, ReadDue):
            for old in read.records:
                n += 1
                ttl = old.ttl
                if most > 0 and (ttl <= 0 or ttl > most):
                    ttl = most
                assert old.content is not None, "what is due was read with its content"
                found.append(Publication(n, old.content, ttl))
    return found


def activate(state: State, command: Tick, now: i64) -> None:
    """Append the scheduled messages that were read because they are due."""
    selected = command.selected if command.selected is not None else NOT_EVALUATED
    for read in state.supplied:
        if isinstance(read, ReadDue):
            state.due = read.next_due
            due = read.records
            if due:
                count = _append(state, due, selected, now)
                if count < len(due):
                    state.due = due[count].due


def forget_ids(state: State, now: i64) -> None:
    """Do what is to be done about ids; those that have expired go."""
    gone = state.duplicates.tick(state.supplied, now, state.settings.duplicate_window_ms)
    if gone:
        segment, id, _at, _n = gone[-1]
        state.ledger.forget_ids((segment, id), len(gone))


def _append(state: State, scheduled: list[Record], selected: Selection, now: i64) -> i64:
    """How many of them were appended: a topic leaves those to the next tick that are too many for this one."""
    window = state.main
    sessions = state.sessions
    direct = sessions is None and state.unread(window) == 0
    most = state.settings.ttl_ms
    topic = PassedOn(state) if state.settings.topic is not None else None
    puts: list[Record] = []
    n = state.ledger.head.last
    size: i64 = 0
    count: i64 = 0
    for old in scheduled:
        copies = selected.copies.get(n + 1)
        if topic is not None and copies is None:
            break
        count += 1
        n += 1
        ttl = old.ttl
        if most > 0 and (ttl <= 0 or ttl > most):
            ttl = most
        if topic is not None and copies is not None:
            topic.collect_copies(copies, ttl, old.session_id)
            continue
        record = Record(n, now, ttl, 0, 0, old.size, old.content, old.overlay, old.session_id)
        puts.append(record)
        size += old.size
        if direct and window.has_room():
            window.arrive(record, 0)
        else:
            direct = False
    state.delete(SCHEDULED, scheduled[:count], COMPLETED)
    state.ledger.put(ACTIVE, puts, size)
    state.ledger.given(n)
    if sessions is not None:
        for record in puts:
            arrive(state, sessions, record)
    return count


def known_numbers(state: State, numbers: list[int]) -> list[int]:
    """Each number once, and only those that were ever given: the rest needs no read."""
    last: int = state.ledger.head.last
    return [n for n in dict.fromkeys(numbers) if 0 < n <= last]


def cancel_reads(state: State, command: CancelScheduled) -> list[Read]:
    numbers = known_numbers(state, command.numbers)
    if not numbers or state.ledger.head.counts[SCHEDULED] == 0:
        return []
    return [ReadByNumber(SCHEDULED, numbers)]


def cancel(state: State, command: CancelScheduled) -> None:
    records: list[Record] = state.supplied[0].records if state.supplied else []
    found = {record.n for record in records}
    for n in command.numbers:
        if n not in found:
            text = f"There is no scheduled message with the sequence number {n}; nothing was cancelled."
            state.refuse(command, MessageNotFound.condition, text)
            return
    state.delete(SCHEDULED, records, COMPLETED)
    state.effects.append(Done(command.origin, command.request))
