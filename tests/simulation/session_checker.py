"""Holds the machine of a fragment that requires sessions against the model of sessions (session_model.py)."""

from __future__ import annotations

from itertools import count

from busbar.broker.fragment_loading import DurableState
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED
from busbar.model.settings import FragmentSettings
from tests.simulation.queue_checker import QueueChecker
from tests.simulation.queue_model import Model, Seat
from tests.simulation.session_model import FOREVER, SessionModel
from tests.simulation.store_world import ACTS_ON_READS, StoreWorld


class SessionChecker(QueueChecker):
    model_of = SessionModel
    model: SessionModel

    def __init__(self, world: StoreWorld, settings: FragmentSettings, fragment: int = 1) -> None:
        super().__init__(world, settings, fragment)
        self.awaits: list[int] = []
        self.offered: list[int] = []
        self.names = count(100)  # each accept has a consumer of its own, as each link

    @property
    def machine_sessions(self):  # type: ignore[no-untyped-def]
        return self.machine._state.sessions

    # ---- the model follows ----

    def _follow(self, command: c.Command, effects: list[e.Effect]) -> None:
        rest = self._follow_losses(command, list(effects))
        if isinstance(command, c.Leave):
            for consumer in [command.consumer] if command.consumer else list(self.seats):
                self.model.closed(consumer, self.settings)
            if command.consumer == 0:
                self._forget_awaits()
            super()._follow(command, [])
        elif isinstance(command, c.Demand) and command.sub == ACTIVE:
            seat = self.seats.get(command.consumer)
            if seat is None:
                answer = rest.pop(0)
                assert isinstance(answer, e.SessionLost) and answer.consumer == command.consumer
            elif self.model.held_by(command.consumer) is None:
                super()._follow(c.Tick(self.fragment), [])  # it was told already
            else:
                seat.delete = command.delete
                super()._follow(command, [])
        elif isinstance(command, c.ReceiveDeferred) and command.sub == ACTIVE:
            self.model.received_deferred(command, rest.pop(0), self.settings)
            rest = self._losses(rest)
        elif isinstance(command, c.Tick | c.Demand | c.StoreCopies):
            super()._follow(command, [])
        elif isinstance(command, c.AwaitSession):
            self._end_locks()
            self.awaits.append(command.request)
        elif isinstance(command, c.CancelAwait):
            self._end_locks()
            if command.awaited in self.awaits:
                self.awaits.remove(command.awaited)
                del self.world.unanswered[command.awaited]
        elif rest and rest[0].request == command.request:
            self._answered(command, rest.pop(0))
            if isinstance(command, ACTS_ON_READS):
                self._end_locks()
                rest = self._losses(rest)
        else:
            raise AssertionError(f"no answer to {type(command).__name__}")
        self._note_doom()
        for effect in rest:
            self._heard(effect)
        self._note_doom()

    def _follow_losses(self, command: c.Command, effects: list[e.Effect]) -> list[e.Effect]:
        return effects if isinstance(command, ACTS_ON_READS) else self._losses(effects)

    def _losses(self, effects: list[e.Effect]) -> list[e.Effect]:
        while effects and isinstance(effects[0], e.SessionLost):
            grips = [grip for grip in self.model.grips.values() if grip.consumer == effects[0].consumer]
            if not grips or grips[0].until > self.model.now:
                break
            effects.pop(0)
            self.model.lost(grips[0].consumer, self.settings)
            if grips[0].consumer in self.seats:
                self.seats[grips[0].consumer].draining = False  # its link ends
        return effects

    def _answered(self, command: c.Command, answer: e.Effect) -> None:
        model, settings = self.model, self.settings
        if not isinstance(command, ACTS_ON_READS):
            self._end_locks()
        if isinstance(command, c.AcceptSession):
            if isinstance(answer, e.SessionAccepted):
                model.accepted(answer, command.session, settings)
                self.seats[command.consumer] = Seat(ACTIVE, False)
            else:
                assert isinstance(answer, e.Refused)
                held = command.session in model.grips
                assert command.session is None or held or not settings.can_receive
        elif isinstance(command, c.RenewSession):
            id = model.held_by(command.consumer)
            assert isinstance(answer, e.Renewed if id is not None else e.Refused)
            if id is not None:
                model.grips[id].until = model.now + settings.lock_ms
        elif isinstance(command, c.GetSessionState):
            id = model.held_by(command.consumer)
            if id is None:
                assert isinstance(answer, e.Refused)
            else:
                assert isinstance(answer, e.SessionState)
                assert answer.state == model.states.get(id, (0, None))[1]
        elif isinstance(command, c.SetSessionState):
            model.written(command, answer)
        elif isinstance(command, c.ListSessions):
            assert isinstance(answer, e.SessionList)
            asked = model.listed()
            if command.updated_after:
                asked = sorted(id for id, (at, _) in model.states.items() if at > command.updated_after)
            top = min(command.top, self.machine._state.bounds.turn_messages)
            assert answer.ids == [id for id in asked if command.after is None or id > command.after][:top]
        elif isinstance(command, c.Renew) and any(
            (message := model.messages.get(n)) is not None and message.lock and message.lock.until == FOREVER
            for n in command.numbers
        ):
            assert isinstance(answer, e.Refused)
        else:
            super()._follow(command, [answer])

    def _heard(self, effect: e.Effect) -> None:
        model, settings = self.model, self.settings
        if isinstance(effect, e.SessionOffered):
            assert effect.request in self.awaits, "offered once, to those who await"
            self.awaits.remove(effect.request)
            self.offered.append(effect.request)
            assert model.waiting(), "what is offered is there"
        elif isinstance(effect, e.Delivered):
            seat = self.seats[effect.consumer]
            if seat.sub == DEAD:
                for record in effect.records:
                    if (m := model.messages[record.n]).lane == ACTIVE and m.session is not None:
                        model.sweep(m.session, settings, [record.n])
                model.delivered(effect, seat, settings, True)
            else:
                model.delivered_of(effect, settings, seat.delete)
                seat.credit -= len(effect.records)
                assert seat.credit >= 0
        else:
            assert isinstance(effect, e.Drained), effect
            self._drained(self.seats[effect.consumer])

    def _note_doom(self) -> None:
        for session in self.machine_sessions.held.values():
            if session.doomed > self.model.doomed.get(session.id, 0):
                self.model.doom(session.id, session.doomed)

    def _nothing_for(self, seat: Seat) -> None:
        if seat.sub == DEAD:
            super()._nothing_for(seat)
            return
        (consumer,) = [consumer for consumer, each in self.seats.items() if each is seat]
        id = self.model.held_by(consumer)
        if id is not None:
            self.model.sweep(id, self.settings)
            locked = sum(m.lock is not None and m.session == id for m in self.model.messages.values())
            assert not self.model.free(id) or locked >= self.machine._state.bounds.session_locks

    def _forget_awaits(self) -> None:
        for request in self.awaits:
            self.world.unanswered.pop(request, None)
        self.awaits = []

    # ---- when a job failed, and other machines ----

    def undone(self, effects: list[e.Effect]) -> None:
        if not self.is_foreign:
            for effect in effects:
                if isinstance(effect, e.SessionAccepted):
                    self.seats.pop(effect.consumer, None)
        super().undone(effects)

    def _restore_locks(self, before: Model) -> None:
        assert isinstance(before, SessionModel)
        self.model.grips = dict(before.grips)
        super()._restore_locks(before)

    def _remove_what_has_expired(self) -> None:
        for message in self.model.available(ACTIVE):
            if message.n not in self.lane(ACTIVE):
                self.model.expire(message, self.settings)

    def _expire_the_same(self) -> None:
        """Sessions expire as a whole: what goes with them is in `doomed`."""

    def _accept_releases(self) -> None:
        for grip in list(self.model.grips.values()):
            if grip.consumer not in self.seats:  # a close is never undone
                self.model.closed(grip.consumer, self.settings)
        self.model.doomed = {
            session.id: session.doomed for session in self.machine_sessions.held.values() if session.doomed
        }
        super()._accept_releases()
        # Offers that were not performed are refused by the host.

    def stopped(self, kept: bool) -> None:
        """Sessions end with the process."""
        super().stopped(kept)
        self._end_sessions()

    def loaded(self, durable: DurableState, recreated: bool) -> None:
        self._end_sessions()
        self.awaits = []
        super().loaded(durable, recreated)

    def _end_sessions(self) -> None:
        model = self.model
        model.grips = {}
        model.doomed = {}
        for message in list(model.messages.values()):
            if message.lock is not None and message.lane not in (DEAD, DEAD_DEFERRED):
                model.unlock(message.n)
        self.durable = model.snapshot()

    # ---- the machine has nothing more to do ----

    def check_quiet(self) -> None:
        model, sessions = self.model, self.machine_sessions
        model.now = self.world.now
        assert all(grip.until > model.now for grip in model.grips.values())
        for id in list(model.doomed):
            if self._wants_nothing(
                id
            ):  # a failed commit may have interrupted the removal: it goes on when it does
                left = self.active_numbers()
                model.sweep(id, self.settings, [m.n for m in model.of(id) if m.n not in left])
            else:
                model.sweep(id, self.settings)
        held = {id: s.consumer.consumer for id, s in sessions.held.items() if s.consumer is not None}
        assert held == {id: grip.consumer for id, grip in model.grips.items()}
        if self.settings.can_receive:
            assert len(held) == len(sessions.held), "nothing stays in the fragment's own hand"
        if self.awaits and self.settings.can_receive and model.waiting():
            assert sessions.offers > 0, "who awaits is told"
            assert self.machine.wake_at() <= model.now + 7
        locked = {n for s in sessions.held.values() for n in s.numbers}
        assert locked == {
            m.n for m in model.messages.values() if m.lock and m.lane not in (DEAD, DEAD_DEFERRED)
        }
        times = [grip.until for grip in model.grips.values()]
        assert not times or 0 < self.machine.wake_at() <= min(times)
        super().check_quiet()

    def _check_store(self) -> None:
        super()._check_store()
        assert self.stored.states == self.model.states

    def _wants_nothing(self, id: str) -> bool:
        session = self.machine_sessions.held.get(id)
        return session is None or (session.consumer is not None and not session.consumer.credit)

    def _check_bounds(self) -> None:
        """Everything available of a held session below the cursor is in memory, and nothing else."""
        state, sessions = self.machine._state, self.machine_sessions
        bounds = state.bounds
        assert not state.main.available()
        ready_bytes = returned_bytes = 0
        for session in sessions.held.values():
            window = session.window
            here = [*(r.n for r in window.ready[window.at :]), *window.returned]
            free = [m.n for m in self.model.free(session.id)]
            assert sorted(here) == [n for n in free if n < window.cursor]
            if session.complete:
                assert sorted(here) == free
            unlocked = [m for m in self.model.free(session.id) if m.ttl and m.n > session.doomed]
            if unlocked:
                assert 0 < session.expires <= min(m.enqueued + m.ttl for m in unlocked)
            ready_bytes += window.bytes
            returned_bytes += window.returned_bytes
        assert (sessions.ready_bytes, sessions.returned_bytes) == (ready_bytes, returned_bytes)
        assert ready_bytes <= bounds.session_bytes + bounds.page_bytes
        assert len(sessions.line) <= bounds.line_sessions + bounds.line_page
        line = set(sessions.line._waiting)
        waiting = self.model.waiting()
        assert line <= waiting
        if sessions.line.complete:
            assert line == waiting
