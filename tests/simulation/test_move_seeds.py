"""Long lives of fragments that move messages to each other, from printed seeds (move_world.py says what is checked).

A failure prints its seed and its steps; put the seed into SCENARIOS with a name, so that it is kept. BUSBAR_DEEP=1 runs a
long campaign, BUSBAR_SEED=n one life.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import DEAD, TRANSFER_DEAD, VIA, Draft
from busbar.model.settings import TARGET_DISABLED, TARGET_OPEN, ForwardSettings
from tests.simulation.move_world import ACTIVE, Held, Host, MoveWorld, Transaction

DEEP = os.environ.get("BUSBAR_DEEP") == "1"
LIVES = 10_000 if DEEP else 200
STEPS = 150

SCENARIOS: dict[str, int] = {
    "a message for another entity and one that is forwarded there come in one send": 0,
    "a move that was refused is repeated when its record has been dead-lettered": 108,
}
"""Lives that once failed, by what it was about."""


class MoveLife:
    def __init__(self, seed: int) -> None:
        self.random = r = Random(seed)
        self.world = MoveWorld(seed, r.choice([2, 3, 5]), r.choice([1, 2, 3]))
        self.names = 0
        self.sessions = Random(f"session ids of {seed}")
        self.log: list[str] = []
        self.keys = r.random() < 0.5
        kinds = [
            (self.send, 10),
            (self.receive, 6),
            (self.settle, 8),
            (self.transact, 5),
            (self.move, 25),
            (self.repeat, 3),
            (self.time_passes, 3),
            (self.change, 6),
            (self.take_off, 15),
            (self.land, 15),
            (self.fail, 2),
            (self.crash, 1),
            (self.delete, 0.1),
        ]
        self.kinds = [kind for kind, _ in kinds]
        self.weights = [weight * r.choice([0.3, 1, 1, 3]) for _, weight in kinds]

    def step(self) -> None:
        kind = self.random.choices(self.kinds, self.weights)[0]
        self.log.append(kind.__name__)
        kind()
        self.world.follow()
        self.world.check()

    # ---- clients ----

    def _host(self, fragment: int) -> Host:
        host = self.world.host_of(fragment)
        assert host is not None
        return host

    def _draft(self, via: bool) -> tuple[str, Draft]:
        self.names += 1
        name = f"m{self.names}"
        key = self.random.choice(["", "k1", "k2"]) if self.keys else ""
        session = self.sessions.choice(["s1", "s2", ""]) if self.world.with_sessions else ""
        if session and self.sessions.random() < 0.9:
            key = ""  # else they may contradict each other
        content = f"{name}|{session}|{key}|{name}".encode()
        draft = Draft(content, name, session or None, key or None, 0, 0)
        if via:
            draft.target = self.random.choice([*self.world.fragments(), 99])
            draft.kind, draft.path = VIA, "target"
        elif self.random.random() < 0.1:
            draft.scheduled = self.world.now + self.random.choice([1, 30])
        return name, draft

    def send(self) -> None:
        r, world = self.random, self.world
        fragment = r.choice(world.fragments())
        made = [self._draft(r.random() < 0.25) for _ in range(r.choice([1, 2, 4]))]
        names = [name for name, _ in made]

        def sent(answer: e.Effect | None) -> None:
            if isinstance(answer, e.Sent):
                refused = {index for index, _, _ in answer.refused}
                world.accepted.update(name for index, name in enumerate(names) if index not in refused)

        command = c.Send(fragment, 1, world.request(), [draft for _, draft in made], r.random() < 0.3)
        self._host(fragment).do(command, sent)

    def receive(self) -> None:
        r, world = self.random, self.world
        fragment = r.choice(world.fragments())
        sub = r.choice([ACTIVE, ACTIVE, DEAD, TRANSFER_DEAD])
        self._host(fragment).do(c.Demand(fragment, 1, 900, sub, r.choice([1, 3]), True, False))

    def _take_held(self, fragment: int, most: int) -> list[Held]:
        mine = [one for one in self.world.held if one.fragment == fragment]
        some = self.random.sample(mine, min(len(mine), most))
        self.world.held = [one for one in self.world.held if one not in some]
        return some

    def settle(self) -> None:
        r, world = self.random, self.world
        if not world.held:
            return
        fragment = r.choice(world.held).fragment
        some = self._take_held(fragment, r.choice([1, 2]))
        outcome = r.choice([c.COMPLETE, c.COMPLETE, c.ABANDON, c.DEAD_LETTER, c.RELEASE])

        def settled(answer: e.Effect | None) -> None:
            names = {one.name for one in some}
            if isinstance(answer, e.Settled) and outcome == c.COMPLETE:
                world.ended.update(one.name for i, one in enumerate(some) if i not in answer.lost)
            elif answer is None and outcome == c.COMPLETE:
                world.maybe_ended.update(names)

        numbers, nonces = [one.n for one in some], [one.nonce for one in some]
        command = c.Settle(fragment, 1, world.request(), outcome, numbers, nonces, None, r.random() < 0.3)
        self._host(fragment).do(command, settled)

    def transact(self) -> None:
        r, world = self.random, self.world
        fragment = r.choice(world.held).fragment if world.held else r.choice(world.fragments())
        done = self._take_held(fragment, r.choice([0, 1, 2]))
        made = [self._draft(r.random() < 0.5) for _ in range(r.choice([0, 1, 3]))]
        one = Transaction([name for name, _ in made], [held.name for held in done], fragment)
        world.transactions.append(one)

        def answered(answer: e.Effect | None) -> None:
            if isinstance(answer, e.Done):
                one.outcome = "done"
                world.accepted.update(one.sent)
                world.ended.update(one.completed)
            elif isinstance(answer, e.Refused):
                one.outcome = "refused"
            else:
                one.outcome = "unknown"
                world.maybe_ended.update(one.completed)

        parts: list[c.TransactionPart] = []
        if made:
            parts.append(c.Send(fragment, 1, 0, [draft for _, draft in made], True))
        if done:
            numbers, nonces = [held.n for held in done], [held.nonce for held in done]
            if r.random() < 0.1:
                nonces[0] += 1  # it is not held any more
            parts.append(c.Settle(fragment, 1, 0, c.COMPLETE, numbers, nonces, None, True))
        if r.random() < 0.2:
            self._host(fragment).do(c.Probe(fragment, 1, world.request(), parts))
        self._host(fragment).do(c.Transact(fragment, 1, world.request(), parts), answered)

    # ---- the rest of the world ----

    def move(self) -> None:
        self.world.mover.act(self.random)

    def repeat(self) -> None:
        self.world.mover.again(self.random)

    def time_passes(self) -> None:
        self.world.now += self.random.choice([1, 30, 60])
        for host in self.world.hosts:
            for fragment in list(host.machines):
                host.do(c.Tick(fragment))

    def change(self) -> None:
        r, world = self.random, self.world
        fragment = r.choice(world.fragments())
        host = self._host(fragment)
        host.machines[fragment].settings = world.settings(
            fragment,
            can_send=r.random() < 0.85,
            quota_bytes=r.choice([0, 0, 300]),
            duplicate_window_ms=r.choice([0, 0, 0, 1_000]),
            transfer_patience_ms=r.choice([0, 20, 20]),
            forward=self._forward(),
            forward_dead_letters=self._forward() if r.random() < 0.5 else None,
        )
        host.do(c.Tick(fragment))
        if r.random() < 0.3:
            host.do(c.AvoidTargets(fragment, r.sample(world.fragments(), 1)))

    def _forward(self) -> ForwardSettings | None:
        r = self.random
        if r.random() < 0.4:
            return None
        known = self.world.fragments()
        targets = r.sample(known, min(len(known), r.choice([1, 1, 2, 3])))
        takes = TARGET_DISABLED if r.random() < 0.1 else TARGET_OPEN
        return ForwardSettings("target", targets, r.random() < 0.3, 0, takes)

    def _any_host(self) -> Host:
        return self.random.choice(self.world.hosts)

    def take_off(self) -> None:
        self._any_host().take_off()

    def land(self) -> None:
        self._any_host().land()

    def fail(self) -> None:
        certain = self.random.random() < 0.5
        landed = not certain and self.random.random() < 0.5
        self._any_host().fail(landed, certain)

    def crash(self) -> None:
        self._any_host().crash(self.random.random() < 0.5)

    def delete(self) -> None:
        if len(self.world.fragments()) > 2:
            self.world.delete(self.random.choice(self.world.fragments()))


def live(seed: int) -> None:
    life = MoveLife(seed)
    try:
        for _ in range(STEPS):
            life.step()
        life.world.heal()
    except BaseException:
        print(f"seed {seed}: {len(life.log)} steps\n" + " ".join(life.log[-60:]))
        raise


@pytest.mark.parametrize("seed", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_scenario(seed: int) -> None:
    live(seed)


@pytest.mark.parametrize("block", range(10))
def test_lives(block: int) -> None:
    if chosen := os.environ.get("BUSBAR_SEED"):
        seeds = [int(chosen)] if block == 0 else []
    else:
        each = LIVES // 10
        seeds = list(range(block * each, (block + 1) * each))
    for seed in seeds:
        live(seed)
