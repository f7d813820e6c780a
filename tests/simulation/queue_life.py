"""The clients of a queue in the life of its store."""

from __future__ import annotations

from random import Random

from busbar.model import commands as c
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, DEFERRED, SCHEDULED, Draft
from busbar.model.settings import FragmentSettings, TapSettings
from tests.simulation.life import LOCK, Kinds, StoreLife
from tests.simulation.queue_checker import QueueChecker
from tests.simulation.store_world import StoreWorld

CONSUMERS = {
    11: (ACTIVE, False),
    12: (ACTIVE, False),
    13: (ACTIVE, True),
    14: (DEAD, False),
    15: (DEAD, True),
}
OUTCOMES = [c.COMPLETE, c.COMPLETE, c.ABANDON, c.ABANDON, c.DEFER, c.DEAD_LETTER, c.RELEASE]


class QueueLife(StoreLife):
    checker: QueueChecker

    def __init__(self, seed: int) -> None:
        super().__init__(seed, StoreWorld(seed))
        r = self.random
        self.settings = [
            LOCK,
            r.choice([2, 3, 10]),
            r.choice([0, 0, 120]),
            r.random() < 0.5,
            0,
        ]
        self.ids = Random(f"ids of {seed}")
        self.window = self.ids.choice([0, 40, 100, 100, 400])
        self.names = self.ids.choice([["", "a", "b", "c"], [f"id {i}" for i in range(200)]])
        self.taps_random = Random(f"taps of {seed}")
        self.next_tap = 0
        self.taps: list[TapSettings] = []
        self.ttls = [0, 0, 0, 0, 30, 200]
        self.begin()
        self.checker = self.make_checker(self._settings(True, True))
        if not self.settings[2] and Random(f"reads of {seed}").random() < 0.5:
            self.ttls, self.world.slow_reads = [0], True
        self.sizes = r.choice([[0, 1, 5], [0, 100, 300], [200]])
        self.add_kinds(self.client_kinds(), r)
        self.world.start(is_new=True)

    def begin(self) -> None:
        """Before the checker is made."""

    def make_checker(self, settings: FragmentSettings) -> QueueChecker:
        return QueueChecker(self.world, settings)

    def client_kinds(self) -> Kinds:
        return [
            (self.send, 10),
            (self.demand, 10),
            (self.leave, 1),
            (self.settle, 12),
            (self.renew, 1),
            (self.receive_deferred, 3),
            (self.cancel, 1),
            (self.purge, 1),
            (self.peek, 2),
            (self.change_status, 1),
        ]

    def _settings(self, can_send: bool, can_receive: bool) -> FragmentSettings:
        lock, most, ttl, dead, quota = self.settings
        return FragmentSettings(
            lock,
            most,
            ttl,
            bool(dead),
            quota,
            can_send,
            can_receive,
            self.window,
            taps=self.taps,
        )

    def as_other_owner(self) -> None:
        self.send()
        self.world.drain()

    def _do(self, command: c.Command) -> None:
        self.checker.do(command)

    def send(self) -> None:
        r = self.random
        now = self.world.now
        drafts = [
            Draft(
                b"x" * r.choice(self.sizes),
                self.ids.choice(self.names),
                self.ids.choice([None, None, None, "s"]),
                self.ids.choice([None, None, None, "s", "p"]),
                r.choice(self.ttls),
                now + r.randint(1, 60) if r.random() < 0.15 else 0,
            )
            for _ in range(r.choice([1, 1, 2, 3, 8]))
        ]
        self._do(c.Send(1, 1, 7, drafts, r.random() < 0.5))

    def demand(self) -> None:
        r = self.random
        consumer = r.choice(sorted(CONSUMERS))
        sub, delete = CONSUMERS[consumer]
        self._do(c.Demand(1, 1, consumer, sub, r.choice([-1, 0, 1, 1, 2, 3, 9]), r.random() < 0.4, delete))

    def leave(self) -> None:
        self._do(c.Leave(1, 1, self.random.choice([0, *CONSUMERS])))

    def _locks(self) -> list[tuple[int, int]]:
        """Mostly valid ones, sometimes any that a client has ever heard of."""
        r = self.random
        held = list(self.checker.model.locked().items())
        heard = [lock for lock in held if lock in set(self.checker.seen)]
        pool = heard if heard and r.random() < 0.85 else self.checker.seen
        return r.sample(pool, min(len(pool), r.choice([1, 1, 2, 5])))

    def settle(self) -> None:
        r = self.random
        locks = self._locks()
        overlay = r.choice([None, None, {"a": b"1"}, {"b": b"2", "a": b"3"}])
        numbers, nonces = [n for n, _ in locks], [nonce for _, nonce in locks]
        self._do(c.Settle(1, 1, 7, r.choice(OUTCOMES), numbers, nonces, overlay, r.random() < 0.3))

    def renew(self) -> None:
        locks = self._locks()
        self._do(c.Renew(1, 1, 7, [n for n, _ in locks], [nonce for _, nonce in locks]))

    def _numbers_in(self, lane: int) -> list[int]:
        r = self.random
        there = [m.n for m in self.checker.model.messages.values() if m.lane == lane]
        picked = r.sample(there, min(len(there), r.choice([1, 1, 2, 4])))
        if r.random() < 0.1:
            picked.append(r.randint(0, 50))
        return list(dict.fromkeys(picked))

    def receive_deferred(self) -> None:
        sub = self.random.choice([ACTIVE, DEAD])
        numbers = self._numbers_in(DEAD_DEFERRED if sub == DEAD else DEFERRED)
        self._do(c.ReceiveDeferred(1, 1, 7, sub, numbers, self.random.random() < 0.3))

    def cancel(self) -> None:
        self._do(c.CancelScheduled(1, 1, 7, self._numbers_in(SCHEDULED)))

    def purge(self) -> None:
        r = self.random
        before = self.world.now - r.choice([-1, 0, 20])
        self._do(c.Purge(1, 1, 7, r.choice([ACTIVE, DEAD]), before, r.randint(0, 7)))

    def peek(self) -> None:
        r = self.random
        start = r.randint(-1, self.checker.model.last + 1)
        self._do(c.Peek(1, 1, 7, r.choice([ACTIVE, DEAD]), start, r.randint(1, 8), r.choice([1, 300, 9999])))

    def change_status(self) -> None:
        status = self.random.choice([(True, True), (True, True), (False, True), (True, False)])
        if self.ids.random() < 0.3:
            self.window = min(self.window, self.ids.choice([30, 60, 200]))
        self.checker.change(self._settings(*status))
