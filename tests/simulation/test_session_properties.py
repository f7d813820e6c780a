"""Random lives of a fragment that requires sessions, against the model: small counterexamples for test_session_seeds."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from busbar.model import commands as c
from busbar.model.message import ACTIVE, DEFERRED, Draft
from busbar.model.settings import FragmentSettings
from tests.simulation.session_world import SessionWorld

DEEP = os.environ.get("BUSBAR_DEEP") == "1"
LOCK = 50
names = st.sampled_from(["", "a", "b"])


class SessionLife(RuleBasedStateMachine):
    @initialize(
        dead_letter=st.booleans(),
        most=st.sampled_from([1, 2, 10]),
        seed=st.integers(0, 1000),
    )
    def begin(self, dead_letter: bool, most: int, seed: int) -> None:
        self.request = 100
        self.dead_letter, self.most = dead_letter, most
        self.world = SessionWorld(self.with_status(True), seed)

    def with_status(self, can_receive: bool) -> FragmentSettings:
        return FragmentSettings(LOCK, self.most, 0, self.dead_letter, 0, True, can_receive, 0, True)

    def next_request(self) -> int:
        self.request += 1
        return self.request

    def holder(self, pick: int) -> int:
        held = [grip.consumer for grip in self.world.model.grips.values()]
        return held[pick % len(held)] if held and pick < 90 else 99

    @rule(
        drafts=st.lists(
            st.tuples(names, st.integers(0, 200), st.sampled_from([0, 0, 0, 30]), st.integers(-60, 60)),
            min_size=1,
            max_size=5,
        )
    )
    def send(self, drafts: list[tuple[str, int, int, int]]) -> None:
        now = self.world.model.now
        made = [
            Draft(b"x" * size, "", session, None, ttl, now + later if later > 40 else 0)
            for session, size, ttl, later in drafts
        ]
        self.world.do(c.Send(1, 1, 7, made, False))

    @rule(session=st.none() | names)
    def accept(self, session: str | None) -> None:
        self.world.do(c.AcceptSession(1, 1, self.next_request(), next(self.world.names), session))

    @rule(pick=st.integers(0, 99), credit=st.integers(-1, 9), drain=st.booleans(), delete=st.booleans())
    def demand(self, pick: int, credit: int, drain: bool, delete: bool) -> None:
        self.world.do(c.Demand(1, 1, self.holder(pick), ACTIVE, credit, drain, delete and pick % 5 == 0))

    @rule(pick=st.integers(0, 99))
    def close(self, pick: int) -> None:
        self.world.do(c.Leave(1, 1, 0 if pick == 95 else self.holder(pick)))

    @rule(pick=st.integers(0, 99))
    def renew(self, pick: int) -> None:
        self.world.do(c.RenewSession(1, 1, 7, self.holder(pick)))

    @rule()
    def await_session(self) -> None:
        self.world.do(c.AwaitSession(1, 1, self.next_request()))

    @rule(pick=st.integers(0, 99), state=st.sampled_from([None, b"", b"state"]), write=st.booleans())
    def touch_state(self, pick: int, state: bytes | None, write: bool) -> None:
        holder = self.holder(pick)
        self.world.do(
            c.SetSessionState(1, 1, 7, holder, state) if write else c.GetSessionState(1, 1, 7, holder)
        )

    @precondition(lambda self: self.world.seen)
    @rule(
        outcome=st.sampled_from([c.COMPLETE, c.ABANDON, c.ABANDON, c.DEFER, c.DEAD_LETTER, c.RELEASE]),
        picks=st.lists(st.integers(0, 1000), min_size=1, max_size=4),
        atomic=st.booleans(),
    )
    def settle(self, outcome: int, picks: list[int], atomic: bool) -> None:
        seen = self.world.seen
        locks = [seen[-1 - pick % min(len(seen), 12)] for pick in picks]
        self.world.do(c.Settle(1, 1, 7, outcome, [n for n, _ in locks], [x for _, x in locks], None, atomic))

    @rule(pick=st.integers(0, 99), delete=st.booleans())
    def receive_deferred(self, pick: int, delete: bool) -> None:
        there = [m.n for m in self.world.model.messages.values() if m.lane == DEFERRED]
        if there:
            self.world.do(
                c.ReceiveDeferred(1, 1, 7, ACTIVE, [there[pick % len(there)]], delete, self.holder(pick))
            )

    @rule(session=st.none() | names, number=st.integers(1, 7), ago=st.sampled_from([-1, -1, 0, 20]))
    def purge(self, session: str | None, number: int, ago: int) -> None:
        self.world.do(c.Purge(1, 1, 7, ACTIVE, self.world.model.now - ago, number, session))

    @rule(ms=st.sampled_from([1, 25, LOCK, 200]), tick=st.booleans())
    def time_passes(self, ms: int, tick: bool) -> None:
        self.world.model.now += ms
        if tick:
            self.world.do(c.Tick(1))

    @rule(can_receive=st.booleans())
    def change_status(self, can_receive: bool) -> None:
        self.world.set(self.with_status(can_receive))

    @rule()
    def take_off(self) -> None:
        self.world.take_off()

    @rule()
    def land(self) -> None:
        self.world.land()

    @rule()
    def fail(self) -> None:
        self.world.fail()

    @rule(landed=st.booleans(), clean=st.booleans())
    def restart(self, landed: bool, clean: bool) -> None:
        if clean:
            self.world.shut_down()
        else:
            self.world.crash(landed)

    @invariant()
    def one_holder(self) -> None:
        if hasattr(self, "world"):
            consumers = [grip.consumer for grip in self.world.model.grips.values()]
            assert len(consumers) == len(set(consumers))


SessionLife.TestCase.settings = settings(
    max_examples=2_000 if DEEP else 100,
    stateful_step_count=80 if DEEP else 40,
    deadline=None,
    derandomize=False,
    suppress_health_check=list(HealthCheck),
)
TestSessionLife = SessionLife.TestCase
