"""New messages become available: in a window, in their session, or straight in the outbox."""

from __future__ import annotations

from mypy_extensions import i64

from busbar.fragment.forwarding import passes_straight, put_straight
from busbar.fragment.session_serving import arrive
from busbar.fragment.state import State
from busbar.model.message import ACTIVE, Draft, Record


def put_active(
    state: State,
    records: list[Record],
    size: i64,
    now: i64,
    drafts: list[Draft] | None = None,
    straight: bool = True,
) -> None:
    """Put messages with new numbers, ascending, that have `size` bytes in all. `drafts` are theirs, if they are known.

    The caller must call Ledger.given with the last number afterwards. Without `straight` the messages are not put into the
    outbox, because it has, or will get, other numbers that were given by the same command.
    """
    if not records:
        return
    sessions = state.sessions
    if sessions is not None:
        state.ledger.put(ACTIVE, records, size)
        for record in records:
            arrive(state, sessions, record)
        return
    window = state.main
    unread = state.unread(window)
    if straight and state.settings.forward is not None and passes_straight(state, unread):
        records = put_straight(state, records, drafts, now)
        size = 0
        for record in records:
            size += record.size
    state.ledger.put(ACTIVE, records, size)
    if unread == 0:
        window.append(records, size)
