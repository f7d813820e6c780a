"""One store and its host in virtual time (hosted_world.py), clients, and faults; a checker for each fragment with a model.

Checkers (queue_checker.py and those made of it) follow their machine at once; snapshots say where they go back to.

What holds for every fragment is checked here: each request is answered exactly once, and what was refused for certain was
never made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Protocol

from busbar.broker.fragment_loading import DurableState
from busbar.fragment.bounds import Bounds
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.settings import FragmentSettings
from busbar.rules.selection import RuleCompiler
from busbar.store.contract import StoreError
from harness.observed_machine import MachineObserver
from tests.simulation.hosted_world import ROUNDS, HostedWorld
from tests.simulation.small_bounds import small_bounds

ACTS_ON_READS = (c.ReceiveDeferred, c.Purge, c.Peek, c.ListSessions)
"""Commands that come before the ends of locks."""


class Checker(MachineObserver, Protocol):
    """Follows the machine of one fragment."""

    settings: FragmentSettings
    known_last: int

    def job_started(self) -> None: ...

    def job_made(self) -> None: ...

    def job_done(self, is_dirty: bool) -> None: ...

    def performed(self, effect: e.Effect) -> None: ...

    def memory_lost(self) -> None:
        """The process has ended, or another owner has the store."""

    def stopped(self, kept: bool) -> None:
        """The process has ended cleanly; were locks kept?"""

    def loaded(self, durable: DurableState, recreated: bool) -> None: ...

    def check_quiet(self) -> None:
        """The machine says that nothing is to be done at once."""


class StoreWorld(HostedWorld):
    def __init__(self, seed: int = 0, rules: type[RuleCompiler] = RuleCompiler) -> None:
        super().__init__(seed, rules)
        self.checkers: dict[int, Checker] = {}
        self.unanswered: dict[int, c.Command] = {}
        self.certainly_refused: set[int] = set()
        self.made: set[int] = set()
        """Requests whose changes are durable, whatever their clients were told."""
        # Time passes while the store reads for a command, and in some lives for ticks and demands, too: in those without
        # times to live, since the model cannot tell what had expired before a lock ended between two ticks.
        self.slow_reads = False
        self.leaves_reads = False
        """Commands that need a read wait for the thread; otherwise it works at once."""
        self._read_times = Random(f"reads of {seed}")

    # ---- processes ----

    def start(self, *, is_new: bool = False) -> None:
        super().start(is_new=is_new)
        self.fire()

    def fragment_settings(self) -> dict[int, FragmentSettings]:
        return {fragment: checker.settings for fragment, checker in self.checkers.items()}

    def bounds(self, fragment: int) -> Bounds:
        return small_bounds(self.seed + fragment - 1)

    def crash(self, landed: bool) -> None:
        """All memory is gone; what the thread was given has reached the disk or not."""
        self.trace.add(f"crash, commit made: {landed}")
        self.host.crash(landed)
        self.unanswered = {}
        for checker in self.checkers.values():
            checker.memory_lost()
        self.start()

    def restart(self) -> None:
        """A clean end and a new start: locks are kept."""
        self.trace.add("restart")
        if self.host.is_serving:
            self.drain()
        kept = self.host.stop()
        for fragment, checker in self.checkers.items():
            checker.stopped(fragment in kept)
        if kept:
            assert all(isinstance(command, c.AwaitSession) for command in self.unanswered.values())
        self.unanswered = {}
        self.start()

    def fence(self) -> None:
        """Another owner claims the store while this one has it."""
        if self.place.disk is not None:
            self.trace.add("another owner claims the store")
            self.place.disk.epoch += 1

    @contextmanager
    def other_owner(self) -> Iterator[None]:
        """Another process has the store while it is unavailable here. What it does is followed by the same models."""
        self.trace.add("another owner has the store")
        ours, unanswered, self.unanswered = self.host, self.unanswered, {}
        known = {fragment: checker.known_last for fragment, checker in self.checkers.items()}
        for checker in self.checkers.values():
            checker.memory_lost()
        self.start()
        yield
        self.drain()
        self.host.stop()
        for fragment, checker in self.checkers.items():
            checker.memory_lost()
            checker.known_last = known[fragment]
        self.host, self.unanswered = ours, unanswered
        self.trace.add("the other owner is done")

    @property
    def can_have_other_owner(self) -> bool:
        return (
            self.place.disk is not None
            and self.place.refusal is None
            and not self.host.lifecycle.is_open
            and self.host.access.store is None
            and not self.host.hangs
        )

    # ---- commands ----

    def request(self, command: c.Command) -> None:
        """Give the command a number for its answer, if it has one."""
        if command.request > 0:
            command.request = next(self._requests)
            self.unanswered[int(command.request)] = command

    def change(self, fragment: int, settings: FragmentSettings) -> None:
        self.trace.add(f"settings of {fragment}", settings)
        self.checkers[fragment].settings = settings
        self.host.change_fragments({fragment: settings})
        self.after_input()

    def after_input(self) -> None:
        if not self.leaves_reads:
            self.finish_reads()
        self.check()

    # ---- time, turns and work ----

    def pass_time(self, ms: int, fire: bool = True) -> None:
        self.trace.add(f"{ms} ms pass")
        if not self.slow_reads and not all(isinstance(one, ACTS_ON_READS) for one in self._waiting()):
            self.finish_reads()
        self.now += ms
        if fire:
            self.fire()

    def fire(self) -> None:
        if 0 < self.host.wake_at <= self.now:
            self.trace.add("timer")
            self.host.fire()
            self.after_input()

    def _waiting(self) -> list[c.Command]:
        """Commands that wait for a read."""
        slots = self.host.commit_loop.slots.values()
        return [slot.inbox[0] for slot in slots if slot.reads is not None and slot.inbox]

    def finish_reads(self) -> None:
        for _ in range(ROUNDS):
            waiting = self._waiting()
            if not waiting or not self.host.is_serving:
                return
            if self.host.has_turn:
                self.turn()
                if self.slow_reads or all(isinstance(one, ACTS_ON_READS) for one in waiting):
                    self.now += self._read_times.choice([0, 0, 1, 30, 60])
            self.work()
        raise AssertionError("a read never ends")

    # ---- outages ----

    def reset(self) -> None:
        """If the numbers of the fragments are not known, they go on from the time, which none has reached by counting."""
        if not self.host.commit_loop.slots:
            self.now += 10_000
        self.trace.add("reset")
        self.host.reset()
        self.check()

    def refuse_opening(self) -> None:
        self.trace.add("the store cannot be opened")
        self.place.refusal = StoreError("it cannot be opened (injected)")

    def allow_opening(self) -> None:
        self.trace.add("the store can be opened")
        self.place.refusal = None

    def remove_file(self) -> None:
        self.trace.add("the file is gone")
        self.place.remove()

    def put_file_back(self) -> None:
        if self.place.disk is None:
            self.trace.add("the file is put back")
            self.place.put_back()

    def break_machine(self, fragment: int) -> None:
        if self.host.slot(fragment) is not None:
            self.trace.add(f"the machine of fragment {fragment} will raise")
            self.host.break_machine(fragment)

    @property
    def has_broken_machine(self) -> bool:
        return any(slot.broken for slot in self.host.commit_loop.slots.values())

    def heal(self) -> None:
        """All faults end, and time passes until the store is served again."""
        if self.place.refusal is not None:
            self.allow_opening()
        if self.host.lifecycle.is_offline:
            self.bring_online()
        if self.host.lifecycle.is_fenced:
            self.crash(False)
        for round_ in range(ROUNDS):
            if round_ == ROUNDS // 2 and not self.host.lifecycle.is_open:
                self.reset()
            elif self.host.thread:
                self.work()
            elif self.host.has_turn:
                self.turn()
            elif self.host.is_serving and not self.host.refuses_sends:
                return
            elif self.host.lifecycle.is_fenced:
                self.crash(False)
            else:
                assert self.host.wake_at, "nobody will ever try again"
                self.pass_time(max(1, self.host.wake_at - self.now))
        raise AssertionError("the store is never served again")

    # ---- what the host reports ----

    def machine_observer(self, fragment: int) -> MachineObserver:
        return self.checkers[fragment]

    def loaded(self, fragment: int, durable: DurableState) -> None:
        recreated = self.host.lifecycle.predecessor is not None
        self.trace.add(f"fragment {fragment} is loaded" + (", empty" if recreated else ""))
        self.checkers[fragment].loaded(durable, recreated)

    def job_started(self, fragments: list[int]) -> None:
        for fragment in fragments:
            self.checkers[fragment].job_started()

    def job_made(self, fragments: list[int]) -> None:
        for fragment in fragments:
            self.checkers[fragment].job_made()

    def job_done(self, fragments: list[int]) -> None:
        for fragment in fragments:
            slot = self.host.slot(fragment)
            self.checkers[fragment].job_done(slot is not None and slot.dirty)

    def performed(self, effects: list[e.Effect]) -> None:
        for effect in effects:
            self.trace.add("performed", effect)
            if effect.request > 0:
                assert self.unanswered.pop(int(effect.request), None), "answered once, and only if asked"
                if isinstance(effect, e.Refused) and effect.certain:
                    self.certainly_refused.add(int(effect.request))
                    self._check_certainty()
            checker = self.checkers.get(int(effect.origin))
            if checker is not None:
                checker.performed(effect)

    def requests_made(self, requests: set[int]) -> None:
        """The changes of these requests are durable."""
        self.made |= requests
        self._check_certainty()

    def _check_certainty(self) -> None:
        assert not self.made & self.certainly_refused, "what was certainly refused took place"

    # ---- checks ----

    def check(self) -> None:
        for fragment, checker in self.checkers.items():
            if self.host.is_quiet(fragment):
                self.quiet_checks += 1
                checker.check_quiet()
        if self.host.is_idle and self.host.is_serving:
            assert all(isinstance(command, c.AwaitSession) for command in self.unanswered.values())
        self._check_timers()

    def _check_timers(self) -> None:
        """A machine that waits for its time is looked at in time."""
        for slot in self.host.commit_loop.slots.values():
            at = slot.machine.wake_at()
            if self.host.is_quiet(slot.id) and at > self.now:
                assert 0 < self.host.commit_loop.wake_at <= at, f"the wake-up of fragment {slot.id} was lost"
