"""The statement of a group commit: one, with a part for each kind of change that the group has. It takes one round trip.

    WITH fence AS (the owner's row, if it still has our claim; locked against another claim until the commit),
         log AS (the row of the journal),
         parts
    SELECT the number of rows in fence               0: another owner has claimed the store, and nothing was written

A statement by itself is a transaction. An owner that freezes cannot leave it half sent and open. Each combination of parts
is prepared once for each connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from typing import Any, Final

from busbar.fragment.changes import Changes, state_size
from busbar.fragment.writers import MARK
from busbar.store.postgresql.folding import fold
from busbar.store.postgresql.journal import to_bytes

_HEAD: Final = (
    "WITH fence AS MATERIALIZED (SELECT 1 FROM owner WHERE claim = $1::bigint FOR SHARE),"
    " log AS (INSERT INTO journal(commit, snapshot, data) SELECT $2::bigint, $3::boolean, $4::bytea FROM fence)"
)
_HEAD_VALUES: Final = 4
_TAIL: Final = " SELECT count(*) FROM fence"

# Of each part: the types of its arrays, and its text. {0} is `unnest(arrays)`.
_PARTS: Final[dict[str, tuple[str, str]]] = {
    "trim": (
        "bigint bigint",
        "DELETE FROM journal USING fence, {0} AS t(first, last) WHERE commit BETWEEN t.first AND t.last",
    ),
    "puts": (
        "bigint smallint bigint bigint bigint integer bytea",
        "INSERT INTO msg(fragment, lane, n, enqueued, ttl, size, content, due, deliveries, dead, hops, target, kind)"
        " SELECT u.*, 0, 0, 0, 0, 0, 0 FROM fence, {0} AS u",
    ),
    "full_puts": (
        "bigint smallint bigint bigint bigint integer bytea bigint integer bigint bytea bytea smallint bigint smallint",
        "INSERT INTO msg(fragment, lane, n, enqueued, ttl, size, content, due, deliveries, dead, session, overlay, hops,"
        " target, kind) SELECT u.* FROM fence, {0} AS u",
    ),
    "edits": (
        "bigint smallint bigint smallint integer bytea bigint integer",
        "UPDATE msg SET lane = e.lane_after, deliveries = e.deliveries, overlay = e.overlay, dead = e.dead,"
        " size = CASE WHEN e.size < 0 THEN msg.size ELSE e.size END"
        " FROM fence, {0} AS e(fragment, lane, n, lane_after, deliveries, overlay, dead, size)"
        " WHERE msg.fragment = e.fragment AND msg.lane = e.lane AND msg.n = e.n",
    ),
    "keeps": (
        "bigint smallint bigint bigint smallint",
        "UPDATE msg SET lane = k.lane_after FROM fence, {0} AS k(fragment, lane, first, last, lane_after)"
        " WHERE msg.fragment = k.fragment AND msg.lane = k.lane AND msg.n BETWEEN k.first AND k.last",
    ),
    "deletes": (
        "bigint smallint bigint bigint",
        "DELETE FROM msg USING fence, {0} AS d(fragment, lane, first, last)"
        " WHERE msg.fragment = d.fragment AND msg.lane = d.lane AND msg.n BETWEEN d.first AND d.last",
    ),
    "forget_ids": (
        "bigint bigint bytea",
        "DELETE FROM dup USING fence, {0} AS f(fragment, segment, id)"
        " WHERE dup.fragment = f.fragment AND (dup.segment, dup.id) <= (f.segment, f.id)",
    ),
    "forget_other_ids": (  # ids that the group remembers stay
        "bigint bigint bytea bigint bytea",
        "DELETE FROM dup USING fence, {0} AS f(fragment, segment, id, kept_segment, kept_id)"
        " WHERE dup.fragment = f.fragment AND (dup.segment, dup.id) <= (f.segment, f.id) AND NOT EXISTS (SELECT FROM {0}"
        " AS k(fragment, segment, id, kept_segment, kept_id)"
        " WHERE k.fragment = dup.fragment AND k.kept_segment = dup.segment AND k.kept_id = dup.id)",
    ),
    "ids": (
        "bigint bigint bytea bigint bigint",
        "INSERT INTO dup(fragment, segment, id, at, n) SELECT u.* FROM fence, {0} AS u"
        " ON CONFLICT (fragment, segment, id) DO UPDATE SET at = excluded.at, n = excluded.n",
    ),
    "sessions": (  # an existing row keeps its turn
        "bigint bytea bigint bigint",
        "INSERT INTO session(fragment, id, turn, active) SELECT u.* FROM fence, {0} AS u"
        " ON CONFLICT (fragment, id) DO UPDATE SET active = session.active + excluded.active",
    ),
    "moved_sessions": (
        "bigint bytea bigint bigint",
        "INSERT INTO session(fragment, id, turn, active) SELECT u.* FROM fence, {0} AS u"
        " ON CONFLICT (fragment, id) DO UPDATE SET active = session.active + excluded.active, turn = excluded.turn",
    ),
    "fewer": (
        "bigint bytea bigint bigint boolean",
        "UPDATE session SET active = session.active + c.fewer,"
        " turn = CASE WHEN c.moved THEN c.turn ELSE session.turn END"
        " FROM fence, {0} AS c(fragment, id, turn, fewer, moved)"
        " WHERE session.fragment = c.fragment AND session.id = c.id AND session.active + c.fewer > 0",
    ),
    "empty": (
        "bigint bytea bigint",
        "DELETE FROM session USING fence, {0} AS c(fragment, id, fewer)"
        " WHERE session.fragment = c.fragment AND session.id = c.id AND session.active + c.fewer <= 0",
    ),
    "states": (
        "bigint bytea bigint bigint bytea",
        "INSERT INTO session_state(fragment, id, at, size, state) SELECT u.* FROM fence, {0} AS u"
        " ON CONFLICT (fragment, id) DO UPDATE SET at = excluded.at, size = excluded.size, state = excluded.state",
    ),
    "no_states": (
        "bigint bytea",
        "DELETE FROM session_state USING fence, {0} AS c(fragment, id)"
        " WHERE session_state.fragment = c.fragment AND session_state.id = c.id",
    ),
    "events": (
        "bigint bigint bigint integer bigint bigint bigint bytea",
        "INSERT INTO event(fragment, at, n, outcome, time, enqueued, deliveries, reason) SELECT u.* FROM fence, {0} AS u",
    ),
    "forget_events": (
        "bigint bigint",
        "DELETE FROM event USING fence, {0} AS f(fragment, upto) WHERE event.fragment = f.fragment AND event.at <= f.upto",
    ),
    "written": (
        "bigint bigint bigint bytea",
        "INSERT INTO written(fragment, writer, batch, id) SELECT u.* FROM fence, {0} AS u ON CONFLICT DO NOTHING",
    ),
    "forget_written": (
        "bigint bigint bigint",
        "DELETE FROM written USING fence, {0} AS f(fragment, writer, below)"
        " WHERE written.fragment = f.fragment AND written.writer = f.writer AND written.batch < f.below",
    ),
}

_ALL_BATCHES: Final = 2**63 - 1

Columns = Sequence[list[Any]]


@cache
def text_of(parts: tuple[str, ...]) -> str:
    """The statement with these parts."""
    at, texts = _HEAD_VALUES, []
    for name in parts:
        types, text = _PARTS[name]
        arrays = []
        for kind in types.split():
            at += 1
            arrays.append(f"${at}::{kind}[]")
        unnested = f"unnest({', '.join(arrays)})"
        texts.append(f", {name} AS ({text.format(unnested)})")
    return _HEAD + "".join(texts) + _TAIL


class GroupStatement:
    """The parts of a group, with their values."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.values: list[list[Any]] = []
        self.bytes = 0

    def add(self, name: str, columns: Columns) -> None:
        """Add a part if it has rows."""
        if columns[0]:
            self.parts.append(name)
            self.values += columns

    def add_rows(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add a part with these rows, if there are any."""
        if rows:
            self.parts.append(name)
            self.values += [list(column) for column in zip(*rows, strict=True)]

    @property
    def text(self) -> str:
        return text_of(tuple(self.parts))


def statement_of(batches: Sequence[Changes]) -> GroupStatement:
    """The parts of a group commit."""
    statement = GroupStatement()
    writes = fold(batches)
    statement.bytes = writes.bytes
    statement.add("puts", writes.puts)
    statement.add("full_puts", writes.full_puts)
    statement.add("edits", writes.edits)
    statement.add("keeps", writes.keeps)
    statement.add("deletes", writes.deletes)
    _add_ids(statement, batches)
    _add_sessions(statement, batches)
    _add_events(statement, batches)
    _add_writers(statement, batches)
    return statement


def _add_ids(statement: GroupStatement, batches: Sequence[Changes]) -> None:
    forgotten: list[tuple[Any, ...]] = []
    others: list[tuple[Any, ...]] = []
    remembered: list[tuple[Any, ...]] = []
    for changes in batches:
        if not changes.ids and changes.ids_upto is None:
            continue
        fragment = changes.fragment
        rows = {(segment, id): (at, n) for segment, id, at, n in changes.ids}  # the last one counts
        if changes.ids_upto is not None:
            upto = changes.ids_upto
            again = [key for key in rows if key <= upto]
            others += [(fragment, *upto, *key) for key in again]
            if not again:
                forgotten.append((fragment, *upto))
        remembered += [(fragment, *key, *row) for key, row in sorted(rows.items())]
    statement.add_rows("forget_ids", forgotten)
    statement.add_rows("forget_other_ids", others)
    statement.add_rows("ids", remembered)


def _add_sessions(statement: GroupStatement, batches: Sequence[Changes]) -> None:
    more: list[tuple[Any, ...]] = []
    moved: list[tuple[Any, ...]] = []
    fewer: list[tuple[Any, ...]] = []
    states: list[tuple[Any, ...]] = []
    cleared: list[tuple[Any, ...]] = []
    for changes in batches:
        fragment = changes.fragment
        for name, change in changes.sessions.items():
            id = to_bytes(name)
            if change.active > 0:
                (moved if change.moved else more).append((fragment, id, change.turn, change.active))
            elif change.active or change.moved:
                fewer.append((fragment, id, change.turn, change.active, change.moved))
        for name, (at, state) in changes.states.items():
            id = to_bytes(name)
            if state is None:
                cleared.append((fragment, id))
            else:
                states.append((fragment, id, at, state_size(name, state), state))
                statement.bytes += len(state)
    statement.add_rows("sessions", more)
    statement.add_rows("moved_sessions", moved)
    statement.add_rows("fewer", fewer)
    statement.add_rows("empty", [(fragment, id, count) for fragment, id, _, count, _ in fewer if count])
    statement.add_rows("states", states)
    statement.add_rows("no_states", cleared)


def _add_events(statement: GroupStatement, batches: Sequence[Changes]) -> None:
    rows: list[tuple[Any, ...]] = []
    forgotten: list[tuple[Any, ...]] = []
    for changes in batches:
        fragment, upto = changes.fragment, changes.events_upto
        for e in changes.events:
            if e.at > upto:
                reason = to_bytes(e.reason)
                rows.append((fragment, e.at, e.n, e.outcome, e.time, e.enqueued, e.deliveries, reason))
        if upto > 0:
            forgotten.append((fragment, upto))
    statement.add_rows("events", rows)
    statement.add_rows("forget_events", forgotten)


def _add_writers(statement: GroupStatement, batches: Sequence[Changes]) -> None:
    remembered: set[tuple[int, int, int, bytes]] = set()
    forgotten: list[tuple[Any, ...]] = []
    for changes in batches:
        fragment, below = changes.fragment, {}
        for writer, row in changes.writers.items():
            if row is None:
                below[writer] = _ALL_BATCHES
            elif not writer.startswith(MARK):
                below[writer] = row[0]
        for writer, batch, id in changes.written:
            if batch >= below.get(writer, 0):
                remembered.add((fragment, writer_key(writer), batch, id))
        forgotten += [(fragment, writer_key(writer), batch) for writer, batch in below.items()]
    statement.add_rows("written", sorted(remembered))
    statement.add_rows("forget_written", forgotten)


def writer_key(writer: str) -> int:
    """A writer in the key of its ids: eight bytes of the hash of its name, because there are millions of ids."""
    return int.from_bytes(blake2b(to_bytes(writer), digest_size=8).digest(), "big", signed=True)
