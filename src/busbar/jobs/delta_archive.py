"""An archive as a Delta table, in a directory or an object store, by the `deltalake` library.

    entity=…/date=…/hour=…/*.parquet    the data, partitioned as every archive is
    _delta_log                          what belongs to the table

Tasks write files under names that are never used twice, and a commit to the table adds them. The commit also records how far
the capture has come. It has an application transaction for each fragment, whose version is the last position that the table
holds. So a batch is in the table with its positions or not at all, and a batch that is repeated is recognized.

If two captures write at a time, Delta refuses a commit whose application has committed since the snapshot of its writer. A
writer also compares the positions that it expects with those of the table, because its own commits move its snapshot.

Compaction adds and removes files in one commit, without a change of data. Files that no version of the last week names are
vacuumed, among them what killed captures have left.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from busbar.jobs import durable_files
from busbar.jobs.archive_files import ObjectFiles
from busbar.jobs.archive_identity import DELTA_LOG, EVENTS, MESSAGES, SHOWN_SUFFIX, ArchiveIdentity, format_of
from busbar.jobs.archive_location import ArchiveError, ArchiveLocation
from busbar.jobs.archive_writer import ArchiveWriter, check_rows, now_ms
from busbar.jobs.fault_points import reached
from busbar.jobs.manifest import ArchivedFile, BatchMark
from busbar.jobs.staged_files import StagedFile, StagedObjects

PARTITIONS = ["entity", "date", "hour"]
NAME = "busbar-"
VACUUM_SECONDS = 24 * 3600.0


class DeltaWriter(ArchiveWriter):
    """The writer of an archive that is a Delta table."""

    def __init__(self, location: ArchiveLocation, identity: ArchiveIdentity, table: Any) -> None:
        super().__init__(location, identity)
        self._table = table
        self._files = ObjectFiles(location)
        self._expected: dict[str, int | None] = {}
        self._vacuumed: float | None = None

    @classmethod
    def opened(cls, location: ArchiveLocation, stream: str) -> DeltaWriter:
        _library()
        if format_of(location) is None:
            _create(location, stream)
        identity = delta_identity(location)
        identity.check(stream, location.name)
        return cls(location, identity, delta_table(location))

    def stage(self, entity: str, *, compacted: bool = False) -> StagedObjects:
        stem = f"{'compacted-' if compacted else ''}{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
        return StagedObjects(self.location.text, entity, stem)

    def progress(self, entity: str, incarnation: str, fragments: int) -> Mapping[int, int] | None:
        with self._turn:
            found = {
                index: version
                for index in range(fragments)
                if (version := self._version(self._application(entity, incarnation, index))) is not None
            }
            return found or None

    def has(self, mark: BatchMark) -> bool:
        with self._turn:
            versions = {app: self._version(app) for app in self._positions(mark)}
            return all(
                version is not None and version >= position
                for (app, position) in self._positions(mark).items()
                for version in [versions[app]]
            )

    def publish(self, staged: Sequence[StagedFile], mark: BatchMark) -> None:
        from deltalake import Transaction

        with self._turn:
            if self.has(mark):
                return
            positions = self._positions(mark)
            for application in positions:
                if self._table.transaction_version(application) != self._version(application):
                    raise self._other_writer(mark.entity)
            reached("before-commit")
            transactions = [Transaction(app, position) for app, position in positions.items()]
            self._commit([self._added(file, mark.entity, True) for file in staged], transactions, mark.entity)
            self._expected |= positions
            reached("before-place")

    def files(self) -> list[ArchivedFile]:
        with self._turn:
            self._table.update_incremental()
            return archived_files(self._table)

    def source(self, file: ArchivedFile) -> Any:
        return self._files.source(file.path + SHOWN_SUFFIX)

    def replace(self, old: Sequence[ArchivedFile], staged: Sequence[StagedFile], entity: str) -> None:
        from deltalake.transaction import RemoveAction

        check_rows(old, staged, entity)
        added = [self._added(file, entity, False) for file in staged]
        values = added[0].partition_values
        with self._turn:
            reached("inside-compaction")
            removed = [
                RemoveAction(
                    path=file.path + SHOWN_SUFFIX,
                    data_change=False,
                    deletion_timestamp=now_ms(),
                    partition_values=values,
                    size=file.bytes,
                )
                for file in old
            ]
            self._commit([*added, *removed], [], entity)
            reached("before-replace")

    def drop_replaced(self) -> None:
        """Vacuum the table, once a day: files that Delta keeps for earlier versions stay for a week."""
        with self._turn:
            if self._vacuumed is None or time.monotonic() - self._vacuumed > VACUUM_SECONDS:
                self._vacuumed = time.monotonic()
                self._table.vacuum(dry_run=False, full=True)

    # ----------------------------------------------------------------------------------------------

    def _application(self, entity: str, incarnation: str, index: int) -> str:
        return f"busbar-capture {self.identity.id} {entity} {incarnation} {index}"

    def _positions(self, mark: BatchMark) -> dict[str, int]:
        """By application, the position that the table holds with this batch."""
        return {
            self._application(mark.entity, mark.incarnation, index): position
            for index, position in mark.positions.items()
        }

    def _version(self, application: str) -> int | None:
        """The position that this writer has found when it asked first, or has committed since."""
        if application not in self._expected:
            self._expected[application] = self._table.transaction_version(application)
        return self._expected[application]

    def _added(self, file: StagedFile, entity: str, is_new: bool) -> Any:
        from deltalake.transaction import AddAction

        values = {"entity": entity, "date": file.date, "hour": str(file.hour)}
        stats = json.dumps({"numRecords": file.rows})
        return AddAction(file.path + SHOWN_SUFFIX, file.bytes, values, now_ms(), is_new, stats)

    def _commit(self, actions: list[Any], transactions: list[Any], entity: str) -> None:
        from deltalake import CommitProperties
        from deltalake.exceptions import CommitFailedError, DeltaError

        table = self._table
        properties = CommitProperties(app_transactions=transactions or None)
        try:
            table.create_write_transaction(
                actions, "append", table.schema(), PARTITIONS, commit_properties=properties
            )
        except CommitFailedError as error:
            raise self._other_writer(entity) from error
        except (DeltaError, OSError) as error:
            raise ArchiveError(f"{self.location.name} cannot be written: {_first_line(error)}") from error
        table.update_incremental()
        if not self.location.is_remote:
            log = self.location.path / DELTA_LOG
            durable_files.sync_file(log / f"{table.version():020d}.json")
            durable_files.sync_directories({log}, self.location.path)

    def _other_writer(self, entity: str) -> ArchiveError:
        return ArchiveError(
            f"Another process has written {entity!r} to {self.location.name}: one capture of an entity at a time. "
            "This one ends, and nothing is lost."
        )


def delta_table(location: ArchiveLocation) -> Any:
    """The table at a location. Raises ArchiveError."""
    library = _library()
    try:
        return library.DeltaTable(_uri(location), storage_options=location.delta_options() or None)
    except (library.exceptions.DeltaError, OSError) as error:
        raise ArchiveError(f"{location.name} cannot be read: {_first_line(error)}") from error


def delta_identity(location: ArchiveLocation) -> ArchiveIdentity:
    """The identity of a table that a capture has created. Raises ArchiveError for other tables."""
    metadata = delta_table(location).metadata()
    stream = str(metadata.name or "").removeprefix(NAME)
    if stream not in (MESSAGES, EVENTS):
        raise ArchiveError(f"{location.name} is a Delta table that no capture has created.")
    return ArchiveIdentity(str(metadata.id).replace("-", ""), stream)


def archived_files(table: Any) -> list[ArchivedFile]:
    """The files of a table now. Delta writes paths as parts of URLs."""
    import pyarrow as pa

    found = pa.table(table.get_add_actions(flatten=True)).select(["path", "num_records", "size_bytes"])
    return [
        ArchivedFile(unquote(row["path"]).removesuffix(SHOWN_SUFFIX), row["num_records"], row["size_bytes"])
        for row in found.to_pylist()
    ]


def _create(location: ArchiveLocation, stream: str) -> None:
    import pyarrow as pa

    from busbar.jobs.archive import arrow_schema

    library = _library()
    columns = [*arrow_schema(stream), pa.field("date", pa.date32()), pa.field("hour", pa.int32())]
    if not location.is_remote:
        location.path.mkdir(parents=True, exist_ok=True)
    try:
        library.DeltaTable.create(
            _uri(location),
            library.Schema.from_arrow(pa.schema(columns)),
            partition_by=PARTITIONS,
            name=NAME + stream,
            storage_options=location.delta_options() or None,
        )
    except (library.exceptions.DeltaError, OSError) as error:
        if format_of(location) is None:  # and not created by another process just now
            raise ArchiveError(f"{location.name} cannot be created: {_first_line(error)}") from error


def _uri(location: ArchiveLocation) -> str:
    return location.name if location.is_remote else str(location.path.absolute())


def _library() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError:
        raise ArchiveError(
            "An archive that is a Delta table needs the deltalake library: pip install 'busbar-mq[delta]'."
        ) from None
    return deltalake


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
