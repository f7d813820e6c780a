"""The store in PostgreSQL: one schema, one connection, one thread.

- A commit is one statement (group_statement.py) that checks the claim (ownership.py) and has a number in the journal
  (journal.py).
- If the connection is lost while a commit is under way, its outcome is found out, not guessed. The owner claims again, so
  that its old session can change nothing any more. Then the highest number in the journal shows whether the commit was made.
  If it was not, it is sent again. So a restart of the server is a pause, not an error.
- If that takes longer than RESOLVE_SECONDS, the outcome is unknown, and the handle is broken.
- If the journal has fewer commits than were acknowledged, the server has lost them, as after a failover to a standby that
  was behind. That is logged with their number. The numbers of fragments go on above those that were given, and the owner
  loads everything again.
- A full disk refuses a statement, and so certainly nothing was written: StoreFull.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import TypeVar

import asyncpg

from busbar.fragment.changes import Changes, Head, Lock, OutboxRow, SessionHold, TapRow, empty_head
from busbar.fragment.reads import Read
from busbar.store.contract import Fenced, OutcomeUnknown, StoreError, StoreFull
from busbar.store.location import OwnerSilence, StoreCounters
from busbar.store.postgresql import reads, schema
from busbar.store.postgresql.address import DatabaseAddress
from busbar.store.postgresql.connection import ConnectionLost, DatabaseConnection
from busbar.store.postgresql.dropping import drop_slice
from busbar.store.postgresql.group_statement import GroupStatement, statement_of
from busbar.store.postgresql.journal import Entry, Journal, head_entry, locks_entry, to_bytes, to_text
from busbar.store.postgresql.ownership import LEASE, Ownership, boot_time
from busbar.store.postgresql.rows import COLUMNS, record_of
from busbar.store.postgresql.status import ASYNCHRONOUS, is_synchronous

RESOLVE_SECONDS = 10.0
_PAUSE = 0.05
_LONGEST_PAUSE = 0.5

_JOURNAL = (
    "SELECT commit, snapshot, data FROM journal"
    " WHERE commit >= coalesce((SELECT max(commit) FROM journal WHERE snapshot), 0) ORDER BY commit"
)
_LAST = "SELECT coalesce(max(commit), 0) FROM journal"
_LOG = "INSERT INTO journal(commit, snapshot, data) VALUES ($1, $2, $3)"
_FENCE = "SELECT 1 FROM owner WHERE claim = $1 FOR SHARE"
_LOCKED = (
    f"SELECT q.lane, 0, {COLUMNS.replace('content', 'NULL::bytea').replace('n,', 'msg.n,', 1)}"
    " FROM unnest($2::smallint[], $3::bigint[]) AS q(lane, n)"
    " JOIN msg ON msg.fragment = $1 AND msg.lane = q.lane AND msg.n = q.n ORDER BY q.lane, msg.n"
)
_FIRST_OF_EACH = (
    "WITH RECURSIVE next(fragment) AS ((SELECT fragment FROM {table}{only} ORDER BY fragment LIMIT 1) UNION ALL"
    " SELECT (SELECT fragment FROM {table} WHERE fragment > next.fragment{also} ORDER BY fragment LIMIT 1) FROM next"
    " WHERE next.fragment IS NOT NULL)"
)
_ALL_DUE = (
    _FIRST_OF_EACH.format(table="msg", only=" WHERE lane = 3", also=" AND lane = 3")
    + " SELECT fragment, (SELECT due FROM msg WHERE msg.fragment = next.fragment AND lane = 3 ORDER BY due LIMIT 1)"
    " FROM next WHERE fragment IS NOT NULL"
)
_ALL_SEGMENTS = (
    "WITH RECURSIVE next(fragment, segment) AS ((SELECT fragment, segment FROM dup ORDER BY fragment, segment LIMIT 1)"
    " UNION ALL SELECT d.fragment, d.segment FROM next CROSS JOIN LATERAL (SELECT fragment, segment FROM dup"
    " WHERE (dup.fragment, dup.segment) > (next.fragment, next.segment) ORDER BY fragment, segment LIMIT 1) AS d)"
    " SELECT fragment, segment FROM next"
)

_log = logging.getLogger(__name__)
T = TypeVar("T")


class LastKnown:
    """What is known of a store in this process, over all its handles."""

    def __init__(self) -> None:
        self.epoch = 0
        self.journal = Journal()
        self.counters = StoreCounters()

    def count(self, reclaims: int = 0, made: int = 0, repeated: int = 0, lost: int = 0) -> None:
        before = self.counters
        self.counters = StoreCounters(
            before.reclaims + reclaims, before.made + made, before.repeated + repeated, before.lost + lost
        )


class PostgresqlStore:
    """A store in a schema of a database. Nothing is opened before `claim`."""

    def __init__(
        self,
        address: DatabaseAddress,
        known: LastKnown | None = None,
        identity: str = "",
        creates: bool = True,
        lease: float = LEASE,
        seen: OwnerSilence | None = None,
    ) -> None:
        """`known` is shared by the handles that one process has one after the other. `identity` is that of the store: the
        schema must have it. With `creates`, a schema that has no store gets one. `seen` is what another process has seen of
        the present owner."""
        self._address = address
        self._connection = DatabaseConnection(address)
        self._owner = Ownership(self._connection, address, lease=lease)
        self._known = LastKnown() if known is None else known
        self._identity = identity
        self._creates = creates
        self._journal = Journal()
        self._seen = seen
        self._is_claimed = False
        self._failure: StoreError | None = None
        self.shown_at = -inf
        """When the last statement was sent that the server answered and that checked the claim (boot_time)."""
        self._due: dict[int, int] | None = None
        self._segments: dict[int, list[int]] | None = None

    # Ownership

    def claim(self) -> int:
        if self._failure is not None:
            raise OutcomeUnknown(str(self._failure)) from self._failure
        if self._is_claimed:
            return self._owner.epoch
        try:
            self._connection.open()
            self._find_schema()
            if not self._known.epoch and not is_synchronous(self._connection):
                _log.warning("store %s is %s", self._address.shown, ASYNCHRONOUS)
            self.shown_at = boot_time()
            self._owner.take(self._known.epoch + (2 if self._lost() > 0 else 1), seen=self._seen)
            self._load()
            self._go_on()
        except ConnectionLost as problem:
            raise StoreError(str(problem)) from problem
        except asyncpg.PostgresError as problem:
            raise StoreError(f"{self._address.shown} cannot be claimed: {problem}") from problem
        finally:
            if not self._is_claimed:
                self._connection.end()
        return self._owner.epoch

    def _find_schema(self) -> None:
        found = schema.identity(self._connection, self._address)
        if found is None:
            if not self._creates:
                raise StoreError(f"{self._address.shown} has no store: restore it, or reset this store")
            schema.create(self._connection, self._address, self._identity)
        elif found != self._identity:
            raise StoreError(f"{self._address.shown} is a store of another namespace: use another schema")

    def _lost(self) -> int:
        """The number of acknowledged commits that the journal does not have."""
        return int(self._known.journal.commit - self._connection.fetch(_LAST)[0][0])

    def _load(self) -> None:
        self._journal = Journal()
        first = self._connection.fetch("SELECT coalesce(min(commit), 1) FROM journal")[0][0]
        self._journal.load(self._connection.fetch(_JOURNAL), first)
        self._forget_loaded()

    def _go_on(self) -> None:
        """Use what was loaded. If the server has lost commits, numbers go on above those that were given."""
        before, found = self._known.journal, self._journal
        self._is_claimed = True
        lost = before.commit - found.commit
        if lost > 0:
            where = self._address.shown
            _log.error("store %s: the server has lost the last %d commits that it acknowledged", where, lost)
            self._known.count(lost=lost)
            entries = found.raised_above(before)
            self._write(GroupStatement(), entries)
        self._known.epoch, self._known.journal = self._owner.epoch, found

    def release(self) -> None:
        if self._is_claimed and self._failure is None:
            try:
                self._owner.free()
            except (ConnectionLost, asyncpg.PostgresError) as problem:
                _log.warning("store %s was not released in good order: %s", self._address.shown, problem)
            self._connection.close()
        self._is_claimed = False

    def close(self) -> None:
        if self._failure is None:
            self._failure = OutcomeUnknown(f"{self._address.shown} is closed: open it again")
        self._connection.drop()

    def beat(self) -> None:
        """Show that the owner works. Raises Fenced, or what else a commit raises."""
        began = boot_time()
        self._using(self._owner.beat)
        self.shown_at = began

    # Messages

    def commit(self, batches: Sequence[Changes]) -> None:
        self._check()
        statement = statement_of(batches)
        self._write(statement, self._journal.entries(batches))

    def commits_at_once(self, batches: Sequence[Changes]) -> bool:
        return False

    def maintain(self) -> bool:
        return False

    def heads(self, only: Sequence[int] | None = None) -> list[Head]:
        self._check()
        return self._journal.heads(only)

    def create(self, fragment: int) -> None:
        self._check()
        if self._journal.state(fragment).head is None:
            self._write(GroupStatement(), [head_entry(empty_head(fragment))])

    def drop(self, fragment: int, limit: int) -> bool:
        self._check()
        state = self._journal.state(fragment)
        self._transact(lambda: [drop_slice(self._connection, fragment, limit, state)])
        return fragment not in self._journal.fragments

    def read(self, fragment: int, reads: Sequence[Read]) -> None:
        self.read_all([(fragment, reads)])

    def read_all(self, jobs: Sequence[tuple[int, Sequence[Read]]]) -> None:
        self._using(lambda: reads.perform(self._connection, jobs))

    def next_due(self, fragment: int) -> int:
        if self._due is None:
            self._due = self._using(lambda: dict(self._connection.fetch(_ALL_DUE)))
        return self._due.get(fragment, 0)

    def id_segments(self, fragment: int) -> list[int]:
        if self._segments is None:
            self._segments = {}
            for other, segment in self._using(lambda: self._connection.fetch(_ALL_SEGMENTS)):
                self._segments.setdefault(other, []).append(segment)
        return list(self._segments.get(fragment, ()))

    def _forget_loaded(self) -> None:
        """Due times and segments are read for all fragments at once, and are valid until the next commit."""
        self._due = self._segments = None

    def taps(self, fragment: int) -> list[TapRow]:
        self._check()
        return [row.copy() for _, row in sorted(self._journal.state(fragment).taps.items())]

    def writers(self, fragment: int) -> dict[str, tuple[int, int]]:
        self._check()
        return dict(self._journal.state(fragment).writers)

    def outbox(self, fragment: int) -> dict[int, OutboxRow]:
        self._check()
        return dict(self._journal.state(fragment).outbox)

    def holds(self, fragment: int) -> list[SessionHold]:
        self._check()
        found = self._journal.state(fragment).holds
        return [SessionHold(hold.session, hold.holder, hold.until) for _, hold in sorted(found.items())]

    # Locks over a clean shutdown

    def save_locks(self, fragment: int, locks: Sequence[Lock]) -> None:
        self._check()
        kept = [(lock.lane, lock.record.n, lock.nonce, lock.until) for lock in locks]
        self._write(GroupStatement(), [locks_entry(fragment, kept)])

    def take_locks(self, fragment: int) -> list[Lock]:
        self._check()
        kept = {(lane, n): (nonce, until) for lane, n, nonce, until in self._journal.state(fragment).locks}
        if not kept:
            return []
        lanes, numbers = [lane for lane, _ in kept], [n for _, n in kept]
        rows = self._using(lambda: self._connection.fetch(_LOCKED, fragment, lanes, numbers))
        self._write(GroupStatement(), [locks_entry(fragment, [])])
        return [Lock(record_of(row), row[0], *kept[row[0], row[2]]) for row in rows]

    # Definitions

    def definitions(self) -> dict[str, bytes]:
        rows = self._using(lambda: self._connection.fetch("SELECT name, value FROM definition"))
        return {to_text(name): value for name, value in rows}

    def write_definitions(self, rows: dict[str, bytes | None]) -> None:
        self._check()
        gone = [to_bytes(name) for name, value in rows.items() if value is None]
        there = [(to_bytes(name), value) for name, value in rows.items() if value is not None]

        def work() -> list[Entry]:
            self._connection.fetch("DELETE FROM definition WHERE name = ANY($1::bytea[])", gone)
            self._connection.fetch(
                "INSERT INTO definition SELECT * FROM unnest($1::bytea[], $2::bytea[])"
                " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                [name for name, _ in there],
                [value for _, value in there],
            )
            return []

        self._transact(work)

    # Statements, and what follows if one fails

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._is_claimed:
            raise StoreError(f"{self._address.shown} is not claimed")

    def _write(self, statement: GroupStatement, entries: list[Entry]) -> None:
        """Make one commit of a statement and its row of the journal."""
        data, is_snapshot = self._journal.encode(entries)
        trim = self._journal.to_trim()
        if trim is not None:
            statement.add_rows("trim", [trim])
        number = self._journal.commit + 1
        size = len(data) + statement.bytes

        def work() -> None:
            began = boot_time()
            values = [self._owner.claim, number, is_snapshot, data, *statement.values]
            if not self._connection.fetch_value(statement.text, values, size):
                raise Fenced(f"another owner has claimed {self._address.shown}")
            self.shown_at = began

        self._exactly_once(number, work)
        self._journal.appended(entries, len(data), is_snapshot, trim[1] if trim is not None else 0)
        self._forget_loaded()

    def _transact(self, work: Callable[[], list[Entry]]) -> None:
        """Make one commit of several statements. What `work` returns goes into the journal."""
        number = self._journal.commit + 1
        done: list[tuple[list[Entry], int, bool, int]] = []

        def transaction() -> None:
            connection = self._connection
            connection.execute("BEGIN")
            try:
                if not connection.fetch(_FENCE, self._owner.claim):
                    raise Fenced(f"another owner has claimed {self._address.shown}")
                entries = work()
                data, is_snapshot = self._journal.encode(entries)
                connection.fetch(_LOG, number, is_snapshot, data)
            except (Fenced, asyncpg.PostgresError):
                connection.execute("ROLLBACK")
                raise
            done[:] = [(entries, len(data), is_snapshot, 0)]
            connection.execute("COMMIT")

        self._exactly_once(number, transaction)
        self._journal.appended(*done[0])
        self._forget_loaded()

    def _using(self, work: Callable[[], T]) -> T:
        """Do something that may be done again if the connection is lost meanwhile."""
        self._check()
        return self._attempts(None, work)  # type: ignore[return-value]  # without a number it returns what `work` does

    def _exactly_once(self, number: int, work: Callable[[], None]) -> None:
        self._attempts(number, work)

    def _attempts(self, number: int | None, work: Callable[[], T]) -> T | None:
        """Do `work` until it has an outcome. With a number, it is a commit: it is not repeated if the journal has it."""
        deadline, pause = 0.0, 0.0
        while True:
            try:
                if not self._connection.is_open and self._resume(number):
                    return None
                return work()
            except ConnectionLost as lost:
                now = time.monotonic()
                deadline = deadline or now + RESOLVE_SECONDS
                if now + pause > deadline:
                    raise self._break(f"{lost}; the outcome could not be found out") from lost
                time.sleep(pause)
                pause = min(2 * pause or _PAUSE, _LONGEST_PAUSE)
            except Fenced as fenced:
                self._failure = fenced
                raise
            except asyncpg.DiskFullError as problem:
                raise StoreFull(f"no space is left for {self._address.shown}") from problem
            except (asyncpg.PostgresError, ValueError) as problem:
                raise self._break(f"{self._address.shown}: {problem}") from problem

    def _resume(self, number: int | None) -> bool:
        """Connect and claim again. Returns whether the commit with this number was made."""
        try:
            self._connection.open()
        except StoreError as refusal:
            raise ConnectionLost(str(refusal)) from refusal  # it may be on its way up, or down
        self._owner.retake()
        self._known.count(reclaims=1)
        made = self._connection.fetch(_LAST)[0][0]
        if made < self._journal.commit:
            raise self._break(f"{self._address.shown} has lost commits that it acknowledged")
        is_made = bool(made == number)
        if number is not None:
            self._known.count(made=int(is_made), repeated=int(not is_made))
        found = "" if number is None else "; the commit under way was " + ("made" if is_made else "not made")
        _log.warning("store %s: the connection was lost and is back%s", self._address.shown, found)
        return is_made

    def _break(self, reason: str) -> OutcomeUnknown:
        self._failure = OutcomeUnknown(reason)
        self._connection.end()
        return self._failure
