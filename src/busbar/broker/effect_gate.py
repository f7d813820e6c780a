"""Performs the effects of a store, unless another process may have claimed the store meanwhile.

Every commit checks that this process owns the store. But deliveries, and answers to reads, need no commit. A process that
was frozen could perform them after another one has claimed the store. Rules:
1. Effects are performed while the owner has shown lately that it works (StoreLocation.may_speak).
2. Otherwise they wait, in their order, until the store has answered once more. If another process has claimed it, they are
   dropped. If it does not answer, the store has failed, and they wait until it is open again.
3. Effects of a store that is not open are refusals, which rest on nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from busbar.broker.store_thread import Done, Work
from busbar.model.effects import Effect
from busbar.store.contract import OutcomeUnknown, StoreError
from busbar.store.location import StoreLocation


class OwnedState(Protocol):
    """What the gate has to know of the store."""

    is_fenced: bool

    @property
    def is_open(self) -> bool: ...


class StoreQueue(Protocol):
    """The thread of the store."""

    @property
    def is_stopped(self) -> bool: ...

    def post(self, work: Work, done: Done) -> None: ...


class EffectGate:
    def __init__(
        self,
        place: StoreLocation | None,
        thread: StoreQueue,
        state: OwnedState,
        emit: Callable[[list[Effect]], None],
        fail: Callable[[StoreError], None],
    ) -> None:
        """`fail` is called if it is not known any more that this process owns the store."""
        self._place = place
        self._thread = thread
        self._state = state
        self._emit = emit
        self._fail = fail
        self._waiting: list[Effect] = []

    @property
    def is_passed(self) -> bool:
        """Whether all effects so far were performed."""
        return not self._waiting

    def perform(self, effects: list[Effect]) -> None:
        if self._place is None or not self._state.is_open:
            self._emit(effects)
        elif self._waiting:
            self._waiting += effects
        elif self._place.may_speak():
            self._emit(effects)
        else:
            self._waiting = effects
            self.confirm()

    def confirm(self) -> None:
        """Find out whether what waits can be performed: the store is open, perhaps again."""
        if self._waiting and self._place is not None and not self._thread.is_stopped:
            self._thread.post(self._place.fingerprint, self._confirmed)

    def _confirmed(self, _: object, error: BaseException | None) -> None:
        assert self._place is not None
        if isinstance(error, StoreError):
            self._fail(error)
        elif not self._place.may_speak():
            self._fail(OutcomeUnknown("the store does not answer"))
        if self._state.is_fenced:
            self._waiting = []
        elif self._state.is_open:
            effects, self._waiting = self._waiting, []
            if effects:
                self._emit(effects)
