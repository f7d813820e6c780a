"""Archives in object stores: a later writer takes over, whatever the earlier one does at that moment."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from busbar.jobs.archive import MESSAGES
from busbar.jobs.archive_files import ObjectFiles
from busbar.jobs.archive_location import ArchiveError, ArchiveLocation
from busbar.jobs.archive_writer import ArchiveWriter
from busbar.jobs.manifest import BatchMark, Contents, load_from
from busbar.jobs.object_archive import WRITERS, ArchiveTakenOver, ObjectWriter
from busbar.jobs.staged_files import StagedFile
from harness.object_store import ObjectStore
from tests.unit.jobs.archives import mark, rows, staged

SEEDS = 2000 if os.environ.get("BUSBAR_DEEP") == "1" else 60
BATCHES = 8


def files_at(path: Path) -> ObjectFiles:
    """The files of a directory without what a directory has beyond an object store."""
    return ObjectFiles(ArchiveLocation(str(path)))


class LostAnswers(ObjectFiles):
    """A store whose next answer to a write of a commit is lost; the write itself happens, or happens later."""

    def __init__(self, location: ArchiveLocation) -> None:
        super().__init__(location)
        self.lose = False
        self.late: list[tuple[str, bytes]] = []
        self.is_late = False
        self.lose_list = False

    def names(self, directory: str) -> list[str]:
        if self.lose_list and directory == WRITERS:
            self.lose_list = False
            raise ArchiveError("the store does not answer")
        return super().names(directory)

    def create(self, name: str, content: bytes) -> None:
        if self.lose and name.startswith("_manifest"):
            self.lose = False
            if self.is_late:
                self.late.append((name, content))
            else:
                super().create(name, content)
            raise ArchiveError("the store does not answer")
        super().create(name, content)


def opened(files: ObjectFiles, path: Path) -> ObjectWriter:
    writer = ObjectWriter(ArchiveLocation(str(path)), files, MESSAGES, 0.0)
    writer._put_in_order()
    return writer


def file_of(writer: ObjectWriter, name: str) -> StagedFile:
    """A data file of one row; the content does not matter."""
    staging = writer.stage("orders")
    path, sink = staging.begin("2026-01-31", 12)
    sink.write(name.encode())
    size = staging.finish(path, sink)
    return StagedFile(path, "2026-01-31", 12, 1, size)


def test_a_later_writer_takes_over(object_store: ObjectStore) -> None:
    url = f"{object_store.bucket()}/archive"
    first = ArchiveWriter.open(url, MESSAGES)
    first.publish(staged(first, rows(0, 5)), mark(0))
    waiting = staged(first, rows(5, 5))
    second = ArchiveWriter.open(url, MESSAGES)
    assert second.identity == first.identity
    assert second.progress("orders", "1", 1) == {0: 0}
    with pytest.raises(ArchiveTakenOver, match=r"is written by process \d+ on .*; this capture ends"):
        first.publish(waiting, mark(1))
    with pytest.raises(ArchiveTakenOver):
        first.publish(waiting, mark(1))
    second.publish(staged(second, rows(5, 5)), mark(1))
    third = ArchiveWriter.open(url, MESSAGES)
    assert sum(file.rows for file in third.files()) == 10
    for writer in (first, second, third):
        writer.close()


def test_a_store_that_is_not_there_is_one_sentence(object_store: ObjectStore) -> None:
    with pytest.raises(ArchiveError, match=r"^s3://no-such-bucket/archive cannot be "):
        ArchiveWriter.open("s3://no-such-bucket/archive", MESSAGES)
    with pytest.raises(ArchiveError, match=r"^s3://no-such-bucket/archive cannot be "):
        ArchiveWriter.open("s3://no-such-bucket/archive", MESSAGES, table_format="delta")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://host/archive", "ftp:// is no place for an archive"),
        ("s3://key:secret@bucket/archive", "has a password: give credentials in the environment"),
    ],
)
def test_wrong_urls_are_refused_without_their_secrets(url: str, sentence: str) -> None:
    with pytest.raises(ArchiveError) as raised:
        ArchiveLocation.parse(url)
    assert sentence in str(raised.value) and "secret@" not in str(raised.value)


def test_options_of_a_url_and_of_the_environment_reach_both_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    plain = ArchiveLocation.parse("s3://bucket/archive/")
    assert plain.name == "s3://bucket/archive" and plain.delta_options() == {}
    chosen = ArchiveLocation.parse("s3://bucket/a?endpoint_override=host:9000&scheme=http&region=eu-1")
    assert chosen.name == "s3://bucket/a"
    expected = {"AWS_ENDPOINT_URL": "http://host:9000", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "eu-1"}
    assert chosen.delta_options() == expected
    assert chosen.filesystem()[1] == "bucket/a"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://host:9001")
    monkeypatch.setenv("AWS_REGION", "eu-2")
    assert plain.delta_options() == {"AWS_ENDPOINT_URL": "https://host:9001", "AWS_REGION": "eu-2"}
    sent = ArchiveLocation(plain.for_workers)
    assert sent.name == plain.name and sent.delta_options() == plain.delta_options()
    assert ArchiveLocation.parse("file:///data/a%20b").path == Path("/data/a b")


@pytest.mark.parametrize("is_late", [False, True])
def test_a_lost_answer_neither_loses_nor_doubles(tmp_path: Path, is_late: bool) -> None:
    files = LostAnswers(ArchiveLocation(str(tmp_path)))
    files.is_late = is_late
    writer = opened(files, tmp_path)
    writer.publish([file_of(writer, "a")], mark(0))
    files.lose = True
    with pytest.raises(ArchiveError, match="does not answer"):
        writer.publish([file_of(writer, "b")], mark(1))
    # The query repeats the batch; the writer finds out whether the archive has it.
    writer.publish([file_of(writer, "b")], mark(1))
    for name, content in files.late:
        ObjectFiles.create(files, name, content)
    writer.publish([file_of(writer, "c")], mark(2))
    assert sum(file.rows for file in load_from(files).files.values()) == 3
    again = opened(files_at(tmp_path), tmp_path)
    assert len(again.files()) == 3 and again.progress("orders", "1", 1) == {0: 2}


def test_a_commit_that_was_not_confirmed_is_not_believed(tmp_path: Path) -> None:
    files = LostAnswers(ArchiveLocation(str(tmp_path)))
    writer = opened(files, tmp_path)
    epoch = writer.epoch
    files.lose_list = True
    with pytest.raises(ArchiveError, match="does not answer"):
        writer.publish([file_of(writer, "a")], mark(0))
    assert writer.has(mark(0)), "a new epoch has found it"
    assert writer.epoch > epoch
    writer.publish([file_of(writer, "a")], mark(0))
    assert len(load_from(files).files) == 1


# ---- every order of steps ------------------------------------------------------------------------


class Steps:
    """Lets one thread at a time do one operation of the store, in an order that a seed decides."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._turn = threading.Condition()
        self._waiting: set[str] = set()
        self._running = 0
        self._chosen: str | None = None

    def run(self, works: list[Callable[[], None]]) -> None:
        threads = [
            threading.Thread(target=self._guarded, args=(work,), name=str(index))
            for index, work in enumerate(works)
        ]
        self._running = len(threads)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._turn:
                self._running -= 1
                self._choose()

    def step(self) -> None:
        me = threading.current_thread().name
        with self._turn:
            self._waiting.add(me)
            self._choose()
            assert self._turn.wait_for(lambda: self._chosen == me, 60)
            self._chosen = None
            self._waiting.discard(me)

    def _choose(self) -> None:
        if self._chosen is None and self._waiting and len(self._waiting) == self._running:
            self._chosen = self._chance.choice(sorted(self._waiting))
            self._turn.notify_all()


class SteppedFiles(ObjectFiles):
    """A store whose operations wait for their turn."""

    def __init__(self, location: ArchiveLocation, steps: Steps) -> None:
        super().__init__(location)
        self._steps = steps

    def create(self, name: str, content: bytes) -> None:
        self._steps.step()
        super().create(name, content)

    def read(self, name: str) -> bytes:
        self._steps.step()
        return super().read(name)

    def names(self, directory: str) -> list[str]:
        self._steps.step()
        return super().names(directory)

    def delete(self, name: str) -> None:
        self._steps.step()
        super().delete(name)


class Capture:
    """A capture without Spark: it publishes what follows the progress of the archive, one position in a batch."""

    def __init__(self, name: str, path: Path, steps: Steps, confirmed: list[int], delay: int) -> None:
        self._delay = delay
        self._name = name
        self._path = path
        self._steps = steps
        self._confirmed = confirmed

    def __call__(self) -> None:
        query = self._name * 32
        for _ in range(self._delay):
            self._steps.step()
        try:
            writer = opened(SteppedFiles(ArchiveLocation(str(self._path)), self._steps), self._path)
            found = writer.progress("orders", "1", 1)
            position = 0 if found is None else found[0]
            for batch in range(BATCHES):
                position += 1
                writer.publish(
                    [file_of(writer, str(position))], BatchMark(query, batch, "orders", "1", {0: position})
                )
                self._confirmed.append(position)
        except ArchiveTakenOver:
            return


def rows_of(path: Path, contents: Contents) -> list[int]:
    """The positions in the data files that count."""
    return sorted(int((path / f"_files/{name}.pq").read_text()) for name in contents.files)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_writers_in_every_order_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    steps, confirmed, failures = Steps(seed), list[int](), list[BaseException]()

    def guarded(capture: Capture) -> Callable[[], None]:
        def work() -> None:
            try:
                capture()
            except BaseException as error:
                failures.append(error)

        return work

    chance = random.Random(seed)
    delays = {"a": 0, "b": chance.randrange(10, 50), "c": chance.randrange(10, 80)}
    steps.run([guarded(Capture(name, tmp_path, steps, confirmed, delays[name])) for name in "abc"])
    assert not failures, failures
    contents = load_from(files_at(tmp_path))
    there = rows_of(tmp_path, contents)
    assert there == list(range(1, len(there) + 1)), "every position once, without gaps"
    assert set(confirmed) <= set(there), "a confirmed batch is there"
    assert len(confirmed) == len(set(confirmed)), "no two writers confirmed the same position"
    assert there, "one of them has written"
    last = opened(files_at(tmp_path), tmp_path)
    assert len(list((tmp_path / "_files").rglob("*.pq"))) == len(there), "nothing else is left"
    assert len(list((tmp_path / WRITERS).iterdir())) == 1
    last.close()
