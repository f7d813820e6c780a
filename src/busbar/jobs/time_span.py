"""Limits of enqueued times, as `--from` and `--to` of jobs have them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from busbar.jobs.intervals import ValueRefused, moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Enqueued times: from `since`, up to but without `until`. None: no limit."""

    since: datetime | None = None
    until: datetime | None = None

    @classmethod
    def parse(cls, since: str, until: str) -> TimeSpan:
        """Raise ValueRefused if a text is no time, or if the end is not behind the beginning."""
        span = cls(
            moment("the beginning (--from)", since) if since else None,
            moment("the end (--to)", until) if until else None,
        )
        if span.since is not None and span.until is not None and span.since >= span.until:
            raise ValueRefused(
                f"the end {until} is not behind the beginning {since}: no message is between them"
            )
        return span

    @property
    def is_limited(self) -> bool:
        return self.since is not None or self.until is not None

    def texts(self) -> list[str | None]:
        return [None if time is None else time.isoformat() for time in (self.since, self.until)]

    def applied(self, frame: DataFrame) -> DataFrame:
        """The rows of the span. If rows are in directories by date, other directories are not read."""
        from pyspark.sql import functions as F

        dated = dict(frame.dtypes).get("date") == "date"
        if self.since is not None:
            frame = frame.where(F.col("enqueued_time") >= F.lit(self.since))
            if dated:
                frame = frame.where(F.col("date") >= F.lit(self.since.date()))
        if self.until is not None:
            frame = frame.where(F.col("enqueued_time") < F.lit(self.until))
            if dated:
                frame = frame.where(F.col("date") <= F.lit(self.until.date()))
        return frame
