"""Turns filters that Spark pushes into conditions of the source (read_filter.py).

A filter is accepted if the source meets it exactly. Spark then does not check it again, and shows it in the plan
(PushedFilters). Every other filter stays with Spark. Spark pushes filters to batches only, and only on columns, not on the
entries of a map. So conditions on application properties, and those of streams, are options.

    entity, sub_queue, fragment, state, session_id, subject, dead_letter_reason     equal to a value, or in a list
    sequence_number, enqueued_time                                                  equal, less or greater

Spark refuses a reader that accepts filters in a session that does not push them. So a reader accepts them only in the worker
that Spark starts to push filters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from busbar.spark.options import EVENTS, SourceOptions
from busbar.spark.read_filter import STATES, ReadFilter

_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
MAX_VALUES: Final = 200
"""Values of a list: the broker compares each message with them. A longer list stays with Spark."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def spark_pushes_filters() -> bool:
    """Whether this process is the worker that Spark starts to push filters."""
    return _WORKER in sys.modules


def push_filters(filters: Iterable[Filter], options: SourceOptions) -> tuple[ReadFilter, list[Filter]]:
    """The conditions of the filters that the source meets, and the filters that it does not."""
    found = ReadFilter()
    left: list[Filter] = []
    implied: list[IsNotNull] = []
    met: set[str] = set()
    for each in filters:
        if isinstance(each, IsNotNull):
            implied.append(each)
            continue
        condition = _condition(each, options)
        if condition is None:
            left.append(each)
        else:
            found = found.and_(condition)
            met.add(_column(each))
    # If a column equals a value, it is not null.
    left += [each for each in implied if _column(each) not in met]
    return found, left


def _column(each: Filter) -> str:
    if isinstance(each, Not):
        return _column(each.child)
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    return attribute[0] if len(attribute) == 1 else ""


def _condition(each: Filter, options: SourceOptions) -> ReadFilter | None:
    column = _column(each)
    if column == "sequence_number":
        by_number = options.stream != EVENTS and not _reads_dead_letters(options)
        return _range(each, _integer, _number_range) if by_number else None
    if column == "enqueued_time" and options.stream != EVENTS:
        return _range(each, _microseconds, _time_range)
    values = _values(each)
    if values is None:
        return None
    if column == "fragment":
        return ReadFilter(fragments=tuple(value for value in values if isinstance(value, int)))
    texts = tuple(value for value in values if isinstance(value, str))
    if column == "entity":
        return ReadFilter(entities=texts)
    if column == "sub_queue":
        return ReadFilter(sub_queues=texts)
    if options.stream == EVENTS:
        return None
    if column == "state":
        return ReadFilter(states=tuple(text for text in texts if text in STATES))
    if column == "session_id":
        return ReadFilter(sessions=texts)
    if column == "subject":
        return ReadFilter(subjects=texts)
    if column == "dead_letter_reason" and "" not in texts:
        return ReadFilter(properties=(("DeadLetterReason", texts),))
    return None


def _reads_dead_letters(options: SourceOptions) -> bool:
    """Whether positions can be those of a dead-letter queue, which are not sequence numbers."""
    return bool(options.sub_queue) or any("/$" in label for label in (*options.entities, *options.patterns))


def _values(each: Filter) -> tuple[object, ...] | None:
    if isinstance(each, EqualTo) or (isinstance(each, EqualNullSafe) and each.value is not None):
        return (each.value,)
    return tuple(each.value) if isinstance(each, In) and len(each.value) <= MAX_VALUES else None


Range = Callable[[int | None, int | None], ReadFilter]
"""Makes a condition of the first and the last accepted value."""


def _range(each: Filter, read: Callable[[object], int | None], make: Range) -> ReadFilter | None:
    if isinstance(each, In) or not isinstance(
        each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    ):
        return None
    value = read(each.value)
    if value is None:
        return None
    if isinstance(each, GreaterThan):
        return make(value + 1, None)
    if isinstance(each, GreaterThanOrEqual):
        return make(value, None)
    if isinstance(each, LessThan):
        return make(None, value - 1)
    if isinstance(each, LessThanOrEqual):
        return make(None, value)
    return make(value, value)


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _microseconds(value: object) -> int | None:
    """The microseconds since 1970. Spark gives times of TimestampType with a zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND


def _number_range(first: int | None, last: int | None) -> ReadFilter:
    return ReadFilter(first_number=first, last_number=last)


def _time_range(first: int | None, last: int | None) -> ReadFilter:
    """Enqueued times are whole milliseconds."""
    since = None if first is None else -(-first // 1000)
    until = None if last is None else last // 1000
    return ReadFilter(since=since, until=until)
