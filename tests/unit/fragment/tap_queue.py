"""A queue of one fragment with taps, driven as in queue.py, and what a reader of a tap does."""

from __future__ import annotations

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, KEPT, KEPT_DEAD
from busbar.model.settings import FragmentSettings, TapSettings
from tests.pages import shown
from tests.unit.fragment.queue import Queue, settings, vars_of

TAP = 41
OTHER = 42


def tap(
    id: int = TAP,
    sub: int = ACTIVE,
    *,
    events: bool = False,
    consumes: bool = False,
    start: int = 0,
    owner: str = "",
    max_age: int = 0,
    max_bytes: int = 0,
    lease: int = 0,
) -> TapSettings:
    return TapSettings(id, f"tap-{id}", sub, events, consumes, start, owner, max_age, max_bytes, lease)


class TapQueue(Queue):
    def read(
        self,
        after: int = 0,
        upto: int = 1 << 60,
        tap: int = TAP,
        count: int = 1000,
        max_bytes: int = 1 << 20,
        sub: int = ACTIVE,
    ) -> e.TapPage:
        answer = self.ask_read(after, upto, tap, count, max_bytes, sub)
        assert isinstance(answer, e.TapPage), vars_of(answer)
        return answer

    def ask_read(
        self,
        after: int = 0,
        upto: int = 1 << 60,
        tap: int = TAP,
        count: int = 1000,
        max_bytes: int = 1 << 20,
        sub: int = ACTIVE,
    ) -> e.Effect:
        return self.run(c.ReadTap(1, 1, 5, tap, sub, c.MESSAGES, after, upto, count, max_bytes))[0]

    def seen(self, after: int = 0, tap: int = TAP) -> list[int]:
        return [record.n for record in shown(self.read(after, tap=tap))]

    def events(self, after: int = 0, tap: int = TAP, count: int = 1000) -> list[e.MessageEvent]:
        answer = self.run(c.ReadTap(1, 1, 5, tap, ACTIVE, c.EVENTS, after, 1 << 60, count, 1 << 20))[0]
        assert isinstance(answer, e.EventPage), vars_of(answer)
        return answer.events

    def outcomes(self) -> list[tuple[int, int]]:
        return [(event.n, event.outcome) for event in self.events()]

    def advance(self, position: int, tap: int = TAP, owner: str = "", stream: int = c.MESSAGES) -> e.Effect:
        return self.run(c.AdvanceTap(1, 1, 5, tap, stream, position, owner))[0]

    def show(self) -> e.TapStates:
        answer = self.run(c.ShowTaps(1, 1, 5))[0]
        assert isinstance(answer, e.TapStates)
        return answer

    def state(self, tap: int = TAP) -> e.TapState:
        return next(state for state in self.show().taps if state.id == tap)

    def resume(self, tap: int = TAP, owner: str = "") -> e.Effect:
        return self.run(c.ResumeTap(1, 1, 5, tap, owner))[0]

    def change(self, given: FragmentSettings) -> None:
        self.machine.settings = given
        self.tick()

    def consume_all(self, number: int = 1000) -> list[int]:
        """Receive and complete."""
        held = self.receive(number)
        self.settle(c.COMPLETE, *held)
        return [message.n for message in held]

    def kept(self) -> list[int]:
        return sorted(self.lane(KEPT))

    def kept_dead(self) -> list[int]:
        return sorted(self.lane(KEPT_DEAD))

    def undo(self) -> None:
        """The group that was gathered could not be committed."""
        changes = self.machine.take_changes()
        batches = [] if changes is None else [changes]
        self.machine.undo(
            batches,
            self.machine.take_effects(),
            self.stored.head,
            self.store.next_due(1),
            self.store.taps(1),
            self.store.writers(1),
        )


def tapped(*taps: TapSettings, **given: int) -> TapQueue:
    return TapQueue(settings(taps=list(taps) or [tap()], **given))  # type: ignore[arg-type]
