"""Bounds of a machine that a handful of messages meets."""

from __future__ import annotations

from random import Random

from busbar.fragment.bounds import Bounds


def small_bounds(seed: int = 0) -> Bounds:
    """So small that a handful of messages meets every one of them; which ones are met differs from life to life."""
    r = Random(seed)
    bounds = Bounds()
    bounds.turn_messages = r.choice([3, 5, 50])
    bounds.burst_bytes = r.choice([100, 300, 3000])
    bounds.ready_records = r.choice([2, 4, 12])
    bounds.ready_bytes = r.choice([300, 600, 3000])
    bounds.page_records = r.choice([1, 3, 8])
    bounds.page_bytes = r.choice([400, 500, 3000])  # no message is larger
    bounds.returned_records = r.choice([1, 3, 6])
    bounds.kept_bytes = r.choice([0, 500, 3000])
    r = Random(f"ids of {seed}")
    bounds.recent_ids = r.choice([1, 3, 50])
    bounds.segment_ids = r.choice([1, 3, 50])
    bounds.id_page = r.choice([1, 3, 50])
    bounds.expired_ids = r.choice([1, 3, 50])
    bounds.filter_bytes = r.choice([16, 64, 256])
    bounds.filter_most = r.choice([256, 1024])
    bounds.filter_slice = r.choice([50, 5000])
    r = Random(f"sessions of {seed}")
    bounds.line_page = r.choice([1, 2, 10])
    bounds.line_sessions = r.choice([1, 2, 10])
    bounds.session_page = r.choice([1, 3, 20])
    bounds.session_locks = r.choice([2, 5, 100])
    bounds.session_bytes = r.choice([0, 500, 10_000])
    bounds.sessions_at_once = r.choice([1, 2, 10])
    bounds.offer_ms = 7
    r = Random(f"taps of {seed}")
    bounds.swept = r.choice([1, 3, 50])
    bounds.span_records = r.choice([1, 4, 50])
    bounds.span_bytes = r.choice([100, 500, 5000])
    r = Random(f"topics of {seed}")
    bounds.fan_out_copies = r.choice([2, 5, 1000])
    bounds.fan_out_bytes = r.choice([300, 2000, 100_000])
    return bounds
