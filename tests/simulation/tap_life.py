"""The clients of a queue with taps, and the readers of the taps, in the life of its store."""

from __future__ import annotations

from busbar.model.message import ACTIVE, DEAD, KEPT, KEPT_DEAD
from busbar.model.settings import EARLIEST, LATEST, FragmentSettings, TapSettings
from tests.simulation.queue_life import QueueLife
from tests.simulation.tap_checker import Reader, TapChecker


class TapLife(QueueLife):
    checker: TapChecker

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

    def make_checker(self, settings: FragmentSettings) -> TapChecker:
        return TapChecker(self.world, settings)

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
        readers = list(self.checker.readers.values())
        return self.taps_random.choice(readers) if readers else None

    def show(self) -> None:
        reader = self._reader()
        if reader is not None:
            self.checker.show(reader)

    def read(self) -> None:
        reader = self._reader()
        r = self.taps_random
        if reader is None:
            return
        if reader.tap.events and r.random() < 0.4:
            self.checker.read_events(reader, r.choice([1, 3, 50]))
        else:
            self.checker.read(reader, r.choice([1, 3, 50]), r.choice([1, 300, 5000]), r.random() < 0.3)

    def advance(self) -> None:
        reader = self._reader()
        r = self.taps_random
        if reader is None:
            return
        share = r.choice([0, 0.5, 1, 1])
        if reader.tap.events and r.random() < 0.4:
            self.checker.advance_events(reader, share)
        else:
            self.checker.advance(reader, share)

    def resume(self) -> None:
        reader = self._reader()
        if reader is not None and reader.truncated:
            self.checker.resume(reader)

    def new_tap(self) -> None:
        if len(self.taps) < 4:
            self.taps = [*self.taps, self._tap(LATEST)]
            self.checker.retap(self._settings(True, True))

    def delete_tap(self) -> None:
        if self.taps:
            gone = self.taps_random.choice(self.taps)
            self.taps = [tap for tap in self.taps if tap is not gone]
            self.checker.retap(self._settings(True, True))

    def end(self) -> None:
        """Everybody catches up: then nothing is kept."""
        super().end()
        checker = self.checker
        for reader in list(checker.readers.values()):
            checker.finish(reader)
        self.world.fire()
        checker.settle_down()
        assert not checker.lane(KEPT) and not checker.lane(KEPT_DEAD)
