"""The part of the messages that a report is on: limits of their enqueued times, and a condition.

1. Limits and condition are those of a message, as a replay has them.
2. An event belongs to its message. So a selected message has all its events, whenever they happened, and others have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from busbar.jobs.insight_frames import of_events, of_messages
from busbar.jobs.intervals import ValueRefused
from busbar.jobs.replay_source import columns_used
from busbar.jobs.time_span import TimeSpan
from busbar.spark.read_filter import CLOCK_STEP_MS


@dataclass(frozen=True, slots=True)
class MessageSelection:
    """Enqueued times, and a condition of Spark SQL over the columns of messages; empty: every message meets it."""

    span: TimeSpan
    where: str = ""

    @property
    def is_limited(self) -> bool:
        return self.span.is_limited or bool(self.where)

    @property
    def events_since(self) -> datetime | None:
        """The time before which no selected message has events, also if the clock of the broker was set back."""
        since = self.span.since
        return None if since is None else since - timedelta(milliseconds=CLOCK_STEP_MS)

    def columns(self, uses: Sequence[str], names: Sequence[str]) -> list[str]:
        """The columns to read of messages, of those that there are."""
        return columns_used(uses, [self.where], names)

    def history(self, messages: Sequence[DataFrame], events: Sequence[DataFrame]) -> DataFrame:
        """The history (insight_frames.py) of the selected messages, from frames with the columns of the source.

        A condition needs messages. Raises ValueRefused if it cannot be understood.
        """
        sent = [of_messages(self._selected(frame)) for frame in messages]
        happened = [of_events(self.span.applied(frame)) for frame in events]
        if self.where and happened:
            of_message = ["entity", "fragment", "number"]
            selected = reduce(DataFrame.unionByName, sent).select(*of_message).distinct()
            happened = [frame.join(selected, of_message, "left_semi") for frame in happened]
        return reduce(DataFrame.unionByName, [*sent, *happened])

    def _selected(self, frame: DataFrame) -> DataFrame:
        frame = self.span.applied(frame)
        if not self.where:
            return frame
        try:
            return frame.where(f.expr(self.where))
        except (AnalysisException, ParseException) as error:
            text = str(error).strip().split("\n", 1)[0]
            raise ValueRefused(f"the condition (--where) cannot be understood: {text}") from None
