"""What message sessions are, said as simply as possible, beside the model of a queue."""

from __future__ import annotations

from dataclasses import dataclass, replace

from busbar.fragment.changes import state_size
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEFERRED, Draft, Record
from busbar.model.settings import FragmentSettings
from tests.simulation.queue_model import Held, Message, Model, vars_of

FOREVER = 1 << 62


@dataclass
class Grip:
    """A session lock. Shared between a model and its snapshots: a renewal is never undone."""

    consumer: int
    until: int


class SessionModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self.grips: dict[str, Grip] = {}
        self.states: dict[str, tuple[int, bytes]] = {}
        self.doomed: dict[str, int] = {}  # messages up to this number expired with their session

    def snapshot(self) -> SessionModel:
        other = super().snapshot()
        assert isinstance(other, SessionModel)
        other.grips = dict(self.grips)
        other.states = dict(self.states)
        other.doomed = dict(self.doomed)
        return other

    # ---- what is where ----

    def _session_of(self, draft: Draft) -> str | None:
        return draft.session_id

    def of(self, session: str, lane: int = ACTIVE) -> list[Message]:
        return [m for _, m in sorted(self.messages.items()) if m.session == session and m.lane == lane]

    def free(self, session: str) -> list[Message]:
        return [m for m in self.of(session) if m.lock is None]

    def held_by(self, consumer: int) -> str | None:
        """The session that a consumer holds, by time as well."""
        for id, grip in self.grips.items():
            if grip.consumer == consumer and grip.until > self.now:
                return id
        return None

    def waiting(self) -> set[str]:
        """Sessions that somebody could accept."""
        return self._active() - set(self.grips)

    def listed(self) -> list[str]:
        return sorted(self._active() | set(self.states))

    def _active(self) -> set[str]:
        there = (m for m in self.messages.values() if m.lane == ACTIVE)
        return {m.session for m in there if m.session is not None}

    def size_of_states(self) -> int:
        return sum(state_size(id, state) for id, (_, state) in self.states.items())

    # ---- holding ----

    def _holds(self, n: int, nonce: int) -> Message | None:
        message = super()._holds(n, nonce)
        if message is None or message.lock is None or message.lock.until != FOREVER:
            return message
        assert message.session is not None
        grip = self.grips.get(message.session)
        return message if grip is not None and grip.until > self.now else None

    def accepted(self, answer: e.SessionAccepted, asked: str | None, settings: FragmentSettings) -> None:
        assert settings.can_receive
        assert answer.session not in self.grips, "one holder"
        if asked is None:
            free = self.free(answer.session)
            assert free and not any(m.expired(self.now) for m in free)
        else:
            assert answer.session == asked
        assert answer.until == self.now + settings.lock_ms
        self.grips[answer.session] = Grip(answer.consumer, answer.until)

    def closed(self, consumer: int, settings: FragmentSettings) -> None:
        """Nothing is counted."""
        for id, grip in list(self.grips.items()):
            if grip.consumer == consumer:
                del self.grips[id]
                locked = [m.n for m in [*self.of(id), *self.of(id, DEFERRED)] if m.lock is not None]
                for n in locked:
                    self.unlock(n)
                self.sweep(id, settings, locked)

    def lost(self, consumer: int, settings: FragmentSettings) -> None:
        """Each locked message is counted."""
        (id,) = [id for id, grip in self.grips.items() if grip.consumer == consumer]
        assert self.grips.pop(id).until <= self.now, "not before its time"
        locked = [m for m in [*self.of(id), *self.of(id, DEFERRED)] if m.lock is not None]
        for message in locked:
            self._fail_delivery(message, settings)
        self.sweep(id, settings, [m.n for m in locked])

    # ---- time to live ----

    def doom(self, id: str, upto: int) -> None:
        """The machine says that a session has expired: it must have a reason."""
        assert any(m.expired(self.now) for m in self.free(id) if m.n <= upto)
        self.doomed[id] = upto

    def sweep(self, id: str, settings: FragmentSettings, numbers: list[int] | None = None) -> None:
        """What expired with its session is gone: all of it, or (the machine may not be through) these."""
        for message in self.free(id):
            if message.n <= self.doomed.get(id, 0) and (numbers is None or message.n in numbers):
                self.expire(message, settings)

    # ---- messages ----

    def settle(self, command: c.Settle, answer: e.Effect, settings: FragmentSettings) -> None:
        super().settle(command, answer, settings)
        for id in list(self.doomed):
            self.sweep(id, settings, command.numbers)

    def delivered_of(self, effect: e.Delivered, settings: FragmentSettings, delete: bool) -> None:
        id = self.held_by(effect.consumer)
        assert id is not None, "who gets messages holds the session"
        for record in effect.records:
            assert record.session_id == id
            assert record.n not in self.ever, "settled, and yet it comes back"
            self.sweep(id, settings)
            free = self.free(id)
            assert free[0].n == record.n, "the lowest number of the session is first"
            assert not any(m.expired(self.now) for m in free), "one has expired, so all have"
            self._hand_over(record, delete, effect.nonce, effect.until, id)

    def _hand_over(self, record: Record, delete: bool, nonce: int, until: int, id: str) -> None:
        message = self.messages[record.n]
        assert message.lock is None
        assert message.same_as(record), (message, vars_of(record))
        if delete:
            assert (nonce, until) == (0, 0)
            self._delete(message)
        else:
            assert until == self.grips[id].until
            self._set(replace(message, lock=Held(nonce, FOREVER)))

    def received_deferred(
        self, command: c.ReceiveDeferred, answer: e.Effect, settings: FragmentSettings
    ) -> None:
        id = self.held_by(command.consumer)
        found = [self.messages.get(n) for n in command.numbers]
        there = [m for m in found if m is not None and m.lane == DEFERRED and m.lock is None]
        if not settings.can_receive or id is None or any(m.session != id for m in there):
            assert isinstance(answer, e.Refused)
            return
        for message in there:
            if message.expired(self.now):
                self._delete(message)
        good = [m for m in there if not m.expired(self.now)]
        if len(good) < len(found):
            assert isinstance(answer, e.Refused)
            return
        assert isinstance(answer, e.DeferredReceived)
        for record in answer.records:
            self._hand_over(record, command.delete, answer.nonce, answer.until, id)

    def written(self, command: c.SetSessionState, answer: e.Effect) -> None:
        id = self.held_by(command.consumer)
        if id is None:
            assert isinstance(answer, e.Refused)
            return
        assert isinstance(answer, e.Done)
        self.states.pop(id, None)
        if command.state is not None:
            self.states[id] = (self.now, command.state)
