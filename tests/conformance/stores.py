"""The stores that every suite of stores runs over, and the words in which the suites are written.

A new store adds its place to PLACES and passes them before it is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from busbar.fragment.changes import Changes, Head, MessageEdit
from busbar.fragment.reads import ReadPage
from busbar.model.message import LANES, Overlay, Record
from busbar.store.contract import Store
from busbar.store.journal.store import JournalStore
from busbar.store.postgresql.address import parse_address
from busbar.store.postgresql.store import LastKnown, PostgresqlStore
from busbar.store.sqlite.store import SqliteStore
from harness.memory_store import Disk, MemoryStore
from harness.postgresql import shared_database

MANY = 1 << 40
_schemas = itertools.count(1)
Open = Callable[[], Store]
"""A place where a store is: each call gives a new handle on it, as a new process would have."""


def memory_place(_: Path) -> Open:
    disk = Disk()
    return lambda: MemoryStore(disk)


def sqlite_place(directory: Path) -> Open:
    return lambda: SqliteStore(directory / "store.db")


def journal_place(directory: Path) -> Open:
    return lambda: JournalStore(directory / "store.db", segment_size=1 << 16)


def postgresql_place(_: Path) -> Open:
    address = parse_address(shared_database().url(f"store_{next(_schemas)}"), "store")
    known = LastKnown()
    return lambda: PostgresqlStore(address, known)


PLACES = {
    "memory": memory_place,
    "sqlite": sqlite_place,
    "journal": journal_place,
    "postgresql": postgresql_place,
}


def record(
    n: int,
    content: bytes = b"content",
    *,
    enqueued: int = 1_700_000_000_000,
    ttl: int = 0,
    due: int = 0,
    deliveries: int = 0,
    size: int | None = None,
    overlay: Overlay | None = None,
    dead: int = 0,
    hops: int = 0,
    target: int = 0,
    kind: int = 0,
) -> Record:
    size = len(content) if size is None else size
    return Record(n, enqueued, ttl, due, deliveries, size, content, overlay, None, dead, hops, target, kind)


def values(record: Record) -> tuple[object, ...]:
    return (
        record.n,
        record.enqueued,
        record.ttl,
        record.due,
        record.deliveries,
        record.size,
        record.content,
        record.overlay,
        record.dead_letter_number,
        record.hops,
        record.target,
        record.kind,
    )


def head_values(head: Head) -> tuple[int, int, tuple[int, ...], int]:
    return head.fragment, head.last, tuple(head.counts), head.size


def put(store: Store, fragment: int, lane: int, *records: Record) -> None:
    changes = Changes(fragment)
    changes.puts[lane] = list(records)
    store.commit([changes])


def edit(store: Store, fragment: int, *edits: MessageEdit) -> None:
    changes = Changes(fragment)
    changes.edits = list(edits)
    store.commit([changes])


def delete(store: Store, fragment: int, lane: int, *numbers: int) -> None:
    changes = Changes(fragment)
    changes.deletes[lane] = list(numbers)
    store.commit([changes])


def page(
    store: Store, fragment: int, lane: int, start: int = 0, limit: int = 1000, max_bytes: int = MANY
) -> list[Record]:
    read = ReadPage(lane, start, limit, max_bytes)
    store.read(fragment, [read])
    return read.records


def numbers(records: list[Record]) -> list[int]:
    return [record.n for record in records]


def lanes(store: Store, fragment: int) -> dict[int, list[int]]:
    found = {lane: numbers(page(store, fragment, lane)) for lane in range(LANES)}
    return {lane: found for lane, found in found.items() if found}
