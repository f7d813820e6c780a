"""Messages through a topic: the topic's fragment passes them on, the fragments of its subscriptions take them in.

Rules
- A topic keeps no message for receivers. It gives each a number. What its subscriptions select of a message goes to their
  fragments in the commit that keeps the number: all copies are there or none.
- The machine evaluates no rule. Before a Send or a Tick, the commit loop asks for what the command publishes (`to_publish`).
  It evaluates the rules within the bounds of a turn (FanOut), and sets `selected` of the command.
- Rules see the number of a message, so the number must not depend on them: message i of a send gets the number last + 1 + i.
  The numbers of messages that are dropped or refused stay unused.
- A turn passes on a bounded number of copies (Bounds.fan_out_copies, fan_out_bytes). Messages beyond it are kept in
  SCHEDULED, due AT_ONCE, in the commit of their send. The ticks that follow pass them on, in order. Until then the topic
  owes copies, and its host applies no other send. A message is never split over turns. The steps of rules count as copies.
- A topic that refuses what no subscription selects needs the rules for all messages of a send at once. Beyond
  Bounds.judging_steps the rest of the send is refused as busy, a batch as a whole.
- Duplicates, writers, schedules and the quota are the topic's. A scheduled message waits in the topic, and rules are
  evaluated when it is due.
- The quota counts what the topic and all its subscriptions keep. The last message that it admits, or the last batch, may go
  beyond it by its further copies. What is owed counts as much as the mean of what was passed on. The session states of
  subscriptions count, too.
- A subscription numbers its copies itself and gives each the smallest of three times to live: the message's, the topic's and
  its own. It never refuses a copy. If its rules failed for a message, the copy goes to its dead-letter queue. So does a copy
  without a session id where sessions are required.
- Copies have the hops of their message. From a topic to its subscriptions is no hop.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.arriving import put_active
from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import OVERHEAD
from busbar.fragment.history import StepLog
from busbar.fragment.state import State
from busbar.fragment.text import NO_SESSION, dead_letter, reason_of
from busbar.model.commands import StoreCopies
from busbar.model.effects import COPIED, DEAD_LETTERED, PUBLISHED
from busbar.model.message import DEAD, Record, Selection, SubscriptionCopy, overlay_size

AT_ONCE: Final = 1
"""The due time of what a topic owes its subscriptions: before every other, at any time of the clock."""
STEPS: Final = 256
"""Of rules, in the time that one copy takes."""


@final
class FanOut:
    """Collects what rules select of the messages that one command publishes, until the turn has enough."""

    def __init__(self, bounds: Bounds, judges: bool = False, all_or_none: bool = False) -> None:
        """`judges`: the sender waits for the result of the rules, so all its messages are evaluated. `all_or_none`: the
        first message that no subscription selects ends the evaluation."""
        self.selection = Selection()
        self._bounds = bounds
        self._judges = judges
        self._all_or_none = all_or_none
        self._steps: i64 = 0
        self._work: i64 = 0  # in copies
        self._bytes: i64 = 0

    def add(self, n: i64, copies: list[SubscriptionCopy], steps: i64) -> bool:
        """Add the copies of message `n` that rules selected in `steps`. Returns whether the next one may be evaluated."""
        selection = self.selection
        selection.evaluated = n
        if not copies or not self.is_full():
            selection.copies[n] = copies
            for copy in copies:
                self._bytes += len(copy.content) + OVERHEAD
        self._steps += steps
        self._work += len(copies) + steps // STEPS
        if not self._judges:
            return not self.is_full()
        return not self.has_judged_enough() and (len(copies) > 0 or not self._all_or_none)

    def is_full(self) -> bool:
        bounds = self._bounds
        return self._work >= bounds.fan_out_copies or self._bytes >= bounds.fan_out_bytes

    def has_judged_enough(self) -> bool:
        return self._steps >= self._bounds.judging_steps


@final
class PassedOn:
    """What a command has passed on to the subscriptions of a topic so far."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._bytes: i64 = 0
        self.messages: i64 = 0

    def collect_copies(
        self, copies: list[SubscriptionCopy], ttl: i64, session_id: str | None, hops: i64
    ) -> i64:
        """Hand the copies of one message to its subscriptions. Returns the bytes that they will keep."""
        size = _hand_over(self._state, copies, ttl, session_id, hops)
        self._bytes += size
        self.messages += 1
        return size

    def mean(self) -> i64:
        """Bytes of the copies of a message, by those that were passed on."""
        return self._bytes // self.messages if self.messages > 0 else 0


def _hand_over(
    state: State, copies: list[SubscriptionCopy], ttl: i64, session_id: str | None, hops: i64
) -> i64:
    size: i64 = 0
    for copy in copies:
        copy.ttl = ttl
        copy.session_id = session_id
        copy.hops = hops
        taking = state.copies.get(copy.fragment)
        if taking is None:
            taking = StoreCopies(copy.fragment)
            state.copies[copy.fragment] = taking
        taking.copies.append(copy)
        size += len(copy.content) + OVERHEAD
    state.topic_bytes += size
    return size


def store_copies(state: State, command: StoreCopies, now: i64) -> None:
    sessions = state.sessions
    most = state.settings.ttl_ms
    puts: list[Record] = []
    dead: list[Record] = []
    put_bytes: i64 = 0
    dead_bytes: i64 = 0
    came_bytes: i64 = 0
    n = state.ledger.head.last
    unread_dead = state.unread(state.dead)
    for copy in command.copies:
        n += 1
        ttl = copy.ttl
        if most > 0 and (ttl <= 0 or ttl > most):
            ttl = most
        size: i64 = len(copy.content) + OVERHEAD
        came_bytes += len(copy.content)
        session_id = copy.session_id if sessions is not None else None
        reason, description = copy.reason, copy.description
        if not reason and sessions is not None and session_id is None:
            reason = NO_SESSION
            description = "The subscription requires sessions, and the message has no session id."
        if reason:
            overlay = dead_letter(reason, description)
            number = state.ledger.next_dead()
            size += overlay_size(overlay)
            buried = Record(n, now, ttl, 0, 0, size, copy.content, overlay, session_id, number, copy.hops)
            dead.append(buried)
            dead_bytes += size
            continue
        record = Record(n, now, ttl, 0, 0, size, copy.content, None, session_id)
        record.hops = copy.hops
        puts.append(record)
        put_bytes += size
    if state.history is not None:
        state.history.note_all(puts, COPIED, now)
    state.figures.came(len(puts) + len(dead), came_bytes)
    put_active(state, puts, put_bytes, now)
    state.ledger.put(DEAD, dead, dead_bytes)
    state.ledger.note_copies()
    state.ledger.given(n)
    for record in dead:
        state.figures.dead_letter(reason_of(record.overlay))
        state.dead.arrive(record, unread_dead)
        if state.dead.cursor <= record.n:
            unread_dead += 1
        if state.taps is not None or state.history is not None:
            state.record_event(record, DEAD_LETTERED, 0, reason_of(record.overlay))


def note_published(history: StepLog, n: i64, now: i64, copies: i64, content: bytes | None) -> None:
    """Note that a topic has passed a message on."""
    reason = "no subscription selects it" if copies == 0 else f"{copies} copies" if copies > 1 else "1 copy"
    history.note(n, PUBLISHED, now, 0, reason, content)
