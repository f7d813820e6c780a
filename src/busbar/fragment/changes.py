"""What a fragment's commands change in its store, gathered over one group commit.

A store performs puts, then edits in their order, then deletes; numbers are given once, so this order is
always right. Ids of duplicate detection are forgotten first and then remembered.

How ids lie in a store. An id is 16 bytes (duplicates.py). Ids are kept on segments, the segments of a fragment in the order
of time. The key is (segment, id). So ids that come together are written together and deleted together, although ids are
random. A store finds an id on given segments, reads ids in the order of the key, and removes the lowest.

How message sessions lie in a store. A session has a row while it has active messages: how many, and its turn, which is its
place in the line of those that wait to be accepted. Rows are written by difference, so that a send needs no read. A new row
gets the turn of the change. An existing row keeps its turn unless it is moved. When its last message goes, the row is
deleted. A state is kept by itself, whether the session has messages or not. So is the lock of a session whose holder can
outlive the owner of the fragment (session_holds.py).

How the outbox lies in a store. Its messages are found by target and number. A target has a row while there are messages for
it: how many, and the path of its entity. Rows are written by difference, too. A message that comes into the outbox or goes
out of it has a new number, so no edit touches it.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.model.effects import MessageEvent
from busbar.model.message import LANES, Overlay, Record

OVERHEAD: Final = 64
"""What a message counts in its entity's size beyond its content and its overlay: Record.size is all three."""
ID_SIZE: Final = 64
"""What an id that duplicate detection remembers counts against its entity's quota: about what it takes in a store."""


def state_size(session: str, state: bytes | None) -> i64:
    """What a session's state counts in its entity's size. An empty one is kept as well."""
    if state is None:
        return 0
    return len(state) + len(session.encode("utf-8", "surrogatepass")) + OVERHEAD


@final
class Head:
    """A fragment's durable counters, written with every commit of it, so that nothing is ever counted by scanning."""

    def __init__(
        self,
        fragment: i64,
        last: i64,
        counts: list[int],
        size: i64,
        ids: i64 = 0,
        dropped: i64 = 0,
        turn: i64 = 0,
        last_dead: i64 = 0,
        last_event: i64 = 0,
        events: i64 = 0,
        kept_size: i64 = 0,
        kept_dead_size: i64 = 0,
    ) -> None:
        self.fragment = fragment
        self.last = last  # the last number given; never goes back
        self.counts = counts  # by lane
        self.size = size  # bytes of all messages and session states kept
        self.ids = ids  # remembered by duplicate detection
        self.dropped = dropped  # duplicates, ever; those since the last commit are missing
        self.turn = turn  # the last one given to a session; never goes back
        self.last_dead = (
            last_dead  # the last number given to a dead letter (Record.dead_letter_number); never goes back
        )
        self.last_event = last_event  # the last position given to an event; never goes back
        self.events = events  # kept for taps
        self.kept_size = kept_size  # bytes of the messages in KEPT and KEPT_DEAD; they are not in `size`
        self.kept_dead_size = kept_dead_size  # of those in KEPT_DEAD alone

    def copy(self) -> Head:
        return Head(
            self.fragment,
            self.last,
            list(self.counts),
            self.size,
            self.ids,
            self.dropped,
            self.turn,
            self.last_dead,
            self.last_event,
            self.events,
            self.kept_size,
            self.kept_dead_size,
        )


def empty_head(fragment: int) -> Head:
    return Head(fragment, 0, [0] * LANES, 0)


IdRow = tuple[int, bytes, int, int]
"""A remembered id: its segment, the id, when its message came, and the number of that message."""


@final
class MessageEdit:
    """Move a message to another lane and/or set its delivery count, overlay and size (`lane == to`: no move).

    A negative size leaves it as it is.
    """

    def __init__(
        self,
        lane: i64,
        n: i64,
        to: i64,
        deliveries: i64,
        overlay: Overlay | None,
        dead: i64 = 0,
        size: i64 = -1,
    ) -> None:
        self.lane = lane
        self.n = n
        self.to = to
        self.deliveries = deliveries
        self.overlay = overlay
        self.size = size
        self.dead = dead  # Record.dead_letter_number as it is after the edit

    def edited(self, record: Record) -> Record:
        """The message as it is after the edit, whatever its lane."""
        return Record(
            record.n,
            record.enqueued,
            record.ttl,
            record.due,
            self.deliveries,
            record.size if self.size < 0 else self.size,
            record.content,
            self.overlay,
            record.session_id,
            self.dead,
            record.hops,
            record.target,
            record.kind,
        )


@final
class SessionChange:
    """What becomes of a session's row."""

    def __init__(self) -> None:
        self.active: i64 = 0  # how many active messages more, or fewer
        self.turn: i64 = 0  # of the row, if it comes
        self.moved = False  # a row that is there gets the turn as well


@final
class SessionHold:
    """A durable session lock: who holds the session, and until when. The name of the holder begins with its gateway's."""

    def __init__(self, session: str, holder: str, until: i64) -> None:
        self.session = session
        self.holder = holder
        self.until = until

    def gateway(self) -> str:
        return self.holder.partition(" ")[0]


OutboxRow = tuple[str, int]
"""Of a target in the outbox: the path of its entity, and how many messages there are for it."""


@final
class OutboxChange:
    """What becomes of a target's row in the outbox."""

    def __init__(self, path: str) -> None:
        self.path = path  # of the row, if it comes
        self.count: i64 = 0  # how many messages more, or fewer


@final
class Lock:
    """A lock: a message that a receiver has, until when, and the nonce that proves it. Only `until` changes (renewal)."""

    def __init__(self, record: Record, lane: i64, nonce: i64, until: i64) -> None:
        self.record = record
        self.lane = lane  # an available or deferred one of a sub-queue: where the message stands in the store
        self.nonce = nonce
        self.until = until


@final
class TapRow:
    """The position of a tap in a fragment. TapState describes the fields."""

    def __init__(
        self,
        id: i64,
        position: i64,
        lost: i64 = 0,
        event_position: i64 = 0,
        event_lost: i64 = 0,
        truncated: bool = False,
    ) -> None:
        self.id = id
        self.position = position
        self.lost = lost
        self.event_position = event_position
        self.event_lost = event_lost
        self.truncated = truncated

    def copy(self) -> TapRow:
        return TapRow(self.id, self.position, self.lost, self.event_position, self.event_lost, self.truncated)


@final
class Keep:
    """Messages that go from a lane to KEPT or KEPT_DEAD, or from the one to the other, as they are."""

    def __init__(self, lane: i64, to: i64, numbers: list[int]) -> None:
        self.lane = lane
        self.to = to
        self.numbers = numbers


@final
class Changes:
    """One fragment's part of a group commit."""

    def __init__(self, fragment: i64) -> None:
        self.fragment = fragment
        self.puts: dict[int, list[Record]] = {}  # by lane
        self.edits: list[MessageEdit] = []
        self.deletes: dict[int, list[int]] = {}  # numbers by lane
        self.ids: list[IdRow] = []  # to remember
        self.ids_upto: tuple[int, bytes] | None = (
            None  # forget all ids whose segment and id are not above this
        )
        self.sessions: dict[str, SessionChange] = {}
        self.states: dict[str, tuple[int, bytes | None]] = {}  # of sessions: when it was set (None: cleared)
        self.holds: dict[str, SessionHold | None] = {}  # by session (None: it has ended)
        self.outbox: dict[int, OutboxChange] = {}  # by target
        self.keeps: list[Keep] = []  # after the edits, before the deletes
        self.taps: dict[int, TapRow | None] = {}  # by id (None: gone)
        self.events: list[MessageEvent] = []  # to record
        self.events_upto: i64 = 0  # forget events up to this position
        self.written: list[tuple[str, int, bytes]] = []  # writer, batch and id (16 bytes): to remember
        # By writer: the batch that it has committed, and when (None: forget the writer, its ids are gone). Its ids of
        # batches before that one are deleted.
        self.writers: dict[str, tuple[int, int] | None] = {}
        self.head: Head | None = None  # the counters after this commit
        # For undoing a refused commit: the locks that ended, in the order of their end. The locks that were taken are named
        # by the Delivered and Received effects, which are discarded with the commit.
        self.unlocked: list[list[Lock]] = []
        # Of an express entity: messages (with their lanes) that clients rely on although this commit is the first that has
        # them. If it fails, they are kept for another one.
        self.acknowledged: list[tuple[int, Record]] = []
        self.has_copies = False  # from a topic: other fragments may have the same contents
        self.weight: i64 = 0  # messages touched, to bound a commit
        self.bytes: i64 = 0  # of the messages and states put


NOTHING: Final[tuple[Changes, ...]] = ()
