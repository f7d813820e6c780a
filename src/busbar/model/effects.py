"""What a fragment answers, performed only when everything it rests on is durable. Plain values, like commands."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.model.message import Overlay, Record

MOVER_ORIGIN: Final = -1
"""The origin of the process's mover. Gateway connections have positive origins."""
HISTORY_ORIGIN: Final = -2
"""The origin of the process's recorder of what happens to messages."""


class Effect:
    """Any effect; the concrete classes below are the whole list."""

    def __init__(self, origin: i64, request: i64) -> None:
        self.origin = origin
        self.request = request


@final
class Sent(Effect):
    """The messages of a Send are durable, but for the refused ones.

    `numbers` has one entry for each draft (0 for a refused one); `refused` is empty in the ordinary case, else pairs of
    index and (condition, text). `duplicates` has the indexes of those that were dropped because their id is remembered. The
    sender gets the same answer for them as for a stored message. Their entry in `numbers` is the number of the original.
    """

    def __init__(
        self,
        origin: i64,
        request: i64,
        numbers: list[int],
        refused: list[tuple[int, str, str]],
        duplicates: list[int] | None = None,
    ) -> None:
        super().__init__(origin, request)
        self.numbers = numbers
        self.refused = refused
        self.duplicates: list[int] = duplicates if duplicates is not None else []


@final
class Delivered(Effect):
    """Messages for a consumer, in order. `until` is the end of their locks (0: ReceiveAndDelete, no lock)."""

    def __init__(
        self,
        origin: i64,
        consumer: i64,
        fragment: i64,
        records: list[Record],
        nonce: i64,
        until: i64,
    ) -> None:
        super().__init__(origin, 0)
        self.consumer = consumer
        self.fragment = fragment
        self.records = records
        self.nonce = nonce
        self.until = until


@final
class Drained(Effect):
    """All that was there has been delivered; the consumer's remaining credit is forgotten."""

    def __init__(self, origin: i64, consumer: i64) -> None:
        super().__init__(origin, 0)
        self.consumer = consumer


@final
class Settled(Effect):
    """Locks were settled; `lost` has the indexes of those that were not held any more."""

    def __init__(self, origin: i64, request: i64, lost: list[int]) -> None:
        super().__init__(origin, request)
        self.lost = lost


@final
class Renewed(Effect):
    def __init__(self, origin: i64, request: i64, until: i64) -> None:
        super().__init__(origin, request)
        self.until = until


@final
class DeferredReceived(Effect):
    """Deferred messages, locked with one nonce until a time (0: deleted, no lock)."""

    def __init__(self, origin: i64, request: i64, records: list[Record], nonce: i64, until: i64) -> None:
        super().__init__(origin, request)
        self.records = records
        self.nonce = nonce
        self.until = until


@final
class Peeked(Effect):
    """Messages in ascending order of number, with the lane of each.

    `locked` has the ends of their locks (0: not locked) in the same order, if the command asked for them. Otherwise it is
    empty.
    """

    def __init__(
        self, origin: i64, request: i64, records: list[Record], lanes: list[int], locked: list[int]
    ) -> None:
        super().__init__(origin, request)
        self.records = records
        self.lanes = lanes
        self.locked = locked


@final
class SessionOffered(Effect):
    """There is a message session that can be accepted."""

    def __init__(self, origin: i64, request: i64) -> None:
        super().__init__(origin, request)


@final
class SessionAccepted(Effect):
    """The consumer holds this message session until a time."""

    def __init__(self, origin: i64, request: i64, consumer: i64, session: str, until: i64) -> None:
        super().__init__(origin, request)
        self.consumer = consumer
        self.session = session
        self.until = until


@final
class SessionLost(Effect):
    """The consumer's session lock has ended by time, and with it the locks of its messages: each was counted."""

    def __init__(self, origin: i64, consumer: i64) -> None:
        super().__init__(origin, 0)
        self.consumer = consumer


@final
class SessionState(Effect):
    def __init__(self, origin: i64, request: i64, state: bytes | None) -> None:
        super().__init__(origin, request)
        self.state = state


@final
class SessionList(Effect):
    """Session ids, in their order."""

    def __init__(self, origin: i64, request: i64, ids: list[str]) -> None:
        super().__init__(origin, request)
        self.ids = ids


@final
class SessionInspected(Effect):
    """Who holds a message session, and its state.

    `until` is the end of the session lock; 0: no consumer holds the session. `locked` is the number of its locked messages.
    `size` is the number of bytes that the state takes; -1: there is none.
    """

    def __init__(
        self, origin: i64, request: i64, until: i64, locked: i64, size: i64, state: bytes | None
    ) -> None:
        super().__init__(origin, request)
        self.until = until
        self.locked = locked
        self.size = size
        self.state = state


@final
class Purged(Effect):
    def __init__(self, origin: i64, request: i64, count: i64) -> None:
        super().__init__(origin, request)
        self.count = count


@final
class Inspected(Effect):
    """Counts by lane, bytes kept, the last number given, and how many duplicates were ever dropped.

    `outbox` has the number of messages that wait for each fragment of another entity; None: there are none. `locked` is the
    number of active messages that are locked. `oldest` is when the first active message was enqueued (0: there is none, or
    it is not in memory).
    """

    def __init__(
        self,
        origin: i64,
        request: i64,
        counts: list[int],
        size: i64,
        last: i64,
        duplicates: i64 = 0,
        outbox: dict[int, int] | None = None,
        locked: i64 = 0,
        oldest: i64 = 0,
    ) -> None:
        super().__init__(origin, request)
        self.counts = counts
        self.size = size
        self.last = last
        self.duplicates = duplicates
        self.outbox = outbox
        self.locked = locked
        self.oldest = oldest


@final
class DuplicateReport(Effect):
    """What duplicate detection did: messages dropped, ids remembered, and the latest drops, oldest first.

    Of each drop: the message's id, when it came, and the number of the original.
    """

    def __init__(
        self,
        origin: i64,
        request: i64,
        dropped: i64,
        remembered: i64,
        ids: list[str],
        times: list[int],
        numbers: list[int],
    ) -> None:
        super().__init__(origin, request)
        self.dropped = dropped
        self.remembered = remembered
        self.ids = ids
        self.times = times
        self.numbers = numbers


@final
class TapState:
    """A tap in one fragment."""

    def __init__(
        self,
        id: i64,
        position: i64,
        lost: i64,
        event_position: i64,
        event_lost: i64,
        truncated: bool,
        kept: i64,
        kept_bytes: i64,
        end: i64 = 0,
        truncations: i64 = 0,
    ) -> None:
        self.id = id
        self.position = position  # everything up to here was passed
        self.lost = lost  # something up to here went before it was passed (0: nothing)
        self.event_position = event_position
        self.event_lost = event_lost
        self.truncated = truncated  # a limit was reached: it keeps nothing until it is resumed
        self.kept = kept  # at most so many messages are kept that it has not passed
        self.kept_bytes = kept_bytes
        self.end = end  # up to here it can read now: if it consumes, before the first message that a receiver has locked
        self.truncations = truncations  # how often a limit was reached since the fragment was opened


@final
class TapStates(Effect):
    """Where every tap of the fragment stands, and the ends: nothing at or below them will ever appear or change."""

    def __init__(
        self, origin: i64, request: i64, taps: list[TapState], end: i64, dead_end: i64, event_end: i64
    ) -> None:
        super().__init__(origin, request)
        self.taps = taps
        self.end = end
        self.dead_end = dead_end
        self.event_end = event_end


@final
class TapPage(Effect):
    """Messages in the order of their positions, packed (tap_page.py): all behind the position asked for, up to `upto`."""

    def __init__(
        self,
        origin: i64,
        request: i64,
        heads: bytes,
        contents: list[bytes],
        overlays: dict[int, Overlay],
        upto: i64,
    ) -> None:
        super().__init__(origin, request)
        self.heads = heads
        self.contents = contents
        self.overlays = overlays
        self.upto = upto


@final
class MessageEvent:
    """What happened to a message. The outcomes stand below."""

    def __init__(
        self, at: i64, n: i64, outcome: i64, time: i64, enqueued: i64, deliveries: i64, reason: str
    ) -> None:
        self.at = at  # its position
        self.n = n  # of the message; of a duplicate that was dropped, that of the original
        self.outcome = outcome
        self.time = time
        self.enqueued = enqueued
        self.deliveries = deliveries  # those that failed so far
        self.reason = reason  # of dead-lettering; the message id of a duplicate


COMPLETED: Final = 1
RECEIVED_AND_DELETED: Final = 2
ABANDONED: Final = 3
DEFERRED_BY_RECEIVER: Final = 4
DEAD_LETTERED: Final = 5
LOCK_EXPIRED: Final = 6
EXPIRED: Final = 7  # and dropped; if it went to the dead-letter queue: DEAD_LETTERED
PURGED: Final = 8
DUPLICATE_DROPPED: Final = 9
CONSUMED: Final = 10  # by a tap
FORWARDED: Final = 11  # to another entity
# Of the history of a message alone; taps do not have these.
SENT: Final = 20
SCHEDULED_FOR_LATER: Final = 21
PUBLISHED: Final = 22  # by a topic
COPIED: Final = 23  # into a subscription
ARRIVED: Final = 24  # from another entity
ACTIVATED: Final = 25  # it was scheduled, and is due
CANCELLED: Final = 26
DELIVERED: Final = 27
RELEASED: Final = 28
LOCK_LOST: Final = 29  # a receiver settled it without its lock: nothing was changed
SENT_VIA: Final = 30  # it is for another entity


@final
class MessageStep:
    """A step in the history of a message: one of the outcomes above, or of the history alone."""

    def __init__(
        self,
        n: i64,
        what: i64,
        time: i64,
        deliveries: i64,
        reason: str,
        content: bytes | None,
        by: i64,
        consumer: i64,
    ) -> None:
        self.n = n
        self.what = what
        self.time = time
        self.deliveries = deliveries
        self.reason = reason
        self.content = content  # has the message id; None: the message is known by its number alone
        self.by = by  # an origin; 0: the broker
        self.consumer = consumer  # of that origin; 0: none


@final
class Happened(Effect):
    """What happened to messages of a fragment, in order, for the recorder of the process. As every effect, it comes when
    all of it is durable."""

    def __init__(self, fragment: i64, path: str, steps: list[MessageStep]) -> None:
        super().__init__(HISTORY_ORIGIN, 0)
        self.fragment = fragment
        self.path = path
        self.steps = steps


@final
class EventPage(Effect):
    """Events in order: all behind the position asked for, up to `upto`."""

    def __init__(self, origin: i64, request: i64, events: list[MessageEvent], upto: i64) -> None:
        super().__init__(origin, request)
        self.events = events
        self.upto = upto


@final
class PositionFound(Effect):
    def __init__(self, origin: i64, request: i64, position: i64) -> None:
        super().__init__(origin, request)
        self.position = position


@final
class OutboxReady(Effect):
    """The outbox of a fragment has durable records for a target. Before it had none, or the mover may have missed that."""

    def __init__(self, origin: i64, fragment: i64, target: i64) -> None:
        super().__init__(origin, 0)
        self.fragment = fragment
        self.target = target


@final
class OutboxPage(Effect):
    """The first records for a target, ascending and without gaps.

    `path` is the target's. `source` is the path of the entity whose outbox it is, as its settings have it.
    """

    def __init__(
        self, origin: i64, request: i64, target: i64, path: str, source: str, records: list[Record]
    ) -> None:
        super().__init__(origin, request)
        self.target = target
        self.path = path
        self.source = source
        self.records = records


@final
class MovedTaken(Effect):
    """The target's mark is at `upto`: records up to there were taken, now or before.

    `refused` is how many records from the next one on are refused for the same reason. What is behind those was not looked
    at.
    """

    def __init__(
        self, origin: i64, request: i64, upto: i64, refused: i64 = 0, condition: str = "", text: str = ""
    ) -> None:
        super().__init__(origin, request)
        self.upto = upto
        self.refused = refused
        self.condition = condition
        self.text = text
        self.dropped: i64 = 0  # duplicates; the fragment's own, for an undo


@final
class NumbersReserved(Effect):
    """The first of the numbers that were reserved. They rise by one."""

    def __init__(self, origin: i64, request: i64, first: i64) -> None:
        super().__init__(origin, request)
        self.first = first


@final
class Done(Effect):
    """What was asked for is done."""

    def __init__(self, origin: i64, request: i64) -> None:
        super().__init__(origin, request)
        self.dropped: i64 = 0  # duplicates; the fragment's own, for an undo


@final
class Refused(Effect):
    """The command was refused. If `certain`, it changed nothing; otherwise the store failed, and the outcome is unknown."""

    def __init__(self, origin: i64, request: i64, condition: str, text: str, certain: bool = True) -> None:
        super().__init__(origin, request)
        self.condition = condition
        self.text = text
        self.certain = certain
