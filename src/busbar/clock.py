"""The clock of this machine, for the rooms at the edge. The pure rooms get the time as an argument."""

from __future__ import annotations

import time


def wall_clock() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000
