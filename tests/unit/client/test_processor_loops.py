"""The tasks of a processor, in virtual time: they go on after errors."""

from __future__ import annotations

from random import Random

import pytest

from busbar.client import ConnectionLost
from busbar.client.processor import HandlerSettings, MessageContext, MessageLoops
from harness.virtual_loop import VirtualScheduler


class _Loops(MessageLoops):
    """Fails a few times, then works."""

    def __init__(
        self, settings: HandlerSettings, scheduler: VirtualScheduler, errors: list[Exception]
    ) -> None:
        super().__init__(settings, 1)
        self._scheduler = scheduler
        self._errors = errors
        self.steps: list[float] = []

    async def step(self) -> None:
        self.steps.append(round(self._scheduler.clock.now, 3))
        if self._errors:
            raise self._errors.pop(0)
        self.is_stopping = True


@pytest.mark.parametrize("kind", [ConnectionLost, ValueError])
def test_a_processor_goes_on_after_errors_with_growing_pauses(kind: type[Exception]) -> None:
    failures: list[str] = []
    told: list[str] = []
    scheduler = VirtualScheduler(Random(1), failures.append)

    async def handle(context: MessageContext) -> None:
        raise AssertionError("there is no message")

    async def note(error: BaseException) -> None:
        told.append(str(error)[:3])

    with (loop := scheduler.make_loop()).running():
        settings = HandlerSettings(handle, note)
        loops = _Loops(settings, scheduler, [kind("one"), kind("two")])
        loop.create_task(loops.start())
    scheduler.run(10)
    assert told == ["one", "two"]
    assert loops.steps == [0, 0.1, 0.3]
    assert failures == []
