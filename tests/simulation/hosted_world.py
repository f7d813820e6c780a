"""One store and its real host in virtual time: what worlds of a single store share, whatever their clients are.

The host is harness/simulated_host.py: commit loop, lifecycle, loading of fragments. A world says when a turn is taken, when
the thread of the store works, what fails, and when the process ends. Subclasses add clients and follow the host.
"""

from __future__ import annotations

from itertools import count
from random import Random
from uuid import UUID

from busbar.fragment.bounds import Bounds
from busbar.model import commands as c
from busbar.model.settings import FragmentSettings
from busbar.rules.selection import RuleCompiler
from harness.checked_fragment import CheckedFragment
from harness.memory_place import MemoryPlace
from harness.memory_store import Disk
from harness.simulated_host import HostObserver, JobFault, SimulatedHost
from tests.simulation.trace import Trace

START = 1_000_000
ROUNDS = 1_000


class HostedWorld(HostObserver):
    """The store, its host and its time."""

    fragment_class: type[CheckedFragment] = CheckedFragment
    """What the store keeps of a fragment, checked at each commit."""

    def __init__(self, seed: int, rules: type[RuleCompiler] = RuleCompiler) -> None:
        self.seed = seed
        self.now = START
        self.trace = Trace()
        self.place = MemoryPlace(lambda: Disk(fragment_class=self.fragment_class))
        self.host: SimulatedHost
        self.quiet_checks = 0
        self.inline_share = 0.0
        """How many of the groups that the event loop may commit it does commit."""
        self._inline = Random(f"inline commits of {seed}")
        self._nonces = count(100)
        self._requests = count(1)
        ids = Random(f"uuids of {seed}")
        self._rules = rules(lambda: UUID(int=ids.getrandbits(128)))

    # ---- what subclasses define ----

    def fragment_settings(self) -> dict[int, FragmentSettings]:
        """The settings of all fragments of the store."""
        raise NotImplementedError

    def bounds(self, fragment: int) -> Bounds:
        raise NotImplementedError

    def crash(self, landed: bool) -> None:
        """The process ends, and another one starts. The work of the thread has reached the disk or not."""
        raise NotImplementedError

    def restart(self) -> None:
        """A clean end, and a new start."""
        raise NotImplementedError

    def pass_time(self, ms: int) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Check what must hold after each step."""
        raise NotImplementedError

    def fails(self, fault: JobFault | None) -> None:
        """The next piece of work fails so, or takes too long (None)."""

    # ---- processes and commands ----

    def start(self, *, is_new: bool = False) -> None:
        """A process with a host for the store."""
        self.host = SimulatedHost(
            self.place,
            self.fragment_settings(),
            lambda: self.now,
            lambda: next(self._nonces),
            self._rules,
            self.bounds,
            self,
        )
        self.host.inlines = lambda: self._inline.random() < self.inline_share
        self.host.open(is_new=is_new)

    def submit(self, command: c.Command) -> None:
        self.trace.add("submit", command)
        self.host.submit([command])
        self.after_input()

    def after_input(self) -> None:
        self.check()

    # ---- turns and work ----

    def turn(self, fault: JobFault | None = None) -> None:
        """The fault is that of a commit on the event loop."""
        self.trace.add(f"turn: {fault.name} if it commits" if fault else "turn")
        if fault is not None and self.inline_share:
            self.fails(fault)
        self.host.turn(fault)
        self.check()

    def work(self, fault: JobFault | None = None) -> None:
        if self.host.thread:
            self.trace.add(f"{self.host.thread[0]}: {fault.name if fault else 'done'}")
            if fault is not None:
                self.fails(fault)
            self.host.work(fault)
            self.check()

    def hang(self) -> None:
        if self.host.can_hang:
            self.trace.add(f"{self.host.thread[0]}: hangs")
            self.fails(None)
            self.host.hang()
            self.check()

    def drain(self, *, ends_hangs: bool = False) -> None:
        """Until nothing is under way. No time passes. Work that hangs ends only if that is asked for."""
        for _ in range(ROUNDS):
            if self.host.thread and (ends_hangs or not self.host.hangs):
                self.work()
            elif self.host.has_turn:
                self.turn()
            else:
                return
        raise AssertionError("the host never comes to rest")

    # ---- outages ----

    def take_offline(self) -> None:
        self.trace.add("taken offline")
        self.host.take_offline()
        self.check()

    def bring_online(self) -> None:
        self.trace.add("brought online")
        self.host.bring_online()
        self.check()
