"""`busbar capture` for which every hour is over, and which compacts all the time: hours would take hours."""

from __future__ import annotations

from datetime import datetime, timedelta

from busbar.cli.main import main
from busbar.jobs import capture


def every_hour(now: datetime) -> datetime:
    return now + timedelta(hours=2)


capture.closed_before = every_hour  # type: ignore[attr-defined]
capture.COMPACT_SECONDS = 0.3

if __name__ == "__main__":
    main()
