"""How long a store with a long journal takes to open, beside reading and checking the same bytes.

    python -m bench.recovery [--megabytes 256] [--directory DIR]

Once all messages in the journal were completed, and once none. The ratio is what to compare between machines.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import zlib
from pathlib import Path

from busbar.fragment.changes import Changes, Head
from busbar.model.message import ACTIVE, LANES, Record
from busbar.store.journal import store as journal_store
from busbar.store.journal.segment_names import segments_of
from busbar.store.journal.store import JournalStore

GROUP = 1_000
BODIES = [os.urandom(1024) for _ in range(GROUP)]  # a record has the same object only once
CHUNK = 1 << 20


def fill(path: Path, size: int, *, completed: bool) -> int:
    """Leave a journal of about this size, as a killed process does; returns its messages."""
    store = JournalStore(path)
    store.claim()
    last = 0
    while last * (len(BODIES[0]) + 21) < size:
        changes = Changes(1)
        changes.puts[ACTIVE] = [
            Record(last + k, 1, 0, 0, 0, len(body), body, None) for k, body in enumerate(BODIES, 1)
        ]
        if completed and last:
            changes.deletes[ACTIVE] = list(range(last - GROUP + 1, last + 1))
        last += GROUP
        changes.head = Head(1, last, [0] * LANES, 0)
        store.commit([changes])
    store.close()
    return last


def read_and_check(files: list[Path]) -> int:
    """Read the files as they are; returns their bytes."""
    total = 0
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                zlib.crc32(chunk)
                total += len(chunk)
    return total


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--megabytes", type=int, default=256)
    arguments.add_argument("--directory", type=Path, default=None, help="where to write (a real disk)")
    given = arguments.parse_args()
    # Nothing is moved before the end, so that all of it is recovered.
    usual = journal_store.MAX_PENDING
    for bound in ("MAX_JOURNAL", "GENERATION_JOURNAL"):
        setattr(journal_store, bound, 1 << 40)
    print("completed   MiB   messages   read s   open s    ratio")
    for completed in (True, False):
        with tempfile.TemporaryDirectory(dir=given.directory) as name:
            path = Path(name) / "store.db"
            setattr(journal_store, "MAX_PENDING", 1 << 40)  # noqa: B010
            messages = fill(path, given.megabytes << 20, completed=completed)
            setattr(journal_store, "MAX_PENDING", usual)  # noqa: B010
            began = time.perf_counter()
            size = read_and_check(segments_of(path))
            read = time.perf_counter() - began
            store = JournalStore(path)
            began = time.perf_counter()
            store.claim()
            opened = time.perf_counter() - began
            store.release()
            share = "all" if completed else "none"
            print(
                f"{share:9}{size >> 20:6}{messages:11,}{read:9.2f}{opened:9.2f}{opened / read:8.1f} ×",
                flush=True,
            )


if __name__ == "__main__":
    main()
