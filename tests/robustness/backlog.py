"""Fills the store of a stopped server with very many messages, much faster than over the wire.

It writes the rows that the store itself would write (store/sqlite/schema.py), in one statement.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from busbar.message.parsing import parse_message
from tests.robustness.wire import message

LANE_NAMES = ("active", "dead", "deferred", "scheduled")
BODY_SIZE = 256


def fill_lane(data: Path, lane: int, count: int) -> None:
    """Put `count` messages of 256 bytes into one lane of the only queue of a data directory."""
    payload = message(b"." * BODY_SIZE, "backlog")
    content = parse_message(payload, 0, len(payload), "backlog", 128).content
    now = time.time_ns() // 1_000_000
    due = now - 1_000 if LANE_NAMES[lane] == "scheduled" else 0
    connection = sqlite3.connect(data / "store-0.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -200000")
    (fragment,) = connection.execute("SELECT id FROM fragment").fetchone()
    connection.execute("BEGIN")
    connection.execute(
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)"
        " INSERT INTO msg(id, fragment, lane, n, enqueued, ttl, due, deliveries, size, overlay, content)"
        " SELECT NULL, :fragment, :lane, n, :now, 0, :due, 0, :size, NULL, :content FROM numbers",
        {
            "count": count,
            "fragment": fragment,
            "lane": lane,
            "now": now,
            "due": due,
            "size": len(content),
            "content": content,
        },
    )
    connection.execute(
        f"UPDATE fragment SET last = ?, {LANE_NAMES[lane]} = ?, size = ? WHERE id = ?",
        (count, count, count * len(content), fragment),
    )
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
