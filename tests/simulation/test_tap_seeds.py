"""Long lives of a fragment with taps, from printed seeds: the commands of test_machine_seeds, and readers beside them.

BUSBAR_DEEP=1 runs a long campaign, BUSBAR_SEED=n one life.
"""

from __future__ import annotations

import os

import pytest

from busbar.model import commands as c
from busbar.model.message import ACTIVE, DEAD, KEPT, KEPT_DEAD
from busbar.model.settings import EARLIEST, LATEST, FragmentSettings, TapSettings
from tests.simulation.tap_world import Reader, TapWorld
from tests.simulation.test_machine_seeds import DEEP, Life

LIVES = 5_000 if DEEP else 120
STEPS = 120

SCENARIOS: dict[str, int] = {
    "events happen while those before them are still on their way out": 23,
}
"""Lives that once failed, by what it was about."""


class TapLife(Life):
    world: TapWorld

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        r = self.taps_random
        kinds = [
            (self.show, 8),
            (self.read, 10),
            (self.advance, 5),
            (self.resume, 2),
            (self.new_tap, 0.5),
            (self.delete_tap, 0.3),
        ]
        self.kinds += [kind for kind, _ in kinds]
        self.weights += [weight * r.choice([0.1, 1, 1, 3]) for _, weight in kinds]

    def make_world(self, settings: FragmentSettings, seed: int) -> TapWorld:
        return TapWorld(settings, seed)

    def begin(self) -> None:
        """Before the world is made."""
        r = self.taps_random
        self.taps = [self._tap(EARLIEST) for _ in range(r.choice([1, 1, 2, 3]))]

    def _tap(self, start: int) -> TapSettings:
        r = self.taps_random
        self.next_tap += 1
        return TapSettings(
            self.next_tap,
            f"tap {self.next_tap}",
            r.choice([ACTIVE, ACTIVE, DEAD]),
            r.random() < 0.5,
            False,
            start,
            r.choice(["", "me"]),
            r.choice([0, 0, 0, 150, 600]),
            r.choice([0, 0, 0, 300, 1500]),
        )

    def _reader(self) -> Reader | None:
        readers = list(self.world.readers.values())
        return self.taps_random.choice(readers) if readers else None

    def show(self) -> None:
        reader = self._reader()
        if reader is not None:
            self.log.append(f"show {reader.tap.id}")
            self.world.show(reader)

    def read(self) -> None:
        reader = self._reader()
        r = self.taps_random
        if reader is None:
            return
        self.log.append(f"read {reader}")
        if reader.tap.events and r.random() < 0.4:
            self.world.read_events(reader, r.choice([1, 3, 50]))
        else:
            self.world.read(reader, r.choice([1, 3, 50]), r.choice([1, 300, 5000]), r.random() < 0.3)

    def advance(self) -> None:
        reader = self._reader()
        r = self.taps_random
        if reader is None:
            return
        share = r.choice([0, 0.5, 1, 1])
        self.log.append(f"advance {reader} by {share}")
        if reader.tap.events and r.random() < 0.4:
            self.world.advance_events(reader, share)
        else:
            self.world.advance(reader, share)

    def resume(self) -> None:
        reader = self._reader()
        if reader is not None and reader.truncated:
            self.log.append(f"resume {reader}")
            self.world.resume(reader)

    def new_tap(self) -> None:
        if len(self.taps) < 4:
            self.taps = [*self.taps, self._tap(LATEST)]
            self.log.append(f"new tap {self.next_tap}")
            self.world.retap(self._settings(True, True))

    def delete_tap(self) -> None:
        if self.taps:
            gone = self.taps_random.choice(self.taps)
            self.log.append(f"delete tap {gone.id}")
            self.taps = [tap for tap in self.taps if tap is not gone]
            self.world.retap(self._settings(True, True))

    def end(self) -> None:
        """Everybody catches up: then nothing is kept."""
        world = self.world
        world.settle_down()
        for reader in list(world.readers.values()):
            world.resume(reader)
            world.settle_down()
            world.catch_up(reader)
            if reader.complete and reader.tap.events:
                world.check_events(reader)
        world.do(c.Tick(1))
        world.settle_down()
        assert not world.store.lanes[KEPT] and not world.store.lanes[KEPT_DEAD]


def live(seed: int, steps: int = STEPS) -> TapLife:
    life = TapLife(seed)
    try:
        for _ in range(steps):
            life.step()
        life.end()
    except Exception as error:
        error.add_note("\n".join([f"seed {seed}", *life.log[-40:]]))
        raise
    return life


def test_lives() -> None:
    seed = os.environ.get("BUSBAR_SEED")
    truncated = 0
    for each in [int(seed)] if seed else range(LIVES):
        life = live(each)
        truncated += sum(reader.truncated for reader in life.world.readers.values())
    assert seed or truncated, "some taps reach their limits"


@pytest.mark.parametrize("seed", SCENARIOS.values(), ids=list(SCENARIOS))
def test_what_once_failed(seed: int) -> None:
    live(seed)
