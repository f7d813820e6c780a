"""What a connection waits for: links that are being attached, effects of requests."""

from __future__ import annotations

import asyncio

from busbar.amqp.events import Delivery
from busbar.model.effects import Effect, Refused, Sent
from busbar.model.errors import BusbarError, error_of


class PendingLink:
    """A link whose attach is being decided, which may take long. It keeps the deliveries that came ahead."""

    def __init__(self) -> None:
        self.early: list[Delivery] = []
        self.gone = False
        self.refused: BusbarError | None = None
        self.task: asyncio.Task[None] | None = None

    def give_up(self) -> None:
        """Stop the attach: the client has detached the link, or its AMQP session has ended."""
        self.gone = True
        if self.task is not None:
            self.task.cancel()

    def refuse(self, error: BusbarError) -> None:
        """Refuse the link, which the entity does not allow any more."""
        self.refused = error
        if self.task is not None:
            self.task.cancel()


class PendingBatch:
    """Waits until the messages of a request are stored: the index of their fragment, and what it answered."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[tuple[int, Sent]]) -> None:
        self.future = future

    def batch_done(self, index: int, effect: Effect) -> None:
        if self.future.done():
            return
        if isinstance(effect, Refused):
            self.future.set_exception(error_of(effect.condition, effect.text, effect.certain))
            return
        assert isinstance(effect, Sent)
        if effect.refused:
            _index, condition, text = effect.refused[0]
            self.future.set_exception(error_of(condition, text))
        else:
            self.future.set_result((index, effect))


class PendingEffect:
    """Waits for one effect."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Effect]) -> None:
        self.future = future

    def answered(self, effect: Effect, now: int) -> None:
        if not self.future.done():
            if isinstance(effect, Refused):
                self.future.set_exception(error_of(effect.condition, effect.text, effect.certain))
            else:
                self.future.set_result(effect)
