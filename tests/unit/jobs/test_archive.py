"""Archives: what is published is there once, for readers by the manifest and for those that list; crashes leave nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from busbar.jobs import archive
from busbar.jobs.archive import EVENTS, MESSAGES
from busbar.jobs.archive_identity import FILES
from busbar.jobs.archive_writer import ArchiveWriter
from busbar.jobs.compaction import compact, main
from busbar.jobs.manifest import ArchiveError
from tests.unit.jobs.archives import NOON, mark, rows, shown, staged

LATER = datetime(2100, 1, 1, tzinfo=UTC)


def numbers(directory: Path) -> list[int]:
    found: list[int] = archive.dataset(directory).to_table().column("sequence_number").to_pylist()
    return sorted(found)


def plain_numbers(directory: Path) -> list[int]:
    if not shown(directory):
        return []
    table = ds.dataset(str(directory), format="parquet", partitioning="hive").to_table()
    return sorted(table.column("sequence_number").to_pylist())


def test_an_hour_has_its_own_file(tmp_path: Path) -> None:
    writer = ArchiveWriter.open(tmp_path, MESSAGES)
    batch = rows(0, 4, begins=NOON - timedelta(minutes=1), step=timedelta(minutes=20))
    writer.publish(staged(writer, batch, entity="sales/orders"), mark(0, "sales/orders"))
    paths = [str(path.relative_to(tmp_path)) for path in shown(tmp_path)]
    assert paths == [
        "entity=sales%2Forders/date=2026-01-31/hour=11/0123456789ab-0000000000-0000.parquet",
        "entity=sales%2Forders/date=2026-01-31/hour=12/0123456789ab-0000000000-0001.parquet",
    ]
    table = archive.dataset(tmp_path).to_table().sort_by("sequence_number")
    assert table.column("hour").to_pylist() == [11, 12, 12, 12]
    assert table.column("date").to_pylist() == [date(2026, 1, 31)] * 4
    assert table.column("entity").to_pylist() == ["sales/orders"] * 4
    assert table.column("body").to_pylist() == [f"body {number}".encode() for number in range(4)]
    metadata = pq.ParquetFile(archive.files(tmp_path)[0]).metadata
    times = metadata.schema.column(3)
    assert times.name == "enqueued_time" and str(times.logical_type).startswith(
        "Timestamp(isAdjustedToUTC=true, timeUnit=microseconds"
    )
    assert {metadata.row_group(0).column(index).compression for index in range(metadata.num_columns)} == {
        "ZSTD"
    }
    found = duckdb.read_parquet(f"{tmp_path}/**/*.parquet", hive_partitioning=True)
    assert found.aggregate("entity, count(*)", "entity").fetchall() == [("sales/orders", 4)]
    writer.close()


def test_a_batch_that_is_repeated_is_known(tmp_path: Path) -> None:
    writer = ArchiveWriter.open(tmp_path, MESSAGES)
    writer.publish(staged(writer, rows(0, 5)), mark(0))
    writer.publish(staged(writer, rows(5, 5)), mark(1))
    assert writer.has(mark(1)) and not writer.has(mark(2))
    writer.publish(staged(writer, rows(5, 5)), mark(1))
    assert numbers(tmp_path) == plain_numbers(tmp_path) == list(range(10))
    with pytest.raises(ArchiveError, match="older than the archive"):
        writer.has(mark(0))
    writer.close()


def test_what_a_crash_leaves_is_put_in_order(tmp_path: Path) -> None:
    writer = ArchiveWriter.open(tmp_path, MESSAGES)
    writer.publish(staged(writer, rows(0, 5)), mark(0))
    writer.publish(staged(writer, rows(5, 5)), mark(1))
    first, second = shown(tmp_path)
    kept = Path(archive.files(tmp_path)[0])
    half = staged(writer, rows(10, 5))[0].path
    writer.close()
    second.unlink()  # committed, and not shown yet
    shutil.copy(kept, kept.with_name("0123456789ab-0000000002-0000.pq"))  # not committed
    shutil.copy(first, first.with_name("0123456789ab-0000000002-0000.parquet"))
    mine = first.with_name("mine.parquet")  # somebody else's
    shutil.copy(first, mine)
    writer = ArchiveWriter.open(tmp_path, MESSAGES)
    assert shown(tmp_path) == sorted([first, second, mine])
    assert len(list((tmp_path / FILES).rglob("*.pq"))) == 2
    assert not os.path.exists(half)
    assert numbers(tmp_path) == list(range(10))
    mine.unlink()
    assert plain_numbers(tmp_path) == list(range(10))
    writer.close()
    second.unlink()
    Path(archive.files(tmp_path)[1]).unlink()
    with pytest.raises(ArchiveError, match="is missing: restore it"):
        ArchiveWriter.open(tmp_path, MESSAGES)


def test_there_is_one_writer_and_one_stream(tmp_path: Path) -> None:
    writer = ArchiveWriter.open(tmp_path, MESSAGES)
    text = (
        "import sys; from busbar.jobs.archive_writer import ArchiveWriter\n"
        "try: ArchiveWriter.open(sys.argv[1], 'messages')\n"
        "except Exception as error: print(error)"
    )
    sources = str(Path(__file__).resolve().parents[3] / "src")
    done = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"is being written by process {os.getpid()} on" in done.stdout
    writer.close()
    with pytest.raises(ArchiveError, match="an archive of messages; events need a directory of their own"):
        ArchiveWriter.open(tmp_path, EVENTS)
    ArchiveWriter.open(tmp_path, MESSAGES).close()
    with pytest.raises(ArchiveError, match="is not an archive"):
        archive.files(tmp_path / "elsewhere")


def test_compaction_is_seen_by_nobody(tmp_path: Path) -> None:
    writer = ArchiveWriter.open(tmp_path, MESSAGES)
    for batch in range(4):
        writer.publish(staged(writer, rows(batch * 5, 5)), mark(batch))
    late = datetime(2099, 1, 1, 5, tzinfo=UTC)
    writer.publish(staged(writer, rows(20, 5, begins=late)), mark(4))
    before = archive.files(tmp_path)
    assert compact(writer, NOON + timedelta(minutes=59)) == 0, "the hour is not over"
    assert compact(writer, NOON + timedelta(hours=1)) == 4
    assert len(shown(tmp_path)) == 2
    assert numbers(tmp_path) == plain_numbers(tmp_path) == list(range(25))
    compacted = pq.ParquetFile(archive.files(tmp_path)[0]).read()
    assert compacted.column("sequence_number").to_pylist() == list(range(20)), "in the order of the batches"
    # A reader that had listed its files before reads them to the end.
    old = pa.concat_tables(pq.ParquetFile(path).read() for path in before)
    assert sorted(old.column("sequence_number").to_pylist()) == list(range(25))
    # What comes late for the hour joins it.
    writer.publish(staged(writer, rows(25, 5)), mark(5))
    assert compact(writer, NOON + timedelta(hours=1)) == 2
    assert compact(writer, NOON + timedelta(hours=1)) == 0
    assert numbers(tmp_path) == plain_numbers(tmp_path) == list(range(30))
    writer.close()
    # The grace period is over: what was replaced goes, at the next start at the latest.
    writer = ArchiveWriter.open(tmp_path, MESSAGES, grace=0)
    assert len(list((tmp_path / FILES).rglob("*.pq"))) == 2
    assert numbers(tmp_path) == list(range(30))
    writer.close()


def test_compaction_can_be_stopped_and_is_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = ArchiveWriter.open(tmp_path, MESSAGES)
    for batch in range(3):
        writer.publish(staged(writer, rows(batch * 5, 5)), mark(batch))
    answers = iter([False, False, True])
    assert compact(writer, LATER, lambda: next(answers)) == 0
    assert len(archive.files(tmp_path)) == 3
    writer.close()
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "replaced 3 files\n"
    assert numbers(tmp_path) == plain_numbers(tmp_path) == list(range(15))
    assert main([str(tmp_path / "nothing")]) == 1


def test_an_archive_can_be_moved_and_copied_without_its_second_names(tmp_path: Path) -> None:
    writer = ArchiveWriter.open(tmp_path / "a", MESSAGES)
    writer.publish(staged(writer, rows(0, 5)), mark(0))
    writer.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns(FILES))
    assert numbers(tmp_path / "b") == list(range(5))
    again = ArchiveWriter.open(tmp_path / "b", MESSAGES)
    assert again.identity == writer.identity
    again.close()
    assert numbers(tmp_path / "b") == list(range(5))


def test_rows_of_other_sessions_are_made_to_fit(tmp_path: Path) -> None:
    writer = ArchiveWriter.open(tmp_path, MESSAGES)
    batch = rows(0, 3)
    zone = pa.timestamp("us", tz="Europe/Berlin")
    fields = [field.with_type(zone) if pa.types.is_timestamp(field.type) else field for field in batch.schema]
    other = pa.Table.from_batches([batch]).cast(pa.schema(fields)).to_batches()
    writer.publish(staged(writer, *other), mark(0))
    assert str(shown(tmp_path)[0].parent).endswith("hour=12")
    assert numbers(tmp_path) == [0, 1, 2]
    writer.close()
