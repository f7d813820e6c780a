"""What clients get when a messaging store fails, and whether it is certain that nothing was changed."""

from __future__ import annotations

from busbar.broker.job import RolledBack
from busbar.model.effects import Effect, Refused
from busbar.model.errors import ServerBusy
from busbar.store.contract import StoreError

STORE_FULL = (
    "The messaging store is full; nothing was changed. Retry later: completing messages makes room, and where taps keep "
    "them advancing or deleting the taps."
)
STORE_FAILED = (
    "The messaging store failed during the operation, which may or may not have taken place. Retry."
)
NOT_LOADED = "The entities are not loaded yet."
NO_STORE = "No messaging store is available."
STORE_UNAVAILABLE = "The messaging store is unavailable for the moment. Retry later."
STORE_FENCED = "The messaging store belongs to another broker now. Retry later."
OFFLINE = "taken offline by an operator"


class StoreHung(StoreError):
    """The store does not answer. Work that `began` may still take place when it does; other work never will."""

    def __init__(self, patience: float, *, began: bool) -> None:
        super().__init__(f"its disk has not answered for {patience:g} s")
        self.began = began


def never_began(error: BaseException) -> bool:
    """Whether what failed certainly did not take place, since its store was not even asked for it."""
    return isinstance(error, StoreHung) and not error.began


def busy(origin: int, request: int, text: str, certain: bool = True) -> Refused:
    return Refused(origin, request, ServerBusy.condition, text, certain)


def refusals(item: RolledBack, text: str, *, certain: bool) -> list[Effect]:
    """Refusals for every client whose answer was discarded. Each command with an answer had exactly one effect with its
    request. Unless it is `certain` that the store did nothing of what was given to it, the outcome of that is unknown."""
    unknown = 0 if certain else item.given
    return [
        busy(effect.origin, effect.request, STORE_FAILED, certain=False)
        if place < unknown
        else busy(effect.origin, effect.request, text)
        for place, effect in enumerate(item.effects)
        if effect.request > 0
    ]
