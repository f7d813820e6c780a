"""The journal: the small state of all fragments, in memory, and the rows from which it is read when a store is claimed.

The small state of a fragment is its counters, its taps, its writers, the rows of its outbox, the locks of a clean
shutdown and the durable locks of sessions. Every commit changes some of it. A table with a row for each fragment would get a
dead version with every commit, and become slow behind an old snapshot. So each commit appends what it changed to the
journal.

- A row has the number of its commit. Numbers rise by one, so the highest number shows whether a commit was made.
- A row that is a snapshot has the whole state as of its commit. One is written after SNAPSHOT_COMMITS commits, or when the
  rows since the last one have SNAPSHOT_RATIO times its bytes. Rows before it are then deleted, TRIM with each commit.
- The data of a row, after a byte with the version of this format, is MessagePack: an entry for each fragment.
- An entry [fragment] means that the fragment is gone. Otherwise it is [fragment, head, taps, writers, outbox, locks,
  holds], each of them null or empty if it is unchanged. A tap, a writer, a target or a session alone in its list is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from busbar.fragment.changes import Changes, Head, OutboxRow, SessionHold, TapRow, empty_head
from busbar.model.message import LANES
from busbar.store.contract import StoreError

SNAPSHOT_COMMITS: Final = 4_096
SNAPSHOT_RATIO: Final = 4
SMALLEST_SNAPSHOT: Final = 64 * 1024  # bytes: below that, only the number of commits counts
TRIM: Final = 64
_VERSION: Final = 1
_MARK: Final = bytes([_VERSION])

Entry = list[Any]
KeptLock = tuple[int, int, int, int]
"""Lane, number, nonce and end of a lock."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class FragmentState:
    """The small state of one fragment. It may have rows without a head: then the fragment does not exist yet."""

    __slots__ = ("head", "holds", "locks", "outbox", "taps", "writers")

    def __init__(self) -> None:
        self.head: Head | None = None
        self.taps: dict[int, TapRow] = {}
        self.writers: dict[str, tuple[int, int]] = {}
        self.outbox: dict[int, OutboxRow] = {}
        self.locks: list[KeptLock] = []
        self.holds: dict[str, SessionHold] = {}

    def entry(self, fragment: int) -> Entry:
        """All of it."""
        return [
            fragment,
            None if self.head is None else _head_row(self.head),
            [_tap_row(tap) for tap in self.taps.values()],
            [[to_bytes(name), *row] for name, row in self.writers.items()],
            [[target, to_bytes(path), count] for target, (path, count) in self.outbox.items()],
            self.locks,
            [_hold_row(hold) for hold in self.holds.values()],
        ]


class Journal:
    """The content of the journal as of the last commit."""

    def __init__(self) -> None:
        self.commit = 0
        """The number of the last commit."""
        self.fragments: dict[int, FragmentState] = {}
        self._snapshot = 0
        self._snapshot_bytes = 0
        self._bytes_since = 0
        self._trimmed = 0

    # ---- what a commit appends ----

    def entries(self, batches: Sequence[Changes]) -> list[Entry]:
        """What the changes are in the journal."""
        entries = []
        for changes in batches:
            head = changes.head
            if head is None and not (changes.taps or changes.writers or changes.outbox or changes.holds):
                continue
            taps: list[Any] = [[id] if row is None else _tap_row(row) for id, row in changes.taps.items()]
            writers: list[Any] = [
                [to_bytes(name)] if row is None else [to_bytes(name), *row]
                for name, row in changes.writers.items()
            ]
            outbox = self._outbox_rows(changes) if changes.outbox else []
            holds: list[Any] = [
                [to_bytes(session)] if hold is None else _hold_row(hold)
                for session, hold in changes.holds.items()
            ]
            row = None if head is None else _head_row(head)
            entries.append([changes.fragment, row, taps, writers, outbox, None, holds])
        return entries

    def _outbox_rows(self, changes: Changes) -> list[Any]:
        here = self.fragments.get(changes.fragment)
        rows: list[Any] = []
        for target, change in changes.outbox.items():
            path, count = (here.outbox.get(target) if here else None) or (change.path, 0)
            count += change.count
            if change.count:
                rows.append([target, to_bytes(path), count] if count > 0 else [target])
        return rows

    def encode(self, entries: list[Entry]) -> tuple[bytes, bool]:
        """The data of the next row, and whether it is a snapshot."""
        due = self.commit + 1 - self._snapshot >= SNAPSHOT_COMMITS
        if due or self._bytes_since >= SNAPSHOT_RATIO * max(self._snapshot_bytes, SMALLEST_SNAPSHOT):
            after = self.copy()
            after._take(entries)
            return _MARK + _encode([state.entry(f) for f, state in after.fragments.items()]), True
        return _MARK + _encode(entries), False

    def to_trim(self) -> tuple[int, int] | None:
        """The numbers of the rows that the next commit deletes, from the first to the last."""
        if self._trimmed + 1 >= self._snapshot:
            return None
        return self._trimmed + 1, min(self._trimmed + TRIM, self._snapshot - 1)

    def appended(self, entries: list[Entry], size: int, is_snapshot: bool, trimmed: int) -> None:
        """Take over what was made durable by the next commit, which deleted the rows up to `trimmed` (0: none)."""
        self._trimmed = max(self._trimmed, trimmed)
        self.commit += 1
        self._take(entries)
        self._note(size, is_snapshot)

    def _note(self, size: int, is_snapshot: bool) -> None:
        if is_snapshot:
            self._snapshot, self._snapshot_bytes, self._bytes_since = self.commit, size, 0
        else:
            self._bytes_since += size

    def copy(self) -> Journal:
        """A journal with the same state, whose fragments can be replaced."""
        other = Journal()
        other.commit = self.commit
        for fragment, state in self.fragments.items():
            clone = other.fragments[fragment] = FragmentState()
            clone.head = state.head
            clone.taps, clone.writers, clone.outbox = (
                dict(state.taps),
                dict(state.writers),
                dict(state.outbox),
            )
            clone.locks, clone.holds = state.locks, dict(state.holds)
        return other

    # ---- reading ----

    def load(self, rows: Iterable[tuple[int, bool, bytes]], first: int) -> None:
        """Read the newest snapshot and the rows behind it, in their order. `first` is the oldest row that there is."""
        for commit, is_snapshot, data in rows:
            if not data.startswith(_MARK):
                raise StoreError(f"the journal has a row of an unknown version: {data[:1]!r}")
            if self.commit and commit != self.commit + 1:
                raise StoreError(f"the journal has no row for commit {self.commit + 1}")
            self.commit = commit
            self._take(_decode(data[1:]))
            self._note(len(data), is_snapshot)
        self._trimmed = max(first - 1, 0)

    def _take(self, entries: list[Entry]) -> None:
        for entry in entries:
            if len(entry) == 1:
                self.fragments.pop(entry[0], None)
                continue
            fragment, head, taps, writers, outbox, locks, holds = entry
            state = self.fragments.get(fragment)
            if state is None:
                state = self.fragments[fragment] = FragmentState()
            if head is not None:
                state.head = _head_of(fragment, head)
            for tap in taps:
                if len(tap) == 1:
                    state.taps.pop(tap[0], None)
                else:
                    state.taps[tap[0]] = TapRow(*tap)
            for name, *row in writers:
                if row:
                    state.writers[to_text(name)] = (row[0], row[1])
                else:
                    state.writers.pop(to_text(name), None)
            for target, *row in outbox:
                if row:
                    state.outbox[target] = (to_text(row[0]), row[1])
                else:
                    state.outbox.pop(target, None)
            if locks is not None:
                state.locks = [(lock[0], lock[1], lock[2], lock[3]) for lock in locks]
            for session, *row in holds:
                if row:
                    state.holds[to_text(session)] = SessionHold(to_text(session), to_text(row[0]), row[1])
                else:
                    state.holds.pop(to_text(session), None)

    def state(self, fragment: int) -> FragmentState:
        """The state of a fragment; an empty one if there is none."""
        return self.fragments.get(fragment) or FragmentState()

    def heads(self, only: Sequence[int] | None = None) -> list[Head]:
        wanted = self.fragments if only is None else self.fragments.keys() & set(only)
        heads = [self.fragments[fragment].head for fragment in sorted(wanted)]
        return [head.copy() for head in heads if head is not None]

    def raised_above(self, known: Journal) -> list[Entry]:
        """Entries that let the numbers of all fragments go on above those of a journal with more commits. The next row
        is a snapshot, and the numbers of commits go on above those that were given, too."""
        self.commit, self._snapshot = known.commit, known.commit - SNAPSHOT_COMMITS
        entries = []
        for fragment, before in known.fragments.items():
            if before.head is None:
                continue
            head = (self.state(fragment).head or empty_head(fragment)).copy()
            head.last = max(head.last, before.head.last)
            head.last_dead = max(head.last_dead, before.head.last_dead)
            head.last_event = max(head.last_event, before.head.last_event)
            head.turn = max(head.turn, before.head.turn)
            entries.append([fragment, _head_row(head), [], [], [], None, []])
        return entries


def head_entry(head: Head) -> Entry:
    """An entry that sets the counters of a fragment."""
    return [head.fragment, _head_row(head), [], [], [], None, []]


def locks_entry(fragment: int, locks: Sequence[KeptLock]) -> Entry:
    """An entry that sets the kept locks of a fragment."""
    return [fragment, None, [], [], [], list(locks), []]


def outbox_entry(head: Head, rows: dict[int, OutboxRow], gone: dict[int, int], exists: bool) -> Entry:
    """An entry that sets the counters of a fragment, if it exists, and takes messages off the rows of its outbox."""
    changed: list[Any] = []
    for target, fewer in gone.items():
        if target in rows:
            path, count = rows[target]
            left = count - fewer
            changed.append([target, to_bytes(path), left] if left > 0 else [target])
    return [head.fragment, _head_row(head) if exists else None, [], [], changed, None, []]


def _head_row(head: Head) -> list[int]:
    return [
        head.last,
        *head.counts,
        head.size,
        head.ids,
        head.dropped,
        head.turn,
        head.last_dead,
        head.last_event,
        head.events,
        head.kept_size,
        head.kept_dead_size,
    ]


def _head_of(fragment: int, row: list[int]) -> Head:
    return Head(fragment, row[0], row[1 : LANES + 1], *row[LANES + 1 :])


def _tap_row(row: TapRow) -> list[Any]:
    return [row.id, row.position, row.lost, row.event_position, row.event_lost, bool(row.truncated)]


def _hold_row(hold: SessionHold) -> list[Any]:
    return [to_bytes(hold.session), to_bytes(hold.holder), hold.until]


def to_bytes(text: str) -> bytes:
    """A string that a client chose, as the database has it."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
