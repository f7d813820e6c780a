"""Long lives of a fragment that requires sessions, from printed seeds: any order of sends, accepts, receives, settlements,
closes, renewals, time, failed commits and crashes keeps each session in order, in one hand, and its counts by the table.

A failure prints its seed and its commands. BUSBAR_DEEP=1 runs a long campaign, BUSBAR_SEED=n one life.
"""

from __future__ import annotations

import os

import pytest

from busbar.model import commands as c
from busbar.model.message import ACTIVE, DEAD, DEFERRED, Draft
from busbar.model.settings import FragmentSettings, TapSettings
from tests.simulation.session_world import SessionWorld
from tests.simulation.test_machine_seeds import Life

DEEP = os.environ.get("BUSBAR_DEEP") == "1"
LIVES = 20_000 if DEEP else 150
STEPS = 120

SCENARIOS: dict[str, int] = {
    "a drain is undone with the removal of what expired, and the holder wants nothing more": 4,
    "a session is lost by time again, after a failed commit, with expired messages left": 646,
    "the lock of a dead letter ends in the turn that refuses a session state": 4775,
}
"""Lives in which the machine and the model once disagreed, by what it was about."""


class SessionLife(Life):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        r = self.random
        self.names_of_sessions = [f"s{i}" if i else "" for i in range(r.choice([1, 3, 8]))]
        self.ttls = r.choice([[0], [0, 0, 0, 30, 200], [0, 60]])
        self.world: SessionWorld = SessionWorld(self._settings(True, True), seed)  # type: ignore[assignment]
        self.world.slow_reads = self.ttls == [0] and not self.settings[2]
        kinds = [
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
            (self.time_passes, 6),
            (self.change_status, 1),
            (self.take_off, 5),
            (self.land, 5),
            (self.fail, 2),
            (self.crash, 0.5),
            (self.shut_down, 1),
        ]
        self.kinds = [kind for kind, _ in kinds]
        self.weights = [weight * r.choice([0.3, 1, 1, 3]) for _, weight in kinds]
        self.requests = 1000

    def _settings(self, can_send: bool, can_receive: bool) -> FragmentSettings:
        lock, most, ttl, dead, quota = self.settings
        return FragmentSettings(
            lock, most, ttl, bool(dead), quota, can_send, can_receive, 0, True, taps=self.taps
        )

    def begin(self) -> None:
        """Some have taps: receivers do not notice."""
        r = self.taps_random
        for id in range(r.choice([0, 0, 1, 2])):
            sub = r.choice([ACTIVE, ACTIVE, DEAD])
            events = r.random() < 0.5
            limit = r.choice([0, 300, 1500])
            self.taps.append(TapSettings(id + 1, f"tap {id}", sub, events, max_bytes=limit))

    def _request(self) -> int:
        self.requests += 1
        return self.requests

    def _session(self) -> str:
        return self.random.choice(self.names_of_sessions)

    def _holder(self) -> int:
        """Mostly one that holds a session."""
        r = self.random
        held = [grip.consumer for grip in self.world.model.grips.values()]
        seats = [consumer for consumer in self.world.seats if consumer != 14]
        pool = held if held and r.random() < 0.9 else (seats or [99])
        return r.choice(pool)

    def send(self) -> None:
        r = self.random
        now = self.world.model.now
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
        self._do(c.AcceptSession(1, 1, self._request(), next(self.world.names), named))

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
        self._do(c.AwaitSession(1, 1, self._request()))

    def cancel_await(self) -> None:
        pool = [*self.world.awaits, *self.world.offered[-2:]]
        if pool:
            self._do(c.CancelAwait(1, 1, self.random.choice(pool)))

    def write_state(self) -> None:
        state = self.random.choice([None, b"", b"state", b"y" * 200])
        self._do(c.SetSessionState(1, 1, 7, self._holder(), state))

    def read_state(self) -> None:
        self._do(c.GetSessionState(1, 1, 7, self._holder()))

    def list_sessions(self) -> None:
        r = self.random
        updated = self.world.model.now - 30 if r.random() < 0.3 else 0
        after = r.choice([None, None, *self.world.model.listed()[:1]])
        self._do(c.ListSessions(1, 1, 7, updated, after, r.choice([1, 100])))

    def receive_deferred(self) -> None:
        holder = self._holder()
        held = self.world.model.held_by(holder)
        mine = [m.n for m in self.world.model.of(held, DEFERRED)] if held else []
        numbers = mine[:2] if mine and self.random.random() < 0.8 else self._numbers_in(DEFERRED)
        delete = self.random.random() < 0.3
        self._do(c.ReceiveDeferred(1, 1, 7, ACTIVE, numbers, delete, holder))

    def peek(self) -> None:
        r = self.random
        start = r.randint(-1, self.world.model.last + 1)
        session = self._session() if r.random() < 0.5 else None
        self._do(c.Peek(1, 1, 7, ACTIVE, start, r.randint(1, 8), r.choice([1, 300, 9999]), session))

    def purge(self) -> None:
        r = self.random
        sub = r.choice([ACTIVE, DEAD])
        session = self._session() if sub == ACTIVE and r.random() < 0.3 else None
        before = self.world.model.now - r.choice([-1, 0, 20])
        self._do(c.Purge(1, 1, 7, sub, before, r.randint(0, 7), session))


def live(seed: int, steps: int = STEPS) -> None:
    life = SessionLife(seed)
    try:
        for _ in range(steps):
            life.step()
    except Exception as error:
        error.add_note("\n".join([f"seed {seed}", *life.log[-40:]]))
        raise


def test_lives() -> None:
    seed = os.environ.get("BUSBAR_SEED")
    for each in [int(seed)] if seed else range(LIVES):
        live(each)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("seed", SCENARIOS.values(), ids=list(SCENARIOS))
def test_what_once_failed(seed: int) -> None:
    live(seed)
