"""Turns filters that Spark pushes into conditions on the rows of an archive.

A filter is accepted if pyarrow meets it exactly for every row. Spark then does not check it again, and shows it in the plan
(PushedFilters). Every other filter stays with Spark. A condition that is null for a row leaves the row out, in both.

Directories are those of hours. So a limit of the time also selects directories, whose files are then not opened. Others are
skipped by the smallest and largest values that Parquet has for each part of a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
HOUR: Final = 3_600_000_000


def microseconds(time: datetime) -> int:
    """A time with a zone, in microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


ColumnRange = tuple[str, Any, Any]
"""A column, and the smallest and largest values that it may have; None is no limit."""


@dataclass(frozen=True, slots=True)
class ArchiveFilter:
    """Conditions on rows, all of which have to hold. Times are in microseconds since 1970, and included."""

    rows: Any = None
    """A pyarrow expression; None is no condition."""
    first: int | None = None
    last: int | None = None
    ranges: tuple[ColumnRange, ...] = ()

    def and_(self, other: ArchiveFilter) -> ArchiveFilter:
        """The conditions of both."""
        rows = self.rows if other.rows is None else other.rows
        if self.rows is not None and other.rows is not None:
            rows = self.rows & other.rows
        firsts = [each for each in (self.first, other.first) if each is not None]
        lasts = [each for each in (self.last, other.last) if each is not None]
        ranges = self.ranges + other.ranges
        return ArchiveFilter(rows, max(firsts, default=None), min(lasts, default=None), ranges)

    def has_hour(self, begins: int) -> bool:
        """Whether rows of the hour that begins then can be in the limits of time."""
        return (self.first is None or begins + HOUR > self.first) and (
            self.last is None or begins <= self.last
        )

    def has_group(self, statistics: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether a row group with these smallest and largest values can have rows in the ranges. pyarrow does not use
        them for a column with nulls."""
        for name, low, high in self.ranges:
            found = statistics.get(name)
            if found is not None and (
                (low is not None and found["max"] < low) or (high is not None and found["min"] > high)
            ):
                return False
        return True


def push_archive_filters(
    filters: Iterable[Filter], schema: pa.Schema, time_column: str
) -> tuple[ArchiveFilter, list[Filter]]:
    """The conditions of the filters that an archive meets, and the filters that it does not."""
    found, left = ArchiveFilter(), []
    for each in filters:
        condition = _condition(each, schema, time_column)
        if condition is None:
            left.append(each)
        else:
            found = found.and_(condition)
    return found, left


def _condition(each: Filter, schema: pa.Schema, time_column: str) -> ArchiveFilter | None:
    if isinstance(each, Not):
        inner = _condition(each.child, schema, time_column) if _can_negate(each.child) else None
        if inner is None:
            return None
        if isinstance(each.child, In):
            # pyarrow finds that a null is in no list; in SQL that is not known.
            return ArchiveFilter(~inner.rows & pc.field(each.child.attribute[0]).is_valid())
        return ArchiveFilter(~inner.rows)
    path: tuple[str, ...] = getattr(each, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    name = path[0]
    kind = schema.field(name).type
    if pa.types.is_nested(kind):
        return None
    if isinstance(each, IsNull | IsNotNull):
        column = pc.field(name)
        return ArchiveFilter(column.is_null() if isinstance(each, IsNull) else column.is_valid())
    rows = _comparison(each, name, kind)
    if rows is None:
        return None
    found = ArchiveFilter(rows, ranges=(_range(each, name, kind),))
    return _with_times(found, each) if name == time_column else found


def _can_negate(each: Filter) -> bool:
    """A negated range of times would not limit the hours as the range does; negated equality limits nothing."""
    return isinstance(each, EqualTo | In | IsNull | IsNotNull)


def _comparison(each: Filter, name: str, kind: pa.DataType) -> Any:
    """A comparison with values as pyarrow has it; None if the values are not of the column's type."""
    column = pc.field(name)
    values = _scalars(each.value if isinstance(each, In) else (getattr(each, "value", None),), kind)
    if values is None:
        return None
    if isinstance(each, In):
        return column.isin(pa.array([value.as_py() for value in values], kind))
    (value,) = values
    if isinstance(each, EqualTo):
        return column == value
    if isinstance(each, GreaterThan):
        return column > value
    if isinstance(each, GreaterThanOrEqual):
        return column >= value
    if isinstance(each, LessThan):
        return column < value
    return column <= value if isinstance(each, LessThanOrEqual) else None


def _scalars(values: Sequence[object], kind: pa.DataType) -> list[Any] | None:
    if not values or any(value is None for value in values):
        return None
    try:
        return [pa.scalar(value, kind) for value in values]
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _range(each: Filter, name: str, kind: pa.DataType) -> ColumnRange:
    """The range of a column that a comparison implies."""
    given: Any = getattr(each, "value", None)
    values = [pa.scalar(value, kind).as_py() for value in (given if isinstance(each, In) else (given,))]
    low = None if isinstance(each, LessThan | LessThanOrEqual) else min(values)
    high = None if isinstance(each, GreaterThan | GreaterThanOrEqual) else max(values)
    return name, low, high


def _with_times(found: ArchiveFilter, each: Filter) -> ArchiveFilter:
    """The condition with the limits of time that follow from it."""
    given: Any = getattr(each, "value", None)
    times = given if isinstance(each, In) else (given,)
    if not all(isinstance(time, datetime) and time.tzinfo is not None for time in times):
        return found
    numbers = [microseconds(time) for time in times]
    if isinstance(each, EqualTo | In):
        return replace(found, first=min(numbers), last=max(numbers))
    if isinstance(each, GreaterThan | GreaterThanOrEqual):
        return replace(found, first=numbers[0])
    return replace(found, last=numbers[0])
