"""The manifest: commits in order, sums of them, and readers that look at it while it is written."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from busbar.jobs.archive_files import LocalFiles
from busbar.jobs.manifest import (
    DIRECTORY,
    SUM_EVERY,
    ArchivedFile,
    ArchiveError,
    BatchMark,
    Commit,
    Manifest,
    load,
)


def added(number: int) -> Commit:
    mark = BatchMark("query", number, "orders", "1", {0: number * 10})
    return Commit(number, (ArchivedFile(f"hour/file{number}", 1, 100),), (), mark)


def test_what_was_committed_is_there(tmp_path: Path) -> None:
    manifest = Manifest(LocalFiles(tmp_path))
    manifest.commit(added(0))
    manifest.commit(added(1))
    manifest.commit(Commit(7, (ArchivedFile("hour/both", 2, 150),), ("hour/file0", "hour/file1")))
    found = load(tmp_path)
    assert found == manifest.contents
    assert list(found.files) == ["hour/both"]
    assert found.removed == {"hour/file0": 7, "hour/file1": 7}
    assert found.batches == {"query": 1}
    assert found.reached["orders"].positions == {0: 10}
    assert Manifest(LocalFiles(tmp_path)).contents == found


def test_sums_replace_old_commits(tmp_path: Path) -> None:
    manifest = Manifest(LocalFiles(tmp_path))
    for number in range(3 * SUM_EVERY + 1):
        manifest.commit(added(number))
    names = sorted(path.name for path in (tmp_path / DIRECTORY).iterdir())
    assert len(names) == SUM_EVERY + 1 + 2, "the last two sums, and the commits since the first of them"
    assert load(tmp_path) == manifest.contents
    assert len(load(tmp_path).files) == 3 * SUM_EVERY + 1


def test_no_number_is_given_twice(tmp_path: Path) -> None:
    one, other = Manifest(LocalFiles(tmp_path)), Manifest(LocalFiles(tmp_path))
    one.commit(added(0))
    with pytest.raises(ArchiveError, match="another process writes"):
        other.commit(added(0))
    assert len(load(tmp_path).files) == 1


def test_a_reader_beside_the_writer_sees_a_state_that_was(tmp_path: Path) -> None:
    manifest = Manifest(LocalFiles(tmp_path))
    over = threading.Event()
    seen: list[int] = []
    failures: list[BaseException] = []

    def look() -> None:
        try:
            while not over.is_set():
                found = load(tmp_path)
                assert len(found.files) == found.number
                seen.append(found.number)
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(4 * SUM_EVERY):
        manifest.commit(added(number))
    over.set()
    reader.join()
    assert not failures
    assert seen == sorted(seen)


def test_damage_is_said(tmp_path: Path) -> None:
    manifest = Manifest(LocalFiles(tmp_path))
    for number in range(3):
        manifest.commit(added(number))
    second = tmp_path / DIRECTORY / "000000000002.json"
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(ArchiveError, match="gaps"):
        load(tmp_path)
    second.write_bytes(b"{")
    with pytest.raises(ArchiveError, match=r"000000000002\.json is damaged"):
        load(tmp_path)
    second.write_text(json.dumps(json.loads(kept) | {"busbar": 9}))
    with pytest.raises(ArchiveError, match="newer Busbar"):
        load(tmp_path)
