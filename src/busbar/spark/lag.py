"""How far a stream is behind: what the source reports with each batch, and how programs read it from a query's progress.

Spark gives a source in Python one place in the progress of a query, `latestOffset`. The source adds a field `lag` to it:

    behindMessages          positions between the last committed batch and the end, which is at least the number of messages
    behindSeconds           the age of the oldest message that is in no committed batch
    remainingMessages       positions that the batch leaves for later ones
    keptMessages, keptBytes what the tap keeps
    retentionLeftSeconds    until the tap reaches its limit of age, unless it advances; absent without a limit
    retentionLeftBytes      until a fragment of the tap reaches its limit of size, likewise

A stream of several entities has such a field for each entity, and one for all with the sums and the worst values. To find
the oldest messages takes a small read of each fragment, so that is done once in AGE_SECONDS.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from busbar.client import BusbarClientError, TapSelection
from busbar.spark.connection import taps_of
from busbar.spark.entity_names import label_of
from busbar.spark.errors import SourceError
from busbar.spark.offsets import Offset, is_initial, parse_all
from busbar.spark.options import EVENTS, SourceOptions
from busbar.spark.stream_tap import StreamPosition

AGE_SECONDS: Final = 1.0
_ENQUEUED: Final = 20  # in a page with one message
_EVENT_TIME: Final = 21  # in a page with one event
_NO_BODIES: Final = TapSelection(bodies=False, application_properties=False)


@dataclass(frozen=True, slots=True)
class StreamLag:
    """How far a stream is behind in an entity, or in all of them; see the head of this module."""

    behind_messages: int
    behind_seconds: float
    remaining_messages: int
    kept_messages: int
    kept_bytes: int
    retention_left_seconds: float | None
    retention_left_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "behindMessages": self.behind_messages,
            "behindSeconds": round(self.behind_seconds, 3),
            "remainingMessages": self.remaining_messages,
            "keptMessages": self.kept_messages,
            "keptBytes": self.kept_bytes,
        }
        if self.retention_left_seconds is not None:
            document["retentionLeftSeconds"] = round(self.retention_left_seconds, 3)
        if self.retention_left_bytes is not None:
            document["retentionLeftBytes"] = self.retention_left_bytes
        return document

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> StreamLag:
        """Parse a lag. Raises KeyError for another document."""
        return cls(
            document["behindMessages"],
            document["behindSeconds"],
            document["remainingMessages"],
            document["keptMessages"],
            document["keptBytes"],
            document.get("retentionLeftSeconds"),
            document.get("retentionLeftBytes"),
        )


def sum_of(lags: Iterable[StreamLag]) -> StreamLag:
    """The lag of all entities: sums of messages and bytes, and the worst of the rest."""
    found = list(lags)
    seconds = [each.retention_left_seconds for each in found if each.retention_left_seconds is not None]
    sizes = [each.retention_left_bytes for each in found if each.retention_left_bytes is not None]
    return StreamLag(
        sum(each.behind_messages for each in found),
        max((each.behind_seconds for each in found), default=0.0),
        sum(each.remaining_messages for each in found),
        sum(each.kept_messages for each in found),
        sum(each.kept_bytes for each in found),
        min(seconds, default=None),
        min(sizes, default=None),
    )


class LagMeter:
    """Measures the lag of one entity of a stream."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._measured = float("-inf")
        self._oldest: int | None = None

    def measure(self, standing: StreamPosition, stops: Mapping[int, int]) -> StreamLag:
        """The lag at a moment at which a batch from the position to `stops` is planned."""
        behind = {
            index: end - standing.positions.get(index, 0)
            for index, end in standing.ends.items()
            if end > standing.positions.get(index, 0)
        }
        if not behind:
            self._oldest = None
        elif time.monotonic() - self._measured >= AGE_SECONDS:
            self._oldest = self._find_oldest(standing, behind)
            self._measured = time.monotonic()
        age = 0.0 if self._oldest is None else max(0.0, time.time() - self._oldest / 1000)
        view = standing.view
        here = [each for each in view.fragments if each.available]
        return StreamLag(
            sum(behind.values()),
            age,
            sum(max(0, end - stops.get(index, 0)) for index, end in standing.ends.items()),
            sum(each.kept for each in here),
            sum(each.kept_bytes for each in here),
            view.max_age / 1000 - age if view.max_age > 0 else None,
            view.max_size - max((each.kept_bytes for each in here), default=0) if view.max_size > 0 else None,
        )

    def _find_oldest(self, standing: StreamPosition, behind: Mapping[int, int]) -> int | None:
        """The time of the oldest message or event behind the position, in ms. None if there is none, or no answer."""
        stream = self._options.stream
        select = None if stream == EVENTS else _NO_BODIES
        times: list[int] = []
        try:
            for index in behind:
                position, end = standing.positions.get(index, 0), standing.ends[index]
                page = taps_of(self._options).read(
                    standing.tap, index, position, end, stream=stream, count=1, select=select
                )
                if page.count:
                    at = _EVENT_TIME if stream == EVENTS else _ENQUEUED
                    times.append(struct.unpack_from(">q", page.rows, at)[0])
        except (BusbarClientError, SourceError):
            return None  # the batch itself reports what is wrong
        return min(times, default=None)


def with_lag(document: dict[str, Any], lags: Mapping[str, StreamLag]) -> dict[str, Any]:
    """The offset of a query with the lags of its entities, by label."""
    document = {**document, "lag": sum_of(lags.values()).to_json()}
    if "entities" in document:
        document["entities"] = {
            label: {**offset, "lag": lags[label].to_json()} for label, offset in document["entities"].items()
        }
    return document


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """An entity of a stream in the progress of its query. The rates are those of the whole source, in rows per second."""

    entity: str
    """The path of the entity or dead-letter queue."""
    tap: str
    lag: StreamLag
    input_rate: float
    processed_rate: float


def source_progress(progress: Any) -> list[SourceProgress]:
    """The entities that a query reads with the `busbar` format, from `query.lastProgress` or the event of a listener."""
    found: list[SourceProgress] = []
    for source in progress.sources if progress is not None else ():
        input_rate, processed_rate = float(source.inputRowsPerSecond), float(source.processedRowsPerSecond)
        for offset, lag in _lags(source.latestOffset):
            label = label_of(offset.entity, offset.sub_queue)
            found.append(SourceProgress(label, offset.tap, lag, input_rate, processed_rate))
    return found


def _lags(text: str | None) -> list[tuple[Offset, StreamLag]]:
    """The offsets and lags in a `latestOffset`; none for other sources."""
    try:
        document: Any = json.loads(text or "null")
    except ValueError:
        return []
    if not isinstance(document, Mapping) or "busbar" not in document or is_initial(document):
        return []
    parts = document.get("entities")
    documents = list(parts.values()) if isinstance(parts, Mapping) else [document]
    try:
        offsets = parse_all(document)
        return [
            (offset, StreamLag.parse(part["lag"])) for offset, part in zip(offsets, documents, strict=True)
        ]
    except (SourceError, KeyError, TypeError):
        return []
