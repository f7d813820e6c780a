"""The embedded store's own rules: its file, its plans, its size. What all stores do is in the conformance suite."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from busbar.fragment.changes import Changes, Head, Keep
from busbar.fragment.reads import ReadByNumber, ReadDue, ReadOutbox, ReadPage, ReadSpan, ReadWaitingSessions
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, KEPT, KEPT_DEAD, SCHEDULED, Record
from busbar.store.contract import OutcomeUnknown, StoreError, StoreInUse
from busbar.store.number_runs import number_runs
from busbar.store.sqlite import duplicate_ids, file, rows, sessions, tap_reads, taps, writers
from busbar.store.sqlite.journal_state import JournalState
from busbar.store.sqlite.store import SqliteStore

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    store.claim()
    return store


def put(store: SqliteStore, first: int, count: int, size: int = 100) -> None:
    changes = Changes(1)
    changes.puts[ACTIVE] = [
        Record(n, 1, 0, 0, 0, size, bytes(size), None) for n in range(first, first + count)
    ]
    store.commit([changes])


def delete(store: SqliteStore, first: int, count: int) -> None:
    changes = Changes(1)
    changes.deletes[ACTIVE] = list(range(first, first + count))
    store.commit([changes])


def count(store: SqliteStore) -> int:
    page = ReadPage(ACTIVE, 0, 1 << 30, 1 << 40)
    store.read(1, [page])
    return len(page.records)


# One owner


def test_another_process_is_refused_while_the_owner_lives(path: Path) -> None:
    store = opened(path)
    script = (
        "import sys; from pathlib import Path; from busbar.store.sqlite.store import SqliteStore\n"
        "from busbar.store.contract import StoreInUse\n"
        "try: SqliteStore(Path(sys.argv[1])).claim()\n"
        "except StoreInUse as refusal: print(refusal)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.strip() == f"{path} is in use by process {os.getpid()}"
    put(store, 1, 1)
    store.release()
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout == ""


def test_a_second_handle_in_the_same_process_is_refused_and_harms_nothing(path: Path) -> None:
    store = opened(path)
    with pytest.raises(StoreInUse):
        opened(path)
    put(store, 1, 3)
    store.close()
    assert count(opened(path)) == 3


def test_another_program_that_has_the_database_open_is_named(path: Path) -> None:
    opened(path).release()
    other = sqlite3.connect(path)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM msg").fetchone()
    with pytest.raises(StoreInUse, match="another program"):
        opened(path)
    other.close()
    opened(path).release()


# Files that are refused


def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"this is a text, not a database, and long enough to be read as a header" * 20)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"store\.db is not a Busbar store"):
        opened(path)
    assert path.read_bytes() == before


def test_a_database_of_another_application(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine(x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"store\.db is not a Busbar store"):
        opened(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_a_file_of_an_older_schema_is_brought_up_to_date(path: Path, version: int) -> None:
    store = opened(path)
    changes = Changes(1)
    changes.puts[ACTIVE] = [Record(1, 1, 0, 0, 0, 7, b"content", None)]
    changes.puts[DEAD] = [Record(n, 1, 0, 0, 0, 1, b"d", None, dead=9 - n) for n in (4, 2)]
    changes.puts[DEAD_DEFERRED] = [Record(3, 1, 0, 0, 0, 1, b"d", None, dead=6)]
    changes.head = Head(1, 4, [1, 2, 0, 0, 1, 0, 0, 0, 0, 0], 10, last_dead=8)
    store.commit([changes])
    store.write_definitions({"entity/q": b"v7={}"})
    store.release()
    store.close()
    with sqlite3.connect(path) as old:  # as that version would have left it
        old.execute("DELETE FROM meta WHERE key IN ('journal', 'applied', 'closed', 'moving')")
        if version < 6:
            old.execute("ALTER TABLE definition RENAME COLUMN value TO definition")
            old.execute("ALTER TABLE definition RENAME TO catalogue")
            old.execute("DROP TABLE session_hold")
        if version < 5:
            old.execute("DROP INDEX msg_out")
            old.execute("DROP TABLE outbox")
            for column in ("hops", "target", "kind"):
                old.execute(f"ALTER TABLE msg DROP COLUMN {column}")
            for column in ("outbox", "transfer_dead", "transfer_dead_deferred"):
                old.execute(f"ALTER TABLE fragment DROP COLUMN {column}")
        if version < 4:
            old.execute("DROP INDEX msg_dead")
            for table in ("tap", "event", "writer", "written"):
                old.execute(f"DROP TABLE {table}")
            old.execute("ALTER TABLE msg DROP COLUMN dead")
            for column in (
                "kept",
                "kept_dead",
                "last_dead",
                "last_event",
                "events",
                "kept_size",
                "kept_dead_size",
            ):
                old.execute(f"ALTER TABLE fragment DROP COLUMN {column}")
        if version < 3:
            for index in ("msg_session", "msg_expiry", "session_line"):
                old.execute(f"DROP INDEX {index}")
            for table in ("session", "session_state"):
                old.execute(f"DROP TABLE {table}")
            old.execute("ALTER TABLE msg DROP COLUMN session")
            old.execute("ALTER TABLE fragment DROP COLUMN turn")
        if version < 2:
            old.execute("DROP TABLE dup")
            old.execute("ALTER TABLE fragment DROP COLUMN ids")
            old.execute("ALTER TABLE fragment DROP COLUMN dropped")
        old.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (version,))
    old.close()
    for _ in range(2):
        store = opened(path)
        (head,) = store.heads()
        assert (head.last, head.counts, head.size, head.ids) == (4, [1, 2, 0, 0, 1, 0, 0, 0, 0, 0], 10, 0)
        known = (
            version >= 4
        )  # the order in which they were dead-lettered; else that of their numbers is taken
        assert (head.last_dead, head.last_event, head.events, head.kept_size) == (8 if known else 3, 0, 0, 0)
        assert store.id_segments(1) == []
        assert store._file.select("SELECT value FROM meta WHERE key = 'schema'") == [(7,)]
        assert store.journal_state() == JournalState(bytes(16), 0, is_closed=True)
        assert store.definitions() == {"entity/q": b"v7={}"}, (
            "the copy of the catalogue is read at the upgrade"
        )
        page, line = ReadPage(ACTIVE, 1, 9, 99), ReadWaitingSessions(-1, 9)
        dead, out = ReadSpan([DEAD, DEAD_DEFERRED], True, 0, 99, 9, 99), ReadOutbox(0, 0, 9, 99)
        store.read(1, [page, line, dead, out])
        order = [(4, 5), (3, 6), (2, 7)] if known else [(2, 1), (3, 2), (4, 3)]
        assert [(r.n, r.dead_letter_number) for r in dead.records] == order
        assert out.records == [] and store.outbox(1) == {} and store.holds(1) == []
        assert [(r.hops, r.target, r.kind) for r in page.records] == [(0, 0, 0)]
        assert store.taps(1) == [] and store.writers(1) == {}
        assert [(r.n, r.content, r.session_id) for r in page.records] == [(1, b"content", None)]
        assert line.rows == [] and head.turn == 0
        store.release()
        store.close()


def test_a_newer_schema(path: Path) -> None:
    opened(path).release()
    with sqlite3.connect(path) as other:
        other.execute("UPDATE meta SET value = 99 WHERE key = 'schema'")
    other.close()
    with pytest.raises(StoreError, match="version 99 of the schema: this Busbar knows up to version 7"):
        opened(path)


def test_a_damaged_file_is_named(path: Path) -> None:
    store = opened(path)
    put(store, 1, 2000)
    store.release()
    with path.open("r+b") as file:
        file.seek(3 * 8192)
        file.write(os.urandom(path.stat().st_size - 3 * 8192))
    with pytest.raises(StoreError, match=r"store\.db"):
        count(opened(path))


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        opened(tmp_path / "nowhere" / "store.db")


def test_a_refused_file_is_not_held(path: Path) -> None:
    path.write_bytes(b"nonsense" * 200)
    store = SqliteStore(path)
    for _ in range(2):
        with pytest.raises(StoreError, match="not a Busbar store"):
            store.claim()
    path.unlink()
    store.claim()
    store.release()


# Files that vanish


@pytest.mark.parametrize("gone", ["store.db", "store.db-wal"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_commit_into_a_file_that_the_path_no_longer_names(path: Path, gone: str, replaced: bool) -> None:
    store = opened(path)
    put(store, 1, 10)
    victim = path.with_name(gone)
    content = victim.read_bytes()
    victim.unlink()
    if replaced:
        victim.write_bytes(content)
    with pytest.raises(OutcomeUnknown, match=r"store\.db cannot be trusted any more"):
        put(store, 11, 10)
    with pytest.raises(OutcomeUnknown):
        store.heads()
    store.close()
    store.close()


# Closing


def test_closing_writes_nothing_and_loses_nothing(path: Path) -> None:
    store = opened(path)
    put(store, 1, 100)
    log = path.with_name("store.db-wal")
    before = path.read_bytes(), log.read_bytes()
    descriptors = len(os.listdir("/proc/self/fd"))
    store.close()
    assert (path.read_bytes(), log.read_bytes()) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors - 4  # database, log, our view of the log, lock
    assert count(opened(path)) == 100


def test_a_released_store_is_one_file(path: Path) -> None:
    store = opened(path)
    put(store, 1, 100)
    store.release()
    assert not path.with_name("store.db-wal").exists()
    with sqlite3.connect(path) as anyone:
        assert anyone.execute("SELECT count(*) FROM msg").fetchone() == (100,)
        assert anyone.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    anyone.close()


# Size


def test_a_queue_in_motion_does_not_grow(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "LOG_LIMIT", 100)
    store = opened(path)
    put(store, 1, 300, 1000)
    log = path.with_name("store.db-wal")
    sizes = []
    for n in range(60):
        put(store, 301 + n * 100, 100, 1000)
        delete(store, 1 + n * 100, 100)
        sizes.append((path.stat().st_size, log.stat().st_size))
    assert sizes[-1][0] <= 1.5 * sizes[20][0]
    assert max(size for _, size in sizes) < 2.5 * 100 * 8192
    assert count(store) == 300
    store.release()


def test_the_log_stays_short_and_the_reserve_can_hold_it(path: Path) -> None:
    store = opened(path)
    log = path.with_name("store.db-wal")
    longest = 0
    for n in range(30):
        put(store, 1 + n * 1000, 1000, 1000)
        longest = max(longest, log.stat().st_size)
    limit = file.LOG_LIMIT * 8192
    assert path.stat().st_size > 1.5 * limit, "nothing was ever moved out of the log"
    assert limit * 0.9 < longest < limit + 3_000_000
    assert longest < file.RESERVE_SIZE
    store.release()


def test_a_deep_backlog_opens_and_pages_without_memory_for_it(path: Path) -> None:
    store = opened(path)
    connection = store._file.connection()
    connection.execute("BEGIN")
    for lane, first in ((ACTIVE, 0), (SCHEDULED, 500_000)):
        connection.execute(
            "WITH RECURSIVE k(n) AS (SELECT ? UNION ALL SELECT n + 1 FROM k LIMIT 500000)"
            " INSERT INTO msg(fragment, lane, n, enqueued, ttl, due, deliveries, size, overlay, content)"
            f" SELECT 1, {lane}, n, 1, 0, n, 0, 8, NULL, x'0102030405060708' FROM k",
            (first + 1,),
        )
    connection.execute("COMMIT")
    store.release()
    before = _resident()
    tracemalloc.start()
    store = opened(path)
    page, far, due = (
        ReadPage(ACTIVE, 1, 100, 1 << 20),
        ReadPage(ACTIVE, 400_000, 100, 1 << 20),
        ReadDue(2_000_000, 100, 1 << 20),
    )
    some = ReadByNumber(SCHEDULED, [500_001, 750_000, 1_000_000])
    store.read(1, [page, far, due, some])
    assert [len(read.records) for read in (page, far, due, some)] == [100, 100, 100, 3]
    assert store.next_due(1) == 500_001
    delete(store, 1, 100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    assert _resident() - before < 20_000_000
    store.close()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        (rows._PAGE, (1, 0, 1, 10)),
        (rows._SESSION_PAGE, (1, "s", 0, 1, 10)),
        (sessions._EXPIRY, (1, "s", 10)),
        (rows._MANY, (1, 0, "[1]")),
        (rows._DUE, (1, 50, 10)),
        (rows._NEXT_DUE, (1, 0, 0)),
        (rows._DELETE, ("[[1, 0, 1, 1]]",)),
        (rows._KEEP, ("", "[[1, 0, 1, 1]]")),
        *(
            (tap_reads._of_lane(template, lane), (1, 0, 9))
            for template in (
                tap_reads._SPAN,
                tap_reads._SPAN_BY_DEAD,
                tap_reads._FIRST,
                tap_reads._TOGETHER,
            )
            for lane in (DEAD if template == tap_reads._SPAN_BY_DEAD else ACTIVE, KEPT)
        ),
        (tap_reads._of_lane(tap_reads._KEPT, KEPT), (1, 0, 9, 9)),
        (tap_reads._of_lane(tap_reads._KEPT_DEAD, KEPT_DEAD), (1, 0, 9, 9)),
        (tap_reads._of_lane(tap_reads._LAST, ACTIVE), (1, 0, 9)),
        (tap_reads._of_lane(tap_reads._LAST_DEAD, DEAD), (1, 0, 9, 9)),
        (
            rows.statement(rows._EDIT, rows._EDIT_WIDTH, 4),
            (1, 0, 1, 1, 1, None, 0, -1) * 4,
        ),
    ],
)
def test_no_statement_scans_or_sorts_messages(path: Path, statement: str, values: tuple[object, ...]) -> None:
    store = opened(path)
    plan = [row[3] for row in store._file.select(f"EXPLAIN QUERY PLAN {statement}", values)]
    assert any("SEARCH msg USING" in step for step in plan), plan
    assert not any("SCAN msg" in step or "TEMP B-TREE" in step for step in plan), plan
    store.close()


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        (rows.statement(duplicate_ids._FIND, 1, 2), (b"1", b"2", "[1, 2]", 1)),
        (duplicate_ids._PAGE, (1, 1, b"", 10)),
        (duplicate_ids._FORGET, (1, 1, b"x")),
        (duplicate_ids._DROP, (1, 10)),
        (duplicate_ids._SEGMENTS, (1,)),
    ],
)
def test_no_statement_scans_or_sorts_ids(path: Path, statement: str, values: tuple[object, ...]) -> None:
    store = opened(path)
    plan = [row[3] for row in store._file.select(f"EXPLAIN QUERY PLAN {statement}", values)]
    assert any("SEARCH dup USING" in step for step in plan), plan
    assert not any("SCAN dup" in step or "TEMP B-TREE" in step for step in plan), plan
    store.close()


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        (sessions._LINE, (1, 5, 10)),
        (rows.statement(sessions._MOVE, 3, 2), (1, "a", 1, 1, "b", 2)),
        (rows.statement(sessions._EMPTY, 1, 2), ("a", "b", 1)),
        (sessions._STATE, (True, 1, "a")),
        (sessions._IDS.format(behind=">"), (1, "a", 10)),
        (sessions._UPDATED_IDS.format(behind=">"), (1, "a", 10, 5)),
        (sessions._CLEAR_STATE, (1, "a")),
        (sessions._DROP, (1, 10)),
        (sessions._DROP_STATES, (1, 10)),
    ],
)
def test_no_statement_scans_or_sorts_sessions(path: Path, statement: str, values: tuple[object, ...]) -> None:
    store = opened(path)
    plan = [row[3] for row in store._file.select(f"EXPLAIN QUERY PLAN {statement}", values)]
    assert any("SEARCH session" in step for step in plan), plan
    if statement.startswith(("WITH move", "DELETE FROM session WHERE active", "SELECT size")):
        assert any("(fragment=? AND id=?)" in step for step in plan), plan  # by the whole key
    assert not any("SCAN session" in step or "SCAN msg" in step or "TEMP B-TREE" in step for step in plan), (
        plan
    )
    store.close()


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        (rows.statement(writers._FIND, 1, 2), (b"1", b"2", "[1, 2]", 1, 1)),
        (writers._BATCHES, (1, 1)),
        (writers._FORGET_BATCHES, (1, 1, 5)),
        (writers._DROP, (1, 10)),
        (taps._EVENTS, (1, 1, 9, 10)),
        (taps._FORGET, (1, 9)),
        (taps._DROP_EVENTS, (1, 10)),
    ],
)
def test_no_statement_scans_or_sorts_what_taps_and_writers_have(
    path: Path, statement: str, values: tuple[object, ...]
) -> None:
    store = opened(path)
    plan = [row[3] for row in store._file.select(f"EXPLAIN QUERY PLAN {statement}", values)]
    assert any("SEARCH written" in step or "SEARCH event" in step for step in plan), plan
    assert not any(bad in step for step in plan for bad in ("SCAN written", "SCAN event", "TEMP B-TREE")), (
        plan
    )
    store.close()


@pytest.mark.parametrize("size", [100, 9_000, 100_000])
def test_keeping_a_message_writes_none_of_its_bytes_again(path: Path, size: int) -> None:
    """Complete and keep it, whatever its length: a few pages change (of the row's head, of the index, the counters)."""
    store = opened(path)
    changes = Changes(1)
    changes.puts[ACTIVE] = [Record(n, 1, 0, 0, 0, size, os.urandom(size), None) for n in range(1, 6)]
    store.commit([changes])
    store.release()
    store.claim()
    keeping = Changes(1)
    keeping.keeps = [Keep(ACTIVE, KEPT, [1, 2, 3, 4, 5])]
    store.commit([keeping])
    assert path.with_name("store.db-wal").stat().st_size < 20 * 8192
    span = ReadSpan([KEPT], False, 0, 99, 9, 1 << 30)
    store.read(1, [span])
    assert [(r.n, r.content) for r in span.records] == [(r.n, r.content) for r in changes.puts[ACTIVE]]
    store.close()


@pytest.mark.parametrize(
    ("numbers", "runs"),
    [
        ([], []),
        ([5], [(5, 5)]),
        ([3, 1, 2], [(1, 3)]),
        ([1, 2, 2, 4, 9, 8], [(1, 2), (4, 4), (8, 9)]),
    ],
)
def test_numbers_as_runs(numbers: list[int], runs: list[tuple[int, int]]) -> None:
    assert list(number_runs(numbers)) == runs
