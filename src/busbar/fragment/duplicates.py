"""Duplicate detection: the ids that a fragment remembers, in memory and in its store.

Rules
- A message's id is its MessageId together with its session id or partition key. The commit of the message stores the id. It
  is remembered for the entity's window, from when the message is sent, or scheduled. A message whose id is remembered is
  dropped, and its sender gets the answer of a successful send. What became of the first message does not matter.
- The window is applied when a message comes. After a change, the new window also holds for existing ids.
- A refused message leaves no id. Of two in one send the second is a duplicate of the first.

Where ids are
- All ids are in the store, in segments (changes.py). A segment is named by the time at which it was begun. The next one is
  begun when it is full, or with a new generation.
- A filter (bloom_filter.py) finds without a read that an id is new. Its generations are a seventh of the window long. A
  generation ends when it is as old as that, or full. It is cleared when all its segments are gone.
- When a generation is full, the filter grows as well. If no generation is free, the newest one continues, and more ids than
  necessary are looked up in the store.
- The last few thousand ids are also in memory, so that a retry of a client costs no read.
- If the filter finds an id, it is looked up in the store, in the segments of the generations that the filter found.

After a start the filter is filled again from the store, page by page, in ticks. Until a segment has been read, every new
id is looked up on it.

After an undo the filter still has the ids that were undone. That is harmless: the look-up in the store does not find them.
If the commit was made after all, the filter must have them.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.bloom_filter import GENERATIONS, ROOM, RotatingBloomFilter
from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Changes, IdRow
from busbar.fragment.reads import Read, ReadIdPage, ReadIds
from busbar.model.effects import Done, Effect, MovedTaken, Sent
from busbar.model.message import Draft

LATEST: Final = 100
"""How many of the latest drops are listed."""
GROWTH: Final = 4
SEGMENTS: Final = 64
"""How many segments a full generation has: fewer are faster to search, more are faster to write."""
NOW: Final = 1
"""A time that has come."""
ALL: Final = (1 << GENERATIONS) - 1

Known = tuple[int, int]
"""When a message came, and its number."""


def id_of(draft: Draft) -> bytes:
    """The id by which a message is recognized; empty if it has no MessageId."""
    if not draft.message_id:
        return b""
    key = draft.session_id if draft.session_id is not None else draft.partition_key or ""
    text = f"{len(key)}:{key}{draft.message_id}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@final
class IdSegment:
    def __init__(self, number: i64, generation: i64, loaded: bool) -> None:
        self.number = number
        self.generation = generation
        self.loaded = loaded  # its ids are in the filter
        self.count: i64 = 0
        self.last: i64 = 0  # when the last id came


@final
class DuplicateDetector:
    def __init__(self, bounds: Bounds, segments: list[int], remembered: i64, dropped: i64) -> None:
        """`segments` are those of the store, rising; `remembered` is the approximate number of ids on them."""
        self.dropped = dropped
        self.latest: deque[tuple[str, int, int]] = deque(maxlen=LATEST)
        self._bounds = bounds
        self._segments: list[IdSegment] = [IdSegment(number, 0, False) for number in segments]
        self._expected = remembered
        self._filter: RotatingBloomFilter | None = None
        # Generations
        self._began: list[int] = [0] * GENERATIONS
        self._counts: list[int] = [0] * GENERATIONS
        self._used: i64 = 0  # one bit for each generation that is in the filter
        self._generation: i64 = -1  # the newest, to which new ids go
        self._open: IdSegment | None = None
        self._clearing: i64 = 0
        self._clear_at: i64 = 0
        # Loading
        self._unloaded: i64 = len(segments)
        self._after = b""  # the last id that was loaded of the first segment that is not
        self._loading_generation: i64 = -1
        # Forgetting
        self._floor: i64 = -1  # this segment and those below have expired
        self._sweeping = False
        # Ids that are known exactly
        self._recent: dict[bytes, Known] = {}
        self._older: dict[bytes, Known] = {}
        self._found: dict[bytes, Known] = {}
        self._prepared: list[Draft] | None = None
        self._ids: list[bytes] = []

    # ---- a message comes ----

    def reads(self, drafts: list[Draft]) -> list[Read]:
        """The look-ups that decide which messages are duplicates."""
        ids = self._prepare(drafts)
        table = self._filter
        loaded = self._unloaded == 0
        recent = self._recent
        older = self._older
        unsure: dict[int, list[bytes]] = {}
        for id in ids:
            if not id:
                continue
            generations: i64 = 0
            if table is not None:
                generations = table.generations_of(id)
            if (generations == 0 and loaded) or id in recent or id in older:
                continue
            unsure.setdefault(generations, []).append(id)
        reads: list[Read] = []
        for generations, some in unsure.items():
            segments = self._segments_of(generations)
            if segments:  # none: those that had them are forgotten
                reads.append(ReadIds(some, segments))
        return reads

    def _prepare(self, drafts: list[Draft]) -> list[bytes]:
        self._prepared = drafts
        self._ids = [id_of(draft) for draft in drafts]
        return self._ids

    def _segments_of(self, generations: i64) -> list[int]:
        return [
            segment.number
            for segment in self._segments
            if not segment.loaded or (generations >> segment.generation) & 1 == 1
        ]

    def ids_of(self, drafts: list[Draft], supplied: list[Read]) -> list[bytes]:
        """The ids of the messages, in their order, with what was read about them at hand for `original`."""
        self._found = {}
        for read in supplied:
            if isinstance(read, ReadIds):
                self._found.update(read.found)
        if self._prepared is drafts:
            return self._ids
        return self._prepare(drafts)

    def release(self) -> None:
        """Discard the prepared ids: their command is applied."""
        self._prepared = None

    def original(self, id: bytes, horizon: i64) -> i64:
        """The number of the message that came with this id after a time; -1: there is none."""
        known = self._recent.get(id)
        if known is None:
            known = self._older.get(id)
            if known is None:
                known = self._found.get(id)
                if known is None:
                    return -1
        at: i64 = known[0]
        if at <= horizon:
            return -1
        n: i64 = known[1]
        return n

    def remember(self, id: bytes, now: i64, n: i64, window: i64, rows: list[IdRow]) -> None:
        """Remember the id of a message that is not a duplicate; the row to be written is added to `rows`."""
        segment = self._open
        if segment is None or (not rows and self._is_over(segment, now, window)):
            segment = self._begin_segment(now, window)
        segment.count += 1
        segment.last = now
        table = self._filter
        if table is not None:
            table.add(id, segment.generation)
        self._counts[segment.generation] += 1
        self._recent[id] = (now, n)
        rows.append((segment.number, id, now, n))

    def note_drop(self, draft: Draft, now: i64, n: i64) -> None:
        self.dropped += 1
        self.latest.append((draft.message_id, now, n))

    def rotate(self) -> None:
        """Make the recent ids the older ones, if they are many. Called after a send, which needs its own ids in memory."""
        self._found = {}
        if len(self._recent) >= self._bounds.recent_ids:
            self._older = self._recent
            self._recent = {}

    # ---- segments and generations ----

    def _is_over(self, segment: IdSegment, now: i64, window: i64) -> bool:
        table = self._filter
        if table is None or segment.count >= self._segment_room(table):
            return True
        return self._generation_is_over(table, now, window) and self._free_generation() >= 0

    def _segment_room(self, table: RotatingBloomFilter) -> i64:
        room = table.size // (ROOM * SEGMENTS)
        return room if room > self._bounds.segment_ids else self._bounds.segment_ids

    def _generation_is_over(self, table: RotatingBloomFilter, now: i64, window: i64) -> bool:
        generation = self._generation
        if generation < 0 or now - self._began[generation] >= window // (GENERATIONS - 1):
            return True
        return self._generation_is_full(table)

    def _generation_is_full(self, table: RotatingBloomFilter) -> bool:
        return self._generation >= 0 and self._counts[self._generation] >= table.size // ROOM

    def _free_generation(self) -> i64:
        for generation in range(GENERATIONS):
            if (self._used >> generation) & 1 == 0:
                return generation
        return -1

    def _begin_segment(self, now: i64, window: i64) -> IdSegment:
        table = self._filter
        if table is None:
            table = RotatingBloomFilter(self._first_size())
            self._filter = table
        if self._generation_is_over(table, now, window):
            free = self._free_generation()
            if free >= 0:
                if self._generation_is_full(table) and table.size * GROWTH <= self._bounds.filter_most:
                    table.grow(GROWTH)
                    self._clear_at = 0  # the copies have to be cleared as well
                self._use(free, now)
                self._generation = free
        number = now
        if self._segments and number <= self._segments[-1].number:
            number = self._segments[-1].number + 1
        if number <= self._floor:
            number = self._floor + 1
        segment = IdSegment(number, self._generation, True)
        self._segments.append(segment)
        self._open = segment
        return segment

    def _use(self, generation: i64, began: i64) -> None:
        self._used |= i64(1) << generation
        self._began[generation] = began
        self._counts[generation] = 0

    def _first_size(self) -> i64:
        """The size for the ids of the store, spread over all generations of a window but one, and half as much again."""
        size = self._bounds.filter_bytes
        while (
            size // ROOM * (GENERATIONS - 2) < self._expected * 3 // 2
            and size * GROWTH <= self._bounds.filter_most
        ):
            size *= GROWTH
        return size

    # ---- time passes ----

    def due(self, window: i64) -> i64:
        """When there is something to do in a tick; 0: never."""
        if self._unloaded > 0 or self._sweeping or self._clearing != 0:
            return NOW
        if not self._segments:
            return 0
        when = self._segments[0].last + window
        return when if when > NOW else NOW

    def tick_reads(self, now: i64, window: i64) -> list[Read]:
        """What a tick needs: the next page for the filter, or of the ids that have expired."""
        self._expire(now, window)
        if self._unloaded > 0:
            number = self._segments[self._first_unloaded()].number
            return [ReadIdPage(number, self._after, self._bounds.id_page)]
        if self._sweeping:
            return [ReadIdPage(0, b"", self._bounds.expired_ids)]
        return []

    def tick(self, supplied: list[Read], now: i64, window: i64) -> list[IdRow]:
        """Do a part of the pending work. Returns ids to be forgotten, in order: they are the lowest of the store."""
        gone: list[IdRow] = []
        if self._clearing != 0:
            self._clear()
        for read in supplied:
            if isinstance(read, ReadIdPage):
                if self._unloaded > 0:
                    self._load(read, window)
                elif self._sweeping:
                    gone = self._sweep(read)
        self._expire(now, window)
        return gone

    # Loading

    def _first_unloaded(self) -> i64:
        index: i64 = 0
        while self._segments[index].loaded:
            index += 1
        return index

    def _load(self, page: ReadIdPage, window: i64) -> None:
        """Put a page of ids into the filter. A segment is loaded when the page goes beyond it."""
        table = self._filter
        if table is None:
            table = RotatingBloomFilter(self._first_size())
            self._filter = table
        segments = self._segments
        index = self._first_unloaded()
        segment = segments[index]
        for number, id, at, _n in page.rows:
            while segment.number < number:
                self._loaded(segment)
                if self._unloaded == 0:
                    return
                index += 1
                segment = segments[index]
            if segment.count == 0:
                segment.generation = self._generation_for_loading(number, window)
            table.add(id, segment.generation)
            self._counts[segment.generation] += 1
            segment.count += 1
            if at > segment.last:
                segment.last = at
            self._after = id
        if len(page.rows) < page.limit:  # nothing lies behind
            while self._unloaded > 0:
                self._loaded(segments[index])
                index += 1

    def _loaded(self, segment: IdSegment) -> None:
        segment.loaded = True
        self._unloaded -= 1
        self._after = b""

    def _generation_for_loading(self, began: i64, window: i64) -> i64:
        """The generation for a segment that is loaded. It is a little longer, so that one is left for new ids."""
        generation = self._loading_generation
        if generation >= 0 and began - self._began[generation] < window // (GENERATIONS - 2):
            return generation
        free = self._free_generation()
        if free < 0 or (generation >= 0 and self._generation < 0 and self._used | (i64(1) << free) == ALL):
            return generation if generation >= 0 else 0
        self._use(free, began)
        self._loading_generation = free
        return free

    # Forgetting

    def _expire(self, now: i64, window: i64) -> None:
        """Drop segments whose ids have all expired: they are swept from the store, and their generations cleared."""
        segments = self._segments
        count: i64 = 0
        while count < len(segments) and self._has_expired(count, now - window):
            segment = segments[count]
            self._floor = segment.number
            if not segment.loaded:
                self._unloaded -= 1
                self._after = b""
            count += 1
        if count == 0:
            return
        self._sweeping = True
        del segments[:count]
        if segments:
            self._let_go_of_generations()
        else:
            self._start_afresh()

    def _has_expired(self, index: i64, horizon: i64) -> bool:
        """Whether all ids of a segment have expired. If it was not loaded, its ids came before the next one was begun."""
        segment = self._segments[index]
        if segment.loaded:
            return segment.last <= horizon
        return index + 1 < len(self._segments) and self._segments[index + 1].number <= horizon

    def _let_go_of_generations(self) -> None:
        if self._clearing != 0:
            return
        needed: i64 = 0
        for segment in self._segments:
            if segment.count > 0:
                needed |= i64(1) << segment.generation
        self._clearing = self._used & ~needed
        self._clear_at = 0
        if self._loading_generation >= 0 and (self._clearing >> self._loading_generation) & 1 == 1:
            self._loading_generation = -1

    def _start_afresh(self) -> None:
        self._filter = None
        self._expected = 0
        self._used = 0
        self._clearing = 0
        self._generation = -1
        self._loading_generation = -1
        self._open = None
        self._recent = {}
        self._older = {}

    def _clear(self) -> None:
        table = self._filter
        if table is not None:
            stop = self._clear_at + self._bounds.filter_slice
            if stop < table.size:
                table.clear(self._clearing, self._clear_at, stop)
                self._clear_at = stop
                return
            table.clear(self._clearing, self._clear_at, table.size)
        self._used &= ~self._clearing
        self._clearing = 0
        self._let_go_of_generations()  # of those that expired meanwhile

    def _sweep(self, page: ReadIdPage) -> list[IdRow]:
        gone: list[IdRow] = []
        floor = self._floor
        for row in page.rows:
            if row[0] > floor:
                break
            gone.append(row)
        if len(gone) < page.limit:
            self._sweeping = False
        return gone

    # ---- when commits have failed ----

    def undo(self, batches: list[Changes], effects: list[Effect]) -> None:
        """Remove discarded ids from memory. Drops whose answers were discarded are not counted."""
        for batch in batches:
            for row in batch.ids:
                self._recent.pop(row[1], None)
                self._older.pop(row[1], None)
            if batch.ids_upto is not None:
                self._sweeping = True
        for effect in effects:
            dropped: i64 = 0
            if isinstance(effect, Sent):
                dropped = len(effect.duplicates)
            elif isinstance(effect, (MovedTaken, Done)):
                dropped = effect.dropped
            while dropped > 0:
                dropped -= 1
                self.dropped -= 1
                if self.latest:
                    self.latest.pop()
        self._prepared = None
