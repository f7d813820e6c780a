"""Writers that repeat their sends: which ids each has sent, and which of its batches are over.

Rules
- A writer sends in batches with rising numbers and may send a batch again, in whole or in part, in another order, however
  much later. A message whose id it has sent already is dropped like a duplicate. The id is made of the MessageId alone.
- The writer commits each batch (CommitWrites). Then the ids of the batches before that one are forgotten, and sends for
  those are refused: they come from a worker that was given up. Ids of the committed batch stay, since its writer may have
  died before it noted the commit itself.
- A writer ends for good by committing MAX_BATCH, the highest batch number. Its ids are deleted at once. Its row stays for
  FENCE_MS, to refuse late sends, and is deleted then.
- A fragment remembers a bounded number of writers, because a sender can name any number. When the bound is reached, new ones
  are refused.
- All this is written with the commit of the messages, beside the duplicate detection of the entity, which holds as well.

Marks. A mark is a row of the same kind, for what a fragment has taken from the outbox of another one (taking.py). Its name
has the other fragment, its batch is the highest number taken. It has no ids and does not count as a writer. A second row
has the fence of the last attempt that was refused, in whole or in part. When their fragment is gone and they are MARK_MS
old, both are deleted, never by time alone.

What is in memory. If a writer is new since the start, all its ids are in memory, so that its sends need no read. When they
become too many, and after a start or an undo, every send reads them from the store.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Changes
from busbar.fragment.ledger import Ledger
from busbar.fragment.reads import Read, ReadWritten
from busbar.model.commands import MAX_BATCH
from busbar.model.message import Draft

FENCE_MS: Final = 7 * 24 * 3_600_000
MARK_MS: Final = 3_600_000
MARK: Final = "\0"
"""The beginning of the names of marks and fences; no name of a writer begins with it."""
FENCE: Final = "\0fence/"


def fence_name(source: int) -> str:
    """The name of the row with the fence of the last refused attempt to move messages of another fragment here."""
    return f"{FENCE}{source}"


def mark_name(source: int) -> str:
    """The name of the mark for what this fragment has taken from the outbox of another one."""
    return f"{MARK}move/{source}"


def mark_source(name: str) -> int:
    """The fragment whose mark or fence has this name."""
    return int(name.rpartition("/")[2])


def written_id(message_id: str) -> bytes:
    """The id by which a writer's message is recognized; empty if it has no MessageId."""
    if not message_id:
        return b""
    return blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@final
class WriterState:
    def __init__(self, batch: i64, at: i64, complete: bool) -> None:
        self.batch = batch  # committed
        self.at = at  # when it was committed
        self.complete = complete  # `ids` has all that are remembered
        self.ids: dict[int, set[bytes]] = {}  # by batch


@final
class Writers:
    def __init__(self, bounds: Bounds, rows: dict[str, tuple[int, int]]) -> None:
        """`rows` are the store's: of each writer the committed batch, and when it was."""
        self._bounds = bounds
        self._writers: dict[str, WriterState] = {}
        self._count: i64 = 0  # ids in memory
        self._fence: i64 = 0  # when the first row goes; 0: never
        self._prepared: list[Draft] | None = None
        self._marks: dict[int, tuple[int, int]] = {}  # by source: what was taken of it, and when
        self._refused: dict[int, tuple[int, int]] = {}  # by source: the fence that was refused last, and when
        self._seen: dict[int, int] = {}  # by source: the highest fence, which may be in memory only
        self._ids: list[bytes] = []
        self._take(rows)

    def _take(self, rows: dict[str, tuple[int, int]]) -> None:
        for name, (batch, at) in rows.items():
            if name.startswith(MARK):
                self._take_mark(name, (batch, at))
            else:
                self._writers[name] = WriterState(batch, at, False)
        self._find_fence()

    def _take_mark(self, name: str, row: tuple[int, int]) -> None:
        """Take over a mark or a fence of the store."""
        source = mark_source(name)
        if name.startswith(FENCE):
            self._refused[source] = row
            self._seen[source] = max(self._seen.get(source, -1), row[0])
        else:
            self._marks[source] = row

    # ---- sends ----

    def reads(self, drafts: list[Draft], name: str, batch: i64) -> list[Read]:
        """The look-ups that decide which messages were sent before."""
        ids = self._prepare(drafts)
        writer = self._writers.get(name)
        if writer is None or writer.complete or batch < writer.batch:
            return []
        asked = [id for id in ids if id]
        return [ReadWritten(name, asked)] if asked else []

    def _prepare(self, drafts: list[Draft]) -> list[bytes]:
        self._prepared = drafts
        self._ids = [written_id(draft.message_id) for draft in drafts]
        return self._ids

    def ids_of(self, drafts: list[Draft]) -> list[bytes]:
        """The ids of the messages, in their order."""
        if self._prepared is drafts:
            return self._ids
        return self._prepare(drafts)

    def release(self) -> None:
        """Discard the prepared ids: their command is applied."""
        self._prepared = None

    def committed(self, name: str) -> i64:
        """The batch that the writer has committed: sends of those before are refused."""
        writer = self._writers.get(name)
        return 0 if writer is None else writer.batch

    def refusal(self, name: str) -> str:
        """Why a writer that is not known cannot be remembered; empty if it can, or is."""
        most = self._bounds.writers
        if name in self._writers or len(self._writers) < most:
            return ""
        return (
            f"The entity remembers {most} writers, which is the most it may; the writer '{name:.40}' would be one more. "
            "A writer that has said that it is done is forgotten after seven days."
        )

    def known(self, name: str, ids: list[bytes], supplied: list[Read]) -> set[bytes]:
        """Which of the ids the writer has sent before."""
        found: set[bytes] = set()
        for read in supplied:
            if isinstance(read, ReadWritten):
                found |= read.found
        writer = self._writers.get(name)
        if writer is not None:
            for batch in writer.ids.values():
                for id in ids:
                    if id in batch:
                        found.add(id)
        return found

    def remember(self, ledger: Ledger, name: str, batch: i64, ids: list[bytes], now: i64) -> None:
        """Remember the ids of messages that are sent."""
        writer = self._writers.get(name)
        if writer is None:
            writer = WriterState(0, now, True)
            self._writers[name] = writer
            ledger.set_writer(name, 0, now)  # from now on the store has a row of it
        ledger.written(name, batch, ids)
        if writer.complete:
            number: int = batch
            there = writer.ids.get(number)
            if there is None:
                there = set()
                writer.ids[number] = there
            there.update(ids)
            self._count += len(ids)
            if self._count > self._bounds.written_ids:
                self._leave_to_store(writer)

    def _leave_to_store(self, writer: WriterState) -> None:
        for ids in writer.ids.values():
            self._count -= len(ids)
        writer.ids = {}
        writer.complete = False

    # ---- commits of batches ----

    def commit(self, ledger: Ledger, name: str, batch: i64, now: i64) -> None:
        writer = self._writers.get(name)
        if writer is None:
            writer = WriterState(-1, now, True)
            self._writers[name] = writer
        if batch <= writer.batch:
            return
        writer.batch = batch
        writer.at = now
        ledger.set_writer(name, batch, now)
        over: int = batch
        for number in [number for number in writer.ids if number < over]:
            self._count -= len(writer.ids[number])
            del writer.ids[number]
        if batch >= MAX_BATCH and (self._fence == 0 or now + FENCE_MS < self._fence):
            self._fence = now + FENCE_MS

    def _find_fence(self) -> None:
        self._fence = 0
        for writer in self._writers.values():
            if writer.batch >= MAX_BATCH and (self._fence == 0 or writer.at + FENCE_MS < self._fence):
                self._fence = writer.at + FENCE_MS

    def due(self) -> i64:
        """When there is something to do in a tick; 0: never."""
        return self._fence

    def tick(self, ledger: Ledger, now: i64) -> None:
        """Forget writers that ended long ago."""
        if self._fence == 0 or self._fence > now:
            return
        for name, writer in list(self._writers.items()):
            if writer.batch >= MAX_BATCH and writer.at + FENCE_MS <= now:
                ledger.drop_writer(name)
                del self._writers[name]
        self._find_fence()

    # ---- marks ----

    def mark(self, source: i64) -> i64:
        """The highest number of another fragment's outbox that was taken here; 0: none."""
        found = self._marks.get(source)
        if found is None:
            return 0
        n: i64 = found[0]
        return n

    def set_mark(self, ledger: Ledger, source: i64, n: i64, now: i64) -> None:
        self._marks[source] = (n, now)
        ledger.set_writer(mark_name(source), n, now)

    def is_late(self, source: i64, fence: i64) -> bool:
        """Whether a command with this fence, or a higher one, was seen. This one counts as seen from now on."""
        highest = self._seen.get(source, -1)
        if fence <= highest:
            return True
        self._seen[source] = fence
        return False

    def keep_fence(self, ledger: Ledger, source: i64, fence: i64, now: i64) -> None:
        """Have the store remember the fence of an attempt that was refused, in whole or in part."""
        self._refused[source] = (fence, now)
        ledger.set_writer(fence_name(source), fence, now)

    def forget_marks(self, ledger: Ledger, sources: list[int], before: i64) -> None:
        """Forget the marks and fences of fragments that are gone, as far as they were set before a time."""
        for source in sources:
            mark, refused = self._marks.get(source), self._refused.get(source)
            if (mark is not None and mark[1] >= before) or (refused is not None and refused[1] >= before):
                continue
            if mark is not None:
                del self._marks[source]
                ledger.drop_writer(mark_name(source))
            if refused is not None:
                del self._refused[source]
                ledger.drop_writer(fence_name(source))
            if mark is not None or refused is not None:
                self._seen.pop(source, None)

    # ---- when commits have failed ----

    def rows(self) -> dict[str, tuple[int, int]]:
        found = {name: (int(writer.batch), int(writer.at)) for name, writer in self._writers.items()}
        for source, mark in self._marks.items():
            found[mark_name(source)] = mark
        for source, refused in self._refused.items():
            found[fence_name(source)] = refused
        return found

    def undo(self, batches: list[Changes], rows: dict[str, tuple[int, int]]) -> None:
        """Return to the rows of the store. Discarded ids may be in the store after all, so sends read it from now on."""
        doubtful: set[str] = set()
        for batch in batches:
            for name, _, _ in batch.written:
                doubtful.add(name)
            for name in batch.writers:
                doubtful.add(name)
        old = self._writers
        self._writers = {}
        self._marks = {}
        self._refused = {}
        self._count = 0
        self._prepared = None
        for name, row in rows.items():
            if name.startswith(MARK):
                self._take_mark(name, row)
                continue
            self._writers[name] = WriterState(row[0], row[1], False)
            before = old.get(name)
            if before is not None and before.complete and name not in doubtful:
                self._writers[name] = before
                for ids in before.ids.values():
                    self._count += len(ids)
        self._find_fence()
