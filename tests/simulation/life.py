"""The life of one store from a seed: what happens to it, beside what its clients do.

Each life leans towards some commands and some faults: one has a full dead-letter queue, another a store that fails all the
time, and some have no outage at all. A life draws from generators that its seed names, and from nothing else: the seed
replays it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Generic, TypeVar

from harness.simulated_host import JobFault
from tests.simulation.hosted_world import HostedWorld
from tests.simulation.store_world import StoreWorld

LOCK = 50
Kinds = list[tuple[Callable[[], None], float]]
W = TypeVar("W", bound=HostedWorld)


class Life(Generic[W]):
    """Steps of several kinds, some of them likelier than others, until the end."""

    world: W

    def __init__(self, seed: int, faults: str = "") -> None:
        """`faults` names the generator of faults, if it is another one than that of all else."""
        self.seed = seed
        self.random = Random(seed)
        self.faults = Random(faults) if faults else self.random
        self.inline_faults = Random(f"faults of inline commits of {seed}")
        self.kinds: list[Callable[[], None]] = []
        self.weights: list[float] = []

    def add_kinds(self, kinds: Kinds, r: Random) -> None:
        self.kinds += [kind for kind, _ in kinds]
        self.weights += [weight * r.choice([0.3, 1, 1, 3]) for _, weight in kinds]

    def live(self, steps: int) -> None:
        self.world.inline_share = self.inline_faults.choice([0.0, 0.0, 0.5, 1.0])
        try:
            for _ in range(steps):
                self.step()
            self.end()
        except Exception as error:
            error.add_note("\n".join([f"{type(self).__name__}, seed {self.seed}", *self.world.trace.last()]))
            raise

    def step(self) -> None:
        """Outages end sooner or later."""
        if not self.world.host.is_serving and self.faults.random() < 0.5:
            self.recover()
        else:
            self.random.choices(self.kinds, self.weights)[0]()

    def recover(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError

    def go_on(self) -> bool:
        """What the host waits for comes next, if there is something."""
        world = self.world
        if world.host.thread:
            world.work(self.faults.choice([None] * 9 + list(JobFault)))
        elif world.host.has_turn:
            self.turn()
        elif world.host.wake_at:
            world.pass_time(max(1, world.host.wake_at - world.now))
        else:
            return False
        return True

    def turn(self) -> None:
        """What fails here fails only if the event loop commits by itself."""
        self.world.turn(
            self.inline_faults.choice([None] * 9 + [JobFault.FULL, JobFault.LOST, JobFault.UNHEARD])
        )

    def fail(self) -> None:
        self.world.turn()
        self.world.work(self.faults.choice(list(JobFault)))

    def crash(self) -> None:
        self.world.crash(self.random.random() < 0.5)

    def restart(self) -> None:
        self.world.restart()

    def hang(self) -> None:
        self.world.turn()
        self.world.hang()

    def take_offline(self) -> None:
        self.world.take_offline()


class StoreLife(Life[StoreWorld]):
    """Faults and time. Subclasses add clients."""

    def __init__(self, seed: int, world: StoreWorld) -> None:
        super().__init__(seed, faults=f"faults of {seed}")
        self.world = world
        often = self.faults.choice([0, 0.3, 1, 1, 3])
        self.has_outages = often > 0
        self.add_kinds([*self.store_kinds(), *self.outage_kinds(often)], self.faults)

    def store_kinds(self) -> Kinds:
        return [
            (self.time_passes, 6),
            (self.turn, 5),
            (self.work, 5),
            (self.fail, 2),
            (self.crash, 0.5),
            (self.restart, 1),
        ]

    def outage_kinds(self, often: float) -> Kinds:
        return [
            (self.hang, 0.5 * often),
            (self.take_offline, 0.3 * often),
            (self.refuse_opening, 0.3 * often),
            (self.lose_file, 0.15 * often),
            (self.reset, 0.1 * often),
            (self.fence, 0.1 * often),
            (self.other_owner, 0.4 * often),
        ]

    def step(self) -> None:
        self.world.leaves_reads = self.faults.random() < 0.2
        super().step()

    def recover(self) -> None:
        world, r = self.world, self.faults
        if world.host.lifecycle.is_fenced:
            world.crash(False)
        elif r.random() < 0.2:
            self.end_fault()
        elif self.has_outages and r.random() < 0.1:
            self.other_owner()
        elif not self.go_on():
            self.end_fault()

    def end_fault(self) -> None:
        world = self.world
        if world.place.refusal is not None:
            world.allow_opening()
        elif world.place.disk is None and self.faults.random() < 0.6:
            world.put_file_back()
        elif world.host.lifecycle.is_offline:
            world.bring_online()
        elif not world.host.lifecycle.is_open:
            world.reset()

    def end(self) -> None:
        """All faults are over, and all that was asked is done."""
        world = self.world
        world.put_file_back()
        world.heal()
        world.drain()
        world.finish_reads()
        world.fire()
        world.drain()
        world.check()

    # ---- time and work ----

    def time_passes(self) -> None:
        ms = self.random.choice([1, 5, 25, LOCK, 200])
        if self.world.host.refuses_sends and self.random.random() < 0.5:
            ms = 1_000
        self.world.pass_time(ms, fire=self.random.random() < 0.7)

    def work(self) -> None:
        self.world.work()

    # ---- outages ----

    def refuse_opening(self) -> None:
        self.world.refuse_opening()

    def lose_file(self) -> None:
        if self.world.place.disk is not None:
            self.world.remove_file()

    def reset(self) -> None:
        self.world.reset()

    def fence(self) -> None:
        if self.world.host.lifecycle.is_open:
            self.world.fence()

    def other_owner(self) -> None:
        if self.world.can_have_other_owner:
            with self.world.other_owner():
                self.as_other_owner()

    def as_other_owner(self) -> None:
        """What the other owner's clients do."""
