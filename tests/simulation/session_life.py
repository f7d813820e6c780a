"""The clients of a queue that requires sessions, in the life of its store."""

from __future__ import annotations

from busbar.model import commands as c
from busbar.model.message import ACTIVE, DEAD, DEFERRED, Draft
from busbar.model.settings import FragmentSettings, TapSettings
from tests.simulation.life import Kinds
from tests.simulation.queue_life import QueueLife
from tests.simulation.session_checker import SessionChecker


class SessionLife(QueueLife):
    checker: SessionChecker

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.ttls = self.random.choice([[0], [0, 0, 0, 30, 200], [0, 60]])
        self.world.slow_reads = self.ttls == [0] and not self.settings[2]

    def make_checker(self, settings: FragmentSettings) -> SessionChecker:
        return SessionChecker(self.world, settings)

    def client_kinds(self) -> Kinds:
        return [
            (self.send, 10),
            (self.accept, 6),
            (self.demand, 10),
            (self.demand_dead, 1),
            (self.leave, 3),
            (self.settle, 12),
            (self.renew, 1),
            (self.renew_session, 2),
            (self.await_session, 3),
            (self.cancel_await, 1),
            (self.write_state, 2),
            (self.read_state, 2),
            (self.list_sessions, 1),
            (self.receive_deferred, 3),
            (self.cancel, 1),
            (self.purge, 3),
            (self.peek, 2),
            (self.change_status, 1),
        ]

    def _settings(self, can_send: bool, can_receive: bool) -> FragmentSettings:
        lock, most, ttl, dead, quota = self.settings
        return FragmentSettings(
            lock, most, ttl, bool(dead), quota, can_send, can_receive, 0, True, taps=self.taps
        )

    def begin(self) -> None:
        """Some have taps: receivers do not notice."""
        self.names_of_sessions = [f"s{i}" if i else "" for i in range(self.random.choice([1, 3, 8]))]
        r = self.taps_random
        for id in range(r.choice([0, 0, 1, 2])):
            sub = r.choice([ACTIVE, ACTIVE, DEAD])
            events = r.random() < 0.5
            limit = r.choice([0, 300, 1500])
            self.taps.append(TapSettings(id + 1, f"tap {id}", sub, events, max_bytes=limit))

    def _session(self) -> str:
        return self.random.choice(self.names_of_sessions)

    def _holder(self) -> int:
        """Mostly one that holds a session."""
        r = self.random
        held = [grip.consumer for grip in self.checker.model.grips.values()]
        seats = [consumer for consumer in self.checker.seats if consumer != 14]
        pool = held if held and r.random() < 0.9 else (seats or [99])
        return r.choice(pool)

    def send(self) -> None:
        r = self.random
        now = self.world.now
        drafts = [
            Draft(
                b"x" * r.choice(self.sizes),
                "",
                self._session(),
                None,
                r.choice(self.ttls),
                now + r.randint(1, 60) if r.random() < 0.1 else 0,
            )
            for _ in range(r.choice([1, 1, 2, 3, 8]))
        ]
        self._do(c.Send(1, 1, 7, drafts, r.random() < 0.5))

    def accept(self) -> None:
        named = self._session() if self.random.random() < 0.5 else None
        self._do(c.AcceptSession(1, 1, 7, next(self.checker.names), named))

    def demand(self) -> None:
        r = self.random
        credit = r.choice([-1, 0, 1, 1, 2, 3, 9])
        self._do(c.Demand(1, 1, self._holder(), ACTIVE, credit, r.random() < 0.4, r.random() < 0.1))

    def demand_dead(self) -> None:
        r = self.random
        self._do(c.Demand(1, 1, 14, DEAD, r.choice([1, 3]), r.random() < 0.4, False))

    def leave(self) -> None:
        self._do(c.Leave(1, 1, 0 if self.random.random() < 0.1 else self._holder()))

    def renew_session(self) -> None:
        self._do(c.RenewSession(1, 1, 7, self._holder()))

    def await_session(self) -> None:
        self._do(c.AwaitSession(1, 1, 7))

    def cancel_await(self) -> None:
        pool = [*self.checker.awaits, *self.checker.offered[-2:]]
        if pool:
            self._do(c.CancelAwait(1, 1, self.random.choice(pool)))

    def write_state(self) -> None:
        state = self.random.choice([None, b"", b"state", b"y" * 200])
        self._do(c.SetSessionState(1, 1, 7, self._holder(), state))

    def read_state(self) -> None:
        self._do(c.GetSessionState(1, 1, 7, self._holder()))

    def list_sessions(self) -> None:
        r = self.random
        updated = self.world.now - 30 if r.random() < 0.3 else 0
        after = r.choice([None, None, *self.checker.model.listed()[:1]])
        self._do(c.ListSessions(1, 1, 7, updated, after, r.choice([1, 100])))

    def receive_deferred(self) -> None:
        holder = self._holder()
        held = self.checker.model.held_by(holder)
        mine = [m.n for m in self.checker.model.of(held, DEFERRED)] if held else []
        numbers = mine[:2] if mine and self.random.random() < 0.8 else self._numbers_in(DEFERRED)
        delete = self.random.random() < 0.3
        self._do(c.ReceiveDeferred(1, 1, 7, ACTIVE, numbers, delete, holder))

    def peek(self) -> None:
        r = self.random
        start = r.randint(-1, self.checker.model.last + 1)
        session = self._session() if r.random() < 0.5 else None
        self._do(c.Peek(1, 1, 7, ACTIVE, start, r.randint(1, 8), r.choice([1, 300, 9999]), session))

    def purge(self) -> None:
        r = self.random
        sub = r.choice([ACTIVE, DEAD])
        session = self._session() if sub == ACTIVE and r.random() < 0.3 else None
        before = self.world.now - r.choice([-1, 0, 20])
        self._do(c.Purge(1, 1, 7, sub, before, r.randint(0, 7), session))
