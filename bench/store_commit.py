"""What a durable commit of the embedded store costs, beside raw synced appends of the same bytes in the same run.

    python -m bench.store_commit [--seconds 20] [--directory DIR]

For each number of messages per commit: messages per second and CPU-µs per message (system time included), and the ratio
of the time to that of the raw log. The ratio is what to compare between machines; the rest depends on the disk.

Then the same with the copies of a topic, whose consumers keep up. The cost is that of a message with all its copies, and
the ratio is to a message of a queue. It should be at most 3 with ten subscriptions and 25 with a hundred.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from busbar.fragment.changes import Changes, Head, MessageEdit
from busbar.fragment.reads import ReadPage
from busbar.model.message import ACTIVE, DEAD, LANES, Record
from busbar.store.contract import Store
from busbar.store.journal.store import JournalStore
from busbar.store.sqlite.store import SqliteStore

CASES = ((1, 1024), (10, 1024), (100, 1024), (1000, 1024), (100, 65_536), (20, 262_144))
TOPIC_COMMITS = (1, 10)
"""Messages; a commit has so many for each subscription, and at most 1,000 copies."""
SUBSCRIPTIONS = (1, 10, 100)
KEPT = 4  # commits that stay in the queue while it is in motion


@dataclass(frozen=True, slots=True)
class Cost:
    wall: float  # µs per message
    cpu: float


def measure(step: Callable[[], None], messages: int, seconds: float) -> Cost:
    """Repeat a step of so many messages for a while; the first ones warm up."""
    for _ in range(2):
        step()
    began, cpu = time.perf_counter(), time.process_time()
    rounds = 0
    while rounds < 5 or time.perf_counter() - began < seconds:
        step()
        rounds += 1
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    return Cost(wall / rounds / messages * 1e6, cpu / rounds / messages * 1e6)


def raw_log(directory: Path, count: int, body: bytes) -> Iterator[Callable[[], None]]:
    file = os.open(directory / "raw.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def step() -> None:
        if os.lseek(file, 0, os.SEEK_CUR) > 256 << 20:
            os.lseek(file, 0, os.SEEK_SET)
        os.write(file, body * count)
        os.fdatasync(file)

    yield step
    os.close(file)
    (directory / "raw.log").unlink()


class Queue:
    """One fragment of a store, and the steps that are measured."""

    def __init__(self, store: Store, count: int, body: bytes) -> None:
        self.store = store
        self.store.claim()
        self.count = count
        self.body = body
        # A record of the journal has a bytes object once, so each message has one of its own.
        self.bodies = [bytes(bytearray(body)) for _ in range(count)]
        self.first = self.last = 0
        self.dead = 0

    def _commit(self, changes: Changes) -> None:
        waiting = self.last - self.first
        changes.head = Head(1, self.last, [waiting] + [0] * (LANES - 1), waiting * len(self.body))
        self.store.commit([changes])

    def _put(self, changes: Changes) -> None:
        size, last = len(self.body), self.last
        changes.puts[ACTIVE] = [
            Record(last + k, 1_700_000_000_000, 0, 0, 0, size, body, None)
            for k, body in enumerate(self.bodies, 1)
        ]
        self.last += self.count

    def put(self) -> None:
        changes = Changes(1)
        self._put(changes)
        self._commit(changes)

    def cycle(self) -> None:
        """Put as many as are completed."""
        changes = Changes(1)
        self._put(changes)
        if self.last - self.first > KEPT * self.count:
            changes.deletes[ACTIVE] = list(range(self.first + 1, self.first + self.count + 1))
            self.first += self.count
        self._commit(changes)

    def cycle_and_read(self) -> None:
        """Put as many as are completed, and read the page that follows, as a queue does whose window is empty."""
        self.cycle()
        self.store.read(1, [ReadPage(ACTIVE, self.last - self.count + 1, self.count, 1 << 40)])

    def dead_letter(self) -> None:
        if self.last - self.first < self.count:
            self._rewind()
        changes = Changes(1)
        numbers = range(self.first + 1, self.first + self.count + 1)
        changes.edits = [
            MessageEdit(ACTIVE, n, DEAD, 1, {"DeadLetterReason": b"\xa1\x04test"}) for n in numbers
        ]
        self.first += self.count
        self._commit(changes)

    def _rewind(self) -> None:
        """Move all back to the active lane, in one commit."""
        changes = Changes(1)
        changes.edits = [MessageEdit(DEAD, n, ACTIVE, 0, None) for n in range(self.dead + 1, self.first + 1)]
        self.first = self.dead
        self.store.commit([changes])

    def read(self) -> None:
        page = ReadPage(ACTIVE, self.first + 1, self.count, 1 << 40)
        self.store.read(1, [page])
        assert len(page.records) == self.count

    def prepare(self, commits: int) -> None:
        for _ in range(commits):
            self.put()
        self.dead = self.first


class Topic:
    """The fragments of a topic's subscriptions: a commit has the copies of its messages, which share their bytes."""

    def __init__(self, store: Store, count: int, body: bytes, subscriptions: int) -> None:
        self.store = store
        self.store.claim()
        self.count = count
        self.body = body
        self.fragments = range(1, subscriptions + 1)
        self.last = 0

    def cycle(self) -> None:
        """Put as many as are completed."""
        contents = [bytes(bytearray(self.body)) for _ in range(self.count)]
        numbers = range(self.last + 1, self.last + self.count + 1)
        done = self.last - KEPT * self.count
        self.last += self.count
        batches = []
        for fragment in self.fragments:
            changes = Changes(fragment)
            size = len(self.body)
            changes.puts[ACTIVE] = [
                Record(n, 1_700_000_000_000, 0, 0, 0, size, content, None)
                for n, content in zip(numbers, contents, strict=True)
            ]
            if done >= 0:
                changes.deletes[ACTIVE] = list(range(done + 1, done + self.count + 1))
            waiting = min(self.last, (KEPT + 1) * self.count)
            changes.head = Head(fragment, self.last, [waiting] + [0] * (LANES - 1), waiting * size)
            batches.append(changes)
        self.store.commit(batches)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--seconds", type=float, default=20.0, help="about how long the whole run takes")
    arguments.add_argument("--directory", type=Path, default=None, help="where to write (a real disk)")
    given = arguments.parse_args()
    each = given.seconds / (len(CASES) * 6.5)
    print("per commit  bytes   step                       msg/s   CPU-µs/msg   time/raw log   CPU/raw log")
    for count, size in CASES:
        with tempfile.TemporaryDirectory(dir=given.directory) as name:
            _case(Path(name), count, size, each)
    print("\nper commit  store     subscriptions       CPU-µs/msg   to a queue")
    for count in TOPIC_COMMITS:
        for kind, make in (("SQLite", SqliteStore), ("journal", JournalStore)):
            _topics(kind, make, count, each, given.directory)


def _topics(
    kind: str, make: Callable[[Path], Store], count: int, each: float, directory: Path | None
) -> None:
    queue = 0.0
    for subscriptions in SUBSCRIPTIONS:
        with tempfile.TemporaryDirectory(dir=directory) as name:
            store = make(Path(name) / "store.db")
            cost = measure(Topic(store, count, os.urandom(1024), subscriptions).cycle, count, each).cpu
            store.release()
        queue = queue or cost
        print(f"{count:10}  {kind:<8}{subscriptions:15}{cost:17.1f}{cost / queue:13.2f}", flush=True)


def _case(directory: Path, count: int, size: int, each: float) -> None:
    body = os.urandom(size)
    for step in raw_log(directory, count, body):
        raw = measure(step, count, each)
        _line(count, size, "raw synced log", raw, raw)
    stores: dict[str, Store] = {
        "SQLite": SqliteStore(directory / "store.db"),
        "journal": JournalStore(directory / "other.db"),
    }
    for name, store in stores.items():
        queue = Queue(store, count, body)
        for label, step in (
            ("put + complete", queue.cycle),
            ("the same and read", queue.cycle_and_read),
            ("put", queue.put),
        ):
            _line(count, size, f"{name}, {label}", measure(step, count, each), raw)
        queue.prepare(max(3, min(50, 5000 // count, (32 << 20) // (count * size))))
        for label, step in (("dead-letter", queue.dead_letter), ("read a page", queue.read)):
            if label == "read a page":
                queue._rewind()
            _line(count, size, f"{name}, {label}", measure(step, count, each / 2), raw)
        store.release()


def _line(count: int, size: int, label: str, cost: Cost, raw: Cost) -> None:
    times = f"{cost.wall / raw.wall:12.2f} × {cost.cpu / raw.cpu:11.2f} ×"
    print(f"{count:10}{size:8}   {label:24}{1e6 / cost.wall:9,.0f}{cost.cpu:12.1f}   {times}", flush=True)


if __name__ == "__main__":
    main()
