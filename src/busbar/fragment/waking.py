"""When a fragment has something to do although no command comes."""

from __future__ import annotations

from mypy_extensions import i64

from busbar.fragment import session_accepting
from busbar.fragment.state import State
from busbar.fragment.taps import NOW
from busbar.model.message import ACTIVE
from busbar.model.settings import FragmentSettings


def wake_at(state: State, settings: FragmentSettings) -> i64:
    """The earliest of all times at which a part of the fragment is due; 0: none is."""
    if state.outbox.unannounced:
        return NOW
    wake = state.locks.earliest()
    due = 0 if state.holds_due else state.due
    if wake == 0 or (0 < due < wake):
        wake = due
    due = state.duplicates.due(settings.duplicate_window_ms)
    if wake == 0 or (0 < due < wake):
        wake = due
    due = state.writers.due()
    if wake == 0 or (0 < due < wake):
        wake = due
    if state.not_forwarded is not None and state.not_forwarded is settings.forward_dead_letters:
        due = state.forward_again
        if wake == 0 or (0 < due < wake):
            wake = due
    taps = state.taps
    if taps is not None or settings.taps:
        due = NOW if taps is None or taps.stale(settings) else taps.due(state.ledger.head)
        if wake == 0 or (0 < due < wake):
            wake = due
    sessions = state.sessions
    if sessions is not None:
        due = sessions.earliest()
        if wake == 0 or (0 < due < wake):
            wake = due
        due = session_accepting.offer_ends(sessions) if state.serves(ACTIVE) else 0
        if wake == 0 or (0 < due < wake):
            wake = due
    return wake
