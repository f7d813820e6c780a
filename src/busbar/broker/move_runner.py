"""Runs the mover of a process: gives it effects and the time, submits its commands, and asks the catalogue for it.

What comes in during one turn of the event loop is worked off at its end, so that its commands are one submit. The fragments
of a source are in this process, those of a target may be in another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from busbar.broker.mover import Mover, PairStatus, TargetQuestion
from busbar.model.api import Commands, Effects, EntityView, TransferReport, TransferView
from busbar.model.errors import BusbarError, EntityNotFound
from busbar.model.message import DEAD_FORWARD, FORWARD, VIA

LONGEST_SLEEP = 1.0
_WAYS = {FORWARD: "ForwardTo", DEAD_FORWARD: "ForwardDeadLetteredMessagesTo", VIA: "via"}


class MoveBroker(Protocol):
    """What the mover needs of a broker."""

    def connect_mover(self, sink: Callable[[Effects], None]) -> None:
        """Pass effects of MOVER_ORIGIN to this sink."""

    def submit(self, commands: Commands) -> None: ...

    async def decided_entity(self, path: str) -> EntityView:
        """The entity of that path. If a change of it is under way, its outcome is awaited. When an entity is created, its
        sources have messages for it before the catalogue has the entity."""


@runtime_checkable
class HasEpoch(Protocol):
    """The host of a store that this process owns."""

    @property
    def epoch(self) -> int: ...


class MoveRunner:
    def __init__(
        self,
        broker: MoveBroker,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        host_of: Callable[[int], object],
    ) -> None:
        """`clock` is the wall clock, for what operators see. `host_of` is where commands for a fragment go: for a source,
        the host of its store in this process."""
        self._broker = broker
        self._loop = loop
        self._clock = clock
        self._host_of = host_of
        self._mover = Mover(self._epoch_of)
        self._is_running = False
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._asking: set[asyncio.Task[None]] = set()
        broker.connect_mover(self._on_effects)

    def start(self, patience_ms: int) -> None:
        """Move messages from now on. Effects that came before, while fragments were loaded, were kept. `patience_ms` is for
        targets that are full."""
        self._mover.patience_ms = patience_ms
        self._is_running = True
        self._schedule()

    async def stop(self) -> None:
        """Begin nothing more. Moves under way end as they would after a crash, without harm."""
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    def on_store_open(self, host: object) -> None:
        """Try the moves again that wait for a store: the one to which commands go by this host is open."""
        self._mover.on_store_open(lambda fragment: self._host_of(fragment) is host)
        self._schedule()

    def on_store_left(self, host: object) -> None:
        """Drop the moves out of a store that another process has from now on. Commands went to it by this host."""
        self._mover.on_store_left(lambda fragment: self._host_of(fragment) is host)

    async def transfers(self) -> TransferReport:
        """What is moved and held, without what only the catalogue has."""
        offset = self._clock() - self._now()
        found = [_view(pair, offset) for pair in self._mover.status()]
        return TransferReport(self._mover.moved, found)

    def _epoch_of(self, fragment: int) -> int:
        host = self._host_of(fragment)
        return host.epoch if isinstance(host, HasEpoch) else 0

    def _now(self) -> int:
        return int(self._loop.time() * 1000)

    def _on_effects(self, effects: Effects) -> None:
        self._mover.handle(effects, self._now())
        self._schedule()

    def _schedule(self) -> None:
        if self._is_running and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        if not self._is_running:  # it was stopped meanwhile
            return
        now = self._now()
        self._mover.wake(now)
        commands = self._mover.take_commands(now)
        if commands:
            self._broker.submit(commands)
        questions = self._mover.take_questions()
        if questions:
            self._ask(questions)
        self._set_timer(now)

    def _set_timer(self, now: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._mover.wake_at()
        if at:
            self._timer = self._loop.call_later(min(max(at - now, 0) / 1000, LONGEST_SLEEP), self._turn)

    # ---- what the catalogue has ----

    def _ask(self, questions: list[TargetQuestion]) -> None:
        by_path: dict[str, list[TargetQuestion]] = {}
        for question in questions:
            by_path.setdefault(question.path, []).append(question)
        task = self._loop.create_task(self._find(by_path))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _find(self, questions: dict[str, list[TargetQuestion]]) -> None:
        for path, asked in questions.items():
            fragments = await _fragments_at(path, self._broker.decided_entity)
            for question in asked:
                exists = None if fragments is None else question.target in fragments
                self._mover.answer(question, exists, self._now())
        self._schedule()


def _view(pair: PairStatus, offset: int) -> TransferView:
    """A pair for operators. `offset` is from the mover's clock to the wall clock."""
    return TransferView(
        pair.source,
        pair.target,
        pair.path,
        pair.source_path,
        by=_WAYS.get(pair.kind, ""),
        oldest=pair.oldest,
        state="held" if pair.is_held else "moving",
        since=pair.since + offset if pair.is_held else 0,
        cause=pair.cause,
        reason=pair.reason,
    )


async def _fragments_at(path: str, entity: Callable[[str], Awaitable[EntityView]]) -> tuple[int, ...] | None:
    """The fragments of the entity at the path; none if there is no such entity. None: the catalogue cannot be asked."""
    try:
        return (await entity(path)).fragments
    except EntityNotFound:
        return ()
    except BusbarError:
        return None
