"""Journals whose files were changed at random: what is read is what was written, or the damage is noticed.

Only a change that leaves no complete record behind it may look like a torn last record. BUSBAR_DEEP=1 reads a million.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from busbar.store.journal.changes_decoder import JournalDamaged
from busbar.store.journal.journal import SegmentedJournal
from busbar.store.journal.segment import HEADER_SIZE, RECORD_SIZE, Segment
from busbar.store.journal.segment_names import segments_of
from busbar.store.sqlite.journal_state import JournalState

IMAGES = 1_000_000 if os.environ.get("BUSBAR_DEEP") == "1" else 3_000
RECORDS = 30
SIZE = HEADER_SIZE + 3_000
IN_MEMORY = Path("/dev/shm")
STATE = JournalState(b"j" * 16, 0, is_closed=False)


@pytest.fixture
def path() -> Iterator[Path]:
    with TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as directory:
        yield Path(directory) / "j"


class Image:
    """The files of a journal, its records, and where each of them is."""

    def __init__(self, path: Path) -> None:
        chance = Random(1)
        self.bodies = [chance.randbytes(chance.randint(0, 500)) for _ in range(RECORDS)]
        journal = SegmentedJournal(path, SIZE)
        list(journal.recover(JournalState(STATE.journal, 0, is_closed=True), 1))
        journal.begin(STATE.journal)
        for body in self.bodies:
            journal.append(body)
        journal.close()
        self.files = {file: file.read_bytes() for file in segments_of(path)}
        self.places: list[tuple[Path, int, int]] = []
        for file in self.files:
            segment = Segment.open(file)
            self.places += [(file, r.start, r.start + RECORD_SIZE + len(r.body)) for r in segment.read()]
            segment.close()

    def allowed(self, file: Path, changed: bytes) -> list[list[bytes]]:
        """What may be read if this file is so."""
        before = self.files[file]
        damaged = [
            place
            for place, (where, start, end) in enumerate(self.places)
            if where == file and before[start:end] != changed[start:end]
        ]
        if damaged and damaged == list(range(damaged[0], RECORDS)):
            return [self.bodies[: damaged[0]]]
        return [] if damaged else [self.bodies]


def change(chance: Random, content: bytes, other: bytes) -> bytes:
    """Some bytes of a file, changed as disks and copies do."""
    at = chance.randrange(len(content))
    length = chance.choice((1, 4, 64, 512))
    kind = chance.randrange(5)
    if kind == 0:
        new = bytes([content[at] ^ 1 << chance.randrange(8)])
    elif kind == 1:
        new = bytes(length)
    elif kind == 2:
        new = chance.randbytes(length)
    elif kind == 3:  # a block of another file, as after a mistaken copy
        at = at // 512 * 512
        new = other[at : at + 512]
    else:  # a piece of the same file, so that there are valid records in wrong places
        start = chance.randrange(len(content))
        new = content[start : start + chance.randint(1, 700)]
    return (content[:at] + new + content[at + len(new) :])[: len(content)]


def test_any_change_is_harmless_or_noticed(path: Path) -> None:
    image = Image(path)
    assert len(image.files) > 2
    files = list(image.files)
    refused = 0
    for seed in range(IMAGES):
        chance = Random(seed)
        file, other = chance.choice(files), chance.choice(files)
        changed = change(chance, image.files[file], image.files[other])
        file.write_bytes(changed)
        journal = SegmentedJournal(path, SIZE)
        try:
            found = [record.body for record in journal.recover(STATE, 2)]
            assert found in image.allowed(file, changed), f"seed {seed}: {len(found)} records"
        except JournalDamaged:
            refused += 1
        finally:
            journal.close()
            for each in segments_of(path):
                if each not in image.files:
                    each.unlink()
            file.write_bytes(image.files[file])
    assert IMAGES // 10 < refused < IMAGES
