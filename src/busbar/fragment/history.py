"""What happens to messages, for an operator who asks later why one did not arrive.

Rules
- A machine notes steps while the switch of its process covers its entity. Without that it costs a look at the switch.
- The steps of a turn are one effect, behind the others of the turn. So they come when all of the turn is durable, and are
  dropped with a commit that fails.
- A step that a command causes is by the origin of the command. What the fragment does by itself has no origin: ends of
  locks, expiry, forwarding. A delivery is by the consumer that gets it.
- Nothing in a machine depends on its steps.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.model.effects import (
    DELIVERED,
    RECEIVED_AND_DELETED,
    DeferredReceived,
    Delivered,
    Effect,
    Happened,
    MessageStep,
)
from busbar.model.message import Record

SUBSCRIPTIONS: Final = "/subscriptions/"


@final
class HistorySwitch:
    """Which entities record their history: those of these keys (a topic with its subscriptions), or all."""

    def __init__(self) -> None:
        self.is_on = False
        self._everything = False
        self._keys: set[str] = set()

    def set(self, everything: bool, keys: set[str]) -> None:
        self._everything = everything
        self._keys = keys
        self.is_on = everything or len(keys) > 0

    def covers(self, path: str) -> bool:
        if self._everything:
            return True
        key = path.lower()
        return key in self._keys or key.partition(SUBSCRIPTIONS)[0] in self._keys


@final
class StepLog:
    """The steps of a turn."""

    def __init__(self) -> None:
        self.steps: list[MessageStep] = []
        self.by: i64 = 0
        self.first_effect: i64 = 0  # of the turn

    def note(self, n: i64, what: i64, now: i64, deliveries: i64, reason: str, content: bytes | None) -> None:
        self.steps.append(MessageStep(n, what, now, deliveries, reason, content, self.by, 0))

    def note_all(self, records: list[Record], what: i64, now: i64, reason: str = "") -> None:
        for record in records:
            self.note(record.n, what, now, record.deliveries, reason, record.content)

    def end(self, fragment: i64, path: str, now: i64, effects: list[Effect]) -> None:
        """Add the deliveries of the turn, and the effect with all its steps."""
        for at in range(self.first_effect, len(effects)):
            effect = effects[at]
            if isinstance(effect, Delivered):
                self._deliver(effect.records, effect.origin, effect.consumer, effect.until, now)
            elif isinstance(effect, DeferredReceived):
                self._deliver(effect.records, effect.origin, 0, effect.until, now)
        if self.steps:
            effects.append(Happened(fragment, path, self.steps))
            self.steps = []

    def _deliver(self, records: list[Record], by: i64, consumer: i64, until: i64, now: i64) -> None:
        what: i64 = DELIVERED if until > 0 else RECEIVED_AND_DELETED
        for record in records:
            self.steps.append(
                MessageStep(record.n, what, now, record.deliveries, "", record.content, by, consumer)
            )
