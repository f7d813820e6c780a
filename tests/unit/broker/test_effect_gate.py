"""A process that was frozen performs no effects before it is known that it still owns the store."""

from __future__ import annotations

from collections import deque

from busbar.broker.effect_gate import EffectGate
from busbar.broker.store_thread import Done, Work
from busbar.model.effects import Drained, Effect
from busbar.store.contract import Fenced, OutcomeUnknown, StoreError
from busbar.store.location import StoreLocation


class Owner:
    """A store, its thread and what was performed; work is done when the test asks for it."""

    def __init__(self) -> None:
        self.is_fenced = False
        self.is_open = True
        self.is_stopped = False
        self.is_current = True
        self.failure: StoreError | None = None
        self.performed: list[Effect] = []
        self.failed: list[StoreError] = []
        self._work: deque[tuple[Work, Done]] = deque()
        place = StoreLocation("here", lambda: None, lambda: 0, self._beat, may_speak=lambda: self.is_current)  # type: ignore[arg-type, return-value]
        self.gate = EffectGate(place, self, self, self.performed.extend, self._fail)

    def _beat(self) -> object:
        if self.failure is not None:
            raise self.failure
        return None

    def _fail(self, error: StoreError) -> None:
        self.failed.append(error)
        self.is_open = False
        self.is_fenced = isinstance(error, Fenced)

    def post(self, work: Work, done: Done) -> None:
        self._work.append((work, done))

    def answer(self, *, is_current: bool = True) -> None:
        """Let the store answer, after which the owner has shown that it works."""
        work, done = self._work.popleft()
        try:
            result, error = work(), None
            self.is_current = is_current
        except StoreError as raised:
            result, error = None, raised
        done(result, error)


def effect(number: int) -> Effect:
    return Drained(1, number)


def numbers(owner: Owner) -> list[int]:
    return [one.consumer for one in owner.performed if isinstance(one, Drained)]


def test_effects_of_a_current_owner_are_performed_at_once() -> None:
    owner = Owner()
    owner.gate.perform([effect(1)])
    assert numbers(owner) == [1]


def test_after_a_freeze_effects_wait_for_an_answer_in_their_order() -> None:
    owner = Owner()
    owner.is_current = False
    owner.gate.perform([effect(1)])
    owner.gate.perform([effect(2)])
    assert numbers(owner) == []
    owner.answer()
    owner.gate.perform([effect(3)])
    assert numbers(owner) == [1, 2, 3] and not owner.failed


def test_an_owner_that_was_replaced_drops_them() -> None:
    owner = Owner()
    owner.is_current = False
    owner.failure = Fenced("another one has it")
    owner.gate.perform([effect(1)])
    owner.answer()
    assert numbers(owner) == [] and owner.failed == [owner.failure]
    owner.gate.perform([effect(9)])  # a refusal
    assert numbers(owner) == [9]


def test_a_store_that_does_not_answer_has_failed_and_they_are_performed_when_it_is_back() -> None:
    owner = Owner()
    owner.is_current = False
    owner.gate.perform([effect(1)])
    owner.answer(is_current=False)
    assert numbers(owner) == [] and isinstance(owner.failed[0], OutcomeUnknown)
    owner.is_open = True
    owner.gate.confirm()
    owner.answer()
    assert numbers(owner) == [1]
