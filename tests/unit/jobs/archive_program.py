"""A capture without Spark, as a program that can be killed: it publishes what follows the progress of the archive.

    python archive_program.py ARCHIVE FORMAT

Each line of standard input is a run in a process of its own: a fault point (or `none`), and the last position. Positions are
messages with these sequence numbers, three in a batch. After every second batch it compacts. The status of each process is a
line of standard output. Processes are forked, because the imports take most of the time.
"""

from __future__ import annotations

import os
import sys
import uuid
from datetime import timedelta

from busbar.jobs.archive import MESSAGES
from busbar.jobs.archive_writer import ArchiveWriter
from busbar.jobs.compaction import compact
from busbar.jobs.fault_points import VARIABLE, reached_when_written
from busbar.jobs.manifest import BatchMark
from busbar.jobs.parquet_files import write_task
from busbar.jobs.staged_files import StagedFile
from tests.unit.jobs.archives import NOON, rows

SIZE = 3


def capture(archive: str, table_format: str, last: int) -> None:
    writer = ArchiveWriter.open(archive, MESSAGES, table_format=table_format)
    query = uuid.uuid4().hex
    found = writer.progress("orders", "1", 1)
    position = 0 if found is None else found[0]
    batch = 0
    while position < last:
        staging = writer.stage("orders")
        watch = reached_when_written("mid-write", staging.has_data)
        results = write_task(iter([rows(position + 1, SIZE)]), staging, MESSAGES)
        staged = [StagedFile(**row) for result in results for row in result.to_pylist()]
        if watch is not None:
            watch.join()
        position += SIZE
        writer.publish(staged, BatchMark(query, batch, "orders", "1", {0: position}))
        batch += 1
        if batch % 2 == 0:
            compact(writer, NOON + timedelta(hours=1))
    writer.close()


def main(archive: str, table_format: str) -> None:
    import busbar.spark.decode  # noqa: F401

    for line in sys.stdin:
        point, last = line.split()
        child = os.fork()
        if child == 0:
            os.environ[VARIABLE] = point
            capture(archive, table_format, int(last))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
