"""Messages through a topic: the topic's fragment passes them on, the fragments of its subscriptions take them in.

Rules
- A topic keeps no message for receivers. It gives each a number, and what its subscriptions select of it (Selector) goes
  to their fragments in the very commit that keeps that number: all copies are there or none.
- A turn passes on a bounded number of copies (Bounds.fan_out_copies, fan_out_bytes). What is beyond it is kept in SCHEDULED,
  due AT_ONCE, in the very commit of its send, and passed on by the ticks that follow, in its order. The topic owes copies
  then, and its host applies no other send before. A message itself is never split over turns. What rules take counts
  as copies.
- A topic that refuses what nobody selects asks the rules for all of a send at once. Beyond Bounds.judging_steps the rest of
  the send is refused as busy, a batch as a whole.
- Duplicates, writers, schedules and the quota are the topic's. A scheduled message waits in the topic, and rules are asked
  when it is due. The quota counts what the topic and all its subscriptions keep; the last message that it admits, or the
  last batch, may go beyond it by its further copies. What is owed counts as much as the mean of what was passed on. The
  session states of subscriptions are held against it, too.
- A subscription numbers its copies itself and gives each the smallest of three times to live: the message's, the topic's and
  its own. It never refuses one: a copy that its rules could not judge, or one without a session id where sessions are
  required, goes to its dead-letter queue.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.changes import OVERHEAD
from busbar.fragment.session_serving import arrive
from busbar.fragment.state import State
from busbar.fragment.text import NO_SESSION, dead_letter, reason_of
from busbar.model.commands import StoreCopies
from busbar.model.effects import DEAD_LETTERED
from busbar.model.message import ACTIVE, DEAD, Record, SubscriptionCopy, overlay_size
from busbar.model.settings import Selector

AT_ONCE: Final = 1
"""The due time of what a topic owes its subscriptions: before every other, whatever the clock says."""
STEPS: Final = 256
"""Of rules, in the time that one copy takes."""


@final
class FanOut:
    """What a turn of a topic passes on, within its bounds."""

    def __init__(self, state: State, topic: Selector) -> None:
        self._state = state
        self._topic = topic
        self._began: i64 = topic.spent()
        self._spent: i64 = self._began  # in steps, as the topic counts them
        self._work: i64 = 0  # in copies
        self._bytes: i64 = 0
        self._messages: i64 = 0

    def is_full(self) -> bool:
        bounds = self._state.bounds
        return self._work >= bounds.fan_out_copies or self._bytes >= bounds.fan_out_bytes

    def has_judged_enough(self) -> bool:
        """Whether a sender that waits for the judgement of rules can be told no more in this turn."""
        return self._spent - self._began >= self._state.bounds.judging_steps

    def select(self, content: bytes, n: i64, now: i64, ttl: i64) -> list[SubscriptionCopy]:
        """The copies that subscriptions get of a message."""
        copies = self._topic.select_copies(content, n, now, ttl)
        spent: i64 = self._topic.spent()
        self._work += len(copies) + (spent - self._spent) // STEPS
        self._spent = spent
        return copies

    def collect_copies(self, copies: list[SubscriptionCopy], ttl: i64, session_id: str | None) -> i64:
        """Hand the copies of one message to its subscriptions; the bytes that they will keep."""
        size = _hand_over(self._state, copies, ttl, session_id)
        self._bytes += size
        self._messages += 1
        return size

    def mean(self) -> i64:
        """Bytes of the copies of a message, by those that were passed on."""
        return self._bytes // self._messages if self._messages > 0 else 0


def _hand_over(state: State, copies: list[SubscriptionCopy], ttl: i64, session_id: str | None) -> i64:
    size: i64 = 0
    for copy in copies:
        copy.ttl = ttl
        copy.session_id = session_id
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
    window = state.main
    direct = sessions is None and state.unread(window) == 0
    most = state.settings.ttl_ms
    puts: list[Record] = []
    dead: list[Record] = []
    put_bytes: i64 = 0
    dead_bytes: i64 = 0
    n = state.ledger.head.last
    unread_dead = state.unread(state.dead)
    for copy in command.copies:
        n += 1
        ttl = copy.ttl
        if most > 0 and (ttl <= 0 or ttl > most):
            ttl = most
        size: i64 = len(copy.content) + OVERHEAD
        session_id = copy.session_id if sessions is not None else None
        reason, description = copy.reason, copy.description
        if not reason and sessions is not None and session_id is None:
            reason = NO_SESSION
            description = "The subscription requires sessions, and the message has no session id."
        if reason:
            overlay = dead_letter(reason, description)
            number = state.ledger.next_dead()
            size += overlay_size(overlay)
            buried = Record(n, now, ttl, 0, 0, size, copy.content, overlay, session_id, number)
            dead.append(buried)
            dead_bytes += size
            continue
        record = Record(n, now, ttl, 0, 0, size, copy.content, None, session_id)
        puts.append(record)
        put_bytes += size
        if direct and window.has_room():
            window.arrive(record, 0)
        else:
            direct = False
    state.ledger.put(ACTIVE, puts, put_bytes)
    state.ledger.put(DEAD, dead, dead_bytes)
    state.ledger.given(n)
    if sessions is not None:
        for record in puts:
            arrive(state, sessions, record)
    for record in dead:
        state.dead.arrive(record, unread_dead)
        if state.dead.cursor <= record.n:
            unread_dead += 1
        if state.taps is not None:
            state.record_event(record, DEAD_LETTERED, 0, reason_of(record.overlay))
