"""Deletes a slice of a fragment, inside the caller's transaction."""

from __future__ import annotations

from typing import Final

from busbar.fragment.changes import empty_head
from busbar.model.message import KEPT, KEPT_DEAD, LANES, OUTBOX
from busbar.store.postgresql.connection import DatabaseConnection
from busbar.store.postgresql.journal import Entry, FragmentState, outbox_entry

_MESSAGES: Final = (
    "WITH gone AS (DELETE FROM msg WHERE ctid = ANY(ARRAY("
    "SELECT ctid FROM msg WHERE fragment = $1 ORDER BY lane, n LIMIT $2))"
    " RETURNING lane, target, size) SELECT lane, target, count(*), sum(size) FROM gone GROUP BY lane, target"
)
# Table, order, and what is summed of the deleted rows.
_OTHERS: Final = (
    ("dup", "segment, id", "0"),
    ("session_state", "id", "size"),
    ("session", "id", "0"),
    ("event", "at", "0"),
    ("written", "writer, batch, id", "0"),
)
_OTHER: Final = (
    "WITH gone AS (DELETE FROM {0} WHERE ctid = ANY(ARRAY("
    "SELECT ctid FROM {0} WHERE fragment = $1 ORDER BY {1} LIMIT $2))"
    " RETURNING {2} AS size) SELECT count(*), coalesce(sum(size), 0)::bigint FROM gone"
)


def drop_slice(connection: DatabaseConnection, fragment: int, limit: int, state: FragmentState) -> Entry:
    """Delete up to `limit` rows of a fragment. Returns the entry for the journal: that it is gone, or its counters."""
    head = (state.head or empty_head(fragment)).copy()
    counts, sizes = [0] * LANES, [0] * LANES
    out: dict[int, int] = {}
    for lane, target, count, size in connection.fetch(_MESSAGES, fragment, limit):
        counts[lane] += count
        sizes[lane] += int(size)
        if lane == OUTBOX:
            out[target] = count
    left = limit - sum(counts)
    deleted = {name: 0 for name, _, _ in _OTHERS}
    states = 0
    for name, order, summed in _OTHERS:
        if left <= 0:
            break
        count, size = connection.fetch(_OTHER.format(name, order, summed), fragment, left)[0]
        deleted[name] = count
        states += size
        left -= count
    if left > 0:
        return [fragment]
    if not _has_rows(connection, fragment):
        return [fragment]
    kept = sizes[KEPT] + sizes[KEPT_DEAD]
    head.counts = [before - gone for before, gone in zip(head.counts, counts, strict=True)]
    head.size -= sum(sizes) - kept + states
    head.kept_size -= kept
    head.kept_dead_size -= sizes[KEPT_DEAD]
    head.ids = max(0, head.ids - deleted["dup"])
    head.events = max(0, head.events - deleted["event"])
    return outbox_entry(head, state.outbox, out, state.head is not None)


def _has_rows(connection: DatabaseConnection, fragment: int) -> bool:
    tables = ("msg", *(name for name, _, _ in _OTHERS))
    found = " OR ".join(f"EXISTS(SELECT FROM {name} WHERE fragment = $1)" for name in tables)
    return bool(connection.fetch(f"SELECT {found}", fragment)[0][0])
