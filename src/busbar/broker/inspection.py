"""Asks fragments something as the broker itself, which is no use of them, and waits for the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from busbar.broker.dispatcher import BROKER_ORIGIN
from busbar.model.commands import Command, Inspect
from busbar.model.effects import Effect

OWN_REQUESTS = 1 << 40
"""Requests of a broker process itself begin here. Those below are the controller's."""


class FragmentCounts(NamedTuple):
    """What a fragment holds, as its broker reports it. A scrape makes thousands of them: a dataclass would cost thrice."""

    last_used: int
    """When a gateway last did something with it, in ms (0: not since it was taken into service)."""
    counts: Sequence[int] = ()
    """By lane; empty: the fragment is unavailable."""
    size: int = 0
    locked: int = 0
    oldest: int = 0
    """When its first active message was enqueued; 0: it has none, or the message is not in memory."""


class FragmentInquiry:
    """The questions that are not answered yet. Their effects have the origin of the broker."""

    def __init__(self, first: int = 1) -> None:
        self._next = first
        self._waiting: dict[int, asyncio.Future[Effect]] = {}

    def questions(
        self, fragments: Sequence[int], question: Callable[[int, int, int], Command] = Inspect
    ) -> tuple[list[Command], list[asyncio.Future[Effect]]]:
        """A command for each fragment, and its answer. `question` gets the fragment, the origin and the request."""
        loop = asyncio.get_running_loop()
        commands: list[Command] = []
        answers = []
        for fragment in fragments:
            answers.append(loop.create_future())
            self._waiting[self._next] = answers[-1]
            commands.append(question(fragment, BROKER_ORIGIN, self._next))
            self._next += 1
        return commands, answers

    def answered(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            answer = self._waiting.pop(effect.request, None)
            if answer is not None and not answer.done():
                answer.set_result(effect)
