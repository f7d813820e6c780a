"""What a queue is, said as simply as possible: the model that the fragment machine is held against.

One dictionary of messages. No windows, no cursor, no heaps, no turns. The model does not predict who is served and
when; it checks each answer of the machine against what the rules allow, and then does the same to its own messages.
When the machine has nothing more to do (it is quiet), everything that had to happen must have happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from busbar.fragment.text import NO_SESSION
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, DEFERRED, LANES, SCHEDULED, Draft, Record
from busbar.model.settings import FragmentSettings


@dataclass
class Held:
    """A lock. Shared between a model and its snapshots: a renewal is never undone."""

    nonce: int
    until: int


@dataclass(frozen=True)
class Message:
    n: int
    lane: int
    content: bytes
    enqueued: int
    ttl: int
    due: int = 0
    deliveries: int = 0
    overlay: dict[str, bytes] = field(default_factory=dict)
    lock: Held | None = None
    session: str | None = None

    def same_as(self, record: Record) -> bool:
        return (
            record.n == self.n
            and record.content == self.content
            and record.enqueued == self.enqueued
            and record.ttl == self.ttl
            and record.due == self.due
            and record.deliveries == self.deliveries
            and (record.overlay or {}) == self.overlay
            and record.session_id == self.session
        )

    def looks_like(self, other: Message) -> bool:
        """As far as a store has it."""
        return (self.lane, self.deliveries, self.overlay) == (other.lane, other.deliveries, other.overlay)

    def expired(self, now: int) -> bool:
        return self.ttl > 0 and self.enqueued + self.ttl <= now


@dataclass
class Seat:
    """A consumer."""

    sub: int
    delete: bool
    credit: int = 0
    draining: bool = False


class Model:
    def __init__(self) -> None:
        self.messages: dict[int, Message] = {}
        self.last = 0
        self.ever: set[int] = set()  # numbers of messages that were deleted: they never come back
        self.now = 0
        # When a message with an id (and a key) last came, and its number; none is ever removed.
        self.ids: dict[tuple[str, str], tuple[int, int]] = {}
        self.dropped = 0
        self.copies: dict[int, bytes] = {}  # by number, all that a topic ever passed on

    def snapshot(self) -> Model:
        other = type(self)()
        other.messages = dict(self.messages)  # Message is immutable
        other.last = self.last
        other.ever = set(self.ever)
        other.now = self.now
        other.ids = dict(self.ids)
        other.dropped = self.dropped
        other.copies = dict(self.copies)
        return other

    # ---- what is where ----

    def available(self, sub: int) -> list[Message]:
        return [m for _, m in sorted(self.messages.items()) if m.lane == sub and m.lock is None]

    def counts(self) -> list[int]:
        return [sum(m.lane == lane for m in self.messages.values()) for lane in range(LANES)]

    def locked(self) -> dict[int, int]:
        return {m.n: m.lock.nonce for m in self.messages.values() if m.lock is not None}

    # ---- moves ----

    def _put(self, message: Message) -> None:
        assert message.n == self.last + 1, "numbers rise by one"
        self.last = message.n
        self.messages[message.n] = message

    def _delete(self, message: Message) -> None:
        del self.messages[message.n]
        self.ever.add(message.n)

    def _set(self, message: Message) -> None:
        self.messages[message.n] = message

    def _bury(self, message: Message, reason: str) -> None:
        description = "The message expired and was dead lettered."
        if reason != "TTLExpiredException":
            description = f"Message could not be consumed after {message.deliveries} delivery attempts."
        overlay = {**message.overlay, **_why_dead(reason, description)}
        self._set(replace(message, lane=DEAD, lock=None, overlay=overlay))

    def unlock(self, n: int) -> None:
        self._set(replace(self.messages[n], lock=None))

    def _fail_delivery(self, message: Message, settings: FragmentSettings) -> None:
        deliveries = message.deliveries + 1
        free = replace(message, deliveries=deliveries, lock=None)
        if message.lane in (ACTIVE, DEFERRED) and deliveries >= settings.max_deliveries:
            self._bury(free, "MaxDeliveryCountExceeded")
        else:
            self._set(free)

    def end_lock_if_over(self, n: int, settings: FragmentSettings) -> None:
        message = self.messages.get(n)
        if message is not None and message.lock is not None and message.lock.until <= self.now:
            self._fail_delivery(message, settings)

    def end_all_locks_that_are_over(self, settings: FragmentSettings) -> None:
        for n in list(self.messages):
            self.end_lock_if_over(n, settings)

    def remove_expired(self, below: int, settings: FragmentSettings) -> None:
        """Somebody wanted a message: what has expired in front of it is gone."""
        for message in self.available(ACTIVE):
            if message.n < below and message.expired(self.now):
                self.expire(message, settings)

    def expire(self, message: Message, settings: FragmentSettings) -> None:
        if settings.dead_letter_on_expiration:
            self._bury(message, "TTLExpiredException")
        else:
            self._delete(message)

    # ---- commands ----

    def send(self, drafts: list[Draft], answer: e.Effect, settings: FragmentSettings) -> None:
        if not settings.can_send:
            assert isinstance(answer, e.Refused)
            return
        assert isinstance(answer, e.Sent)
        assert len(answer.numbers) == len(drafts)
        repeated = []
        for index, (draft, n) in enumerate(zip(drafts, answer.numbers, strict=True)):
            window = settings.duplicate_window_ms if draft.message_id else 0
            session = draft.session_id
            identity = (draft.message_id, draft.partition_key or "" if session is None else session)
            at, first = self.ids.get(identity, (-window, 0))
            if window and at + window > self.now:
                assert n == first
                repeated.append(index)
                continue
            if window:
                self.ids[identity] = (self.now, n)
            ttl = min((t for t in (draft.ttl, settings.ttl_ms) if t > 0), default=0)
            later = draft.scheduled > self.now
            lane, due = (SCHEDULED, draft.scheduled) if later else (ACTIVE, 0)
            self._put(Message(n, lane, draft.content, self.now, ttl, due, session=self._session_of(draft)))
        assert answer.duplicates == repeated
        self.dropped += len(repeated)

    def store_copies(self, command: c.StoreCopies, settings: FragmentSettings) -> None:
        """What a topic passes on, in its order."""
        for copy in command.copies:
            ttl = min((t for t in (copy.ttl, settings.ttl_ms) if t > 0), default=0)
            session = copy.session_id if settings.requires_session else None
            lane, overlay = ACTIVE, {}
            if settings.requires_session and session is None:
                text = "The subscription requires sessions, and the message has no session id."
                lane, overlay = DEAD, _why_dead(NO_SESSION, text)
            n = self.last + 1
            self._put(Message(n, lane, copy.content, self.now, ttl, overlay=overlay, session=session))
            self.copies[n] = copy.content

    def _session_of(self, draft: Draft) -> str | None:
        """Without sessions it is only content."""
        return None

    def _holds(self, n: int, nonce: int) -> Message | None:
        message = self.messages.get(n)
        if message is None or message.lock is None or message.lock.nonce != nonce:
            return None
        return message if message.lock.until > self.now else None

    def settle(self, command: c.Settle, answer: e.Effect, settings: FragmentSettings) -> None:
        pairs = list(zip(command.numbers, command.nonces, strict=True))
        lost = []
        seen: set[int] = set()
        for i, (n, nonce) in enumerate(pairs):
            if self._holds(n, nonce) is None or n in seen:
                lost.append(i)
            else:
                seen.add(n)
        if lost and command.atomic:
            assert isinstance(answer, e.Refused)
            return
        if command.outcome == c.DEAD_LETTER and any(
            self.messages[n].lane in (DEAD, DEAD_DEFERRED) for n in seen
        ):
            assert isinstance(answer, e.Refused)
            return
        assert isinstance(answer, e.Settled)
        assert answer.lost == lost
        for n in seen:
            message = self.messages[n]
            message = replace(message, overlay={**message.overlay, **(command.overlay or {})})
            if command.outcome == c.COMPLETE:
                self._delete(message)
            elif command.outcome == c.ABANDON:
                self._fail_delivery(message, settings)
            elif command.outcome == c.RELEASE:
                self._set(replace(message, lock=None))
            elif command.outcome == c.DEFER:
                lane = DEAD_DEFERRED if message.lane in (DEAD, DEAD_DEFERRED) else DEFERRED
                self._set(replace(message, lane=lane, lock=None))
            else:
                self._set(replace(message, lane=DEAD, lock=None))

    def renew(self, command: c.Renew, answer: e.Effect, settings: FragmentSettings) -> None:
        held = [self._holds(n, nonce) for n, nonce in zip(command.numbers, command.nonces, strict=True)]
        if None in held:
            assert isinstance(answer, e.Refused)
            return
        assert isinstance(answer, e.Renewed)
        assert answer.until == self.now + settings.lock_ms
        for message in held:
            assert message is not None and message.lock is not None
            message.lock.until = answer.until

    def receive_deferred(
        self, command: c.ReceiveDeferred, answer: e.Effect, settings: FragmentSettings
    ) -> None:
        lane = DEAD_DEFERRED if command.sub == DEAD else DEFERRED
        found = [self.messages.get(n) for n in command.numbers]
        there = [m for m in found if m is not None and m.lane == lane and m.lock is None]
        good = [m for m in there if lane == DEAD_DEFERRED or not m.expired(self.now)]
        if not settings.can_receive:
            assert isinstance(answer, e.Refused)
            return
        for message in there:
            if message not in good:
                self._delete(message)
        if len(good) < len(found):
            assert isinstance(answer, e.Refused)
            return
        assert isinstance(answer, e.DeferredReceived)
        assert [r.n for r in answer.records] == command.numbers
        for record in answer.records:
            self._hand_out(record, command.delete, answer.nonce, answer.until, settings)

    def _hand_out(
        self, record: Record, delete: bool, nonce: int, until: int, settings: FragmentSettings
    ) -> None:
        message = self.messages[record.n]
        assert message.lock is None
        assert message.same_as(record), (message, vars_of(record))
        if delete:
            assert (nonce, until) == (0, 0)
            self._delete(message)
        else:
            assert until == self.now + settings.lock_ms
            self._set(replace(message, lock=Held(nonce, until)))

    def cancel(self, command: c.CancelScheduled, answer: e.Effect) -> None:
        found = [self.messages.get(n) for n in command.numbers]
        if any(m is None or m.lane != SCHEDULED for m in found):
            assert isinstance(answer, e.Refused)
            return
        assert isinstance(answer, e.Done)
        for message in found:
            assert message is not None
            self._delete(message)

    def purge(self, command: c.Purge, answer: e.Effect) -> None:
        """Before the locks end whose time has come: their messages stay."""
        assert isinstance(answer, e.Purged)
        eligible = [m for m in self.available(command.sub) if m.enqueued < command.before]
        if command.session is not None:
            eligible = [m for m in eligible if m.session == command.session]
        assert answer.count <= min(command.count, len(eligible))
        assert (answer.count > 0) == (len(eligible) > 0 and command.count > 0)
        for message in eligible[: answer.count]:
            self._delete(message)

    def peek(self, command: c.Peek, answer: e.Effect) -> None:
        assert isinstance(answer, e.Peeked)
        lanes = (DEAD, DEAD_DEFERRED) if command.sub == DEAD else (ACTIVE, DEFERRED, SCHEDULED)
        there = [m for n, m in sorted(self.messages.items()) if m.lane in lanes and n >= command.from_number]
        if command.session is not None:
            there = [m for m in there if m.session == command.session]
        assert len(answer.records) <= command.count
        assert bool(answer.records) == bool(there)
        for message, record, lane in zip(there, answer.records, answer.lanes, strict=False):
            assert message.same_as(record)
            assert message.lane == lane

    # ---- what the machine does by itself ----

    def delivered(
        self, effect: e.Delivered, seat: Seat, settings: FragmentSettings, main_is_wanted: bool
    ) -> None:
        assert settings.can_receive
        for record in effect.records:
            self.end_lock_if_over(record.n, settings)
            if seat.sub == DEAD and self.messages[record.n].lane == ACTIVE:
                # It died a moment ago, since somebody waits for a message of the main queue.
                assert main_is_wanted and settings.dead_letter_on_expiration
                assert all(m.expired(self.now) for m in self.available(ACTIVE) if m.n <= record.n)
                self.remove_expired(record.n + 1, settings)
            assert record.n not in self.ever, "settled, and yet it comes back"
            if seat.sub == ACTIVE:
                self.remove_expired(record.n, settings)
            first = self.available(seat.sub)[0]
            assert first.n == record.n, "the lowest number is first"
            assert seat.sub == DEAD or not first.expired(self.now)
            seat.credit -= 1
            assert seat.credit >= 0, "credit is never overdrawn"
            self._hand_out(record, seat.delete, effect.nonce, effect.until, settings)

    def activated(self, last: int, settings: FragmentSettings) -> None:
        """The machine has given numbers up to `last`: by now that can only have been to messages that were due."""
        due = sorted(
            (m for m in self.messages.values() if m.lane == SCHEDULED and m.due <= self.now),
            key=lambda m: (m.due, m.n),
        )
        for message in due[: last - self.last]:
            self._delete(message)
            ttl = min((t for t in (message.ttl, settings.ttl_ms) if t > 0), default=0)
            self._put(Message(self.last + 1, ACTIVE, message.content, self.now, ttl, session=message.session))
        assert self.last == last


def _why_dead(reason: str, description: str) -> dict[str, bytes]:
    texts = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    return {name: b"\xa1" + bytes([len(text)]) + text.encode() for name, text in texts.items()}


def vars_of(record: Record) -> dict[str, object]:
    names = ("n", "enqueued", "ttl", "due", "deliveries", "size", "overlay")
    return {name: getattr(record, name) for name in names}
