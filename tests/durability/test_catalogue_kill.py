"""`kill -9` of the writer of a catalogue amid its writes, again and again on the same file.

Every change that was answered is there, and the one under way as a whole or not at all.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from busbar.store.catalogue_contract import CatalogueContent
from busbar.store.sqlite.catalogue import catalogue_in

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 100 if os.environ.get("BUSBAR_DEEP") == "1" else 5
ENTRIES = 20
"""Entries of one change. All have the number of the change as their value."""
WRITER = f"""
import sys
from pathlib import Path
from busbar.store.sqlite.catalogue import catalogue_in
store = catalogue_in(Path(sys.argv[1])).open()
store.claim()
number = store.read_all().version
while True:
    number += 1
    store.write(number, {{f"e{{i}}": str(number).encode() for i in range({ENTRIES})}})
    print(number, flush=True)
"""

pytestmark = pytest.mark.timeout(120)


def test_a_change_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    place = catalogue_in(tmp_path)
    place.create(CatalogueContent("n"))
    last = 0
    for _ in range(ROUNDS):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        ) as writer:
            assert writer.stdout is not None
            for _ in range(random.randrange(1, 50)):
                last = int(writer.stdout.readline())
            time.sleep(random.uniform(0, 0.01))
            writer.kill()
            last = max([last, *map(int, writer.stdout.read().split())])
        store = place.open()
        store.claim()
        found = store.read_all()
        assert found.version in (last, last + 1)
        assert {entry.value for entry in found.entries.values()} == {str(found.version).encode()}
        assert len(found.entries) == ENTRIES and {e.version for e in found.entries.values()} == {
            found.version
        }
        made = store.changes_since(last)
        assert made is not None and len(made) == found.version - last
        last = found.version
        store.close()
