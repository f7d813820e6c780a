"""Archives in every place and format: a directory, an S3 server, and Delta tables in both. One suite for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from busbar.jobs import archive
from busbar.jobs.archive import EVENTS, MESSAGES
from busbar.jobs.archive_files import ObjectFiles
from busbar.jobs.archive_location import ArchiveError, ArchiveLocation
from busbar.jobs.archive_writer import ArchiveWriter
from busbar.jobs.compaction import compact, main
from busbar.jobs.manifest import BatchMark
from busbar.jobs.replay_source import hours_there, identity_of
from busbar.spark.secrets import Secret
from harness.object_store import ObjectStore
from tests.unit.jobs.archives import NOON, QUERY, mark, rows, staged

ENTITY = "sales/orders"


@dataclass(frozen=True)
class Place:
    """Where an archive is, and its format."""

    text: str
    table_format: str

    def open(self, stream: str = MESSAGES, **options: float) -> ArchiveWriter:
        return ArchiveWriter.open(self.text, stream, table_format=self.table_format, **options)

    def names(self) -> list[str]:
        """All data files, those that no reader finds too."""
        files = ObjectFiles(ArchiveLocation.parse(self.text))
        return [name for name in files.names("") if name.endswith((".pq", ".parquet"))]


@pytest.fixture(params=["directory", "s3", "delta", "delta-s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    table_format = "delta" if "delta" in request.param else "parquet"
    if "s3" not in request.param:
        return Place(str(tmp_path / "archive"), table_format)
    store: ObjectStore = request.getfixturevalue("object_store")
    return Place(f"{store.bucket()}/some/archive", table_format)


def publish(writer: ArchiveWriter, batch: int, first: int, count: int = 5, begins: datetime = NOON) -> None:
    files = staged(writer, rows(first, count, begins=begins), entity=ENTITY)
    writer.publish(files, mark(batch, ENTITY))


def numbers(place: Place) -> list[int]:
    found: list[int] = archive.dataset(place.text).to_table().column("sequence_number").to_pylist()
    return sorted(found)


def test_rows_have_their_hour_and_entity(place: Place) -> None:
    writer = place.open()
    batch = rows(0, 4, begins=NOON - timedelta(minutes=1), step=timedelta(minutes=20))
    writer.publish(staged(writer, batch, entity=ENTITY), mark(0, ENTITY))
    writer.close()
    table = archive.dataset(place.text).to_table().sort_by("sequence_number")
    assert table.column("hour").to_pylist() == [11, 12, 12, 12]
    assert table.column("date").to_pylist() == [date(2026, 1, 31)] * 4
    assert table.column("entity").to_pylist() == [ENTITY] * 4
    assert table.column("body").to_pylist() == [f"body {number}".encode() for number in range(4)]
    assert [file.rows for file in archive.archived(place.text)] == [1, 3]
    assert {archive.entity_of(file) for file in archive.archived(place.text)} == {ENTITY}
    assert all("://" in path or Path(path).exists() for path in archive.files(place.text))


def test_a_batch_is_there_once_however_often_it_comes(place: Place) -> None:
    writer = place.open()
    assert writer.progress(ENTITY, "1", 1) is None
    publish(writer, 0, 0)
    publish(writer, 1, 5)
    assert writer.has(mark(1, ENTITY)) and not writer.has(mark(2, ENTITY))
    publish(writer, 1, 5)
    writer.close()
    # Another process has the progress from the archive alone.
    writer = place.open()
    assert writer.progress(ENTITY, "1", 1) == {0: 1}
    assert writer.progress(ENTITY, "another incarnation", 1) is None
    assert writer.progress("another entity", "1", 1) is None
    assert writer.has(mark(1, ENTITY))
    publish(writer, 1, 5)
    publish(writer, 2, 10)
    writer.close()
    assert numbers(place) == list(range(15))


def test_what_no_commit_names_is_not_there(place: Place) -> None:
    writer = place.open()
    publish(writer, 0, 0)
    staged(writer, rows(5, 5), entity=ENTITY)  # and the process ends here
    assert numbers(place) == list(range(5))
    writer.close()
    writer = place.open(grace=0.0)
    publish(writer, 1, 5)
    assert numbers(place) == list(range(10))
    writer.close()
    if place.table_format == "parquet":  # Delta keeps it for a week
        assert len({Path(name).stem for name in place.names()}) == 2, "the next writer has deleted the rest"


def test_compaction_keeps_every_row(place: Place) -> None:
    writer = place.open()
    for batch in range(3):
        publish(writer, batch, batch * 5)
    publish(writer, 3, 15, begins=datetime(2099, 1, 1, 5, tzinfo=UTC))
    before = archive.dataset(place.text)
    assert compact(writer, NOON + timedelta(minutes=59)) == 0, "the hour is not over"
    assert compact(writer, NOON + timedelta(hours=1)) == 3
    assert [file.rows for file in archive.archived(place.text)] == [15, 5]
    assert numbers(place) == list(range(20))
    assert before.count_rows() == 20, "a reader that had listed its files reads them to the end"
    (first, _) = archive.archived(place.text)
    order = archive.dataset(place.text).to_table(columns=["sequence_number", "hour"])
    compacted = [row["sequence_number"] for row in order.to_pylist() if row["hour"] == 12]
    assert compacted == list(range(15)), "in the order of the batches"
    # What comes late for the hour joins it, also in another process.
    publish(writer, 4, 20)
    writer.close()
    assert main([place.text]) == 0
    assert [file.rows for file in archive.archived(place.text)] == [20, 5]
    assert first.path not in {file.path for file in archive.archived(place.text)}
    writer = place.open(grace=0.0)
    assert numbers(place) == list(range(25))
    writer.close()
    if place.table_format == "parquet":
        assert len({Path(name).stem for name in place.names()}) == 2, "replaced files are gone"


def test_an_archive_has_one_stream_and_one_format(place: Place) -> None:
    place.open().close()
    with pytest.raises(ArchiveError, match="an archive of messages; events need a directory of their own"):
        place.open(EVENTS)
    other = "delta" if place.table_format == "parquet" else "parquet"
    with pytest.raises(ArchiveError, match=f"is an archive of the format {place.table_format}, not {other}"):
        ArchiveWriter.open(place.text, MESSAGES, table_format=other)
    writer = ArchiveWriter.open(place.text, MESSAGES)  # the format is that of the archive
    assert writer.identity == archive.identity(place.text)
    writer.close()
    assert archive.is_archive(place.text) and not archive.is_archive(f"{place.text}-elsewhere")
    with pytest.raises(ArchiveError, match="is not an archive"):
        archive.files(f"{place.text}-elsewhere")


def test_several_fragments_and_entities_have_their_own_progress(place: Place) -> None:
    writer = place.open()
    first = BatchMark(QUERY, 0, ENTITY, "1", {0: 7, 1: 0, 2: 9})
    writer.publish(staged(writer, rows(0, 3), entity=ENTITY), first)
    writer.publish(staged(writer, rows(3, 3), entity="bills"), BatchMark("f" * 32, 0, "bills", "1", {0: 3}))
    assert writer.progress(ENTITY, "1", 3) == {0: 7, 1: 0, 2: 9}
    assert writer.progress("bills", "1", 1) == {0: 3}
    assert not writer.has(BatchMark(QUERY, 1, ENTITY, "1", {0: 7, 1: 2, 2: 9}))
    writer.close()
    assert numbers(place) == list(range(6))


def test_replay_finds_the_hours(place: Place) -> None:
    writer = place.open()
    publish(writer, 0, 0)
    writer.close()
    assert hours_there(place.text) == [f"{ENTITY}: 2026-01-31T12:00Z to 2026-01-31T13:00Z, 5 messages"]
    assert identity_of(place.text, Secret(variable="UNUSED"), 1.0) == writer.identity.id
