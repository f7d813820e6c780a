"""Messages as rows: the columns that reads ask for, and the record of a row."""

from __future__ import annotations

from typing import Any, Final

from busbar.model.message import Record
from busbar.store.overlay_codec import decode_overlay
from busbar.store.postgresql.journal import to_text

COLUMNS: Final = (
    "n, enqueued, ttl, due, deliveries, size, overlay, content, session, dead, hops, target, kind"
)


def record_of(row: Any) -> Record:
    """The record of a row: two columns that are the statement's own, then COLUMNS."""
    _, _, n, enqueued, ttl, due, deliveries, size, overlay, content, session, dead, hops, target, kind = row
    return Record(
        n,
        enqueued,
        ttl,
        due,
        deliveries,
        size,
        content,
        None if overlay is None else decode_overlay(overlay),
        None if session is None else to_text(session),
        dead,
        hops,
        target,
        kind,
    )
