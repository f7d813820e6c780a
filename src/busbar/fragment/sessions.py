"""Message sessions: which consumer holds which session, and what is in memory of them.

Rules
- A session is held by one consumer at most, and a consumer holds one session at most. The lock ends when the consumer
  leaves (closes), or by time. If its holder can outlive the process, the lock is durable (session_holds.py). Otherwise it
  is memory and ends with the process (docs/adr/0006-session-locks-in-memory.md).
- The locks of its messages are valid while the session is held, and end with it. `numbers` are the locked messages of the
  session, deferred ones too. At most Bounds.session_locks are handed out, so that a session ends in one turn.
- In memory are the held sessions, each with a window of its messages (window.py), and a part of the line of those
  that wait (session_waiting.py). All else is in the store.
- If a held session is `complete`, no available message of it is only in the store. Otherwise that is not known, and a page
  must be read.
- `expires` is a time before which no unlocked message of the session expires: 0 never, UNKNOWN: it must be looked up.
- If a session has expired and no consumer holds it, the fragment itself holds it for a while (consumer None). Meanwhile its
  messages are removed (session_serving.py).

Pending work is found without a look at every session. `changed` are the sessions to which something happened. `ready` are
those that can be served from memory, `hungry` those that need a read first.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Lock
from busbar.fragment.consumers import Consumer
from busbar.fragment.locks import FOREVER, SLACK
from busbar.fragment.session_waiting import WaitingSessions
from busbar.fragment.window import Window
from busbar.model.message import ACTIVE, Record

UNKNOWN: Final = 1
"""A time that has come: it must be looked up."""
ABSENT: Final = -2
"""The origin of a holder that has not resumed its session since the fragment was loaded."""

Key = tuple[int, int]
"""A consumer: its origin, and its number there. Or a pending await: its origin, and the request."""


def expiry(record: Record) -> i64:
    return record.enqueued + record.ttl if record.ttl > 0 else 0


def earlier(a: i64, b: i64) -> i64:
    """The earlier of two times, where 0 is never."""
    if a == 0:
        return b
    return a if b == 0 or a < b else b


@final
class MessageSession:
    def __init__(self, id: str, consumer: Consumer | None, request: i64, until: i64, bounds: Bounds) -> None:
        self.id = id
        self.consumer = consumer
        self.request = request  # with which it was accepted
        self.holder = ""  # its name, if the lock is durable
        self.until = until
        self.window = Window(ACTIVE, bounds, id)
        self.complete = False
        self.numbers: set[int] = set()
        self.expires: i64 = UNKNOWN
        self.verified = False  # `expires` was just looked up
        self.doomed: i64 = 0  # messages up to this number have expired with the session
        self.sweeping = False  # there may be unlocked ones among them
        self.state_size: i64 = -1  # -1: it must be looked up
        self.counted_ready: i64 = 0
        self.counted_returned: i64 = 0

    def key(self) -> Key:
        consumer = self.consumer
        return (consumer.origin, consumer.consumer) if consumer is not None else (0, 0)

    def is_absent(self) -> bool:
        """Whether its holder has not resumed it since the fragment was loaded."""
        consumer = self.consumer
        return consumer is not None and consumer.origin == ABSENT

    def overdue(self, now: i64) -> bool:
        return 0 < self.expires <= now

    def forget(self) -> None:
        """Keep nothing of what was read."""
        self.window.forget(1)
        self.complete = False
        self.expires = UNKNOWN
        self.verified = False
        self.state_size = -1

    def take_back(self, record: Record) -> None:
        """Take back a message of the session that is available again."""
        window = self.window
        cursor = window.cursor
        if record.n >= cursor:
            self.complete = False
        else:
            window.give_back(record)
            if window.cursor < cursor:
                self.complete = False
        self.expires = earlier(self.expires, expiry(record))


@final
class MessageSessions:
    def __init__(self, bounds: Bounds, empty: bool) -> None:
        self.bounds = bounds
        self.line = WaitingSessions(bounds, empty)
        self.held: dict[str, MessageSession] = {}
        self.by_consumer: dict[Key, MessageSession] = {}
        self.lost: dict[Key, MessageSession] = {}  # what a consumer lost by time, until it leaves: for undo
        self.unresumed: dict[Key, bool] = {}  # consumers that could not resume a session, until they leave
        self.receiving = True
        # What there is to do
        self.changed: dict[str, MessageSession] = {}
        self.ready: dict[str, MessageSession] = {}
        self.hungry: dict[str, MessageSession] = {}
        self.asked: list[MessageSession] = []  # for which reads are under way
        # Pending awaits
        self.awaits: OrderedDict[Key, bool] = OrderedDict()
        self.offers: i64 = 0  # made, and neither used nor too old
        self.offered_at: i64 = 0
        # What is kept
        self.ready_bytes: i64 = 0
        self.returned_bytes: i64 = 0
        self._ends: list[tuple[int, str]] = []  # a heap; an entry counts only while it is the session's end

    # ---- holding ----

    def hold(self, session: MessageSession) -> None:
        self.held[session.id] = session
        self.line.remove(session.id)
        self.changed[session.id] = session
        if session.consumer is not None:
            self.by_consumer[session.key()] = session
            self._note_end(session)

    def renew(self, session: MessageSession, until: i64) -> None:
        session.until = until
        self._note_end(session)

    def let_go(self, session: MessageSession) -> None:
        """Remove a session that is not held any more."""
        id = session.id
        del self.held[id]
        self.by_consumer.pop(session.key(), None)
        self.changed.pop(id, None)
        self.ready.pop(id, None)
        self.hungry.pop(id, None)
        self.ready_bytes -= session.counted_ready
        self.returned_bytes -= session.counted_returned
        session.counted_ready = 0
        session.counted_returned = 0

    def forget_read(self) -> None:
        """Forget what was read of all sessions, because messages of any of them are gone."""
        self.line.forget()
        for id, session in self.held.items():
            session.window.forget(1)
            session.complete = False
            self.account(session)
            self.changed[id] = session

    def of(self, origin: i64, consumer: i64) -> MessageSession | None:
        key: Key = (origin, consumer)
        return self.by_consumer.get(key)

    def left(self, origin: i64, consumer: i64) -> None:
        """Forget a consumer (0: all of the origin) that could not resume its session."""
        if self.unresumed:
            for key in list(self.unresumed):
                if key[0] == origin and (consumer == 0 or consumer == key[1]):
                    del self.unresumed[key]

    def has_absent(self) -> bool:
        absent = [session for session in self.held.values() if session.is_absent()]
        return bool(absent)

    def valid(self, lock: Lock, now: i64) -> bool:
        """Whether a message lock, if it belongs to a session, is still valid."""
        if lock.until != FOREVER:
            return True
        id = lock.record.session_id
        session = self.held.get(id) if id is not None else None
        return session is not None and session.until > now

    def unlocked(self, lock: Lock) -> None:
        """Remove a message lock that was taken out of the table."""
        id = lock.record.session_id
        if lock.until == FOREVER and id is not None:
            session = self.held.get(id)
            if session is not None:
                session.numbers.discard(lock.record.n)
                self.changed[id] = session

    # ---- ends by time ----

    def _note_end(self, session: MessageSession) -> None:
        heappush(self._ends, (session.until, session.id))
        if len(self._ends) > 2 * len(self.by_consumer) + SLACK:
            self._ends = [(each.until, each.id) for each in self.by_consumer.values()]
            heapify(self._ends)

    def earliest(self) -> i64:
        """The end of the session lock that ends first; 0 without any."""
        ends = self._ends
        while ends:
            until, id = ends[0]
            session = self.held.get(id)
            if session is not None and session.consumer is not None and session.until == until:
                return until
            heappop(ends)
        return 0

    def overdue(self, now: i64) -> MessageSession | None:
        """The held session whose time came first, if it has come."""
        until = self.earliest()
        if until == 0 or until > now:
            return None
        return self.held[self._ends[0][1]]

    # ---- what is kept ----

    def account(self, session: MessageSession) -> None:
        """Count what the session's window keeps; if all keep too much, this one keeps nothing."""
        window = session.window
        if self.ready_bytes - session.counted_ready + window.bytes > self.bounds.session_bytes:
            window.rewind()
            session.complete = False
        self.count(session)

    def count(self, session: MessageSession) -> None:
        window = session.window
        self.ready_bytes += window.bytes - session.counted_ready
        self.returned_bytes += window.returned_bytes - session.counted_returned
        session.counted_ready = window.bytes
        session.counted_returned = window.returned_bytes
