"""Random lives of a queue's store, against the model: any order of commands, time, failed commits, outages, crashes.

After every command the world checks that every message is in exactly one place, that the order, the counts, the credits and
the locks are right, that nothing settled comes back and that no number is used twice.
BUSBAR_DEEP=1 runs a long campaign.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from busbar.model import commands as c
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, DEFERRED, SCHEDULED, Draft
from busbar.model.settings import FragmentSettings
from harness.simulated_host import JobFault
from tests.simulation.queue_checker import QueueChecker
from tests.simulation.store_world import StoreWorld

DEEP = os.environ.get("BUSBAR_DEEP") == "1"
LOCK = 50
subs = st.sampled_from([ACTIVE, ACTIVE, ACTIVE, DEAD])
consumers = {
    11: (ACTIVE, False),
    12: (ACTIVE, False),
    13: (ACTIVE, True),
    14: (DEAD, False),
    15: (DEAD, True),
}


class FragmentLife(RuleBasedStateMachine):
    @initialize(
        ttl=st.sampled_from([0, 0, 120]),
        dead_letter=st.booleans(),
        most=st.sampled_from([2, 3, 10]),
        seed=st.integers(0, 1000),
        window=st.sampled_from([0, 30, 100]),
    )
    def begin(self, ttl: int, dead_letter: bool, most: int, seed: int, window: int) -> None:
        self.ttl, self.dead_letter, self.most, self.window = ttl, dead_letter, most, window
        self.world = StoreWorld(seed)
        self.checker = self.make_checker(self.with_status(True, True))
        self.world.start(is_new=True)

    def make_checker(self, settings: FragmentSettings) -> QueueChecker:
        return QueueChecker(self.world, settings)

    def with_status(self, can_send: bool, can_receive: bool) -> FragmentSettings:
        return FragmentSettings(
            LOCK, self.most, self.ttl, self.dead_letter, 0, can_send, can_receive, self.window
        )

    @rule(
        drafts=st.lists(
            st.tuples(
                st.integers(0, 200),
                st.sampled_from([0, 0, 0, 30, 200]),
                st.integers(-60, 60),
                st.sampled_from(["", "a", "b", "c", "d", "e"]),
            ),
            min_size=1,
            max_size=6,
        ),
        atomic=st.booleans(),
    )
    def send(self, drafts: list[tuple[int, int, int, str]], atomic: bool) -> None:
        now = self.world.now
        made = [
            Draft(b"x" * size, id, None, None, ttl, now + later if later > 30 else 0)
            for size, ttl, later, id in drafts
        ]
        self.checker.do(c.Send(1, 1, 7, made, atomic))

    @rule(consumer=st.sampled_from(sorted(consumers)), credit=st.integers(-2, 9), drain=st.booleans())
    def demand(self, consumer: int, credit: int, drain: bool) -> None:
        sub, delete = consumers[consumer]
        self.checker.do(c.Demand(1, 1, consumer, sub, credit, drain, delete))

    @rule(consumer=st.sampled_from([0, *sorted(consumers)]))
    def leave(self, consumer: int) -> None:
        self.checker.do(c.Leave(1, 1, consumer))

    @precondition(lambda self: self.checker.seen)
    @rule(
        outcome=st.sampled_from([c.COMPLETE, c.ABANDON, c.ABANDON, c.DEFER, c.DEAD_LETTER, c.RELEASE]),
        picks=st.lists(st.integers(0, 1000), min_size=1, max_size=4),
        overlay=st.sampled_from([None, None, {"a": b"1"}, {"b": b"2", "a": b"3"}]),
        atomic=st.booleans(),
    )
    def settle(self, outcome: int, picks: list[int], overlay: dict[str, bytes] | None, atomic: bool) -> None:
        locks = self._locks(picks)
        self.checker.do(
            c.Settle(1, 1, 7, outcome, [n for n, _ in locks], [x for _, x in locks], overlay, atomic)
        )

    @precondition(lambda self: self.checker.seen)
    @rule(picks=st.lists(st.integers(0, 1000), min_size=1, max_size=3, unique=True))
    def renew(self, picks: list[int]) -> None:
        locks = self._locks(picks)
        self.checker.do(c.Renew(1, 1, 7, [n for n, _ in locks], [x for _, x in locks]))

    def _locks(self, picks: list[int]) -> list[tuple[int, int]]:
        """Mostly the newest that clients have heard of."""
        seen = self.checker.seen
        return [seen[-1 - pick % min(len(seen), 12)] for pick in picks]

    @rule(sub=subs, picks=st.lists(st.integers(0, 100), min_size=1, max_size=3), delete=st.booleans())
    def receive_deferred(self, sub: int, picks: list[int], delete: bool) -> None:
        lane = DEAD_DEFERRED if sub == DEAD else DEFERRED
        numbers = self._numbers_in(lane, picks)
        if numbers:
            self.checker.do(c.ReceiveDeferred(1, 1, 7, sub, numbers, delete))

    @rule(picks=st.lists(st.integers(0, 100), min_size=1, max_size=2))
    def cancel(self, picks: list[int]) -> None:
        numbers = self._numbers_in(SCHEDULED, picks)
        if numbers:
            self.checker.do(c.CancelScheduled(1, 1, 7, numbers))

    def _numbers_in(self, lane: int, picks: list[int]) -> list[int]:
        """Numbers of a lane; sometimes one that may be anywhere."""
        there = [m.n for m in self.checker.model.messages.values() if m.lane == lane]
        return list(
            dict.fromkeys(there[pick % len(there)] if there and pick < 90 else pick - 80 for pick in picks)
        )

    @rule(sub=subs, number=st.integers(0, 7), ago=st.sampled_from([-1, 0, 20]))
    def purge(self, sub: int, number: int, ago: int) -> None:
        self.checker.do(c.Purge(1, 1, 7, sub, self.world.now - ago, number))

    @rule(sub=subs, start=st.integers(-1, 20), number=st.integers(1, 8), size=st.sampled_from([1, 300, 9999]))
    def peek(self, sub: int, start: int, number: int, size: int) -> None:
        self.checker.do(c.Peek(1, 1, 7, sub, start, number, size))

    @rule(ms=st.sampled_from([1, 5, 25, LOCK, 200, 1_000]), fire=st.booleans())
    def time_passes(self, ms: int, fire: bool) -> None:
        self.world.pass_time(ms, fire)

    @rule(can_send=st.booleans(), can_receive=st.booleans())
    def change_status(self, can_send: bool, can_receive: bool) -> None:
        self.checker.change(self.with_status(can_send or can_receive, can_receive or can_send))

    @rule()
    def stop_receiving(self) -> None:
        self.checker.change(self.with_status(True, False))

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

    @rule(landed=st.booleans())
    def crash(self, landed: bool) -> None:
        self.world.crash(landed)

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule(leaves=st.booleans())
    def leave_reads(self, leaves: bool) -> None:
        self.world.leaves_reads = leaves

    @invariant()
    def no_message_is_in_two_places(self) -> None:
        """The model has one dictionary; the store must agree that a number stands in one lane only."""
        if hasattr(self, "world"):
            numbers = [n for lane in self.checker.stored.lanes for n in lane.records]
            assert len(numbers) == len(set(numbers))


FragmentLife.TestCase.settings = settings(
    max_examples=2_000 if DEEP else 60,
    stateful_step_count=80 if DEEP else 50,
    deadline=None,
    derandomize=False,
    suppress_health_check=list(HealthCheck),
)
TestFragmentLife = FragmentLife.TestCase
