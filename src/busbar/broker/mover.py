"""Moves messages from outboxes to the fragments that they are for. Pure: effects come in, commands go out.

A pair is a source fragment and one of the fragments that it has messages for. The source keeps them in its outbox, the
target keeps a mark: the number of the last one that it took. The mover keeps nothing that could not be lost.

Rules:
1. OutboxReady begins the work on a pair: pull a page, let the target take it, remove what it took, pull the next page. An
   empty page ends it.
2. The target never has two TakeMoved of a pair. While it takes a large page, the page behind that one is pulled ahead, if
   the bytes of rule 8 allow it. It is offered only if the target has taken the whole page before it, else it is dropped.
   Otherwise one command of a pair is unanswered at a time.
3. Nothing is removed but by the answer of the target. RemoveMoved and the next PullOutbox go out in one submit, and so do
   all TakeMoved of a turn: they share commits.
4. After a busy or an uncertain answer the pair is held. It is pulled again after MIN_PAUSE_MS, which doubles up to
   MAX_PAUSE_MS, or as soon as the store that failed is open again. The source gets the list of targets that cannot be
   reached.
5. If the target is full, the pair is held as well, and one record is tried each second. When that has lasted for the
   patience, a whole page is tried each second. The source decides by the refusals what it keeps for how long.
6. If there is no such target, the mover asks the catalogue. If the catalogue does not have the fragment either, the mover
   reports to the source that the target is gone.
7. The fence of a TakeMoved rises with every attempt, and with the epoch of the source's store. So a target can distinguish
   a command that was given up from the one that took its place. A store that was re-created begins with a low epoch. If a
   target has seen a higher fence, that epoch is raised here, with pauses of MIN_PAUSE_MS, until the target takes messages
   again.
8. A page has at most BATCH_RECORDS or BATCH_BYTES, and all pages under way at most `max_bytes`; only a single larger message
   may exceed that. The first page of a pair is small, and each has at most GROWTH times as much as the one before. Pairs
   that are ready take turns.
9. The source decides what becomes of a record that was refused. If it is still the first one of the next page, the pair is
   held as in rule 4.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import Final

from busbar.message.content import draft_of
from busbar.model.commands import (
    AvoidTargets,
    Command,
    PullOutbox,
    RemoveMoved,
    TakeMoved,
    fence_of,
)
from busbar.model.effects import MOVER_ORIGIN, Effect, MovedTaken, OutboxPage, OutboxReady, Refused
from busbar.model.errors import BusbarError, EntityNotFound, InvalidOperation, MalformedMessage, QuotaExceeded
from busbar.model.message import Draft

BATCH_RECORDS: Final = 3_000
BATCH_BYTES: Final = 3 * 1024 * 1024
FIRST_BYTES: Final = 64 * 1024
"""Of the first page of a pair: many pairs with few messages each are pulled at the same time."""
GROWTH: Final = 16
"""So much more the next page of a pair may have. Senders must not outrun the mover before its pages are large."""
AHEAD_BYTES: Final = 512 * 1024
"""A page of this size is large: a sender keeps the pair busy."""
MAX_BYTES: Final = 16 * 1024 * 1024
MIN_PAUSE_MS: Final = 100
MAX_PAUSE_MS: Final = 5_000
FULL_PAUSE_MS: Final = 1_000
LOGGED_AFTER_MS: Final = 60_000
MAX_RAISE: Final = 1 << 24

# Why a pair is held.
FULL: Final = "full"
UNAVAILABLE: Final = "unavailable"
MISSING: Final = "missing"
REFUSED: Final = "refused"

_log = logging.getLogger(__name__)


class _State(Enum):
    READY = "ready"  # waits for its turn to be pulled
    PULLING = "pulling"
    TAKING = "taking"
    ASKING = "asking"  # the catalogue, whether the target is there
    HELD = "held"


class _Pair:
    """The work on one source and one target."""

    __slots__ = (
        "ahead", "ahead_request", "bytes", "cause", "full_since", "held_since", "kind", "logged", "numbers", "oldest",
        "page_bytes", "path", "pause", "ready_again", "reason", "refusal", "refused_at", "retry_at", "source",
        "source_failed", "source_path", "state", "target",
    )  # fmt: skip

    def __init__(self, source: int, target: int) -> None:
        self.source = source
        self.target = target
        self.state = _State.READY
        self.path = ""  # of the target
        self.source_path = ""
        self.bytes = 0  # of the pages under way, or what they may have
        self.page_bytes = FIRST_BYTES  # what the next page may have
        self.numbers: list[int] = []  # of the records that were offered to the target last
        self.oldest = 0  # when the first of them came into the outbox
        self.kind = 0  # of its move
        self.ready_again = False  # OutboxReady came while a page was asked for
        self.ahead_request = 0  # for the page behind the one that the target takes; 0: none is asked for
        self.ahead: OutboxPage | None = None  # that page
        # Of a pair that is held, and until something is taken:
        self.held_since = 0
        self.retry_at = 0
        self.pause = 0
        self.reason = ""
        self.cause = ""
        self.source_failed = False
        self.full_since = 0
        self.refused_at = 0  # the record that was refused last
        self.refusal = ""
        self.logged = False


@dataclass(frozen=True, slots=True)
class TargetQuestion:
    """A question to the catalogue: is there an entity at this path with this fragment? `Mover.answer` gets the answer."""

    source: int
    target: int
    path: str


@dataclass(frozen=True, slots=True)
class PairStatus:
    """What the mover does with a pair. Times are those of the mover's clock."""

    source: int
    target: int
    path: str
    source_path: str
    is_held: bool
    since: int
    """Since when it is held."""
    oldest: int
    """When its first record came into the outbox, by the time in the record; 0: not known."""
    kind: int
    """Of the move of its first record: FORWARD, DEAD_FORWARD or VIA; 0: not known."""
    cause: str
    """FULL, UNAVAILABLE, MISSING or REFUSED."""
    reason: str


class Mover:
    """The moves out of all fragments of a process. Its times come from a clock that never goes back."""

    def __init__(
        self,
        epoch_of: Callable[[int], int],
        patience_ms: int = 60_000,
        max_bytes: int = MAX_BYTES,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        """`epoch_of` is the epoch of the store of a source fragment."""
        self.patience_ms = patience_ms
        """For targets that are full."""
        self._epoch_of = epoch_of
        self._max_bytes = max_bytes
        self._ahead_bytes = ahead_bytes
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._requests: dict[int, _Pair] = {}
        self._ready: deque[_Pair] = deque()
        self._timers: list[tuple[int, int, _Pair]] = []  # a heap; the second number breaks ties
        self._last_timer = 0
        self._raised: dict[int, int] = {}  # by source: what its epoch is raised by
        self._unreachable: dict[int, set[int]] = {}  # by source: targets
        self._commands: list[Command] = []
        self._questions: list[TargetQuestion] = []
        self._last_request = 0
        self._attempts = 0
        self._bytes = 0
        self.moved = 0
        """Records that targets took, since the start."""

    # ---- what goes out ----

    def take_commands(self, now: int) -> list[Command]:
        """All commands of this turn, in their order."""
        ready = self._ready
        while ready and (not self._bytes or self._bytes + ready[0].page_bytes <= self._max_bytes):
            self._pull(ready.popleft(), now)
        commands, self._commands = self._commands, []
        return commands

    def take_questions(self) -> list[TargetQuestion]:
        questions, self._questions = self._questions, []
        return questions

    def wake_at(self) -> int:
        """When `wake` is to be called (0: not until something happens)."""
        while self._timers and not self._is_current(self._timers[0]):
            heappop(self._timers)
        return self._timers[0][0] if self._timers else 0

    def status(self) -> list[PairStatus]:
        """The state of all pairs that have something to move."""
        return [
            PairStatus(
                pair.source,
                pair.target,
                pair.path,
                pair.source_path,
                pair.held_since != 0,
                pair.held_since,
                pair.oldest,
                pair.kind,
                pair.cause,
                pair.reason,
            )
            for pair in self._pairs.values()
        ]

    # ---- what comes in ----

    def handle(self, effects: Iterable[Effect], now: int) -> None:
        for effect in effects:
            if type(effect) is OutboxReady:
                self._on_ready(effect)
                continue
            pair = self._requests.pop(effect.request, None)
            if pair is None:
                continue
            if effect.request == pair.ahead_request:
                self._on_ahead(pair, effect, now)
            elif type(effect) is OutboxPage:
                self._on_page(pair, effect, now)
            elif type(effect) is MovedTaken:
                self._on_taken(pair, effect, now)
            elif type(effect) is Refused:
                self._on_refused(pair, effect, now)

    def wake(self, now: int) -> None:
        """Try the pairs whose pause is over again."""
        while self._timers and self._timers[0][0] <= now:
            timer = heappop(self._timers)
            if self._is_current(timer):
                self._resume(timer[2])

    def on_store_open(self, has: Callable[[int], bool]) -> None:
        """Try the pairs of a store that is open again; it `has` these fragments. Pairs whose target is full stay held."""
        for pair in self._pairs.values():
            if pair.state is _State.HELD and not pair.full_since and (has(pair.source) or has(pair.target)):
                pair.pause = 0
                self._resume(pair)

    def on_store_left(self, has: Callable[[int], bool]) -> None:
        """Drop the pairs of sources that another process moves from now on: it has their store, with these fragments."""
        for pair in [pair for pair in self._pairs.values() if has(pair.source)]:
            self._drop_ahead(pair)
            self._reserve(pair, 0)
            pair.state = _State.READY  # and so its timer is not current
            del self._pairs[pair.source, pair.target]
            self._unreachable.pop(pair.source, None)
            self._raised.pop(pair.source, None)
        self._requests = {one: pair for one, pair in self._requests.items() if not has(pair.source)}
        self._ready = deque([pair for pair in self._ready if not has(pair.source)])
        self._commands = [one for one in self._commands if type(one) is TakeMoved or not has(one.fragment)]

    def answer(self, question: TargetQuestion, exists: bool | None, now: int) -> None:
        """Take the answer to a question: whether its target exists. None: the catalogue could not be asked."""
        pair = self._pairs.get((question.source, question.target))
        if pair is None or pair.state is not _State.ASKING:
            return
        if exists is not False:
            self._hold(pair, MISSING, EntityNotFound(pair.path).text, now)
            self._avoid(pair)
            return
        gone = EntityNotFound(pair.path)
        self._remove(pair, 0, len(pair.numbers), gone.condition, gone.text)
        self._reach(pair)
        self._make_ready(pair)

    # ---- a pair ----

    def _on_ready(self, effect: OutboxReady) -> None:
        key = (effect.fragment, effect.target)
        pair = self._pairs.get(key)
        if pair is None:
            pair = self._pairs[key] = _Pair(*key)
            self._ready.append(pair)
            return
        # The fragment may have been loaded again, and then it has lost the list of unreachable targets.
        if effect.fragment in self._unreachable:
            self._tell_source(effect.fragment)
        if pair.state is _State.PULLING:
            pair.ready_again = True
        elif pair.state is _State.HELD and pair.source_failed:
            pair.pause = 0
            self._resume(pair)

    def _pull(self, pair: _Pair, now: int) -> None:
        is_full = pair.full_since and now - pair.full_since < self.patience_ms
        count = 1 if is_full else BATCH_RECORDS
        pair.state = _State.PULLING
        pair.ready_again = False
        self._reserve(pair, pair.page_bytes)
        request = self._new_request(pair)
        self._commands.append(
            PullOutbox(pair.source, MOVER_ORIGIN, request, pair.target, count, pair.page_bytes)
        )

    def _on_page(self, pair: _Pair, page: OutboxPage, now: int) -> None:
        if not page.records:
            self._reserve(pair, 0)
            if pair.ready_again:
                self._make_ready(pair)
            else:
                self._forget(pair)
            return
        pair.path, pair.source_path = page.path, page.source
        if pair.refused_at:  # rule 9
            if page.records[0].n == pair.refused_at:
                self._hold(pair, REFUSED, pair.refusal, now)
                return
            self._end_hold(pair)
        self._offer(pair, page, now)

    def _offer(self, pair: _Pair, page: OutboxPage, now: int) -> None:
        """Let the target take a page. All records before it are taken, or were refused and are gone."""
        pair.oldest, pair.kind = page.records[0].enqueued, page.records[0].kind
        drafts, failure = _drafts_of(page)
        if failure is not None and not drafts:
            # No target was ever offered it: what cannot be read now could not be read before.
            pair.numbers = [page.records[0].n]
            self._remove(pair, 0, 1, failure.condition, failure.text)
            self._make_ready(pair)
            return
        pair.numbers = [record.n for record in page.records[: len(drafts)]]
        size = sum([len(draft.content) for draft in drafts])
        pair.page_bytes = min(max(size * GROWTH, FIRST_BYTES), BATCH_BYTES)
        self._reserve(pair, size)
        self._attempts += 1
        fence = fence_of(self._epoch_of(pair.source) + self._raised.get(pair.source, 0), self._attempts)
        pair.state = _State.TAKING
        request = self._new_request(pair)
        self._commands.append(
            TakeMoved(pair.target, MOVER_ORIGIN, request, pair.source, fence, pair.numbers, drafts)
        )
        if size >= self._ahead_bytes and self._bytes + pair.page_bytes <= self._max_bytes:
            self._pull_ahead(pair)

    def _pull_ahead(self, pair: _Pair) -> None:
        """Pull the page behind the one that the target takes."""
        self._reserve(pair, pair.bytes + pair.page_bytes)
        pair.ahead_request = self._new_request(pair)
        self._commands.append(
            PullOutbox(
                pair.source,
                MOVER_ORIGIN,
                pair.ahead_request,
                pair.target,
                BATCH_RECORDS,
                pair.page_bytes,
                pair.numbers[-1],
            )
        )

    def _on_ahead(self, pair: _Pair, answer: Effect, now: int) -> None:
        """Take the page that was pulled ahead, or the refusal to send it."""
        pair.ahead_request = 0
        page = answer if isinstance(answer, OutboxPage) and answer.records else None
        if pair.state is _State.TAKING:
            pair.ahead = page
        elif page is not None:
            self._offer(pair, page, now)
        else:
            self._make_ready(
                pair
            )  # records may have come since, and only a pull without `after` ends the work

    def _drop_ahead(self, pair: _Pair) -> None:
        """Drop the page that was pulled ahead, also if it is still to come."""
        self._requests.pop(pair.ahead_request, None)
        pair.ahead_request = 0
        pair.ahead = None

    def _on_taken(self, pair: _Pair, taken: MovedTaken, now: int) -> None:
        self._reach(pair)
        moved = bisect_right(pair.numbers, taken.upto)
        if moved:
            self.moved += moved
            pair.full_since = 0
        if taken.refused and taken.condition == QuotaExceeded.condition:
            pair.full_since = pair.full_since or now
            self._remove(pair, taken.upto, taken.refused, taken.condition, taken.text)
            self._hold(pair, FULL, taken.text, now, FULL_PAUSE_MS)
        else:
            pair.full_since = 0
            if moved or not taken.refused:
                self._end_hold(pair)
            self._remove(pair, taken.upto, taken.refused, taken.condition, taken.text)
            self._go_on(pair, not taken.refused and moved == len(pair.numbers), now)

    def _go_on(self, pair: _Pair, is_taken: bool, now: int) -> None:
        """Work on the next page. If the target has taken the whole page before, it may be the one pulled ahead."""
        page, pair.ahead = pair.ahead, None
        if is_taken and page is not None:
            self._offer(pair, page, now)
        elif is_taken and pair.ahead_request:
            pair.state = _State.PULLING
        else:
            self._make_ready(pair)

    def _on_refused(self, pair: _Pair, refused: Refused, now: int) -> None:
        is_missing = refused.condition == EntityNotFound.condition
        if pair.state is _State.TAKING:
            self._reserve(pair, 0)
            if is_missing:
                self._drop_ahead(pair)
                pair.state = _State.ASKING
                self._questions.append(TargetQuestion(pair.source, pair.target, pair.path))
            elif refused.condition == InvalidOperation.condition:
                raised = min(max(1, 2 * self._raised.get(pair.source, 0)), MAX_RAISE)
                self._raised[pair.source] = raised
                self._hold(pair, REFUSED, refused.text, now, MIN_PAUSE_MS if raised < MAX_RAISE else 0)
            else:
                self._hold(pair, UNAVAILABLE, refused.text, now)
                self._avoid(pair)
        elif is_missing and pair.pause >= MAX_PAUSE_MS:
            # Deleted, with all that its outbox had. Before that it may not be in service yet.
            self._forget(pair)
        else:
            self._hold(pair, UNAVAILABLE, refused.text, now)
            pair.source_failed = True

    def _remove(self, pair: _Pair, upto: int, refused: int, condition: str, text: str) -> None:
        """Report to the source which of the records that were offered last were taken or refused."""
        if refused:
            place = bisect_right(pair.numbers, upto)
            pair.refused_at = pair.numbers[place] if place < len(pair.numbers) else 0
            pair.refusal = text
        self._commands.append(RemoveMoved(pair.source, pair.target, upto, refused, condition, text))

    # ---- turns, and holds ----

    def _make_ready(self, pair: _Pair) -> None:
        self._drop_ahead(pair)
        self._reserve(pair, 0)
        pair.state = _State.READY
        self._ready.append(pair)

    def _hold(self, pair: _Pair, cause: str, reason: str, now: int, pause: int = 0) -> None:
        """Hold the pair for this pause, or, without one, for the next longer pause."""
        self._drop_ahead(pair)
        self._reserve(pair, 0)
        pair.state = _State.HELD
        pair.source_failed = False
        pair.cause, pair.reason = cause, reason
        pair.held_since = pair.held_since or max(now, 1)
        pair.pause = pause or min(max(pair.pause * 2, MIN_PAUSE_MS), MAX_PAUSE_MS)
        pair.retry_at = now + pair.pause
        self._last_timer += 1
        heappush(self._timers, (pair.retry_at, self._last_timer, pair))
        if not pair.logged and now - pair.held_since >= LOGGED_AFTER_MS:
            pair.logged = True
            said = {"entity": pair.source_path}
            _log.warning(
                "messages of '%s' wait for '%s': %s", pair.source_path, pair.path, reason, extra=said
            )

    def _resume(self, pair: _Pair) -> None:
        """Pull a pair again. It counts as held until something has left the outbox."""
        pair.refused_at = 0
        self._make_ready(pair)

    def _is_current(self, timer: tuple[int, int, _Pair]) -> bool:
        return timer[2].state is _State.HELD and timer[2].retry_at == timer[0]

    def _end_hold(self, pair: _Pair) -> None:
        pair.held_since = pair.pause = pair.refused_at = 0
        pair.cause = pair.reason = ""
        pair.logged = False

    def _forget(self, pair: _Pair) -> None:
        self._drop_ahead(pair)
        self._reserve(pair, 0)
        self._reach(pair)
        del self._pairs[pair.source, pair.target]

    def _reserve(self, pair: _Pair, size: int) -> None:
        """Count what the pair has under way."""
        self._bytes += size - pair.bytes
        pair.bytes = size

    def _new_request(self, pair: _Pair) -> int:
        self._last_request += 1
        self._requests[self._last_request] = pair
        return self._last_request

    # ---- targets that cannot be reached ----

    def _avoid(self, pair: _Pair) -> None:
        targets = self._unreachable.setdefault(pair.source, set())
        if pair.target not in targets:
            targets.add(pair.target)
            self._tell_source(pair.source)

    def _reach(self, pair: _Pair) -> None:
        targets = self._unreachable.get(pair.source)
        if targets is not None and pair.target in targets:
            targets.discard(pair.target)
            self._tell_source(pair.source)
            if not targets:
                del self._unreachable[pair.source]

    def _tell_source(self, source: int) -> None:
        self._commands.append(AvoidTargets(source, sorted(self._unreachable.get(source, ()))))


def _drafts_of(page: OutboxPage) -> tuple[list[Draft], BusbarError | None]:
    """The drafts of its records, up to the first that cannot be made, and why that cannot."""
    drafts: list[Draft] = []
    for record in page.records:
        try:
            drafts.append(draft_of(record, page.source))
        except BusbarError as error:
            return drafts, MalformedMessage(error.text)
        except Exception:
            said = {"entity": page.source}
            _log.exception(
                "message %d of '%s' cannot be moved to '%s'", record.n, page.source, page.path, extra=said
            )
            return drafts, MalformedMessage("The message cannot be read.")
    return drafts, None
