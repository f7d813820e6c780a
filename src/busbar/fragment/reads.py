"""What a machine asks of its store before it can apply a command. The host reads, the machine is supplied."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from busbar.fragment.changes import OVERHEAD, IdRow
from busbar.model.effects import MessageEvent
from busbar.model.message import Record
from busbar.model.tap_page import TapPageBuilder


class Read:
    """Any read. `records` is filled by the store, in ascending order (for ReadDue: by due time, then number)."""

    def __init__(self) -> None:
        self.records: list[Record] = []


@final
class ReadPage(Read):
    """The next messages of a lane from a number on; with `session`, only those of that session.

    A count and a number of bytes bound the page, but it has at least one message.
    """

    def __init__(self, lane: i64, start: i64, limit: i64, max_bytes: i64, session: str | None = None) -> None:
        super().__init__()
        self.lane = lane
        self.session = session
        self.start = start
        self.limit = limit
        self.max_bytes = max_bytes
        # A store may set it if nothing of what was asked for lies behind the last record. For a session, it must set it
        # whenever the page ends before its limits.
        self.complete = False


@final
class ReadByNumber(Read):
    """Messages of a lane by number; those that are not there are left out."""

    def __init__(self, lane: i64, numbers: list[int]) -> None:
        super().__init__()
        self.lane = lane
        self.numbers = numbers


@final
class ReadDue(Read):
    """Scheduled messages that are due at a time, and the due time of the next one after those (0: none)."""

    def __init__(self, until: i64, limit: i64, max_bytes: i64) -> None:
        super().__init__()
        self.until = until
        self.limit = limit
        self.max_bytes = max_bytes
        self.next_due: i64 = 0


@final
class ReadIds(Read):
    """Which of these ids are on these segments: `found` has the newest time and number of each."""

    def __init__(self, ids: list[bytes], segments: list[int]) -> None:
        super().__init__()
        self.ids = ids
        self.segments = segments
        self.found: dict[bytes, tuple[int, int]] = {}


@final
class ReadIdPage(Read):
    """The ids that come after one in the order of segment and id, up to a count."""

    def __init__(self, segment: i64, after: bytes, limit: i64) -> None:
        super().__init__()
        self.segment = segment
        self.after = after
        self.limit = limit
        self.rows: list[IdRow] = []


WaitingSessionRow = tuple[str, int, int]
"""A session that has active messages: its id, its turn, and when the first of those messages expires (0: never)."""


@final
class ReadWaitingSessions(Read):
    """The sessions with active messages whose turn comes after one, in the order of their turns, up to a count."""

    def __init__(self, after: i64, limit: i64) -> None:
        super().__init__()
        self.after = after
        self.limit = limit
        self.rows: list[WaitingSessionRow] = []


@final
class ReadExpiry(Read):
    """When the active messages of a session expire, and their numbers: the earliest, up to a count."""

    def __init__(self, session: str, limit: i64) -> None:
        super().__init__()
        self.session = session
        self.limit = limit
        self.rows: list[tuple[int, int]] = []


@final
class ReadSession(Read):
    """A session's state (if `with_state`) and how many bytes it has; -1 if there is none."""

    def __init__(self, session: str, with_state: bool) -> None:
        super().__init__()
        self.session = session
        self.with_state = with_state
        self.state: bytes | None = None
        self.size: i64 = -1


@final
class ReadSessionIds(Read):
    """Ids of sessions in their order, behind `after` (None: from the first one).

    `updated_after` 0: those with active messages or a state; else those whose state was set after that time.
    """

    def __init__(self, updated_after: i64, after: str | None, top: i64) -> None:
        super().__init__()
        self.updated_after = updated_after
        self.after = after
        self.top = top
        self.ids: list[str] = []


@final
class ReadOutbox(Read):
    """The first messages of the outbox for a target, behind a number.

    A count and a number of bytes bound the page, but it has at least one message.
    """

    def __init__(self, target: i64, after: i64, limit: i64, max_bytes: i64) -> None:
        super().__init__()
        self.target = target
        self.after = after
        self.limit = limit
        self.max_bytes = max_bytes


# ---- taps and writers ----


@final
class ReadSpan(Read):
    """Messages of all the lanes named, after one position, up to another.

    They are merged by number, or with `by_dead` by Record.dead_letter_number. A count and a number of bytes bound the span,
    but it has at least one message. `complete`: nothing of what was asked for lies behind the last record.
    """

    def __init__(
        self, lanes: list[int], by_dead: bool, after: i64, upto: i64, limit: i64, max_bytes: i64
    ) -> None:
        super().__init__()
        self.lanes = lanes
        self.by_dead = by_dead
        self.after = after
        self.upto = upto
        self.limit = limit
        self.max_bytes = max_bytes
        self.complete = False


@final
class ReadTapPage(Read):
    """A span as in ReadSpan for readers, with the lane of each message: the store fills `packing` instead of `records`.

    `complete`: nothing of what was asked for lies behind the last message.
    """

    def __init__(
        self, lanes: list[int], by_dead: bool, after: i64, upto: i64, limit: i64, max_bytes: i64
    ) -> None:
        super().__init__()
        self.lanes = lanes
        self.by_dead = by_dead
        self.after = after
        self.upto = upto
        self.limit = limit
        self.max_bytes = max_bytes
        self.packing = TapPageBuilder(limit, max_bytes, OVERHEAD)
        self.complete = False

    def last(self) -> i64:
        """The position of the last message; 0 if there is none."""
        return self.packing.last_dead if self.by_dead else self.packing.last


KeptRow = tuple[int, int, int, int]
"""A kept message: its number, Record.dead_letter_number, its size, and when it was enqueued."""


@final
class ReadKept(Read):
    """The first kept messages up to a position, up to a count: of KEPT by number, of KEPT_DEAD by
    Record.dead_letter_number."""

    def __init__(self, lane: i64, upto: i64, limit: i64) -> None:
        super().__init__()
        self.lane = lane
        self.upto = upto
        self.limit = limit
        self.rows: list[KeptRow] = []


@final
class ReadEvents(Read):
    """Events after one position, up to another, up to a count."""

    def __init__(self, after: i64, upto: i64, limit: i64) -> None:
        super().__init__()
        self.after = after
        self.upto = upto
        self.limit = limit
        self.events: list[MessageEvent] = []


@final
class ReadTime(Read):
    """The highest position in these lanes whose message was enqueued before a time; 0 if there is none.

    A position is a number, or with `by_dead` a Record.dead_letter_number. Only messages that the store holds in these lanes
    count. Times rise with numbers, so no index is needed.
    """

    def __init__(self, lanes: list[int], by_dead: bool, before: i64) -> None:
        super().__init__()
        self.lanes = lanes
        self.by_dead = by_dead
        self.before = before
        self.position: i64 = 0


@final
class ReadWritten(Read):
    """Which of these ids a writer has sent, in any batch that is remembered."""

    def __init__(self, writer: str, ids: list[bytes]) -> None:
        super().__init__()
        self.writer = writer
        self.ids = ids
        self.found: set[bytes] = set()
