"""Long lives of a fragment from printed seeds: the same world as in test_machine_properties, driven by a plain generator.

Hypothesis finds small counterexamples; this goes deep. Each life leans towards some commands, so that one has a full
dead-letter queue, another a store that fails all the time. A failure prints its seed and its commands; put the seed into
SCENARIOS with a name, so that it is kept. BUSBAR_DEEP=1 runs a long campaign, BUSBAR_SEED=n one life.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from busbar.model import commands as c
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, DEFERRED, SCHEDULED, Draft
from busbar.model.settings import FragmentSettings, TapSettings
from tests.simulation.machine_world import World

DEEP = os.environ.get("BUSBAR_DEEP") == "1"
LIVES = 20_000 if DEEP else 150
STEPS = 120
LOCK = 50
CONSUMERS = {
    11: (ACTIVE, False),
    12: (ACTIVE, False),
    13: (ACTIVE, True),
    14: (DEAD, False),
    15: (DEAD, True),
}
OUTCOMES = [c.COMPLETE, c.COMPLETE, c.ABANDON, c.ABANDON, c.DEFER, c.DEAD_LETTER, c.RELEASE]

SCENARIOS: dict[str, int] = {
    "what expires in the main queue is delivered by the dead-letter queue in the same turn": 0,
    "a lock ends, the message has expired, and a later one is delivered, all in one turn": 1,
    "a crash interrupts the removal of expired messages": 85,
}
"""Lives in which the machine and the model once disagreed, by what it was about."""


class Life:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        r = self.random
        self.settings = [
            LOCK,
            r.choice([2, 3, 10]),
            r.choice([0, 0, 120]),
            r.random() < 0.5,
            0,
        ]
        # From a generator of its own, so that older seeds go on to mean what they meant.
        self.ids = Random(f"ids of {seed}")
        self.window = 0 if seed in SCENARIOS.values() else self.ids.choice([0, 40, 100, 100, 400])
        self.names = self.ids.choice([["", "a", "b", "c"], [f"id {i}" for i in range(200)]])
        self.taps_random = Random(f"taps of {seed}")
        self.next_tap = 0
        self.taps: list[TapSettings] = []
        self.begin()
        self.world = self.make_world(self._settings(True, True), seed)
        self.ttls = [0, 0, 0, 0, 30, 200]
        if (
            seed not in SCENARIOS.values()
            and not self.settings[2]
            and Random(f"reads of {seed}").random() < 0.5
        ):
            self.ttls, self.world.slow_reads = [0], True
        self.log: list[str] = []
        self.sizes = r.choice([[0, 1, 5], [0, 100, 300], [200]])
        kinds = [
            (self.send, 10),
            (self.demand, 10),
            (self.leave, 1),
            (self.settle, 12),
            (self.renew, 1),
            (self.receive_deferred, 3),
            (self.cancel, 1),
            (self.purge, 1),
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

    def begin(self) -> None:
        """Before the world is made."""

    def make_world(self, settings: FragmentSettings, seed: int) -> World:
        return World(settings, seed)

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

    def step(self) -> None:
        self.random.choices(self.kinds, self.weights)[0]()

    def _do(self, command: c.Command) -> None:
        names = [name for name in dir(command) if not name.startswith("_") and name != "drafts"]
        self.log.append(f"{type(command).__name__} " + str({name: getattr(command, name) for name in names}))
        self.world.do(command)

    def send(self) -> None:
        r = self.random
        now = self.world.model.now
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
        held = list(self.world.model.locked().items())
        heard = [lock for lock in held if lock in set(self.world.seen)]
        pool = heard if heard and r.random() < 0.85 else self.world.seen
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
        there = [m.n for m in self.world.model.messages.values() if m.lane == lane]
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
        before = self.world.model.now - r.choice([-1, 0, 20])
        self._do(c.Purge(1, 1, 7, r.choice([ACTIVE, DEAD]), before, r.randint(0, 7)))

    def peek(self) -> None:
        r = self.random
        start = r.randint(-1, self.world.model.last + 1)
        self._do(c.Peek(1, 1, 7, r.choice([ACTIVE, DEAD]), start, r.randint(1, 8), r.choice([1, 300, 9999])))

    def time_passes(self) -> None:
        ms = self.random.choice([1, 5, 25, LOCK, 200])
        self.log.append(f"{ms} ms pass")
        self.world.model.now += ms
        if self.random.random() < 0.7:
            self._do(c.Tick(1))

    def change_status(self) -> None:
        status = self.random.choice([(True, True), (True, True), (False, True), (True, False)])
        if self.ids.random() < 0.3:
            self.window = min(self.window, self.ids.choice([30, 60, 200]))
        self.log.append(f"can send, can receive: {status}, window {self.window}")
        self.world.set(self._settings(*status))

    def take_off(self) -> None:
        self.log.append("a commit starts")
        self.world.take_off()

    def land(self) -> None:
        self.log.append("the commit is made")
        self.world.land()

    def fail(self) -> None:
        self.log.append("the commit fails")
        self.world.fail()

    def crash(self) -> None:
        landed = self.random.random() < 0.5
        self.log.append(f"crash, commit made: {landed}")
        self.world.crash(landed)

    def shut_down(self) -> None:
        self.log.append("restart")
        self.world.shut_down()


def live(seed: int, steps: int = STEPS) -> None:
    life = Life(seed)
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


@pytest.mark.parametrize("seed", SCENARIOS.values(), ids=list(SCENARIOS))
def test_what_once_failed(seed: int) -> None:
    live(seed)
