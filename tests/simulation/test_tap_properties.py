"""Random lives of a queue with taps: the commands of test_queue_properties, and readers beside them.

Whatever is done in whatever order, with commits that fail and crashes: a reader that goes on from where it was sees every
message there ever was once, in order, with its bytes (tap_checker.py), or is told that something was lost before it sees
what lies behind. BUSBAR_DEEP=1 runs a long campaign.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from busbar.model.message import ACTIVE, DEAD, KEPT, KEPT_DEAD
from busbar.model.settings import LATEST, FragmentSettings, TapSettings
from tests.simulation.tap_checker import Reader, TapChecker
from tests.simulation.test_queue_properties import DEEP, FragmentLife

WITHOUT_LIMITS = TapSettings(1, "patient", ACTIVE, True)
DEAD_LETTERS = TapSettings(2, "dead letters", DEAD, False, owner="me", max_bytes=700)
HASTY = TapSettings(3, "hasty", ACTIVE, True, max_age_ms=150, max_bytes=900)
LATER = TapSettings(4, "later", ACTIVE, False, start=LATEST)
which = st.integers(1, 4)
shares = st.sampled_from([0.0, 0.5, 1.0])


class TappedLife(FragmentLife):
    checker: TapChecker

    def make_checker(self, settings: FragmentSettings) -> TapChecker:
        return TapChecker(self.world, settings)

    def with_status(self, can_send: bool, can_receive: bool) -> FragmentSettings:
        given = super().with_status(can_send, can_receive)
        if not hasattr(self, "taps"):
            self.taps = [WITHOUT_LIMITS, DEAD_LETTERS, HASTY]
        given.taps = list(self.taps)
        return given

    def _reader(self, tap: int) -> Reader | None:
        return self.checker.readers.get(tap)

    @rule(tap=which)
    def show(self, tap: int) -> None:
        reader = self._reader(tap)
        if reader is not None:
            self.checker.show(reader)

    @rule(
        tap=which,
        count=st.sampled_from([1, 3, 50]),
        size=st.sampled_from([1, 300, 5000]),
        again=st.booleans(),
        events=st.booleans(),
    )
    def read(self, tap: int, count: int, size: int, again: bool, events: bool) -> None:
        reader = self._reader(tap)
        if reader is None:
            return
        if events and reader.tap.events:
            self.checker.read_events(reader, count)
        else:
            self.checker.read(reader, count, size, again)

    @rule(tap=which, share=shares, events=st.booleans())
    def advance(self, tap: int, share: float, events: bool) -> None:
        reader = self._reader(tap)
        if reader is None:
            return
        if events and reader.tap.events:
            self.checker.advance_events(reader, share)
        else:
            self.checker.advance(reader, share)

    @rule()
    def resume(self) -> None:
        for reader in self.checker.readers.values():
            if reader.truncated:
                self.checker.resume(reader)

    @rule()
    def make_or_delete(self) -> None:
        if LATER.id in self.checker.readers:
            self.taps = [tap for tap in self.taps if tap is not LATER]
        else:
            self.taps = [*self.taps, LATER]
        self.checker.retap(self.with_status(True, True))

    def teardown(self) -> None:
        """Everybody catches up: the one who lost nothing knows what has become of each message, and nothing is kept."""
        if not hasattr(self, "checker"):
            return
        checker = self.checker
        self.world.heal()
        checker.settle_down()
        for reader in list(checker.readers.values()):
            checker.finish(reader)
        patient = checker.readers[WITHOUT_LIMITS.id]
        assert patient.complete
        assert not checker.lane(KEPT) and not checker.lane(KEPT_DEAD)


TappedLife.TestCase.settings = settings(
    max_examples=1_000 if DEEP else 40,
    stateful_step_count=60 if DEEP else 40,
    deadline=None,
    derandomize=False,
    suppress_health_check=list(HealthCheck),
)
TestTappedLife = TappedLife.TestCase
