"""A fragment of an entity that requires sessions, in the world of machine_world.py, beside the model of sessions."""

from __future__ import annotations

from itertools import count

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD
from busbar.model.settings import FragmentSettings
from tests.simulation.machine_model import Seat
from tests.simulation.machine_world import ACTS_ON_READS, World
from tests.simulation.session_model import FOREVER, SessionModel


class SessionWorld(World):
    model_of = SessionModel
    model: SessionModel

    def __init__(self, settings: FragmentSettings, seed: int = 0) -> None:
        super().__init__(settings, seed)
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
                self.awaits = []
            super()._follow(command, [])
        elif isinstance(command, c.Demand) and command.sub == ACTIVE:
            seat = self.seats.get(command.consumer)
            if seat is None:
                answer = rest.pop(0)
                assert isinstance(answer, e.SessionLost) and answer.consumer == command.consumer
            elif self.model.held_by(command.consumer) is None:
                super()._follow(c.Tick(1), [])  # it was told already
            else:
                seat.delete = command.delete
                super()._follow(command, [])
        elif isinstance(command, c.ReceiveDeferred) and command.sub == ACTIVE:
            self.model.received_deferred(command, rest.pop(0), self.settings)
            rest = self._losses(rest)
        elif isinstance(command, c.Tick | c.Demand):
            super()._follow(command, [])
        elif isinstance(command, c.AwaitSession):
            self._end_locks()
            self.awaits.append(command.request)
        elif isinstance(command, c.CancelAwait):
            self._end_locks()
            if command.awaited in self.awaits:
                self.awaits.remove(command.awaited)
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

    # ---- the host ----

    def fail(self) -> None:
        for effect in self.flying + self.gathered:
            if isinstance(effect, e.SessionAccepted):
                self.seats.pop(effect.consumer, None)
        super().fail()

    def _go_back(self) -> None:
        now = self.model.now
        self.model = self.durable.snapshot()  # type: ignore[assignment]
        self.model.now = now
        for message in self.model.available(ACTIVE):
            if message.n not in self.store.lanes[ACTIVE]:  # the model removes what has expired a little later
                self.model.expire(message, self.settings)

    def _accept_releases(self) -> None:
        for grip in list(self.model.grips.values()):
            if grip.consumer not in self.seats:  # a close is never undone
                self.model.closed(grip.consumer, self.settings)
        self.model.doomed = {
            session.id: session.doomed for session in self.machine_sessions.held.values() if session.doomed
        }
        super()._accept_releases()
        # Offers that were not heard are refused by the host.

    def _start(self, locks):  # type: ignore[no-untyped-def]
        model = self.model
        model.grips = {}
        model.doomed = {}
        for message in list(model.messages.values()):
            if message.lock is not None and message.lane not in (1, 4):
                model.unlock(message.n)
        self.awaits = []
        super()._start(locks)

    # ---- the machine has nothing more to do ----

    def _check_quiet(self) -> None:
        model, sessions = self.model, self.machine_sessions
        assert all(grip.until > model.now for grip in model.grips.values())
        for id in list(model.doomed):
            if self._wants_nothing(
                id
            ):  # a failed commit may have interrupted the removal: it goes on when it does
                left = self._active_numbers()
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
        assert locked == {m.n for m in model.messages.values() if m.lock and m.lane not in (1, 4)}
        times = [grip.until for grip in model.grips.values()]
        assert not times or 0 < self.machine.wake_at() <= min(times)
        super()._check_quiet()
        if self.flight is None and not self.machine.change_count():
            assert self.store.states == model.states

    def _wants_nothing(self, id: str) -> bool:
        session = self.machine_sessions.held.get(id)
        return session is None or (session.consumer is not None and not session.consumer.credit)

    def _active_numbers(self) -> set[int]:
        """What the machine takes for active."""
        numbers = set(self.store.lanes[ACTIVE])
        for changes in (self.flight, self.machine._state.ledger._changes):
            if changes is not None:
                numbers |= {record.n for record in changes.puts.get(ACTIVE, [])}
                numbers -= {edit.n for edit in changes.edits if edit.to != ACTIVE}
                numbers -= set(changes.deletes.get(ACTIVE, []))
                numbers -= {n for keep in changes.keeps for n in keep.numbers}
        return numbers - self.machine._state.ledger._cancelled - set(self.machine._state.ledger._kept)

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
            unlocked = [m for m in self.model.free(session.id) if m.ttl]
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
