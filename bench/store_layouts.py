"""Layouts of messages in SQLite that were tried for docs/adr/0003-lanes-in-the-key.md, and ways to insert.

    python -m bench.store_layouts

CPU-µs per message (system time included) for: put; put and delete as many; read in pages of 100; move to another lane. 16
fragments take turns. The second table is milliseconds for 1,000 rows beside a thread that never rests.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

FRAGMENTS = 16
FIELDS = "enqueued INTEGER, ttl INTEGER, due INTEGER, deliveries INTEGER, size INTEGER, overlay BLOB"
PLACE = "fragment INTEGER, lane INTEGER, n INTEGER"
CASES = ((200, 100, 20_000), (1024, 100, 16_000), (1024, 1000, 32_000), (65_536, 20, 480), (262_144, 10, 160))
WHERE = "fragment = ? AND lane = 0 AND n BETWEEN ? AND ?"


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in (
        "page_size=8192",
        "locking_mode=EXCLUSIVE",
        "journal_mode=WAL",
        "synchronous=FULL",
        "wal_autocheckpoint=1024",
        "cache_size=-8192",
        "secure_delete=OFF",
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def many(columns: int, rows: list[tuple[object, ...]]) -> tuple[str, list[object]]:
    row = "(" + ",".join("?" * columns) + ")"
    return "VALUES " + ",".join([row] * len(rows)), list(chain.from_iterable(rows))


class InTheIndex:
    """Rows in the order of arrival; lanes in an index: what the store does."""

    label = "rows + index"
    schema: tuple[str, ...] = (
        f"CREATE TABLE msg(id INTEGER PRIMARY KEY, {PLACE}, {FIELDS}, content BLOB)",
        "CREATE UNIQUE INDEX place ON msg(fragment, lane, n)",
        "CREATE INDEX due ON msg(fragment, due, n) WHERE lane = 3",
    )
    move = f"UPDATE msg SET lane = 1 WHERE {WHERE}"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.sql = connection
        for statement in self.schema:
            connection.execute(statement)

    def put(self, fragment: int, first: int, count: int, body: bytes) -> None:
        rows: list[tuple[object, ...]] = [
            (fragment, 0, n, 1_700_000_000_000, 0, 0, 0, len(body), None, body)
            for n in range(first, first + count)
        ]
        values, flat = many(10, rows)
        columns = "fragment, lane, n, enqueued, ttl, due, deliveries, size, overlay, content"
        self.sql.execute(f"INSERT INTO msg({columns}) {values}", flat)

    def delete(self, fragment: int, first: int, last: int) -> None:
        self.sql.execute(f"DELETE FROM msg WHERE {WHERE}", (fragment, first, last))

    def page(self, fragment: int, first: int, last: int) -> int:
        return len(
            self.sql.execute(
                f"SELECT * FROM msg WHERE {WHERE} ORDER BY n", (fragment, first, last)
            ).fetchall()
        )

    def bury(self, fragment: int, first: int, last: int) -> None:
        self.sql.execute(self.move, (fragment, first, last))


class InTheKey(InTheIndex):
    """Rows in the order of lanes: the key of the table itself."""

    label = "rows by lane"
    schema = (
        f"CREATE TABLE msg({PLACE}, {FIELDS}, content BLOB, PRIMARY KEY(fragment, lane, n)) WITHOUT ROWID",
        "CREATE INDEX due ON msg(fragment, due, n) WHERE lane = 3",
    )

    def bury(self, fragment: int, first: int, last: int) -> None:
        rest = "enqueued, ttl, due, deliveries, size, overlay, content"
        self.sql.execute(
            f"INSERT INTO msg SELECT fragment, 1, n, {rest} FROM msg WHERE {WHERE}", (fragment, first, last)
        )
        self.delete(fragment, first, last)


class Apart(InTheIndex):
    """The small fields by lane, the bytes in a table of their own."""

    label = "fields + bytes"
    schema = (
        f"CREATE TABLE msg({PLACE}, {FIELDS}, body INTEGER, PRIMARY KEY(fragment, lane, n)) WITHOUT ROWID",
        "CREATE INDEX due ON msg(fragment, due, n) WHERE lane = 3",
        "CREATE TABLE body(id INTEGER PRIMARY KEY, content BLOB)",
    )
    last_body = 0

    def put(self, fragment: int, first: int, count: int, body: bytes) -> None:
        at = self.last_body + 1
        self.last_body += count
        fields: list[tuple[object, ...]] = [
            (fragment, 0, first + i, 1_700_000_000_000, 0, 0, 0, len(body), None, at + i)
            for i in range(count)
        ]
        bodies: list[tuple[object, ...]] = [(at + i, body) for i in range(count)]
        for table, columns, rows in (("msg", 10, fields), ("body", 2, bodies)):
            values, flat = many(columns, rows)
            self.sql.execute(f"INSERT INTO {table} {values}", flat)

    def delete(self, fragment: int, first: int, last: int) -> None:
        bodies = f"DELETE FROM body WHERE id IN (SELECT body FROM msg WHERE {WHERE})"
        self.sql.execute(bodies, (fragment, first, last))
        super().delete(fragment, first, last)

    def page(self, fragment: int, first: int, last: int) -> int:
        joined = f"SELECT * FROM msg JOIN body ON body.id = msg.body WHERE {WHERE} ORDER BY n"
        return len(self.sql.execute(joined, (fragment, first, last)).fetchall())


def layout_costs(layout: type[InTheIndex], size: int, batch: int, total: int) -> list[float]:
    body = os.urandom(size)
    each = total // FRAGMENTS
    with tempfile.TemporaryDirectory() as directory:
        sql = connect(Path(directory) / "layout.db")
        tried = layout(sql)

        def turns(step: Callable[[int, int], object]) -> float:
            began = time.process_time()
            for first in range(1, each + 1, batch):
                for fragment in range(FRAGMENTS):
                    sql.execute("BEGIN IMMEDIATE")
                    step(fragment, first)
                    sql.execute("COMMIT")
            steps = len(range(1, each + 1, batch)) * FRAGMENTS * batch
            return (time.process_time() - began) / steps * 1e6

        def cycle(fragment: int, first: int) -> None:
            tried.put(fragment, each + batch + first, batch, body)
            tried.delete(fragment, first, first + batch - 1)

        costs = [
            turns(lambda fragment, first: tried.put(fragment, first, batch, body)),
            turns(cycle),
            turns(
                lambda fragment, first: tried.page(
                    fragment, each + batch + first, each + 2 * batch + first - 1
                )
            ),
            turns(
                lambda fragment, first: tried.bury(
                    fragment, each + batch + first, each + 2 * batch + first - 1
                )
            ),
        ]
        sql.close()
        return costs


def insert_costs() -> None:
    rows: list[tuple[object, ...]] = [(n, bytes(1024)) for n in range(1000)]
    resting = threading.Event()
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    busy = threading.Thread(target=lambda: [None for _ in iter(resting.is_set, True)])
    busy.start()
    try:
        with tempfile.TemporaryDirectory() as directory:
            sql = connect(Path(directory) / "inserts.db")
            sql.execute("CREATE TABLE t(n INTEGER, content BLOB)")
            for chunk in (1, 10, 100, 1000):
                took = []
                for _ in range(5):
                    began = time.perf_counter()
                    sql.execute("BEGIN")
                    if chunk == 1:
                        sql.executemany("INSERT INTO t VALUES (?, ?)", rows)
                    for at in range(0, 1000 if chunk > 1 else 0, chunk):
                        values, flat = many(2, rows[at : at + chunk])
                        sql.execute(f"INSERT INTO t {values}", flat)
                    took.append(time.perf_counter() - began)
                    sql.execute("COMMIT")
                how = "executemany" if chunk == 1 else f"{chunk} rows a statement"
                print(f"{how:24}{sorted(took)[2] * 1e3:8.1f} ms", flush=True)
            sql.close()
    finally:
        resting.set()
        busy.join()
        sys.setswitchinterval(before)


def main() -> None:
    print("layout           bytes  per commit      put   put+delete     read     move")
    for size, batch, total in CASES:
        for layout in (InTheIndex, InTheKey, Apart):
            costs = layout_costs(layout, size, batch, total)
            print(
                f"{layout.label:15}{size:7}{batch:12}" + "".join(f"{cost:10.1f}" for cost in costs),
                flush=True,
            )
    print()
    insert_costs()


if __name__ == "__main__":
    main()
