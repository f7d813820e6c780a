"""An archive is read in part: files, row groups and columns that are not needed stay where they are."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
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
    StringContains,
)

from busbar.jobs import parquet_files
from busbar.jobs.archive import EVENTS, MESSAGES, arrow_schema
from busbar.jobs.archive_scan import (
    ArchiveSource,
    FilteringArchiveReader,
    ScanFigures,
    entities_there,
)
from busbar.jobs.archive_writer import ArchiveWriter
from busbar.jobs.replay_source import columns_used
from busbar.spark.errors import OptionError
from tests.unit.jobs.archives import NOON, mark, staged

BODY = 2_000
HOURS = 6
PER_HOUR = 30


def message(number: int, enqueued: datetime) -> dict[str, object]:
    return {
        "fragment": 0,
        "sequence_number": number,
        "enqueued_time": enqueued,
        "delivery_count": 0,
        "state": "active",
        "subject": [None, "sale", "refund"][number % 3],
        "properties": [],
        "annotations": [],
        "body": Random(number).randbytes(BODY),
    }


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two entities, six hours each, a message every two minutes. An hour has three row groups."""
    path = tmp_path_factory.mktemp("archive")
    writer = ArchiveWriter.open(path, MESSAGES)
    schema = arrow_schema(MESSAGES)
    size, parquet_files.GROUP_BYTES = parquet_files.GROUP_BYTES, BODY * 9  # type: ignore[misc]
    try:
        for batch, entity in enumerate(("orders", "Shop/Bills")):
            known = [
                {"entity": entity, **message(number, NOON + number * timedelta(minutes=2))}
                for number in range(HOURS * PER_HOUR)
            ]
            parts = [
                pa.RecordBatch.from_pylist(known[at : at + 10], schema) for at in range(0, len(known), 10)
            ]
            writer.publish(staged(writer, *parts), mark(batch, entity))
    finally:
        parquet_files.GROUP_BYTES = size  # type: ignore[misc]
    writer.close()
    return path


def reader_of(directory: Path, **options: str) -> FilteringArchiveReader:
    source = ArchiveSource({"path": str(directory), **options})
    return FilteringArchiveReader(dict(source.options), source.schema().fieldNames())


def rows_of(reader: FilteringArchiveReader) -> list[dict[str, Any]]:
    """The rows as Spark gets them: plan and reader are pickled on their way to tasks."""
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    copy = pickle.loads(pickle.dumps(reader))
    return [row for part in parts for batch in copy.read(part) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def everything(directory: Path) -> list[dict[str, Any]]:
    return rows_of(reader_of(directory))


def bytes_read(work: Callable[[], object]) -> int:
    """The bytes that this process has read from files meanwhile."""

    def read() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(lines[0].removeprefix("rchar:"))

    before = read()
    work()
    return read() - before


@pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="this system does not count what a process reads"
)
def test_only_the_hours_and_columns_that_are_needed_are_read(directory: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    found: list[dict[str, Any]] = []
    whole = bytes_read(lambda: found.extend(rows_of(reader_of(directory, figures=str(figures)))))
    assert len(found) == 2 * HOURS * PER_HOUR
    everything = ScanFigures.load(figures)
    assert everything is not None and (everything.files, everything.files_there) == (12, 12)
    assert 0.7 * everything.bytes_there < everything.bytes < everything.bytes_there

    since, until = NOON + timedelta(hours=1, minutes=30), NOON + timedelta(hours=3)
    span = {"since": since.isoformat(), "until": until.isoformat(), "figures": str(figures)}
    found.clear()
    part = bytes_read(lambda: found.extend(rows_of(reader_of(directory, **span, entities='["ORDERS"]'))))
    assert [row["sequence_number"] for row in found] == list(range(45, 90))
    assert {row["entity"] for row in found} == {"orders"}
    taken = ScanFigures.load(figures)
    assert taken is not None and (taken.files, taken.files_there) == (2, 12)
    # Of the hour that the span begins in, the first of three row groups is left out.
    assert 4 / 36 < taken.bytes / everything.bytes < 6 / 36
    assert part < whole / 3
    assert str(taken).startswith("reads 2 of 12 files, 0.")

    found.clear()
    narrow = reader_of(directory, columns="entity,sequence_number,hour", figures=str(figures))
    few = bytes_read(lambda: found.extend(rows_of(narrow)))
    assert len(found) == 2 * HOURS * PER_HOUR and set(found[0]) == {"entity", "sequence_number", "hour"}
    slim = ScanFigures.load(figures)
    assert slim is not None and slim.files == 12 and slim.bytes < everything.bytes / 10
    assert few < whole


CASES: list[tuple[list[Filter], Callable[[dict[str, Any]], bool], int]] = [
    ([EqualTo(("entity",), "orders")], lambda row: bool(row["entity"] == "orders"), 6),
    (
        [EqualTo(("date",), date(2026, 1, 31)), In(("hour",), (12, 17))],
        lambda row: row["hour"] in (12, 17),
        4,
    ),
    ([GreaterThan(("hour",), 15)], lambda row: bool(row["hour"] > 15), 4),
    ([EqualTo(("enqueued_time",), NOON)], lambda row: bool(row["enqueued_time"] == NOON), 2),
    (
        [
            GreaterThan(("enqueued_time",), NOON + timedelta(hours=2)),
            LessThanOrEqual(("enqueued_time",), NOON + timedelta(hours=3)),
        ],
        lambda row: bool(timedelta(hours=2) < row["enqueued_time"] - NOON <= timedelta(hours=3)),
        4,
    ),
    ([LessThan(("sequence_number",), 31)], lambda row: bool(row["sequence_number"] < 31), 4),
    ([GreaterThanOrEqual(("sequence_number",), 179)], lambda row: bool(row["sequence_number"] == 179), 2),
    ([EqualTo(("subject",), "sale")], lambda row: bool(row["subject"] == "sale"), 12),
    ([Not(EqualTo(("subject",), "sale"))], lambda row: bool(row["subject"] == "refund"), 12),
    ([Not(In(("subject",), ("sale", "refund")))], lambda row: False, 12),
    ([IsNull(("subject",))], lambda row: row["subject"] is None, 12),
    ([IsNotNull(("subject",)), Not(IsNull(("subject",)))], lambda row: row["subject"] is not None, 12),
    ([EqualTo(("subject",), "x")], lambda row: False, 0),
]


@pytest.mark.parametrize(("filters", "holds", "files"), CASES)
def test_pushed_filters_are_met_exactly(
    directory: Path,
    everything: list[dict[str, Any]],
    tmp_path: Path,
    filters: list[Filter],
    holds: Callable[[dict[str, Any]], bool],
    files: int,
) -> None:
    figures = tmp_path / "figures"
    reader = reader_of(directory, figures=str(figures))
    assert reader.pushFilters(filters) == []
    found = rows_of(reader)
    assert sorted(map(_place, found)) == sorted(_place(row) for row in everything if holds(row))
    taken = ScanFigures.load(figures)
    assert taken is not None and taken.files <= files


def _place(row: dict[str, Any]) -> tuple[str, int]:
    return row["entity"], row["sequence_number"]


def test_other_filters_stay_with_spark(directory: Path) -> None:
    reader = reader_of(directory)
    left: list[Filter] = [
        StringContains(("subject",), "a"),
        EqualTo(("properties", "region"), "eu"),
        EqualTo(("sequence_number",), "text"),
        EqualTo(("subject",), None),
        Not(GreaterThan(("enqueued_time",), NOON)),
        EqualTo(("nothing",), 1),
    ]
    assert reader.pushFilters(left) == left
    assert len(rows_of(reader)) == 2 * HOURS * PER_HOUR


def test_entities_and_errors(directory: Path, tmp_path: Path) -> None:
    assert entities_there(directory) == ["Shop/Bills", "orders"]
    assert entities_there(directory, ["shop/bills"]) == ["Shop/Bills"]
    assert {row["entity"] for row in rows_of(reader_of(directory, entities='["shop/BILLS"]'))} == {
        "Shop/Bills"
    }
    with pytest.raises(OptionError, match="'boddy'"):
        reader_of(directory, columns="boddy")
    ArchiveWriter.open(tmp_path / "events", EVENTS).close()
    reader = reader_of(tmp_path / "events", since=NOON.isoformat(), figures=str(tmp_path / "figures"))
    assert rows_of(reader) == []
    assert json.loads((tmp_path / "figures").read_text())["files_there"] == 0


@pytest.mark.parametrize(
    ("uses", "texts", "expected"),
    [
        (["a"], ["b = 1 and `C` > a"], ["a", "b", "c"]),
        (["a"], ["upper(B)"], ["a", "b"]),
        (["a"], [], ["a"]),
        (["a"], ["to_json(struct(*))"], ["a", "b", "c"]),
        ([], ["a = 1"], ["a", "b", "c"]),
    ],
)
def test_columns_are_those_of_the_job_and_of_its_expressions(
    uses: Sequence[str], texts: Sequence[str], expected: list[str]
) -> None:
    assert columns_used(uses, texts, ["a", "b", "c"]) == expected
