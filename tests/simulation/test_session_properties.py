"""Random lives of a fragment that requires sessions, against the model: small counterexamples for test_session_seeds."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from busbar.model import commands as c
from busbar.model.message import ACTIVE, DEFERRED, Draft
from busbar.model.settings import FragmentSettings
from harness.simulated_host import JobFault
from tests.simulation.session_checker import SessionChecker
from tests.simulation.store_world import StoreWorld

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
        self.dead_letter, self.most = dead_letter, most
        self.world = StoreWorld(seed)
        self.checker = SessionChecker(self.world, self.with_status(True))
        self.world.start(is_new=True)

    def with_status(self, can_receive: bool) -> FragmentSettings:
        return FragmentSettings(LOCK, self.most, 0, self.dead_letter, 0, True, can_receive, 0, True)

    def holder(self, pick: int) -> int:
        held = [grip.consumer for grip in self.checker.model.grips.values()]
        return held[pick % len(held)] if held and pick < 90 else 99

    @rule(
        drafts=st.lists(
            st.tuples(names, st.integers(0, 200), st.sampled_from([0, 0, 0, 30]), st.integers(-60, 60)),
            min_size=1,
            max_size=5,
        )
    )
    def send(self, drafts: list[tuple[str, int, int, int]]) -> None:
        now = self.world.now
        made = [
            Draft(b"x" * size, "", session, None, ttl, now + later if later > 40 else 0)
            for session, size, ttl, later in drafts
        ]
        self.checker.do(c.Send(1, 1, 7, made, False))

    @rule(session=st.none() | names)
    def accept(self, session: str | None) -> None:
        self.checker.do(c.AcceptSession(1, 1, 7, next(self.checker.names), session))

    @rule(pick=st.integers(0, 99), credit=st.integers(-1, 9), drain=st.booleans(), delete=st.booleans())
    def demand(self, pick: int, credit: int, drain: bool, delete: bool) -> None:
        self.checker.do(c.Demand(1, 1, self.holder(pick), ACTIVE, credit, drain, delete and pick % 5 == 0))

    @rule(pick=st.integers(0, 99))
    def close(self, pick: int) -> None:
        self.checker.do(c.Leave(1, 1, 0 if pick == 95 else self.holder(pick)))

    @rule(pick=st.integers(0, 99))
    def renew(self, pick: int) -> None:
        self.checker.do(c.RenewSession(1, 1, 7, self.holder(pick)))

    @rule()
    def await_session(self) -> None:
        self.checker.do(c.AwaitSession(1, 1, 7))

    @rule(pick=st.integers(0, 99), state=st.sampled_from([None, b"", b"state"]), write=st.booleans())
    def touch_state(self, pick: int, state: bytes | None, write: bool) -> None:
        holder = self.holder(pick)
        self.checker.do(
            c.SetSessionState(1, 1, 7, holder, state) if write else c.GetSessionState(1, 1, 7, holder)
        )

    @precondition(lambda self: self.checker.seen)
    @rule(
        outcome=st.sampled_from([c.COMPLETE, c.ABANDON, c.ABANDON, c.DEFER, c.DEAD_LETTER, c.RELEASE]),
        picks=st.lists(st.integers(0, 1000), min_size=1, max_size=4),
        atomic=st.booleans(),
    )
    def settle(self, outcome: int, picks: list[int], atomic: bool) -> None:
        seen = self.checker.seen
        locks = [seen[-1 - pick % min(len(seen), 12)] for pick in picks]
        self.checker.do(
            c.Settle(1, 1, 7, outcome, [n for n, _ in locks], [x for _, x in locks], None, atomic)
        )

    @rule(pick=st.integers(0, 99), delete=st.booleans())
    def receive_deferred(self, pick: int, delete: bool) -> None:
        there = [m.n for m in self.checker.model.messages.values() if m.lane == DEFERRED]
        if there:
            self.checker.do(
                c.ReceiveDeferred(1, 1, 7, ACTIVE, [there[pick % len(there)]], delete, self.holder(pick))
            )

    @rule(session=st.none() | names, number=st.integers(1, 7), ago=st.sampled_from([-1, -1, 0, 20]))
    def purge(self, session: str | None, number: int, ago: int) -> None:
        self.checker.do(c.Purge(1, 1, 7, ACTIVE, self.world.now - ago, number, session))

    @rule(ms=st.sampled_from([1, 25, LOCK, 200, 1_000]), fire=st.booleans())
    def time_passes(self, ms: int, fire: bool) -> None:
        self.world.pass_time(ms, fire)

    @rule(can_receive=st.booleans())
    def change_status(self, can_receive: bool) -> None:
        self.checker.change(self.with_status(can_receive))

    # ---- the store ----

    @rule()
    def turn(self) -> None:
        self.world.turn()

    @rule()
    def work(self) -> None:
        self.world.work()

    @rule(fault=st.sampled_from(list(JobFault)))
    def fail(self, fault: JobFault) -> None:
        self.world.turn()
        self.world.work(fault)

    @rule()
    def hang(self) -> None:
        self.world.turn()
        self.world.hang()

    @rule(offline=st.booleans())
    def operate(self, offline: bool) -> None:
        if offline:
            self.world.take_offline()
        else:
            self.world.bring_online()

    @rule()
    def heal(self) -> None:
        self.world.heal()

    @rule(landed=st.booleans(), clean=st.booleans())
    def restart(self, landed: bool, clean: bool) -> None:
        if clean:
            self.world.restart()
        else:
            self.world.crash(landed)

    @rule(leaves=st.booleans())
    def leave_reads(self, leaves: bool) -> None:
        self.world.leaves_reads = leaves

    @invariant()
    def one_holder(self) -> None:
        if hasattr(self, "world"):
            consumers = [grip.consumer for grip in self.checker.model.grips.values()]
            assert len(consumers) == len(set(consumers))


SessionLife.TestCase.settings = settings(
    max_examples=2_000 if DEEP else 100,
    stateful_step_count=80 if DEEP else 40,
    deadline=None,
    derandomize=False,
    suppress_health_check=list(HealthCheck),
)
TestSessionLife = SessionLife.TestCase
