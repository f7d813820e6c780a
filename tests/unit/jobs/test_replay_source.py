"""What a replay finds out about its source without Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from busbar.jobs.archive import MESSAGES
from busbar.jobs.archive_writer import ArchiveWriter
from busbar.jobs.failure_text import JobFailureKind
from busbar.jobs.intervals import ValueRefused
from busbar.jobs.replay_source import ReplayError, hours_there, identity_of
from busbar.jobs.time_span import TimeSpan
from busbar.spark.secrets import Secret
from tests.unit.jobs.archives import NOON, mark, rows, staged

NOWHERE = Secret(literal="unused")


def test_the_hours_of_an_archive(tmp_path: Path) -> None:
    writer = ArchiveWriter.open(tmp_path, MESSAGES)
    writer.publish(staged(writer, rows(1, 100, step=timedelta(minutes=1))), mark(1))
    writer.publish(staged(writer, rows(101, 5, begins=NOON + timedelta(hours=5))), mark(2))
    writer.close()
    assert hours_there(str(tmp_path)) == [
        "orders: 2026-01-31T12:00Z to 2026-01-31T14:00Z, 100 messages",
        "orders: 2026-01-31T17:00Z to 2026-01-31T18:00Z, 5 messages",
    ]


def test_many_gaps_are_shortened(tmp_path: Path) -> None:
    writer = ArchiveWriter.open(tmp_path, MESSAGES)
    writer.publish(staged(writer, rows(1, 20, step=timedelta(hours=2))), mark(1))
    writer.close()
    lines = hours_there(str(tmp_path))
    assert lines[0] == "orders: 8 earlier spans" and len(lines) == 13


def test_a_directory_without_messages_is_refused_before_spark(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="neither an archive nor a directory with Parquet files") as caught:
        identity_of(str(tmp_path), NOWHERE, 1)
    assert caught.value.kind is JobFailureKind.NOT_FOUND
    (tmp_path / "entity=orders").mkdir()
    pq.write_table(pa.table({"raw": [b"x"], "fragment": [0]}), tmp_path / "entity=orders" / "1.parquet")
    with pytest.raises(ReplayError, match=r"it lacks the columns enqueued_time, sequence_number$"):
        identity_of(str(tmp_path), NOWHERE, 1)
    assert hours_there(str(tmp_path)) == []


def test_a_span_ends_behind_its_beginning() -> None:
    span = TimeSpan.parse("2026-01-31", "2026-02-01")
    assert span.texts() == ["2026-01-31T00:00:00+00:00", "2026-02-01T00:00:00+00:00"]
    assert not TimeSpan.parse("", "").is_limited
    with pytest.raises(ValueRefused, match="is not behind the beginning") as caught:
        TimeSpan.parse("2026-01-31", "2026-01-31")
    assert caught.value.kind is JobFailureKind.USAGE
