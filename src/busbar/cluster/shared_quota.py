"""The limits of connections for a gateway that is one of several: its share (connection_share.py), and the calls of the
counter."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Protocol

from busbar.cluster.connection_share import ConnectionShare, Decided
from busbar.model.errors import BusbarError
from busbar.model.limits import Limits

ANSWER_SECONDS = 2.0
"""After this time connections that wait are decided without the counter."""
PERIOD_SECONDS = 5.0
"""What was not used for a whole period is returned: so after ten seconds at most."""


class QuotaCounter(Protocol):
    """The counter, as a gateway calls it."""

    async def take_connections(self, subject: str, count: int) -> int:
        """Take up to so many of a subject. Returns how many, or UNKNOWN."""

    def return_connections(self, subject: str, count: int) -> None:
        """Return what is not needed."""

    def report_connections(self, held: Mapping[str, int]) -> None:
        """Set what this gateway has, by subject."""


class SharedQuota:
    """A model.api.ConnectionQuota."""

    def __init__(self, counter: QuotaCounter, limits: Limits, gateways: Callable[[], int]) -> None:
        self._counter = counter
        self._share = ConnectionShare(limits, gateways)
        self._waiting: dict[str, deque[asyncio.Future[bool]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawn(self._return_unused())

    def take(self, subject: str) -> bool:
        return self._share.take(subject)

    async def request(self, subject: str) -> bool:
        if self._share.take(subject):
            return True
        decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(subject, deque()).append(decided)
        self._share.wait(subject)
        self._ask(subject)
        try:
            return await decided
        except asyncio.CancelledError:
            if decided in self._waiting.get(subject, ()):
                self._waiting[subject].remove(decided)
                self._share.leave(subject)
            elif not decided.cancelled() and decided.result():
                self.release(subject)
            raise

    def release(self, subject: str) -> None:
        returned = self._share.release(subject)
        if returned:
            self._counter.return_connections(subject, returned)

    def counter_changed(self) -> None:
        """Report what this gateway has, since the counter is another one than before."""
        self._counter.report_connections(self._share.report())

    def _ask(self, subject: str) -> None:
        count = self._share.question(subject)
        if count:
            self._spawn(self._exchange(subject, count))

    async def _exchange(self, subject: str, count: int) -> None:
        question = asyncio.ensure_future(self._counter.take_connections(subject, count))
        try:
            while not (await asyncio.wait({question}, timeout=ANSWER_SECONDS))[0]:
                self._decide(subject, self._share.unanswered(subject, over=False))
            self._decide(subject, self._share.answered(subject, await question))
        except BusbarError:  # the counter is out of reach
            self._decide(subject, self._share.unanswered(subject, over=True))
        self._ask(subject)

    def _decide(self, subject: str, decided: Decided) -> None:
        waiting = self._waiting.get(subject)
        for number in range(decided.admitted + decided.refused):
            assert waiting is not None
            one, is_admitted = waiting.popleft(), number < decided.admitted
            if not one.cancelled():
                one.set_result(is_admitted)
            elif is_admitted:
                self.release(subject)
        if not waiting:
            self._waiting.pop(subject, None)

    async def _return_unused(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            for subject, count in self._share.period_ended().items():
                self._counter.return_connections(subject, count)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
