"""A store with express entities in virtual time (hosted_world.py), and a book of what the clients of each were told.

Faults and the end of the process are here; clients are in express_life.py. Every request is answered once, or the process
has ended. An unanswered request may have been carried out or not.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import cast

from busbar.broker.commit_loop import EXPRESS_PAUSE
from busbar.broker.fragment_loading import DurableState
from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import empty_head
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import SCHEDULED
from busbar.model.settings import FragmentSettings
from harness.checked_fragment import CheckedFragment
from harness.observed_machine import MachineObserver
from harness.simulated_host import JobFault
from tests.simulation.express_book import ExpressBook, tag_of
from tests.simulation.hosted_world import ROUNDS, HostedWorld
from tests.simulation.small_bounds import small_bounds
from tests.simulation.trace import Trace

Answered = Callable[[e.Effect | None], None]
"""Called with the answer, or with None: the process has ended before."""


class ExpressFragment(CheckedFragment):
    writes_ahead = True


class _NoModel:
    """Follows a machine without a model."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def before_apply(self, command: c.Command, now: int) -> None:
        self._trace.add("apply", command)

    def applied(self, command: c.Command, effects: list[e.Effect]) -> None: ...

    def undone(self, effects: list[e.Effect]) -> None: ...


class ExpressWorld(HostedWorld):
    fragment_class = ExpressFragment

    def __init__(
        self,
        seed: int,
        settings: dict[int, FragmentSettings],
        books: dict[int, ExpressBook],
        topic: int,
        on_effect: Callable[[e.Effect], None],
    ) -> None:
        """`topic` is the fragment of a topic (0: there is none). `on_effect` gets the effects that answer no request."""
        super().__init__(seed)
        self.settings = settings
        self.books = books
        self.topic = topic
        self.crashes = self.restarts = self.faults = 0
        self._on_effect = on_effect
        self._asked: dict[int, Answered] = {}
        self._trouble_at = 0
        self.start(is_new=True)

    # ---- the process ----

    def fragment_settings(self) -> dict[int, FragmentSettings]:
        return self.settings

    def bounds(self, fragment: int) -> Bounds:
        bounds = small_bounds(self.seed + fragment)
        bounds.unwritten_messages = Random(self.seed).choice([3, 10, 1_000])
        return bounds

    def crash(self, landed: bool) -> None:
        self.trace.add(f"crash, commit made: {landed}")
        self.crashes += 1
        if landed:
            self._outcome_unknown()
        self.host.crash(landed)
        self._ended(is_clean=False)

    def restart(self) -> None:
        """A clean end, if the store is served and takes messages, and a new start."""
        if not self.host.is_serving or self.host.refuses_sends or self.host.lifecycle.is_offline:
            return
        self.trace.add("restart")
        self.restarts += 1
        self.host.commit_loop.stop_timers()
        self.drain()
        assert not self._asked, "a clean end leaves no request open"
        self.host.stop()
        self._ended(is_clean=True)

    def _ended(self, is_clean: bool) -> None:
        asked, self._asked = self._asked, {}
        for book in self.books.values():
            book.process_ended(self.stored(book.fragment), self.waiting, is_clean)
        for answered in asked.values():
            answered(None)
        self.start()

    @property
    def waiting(self) -> list[int]:
        """The tags of messages that the topic has in the store: scheduled ones, and those that it has yet to pass on."""
        if not self.topic:
            return []
        return [
            tag_of(record.content) for record in self.stored(self.topic).lanes[SCHEDULED].records.values()
        ]

    def stored(self, fragment: int) -> CheckedFragment:
        disk = self.place.disk
        assert disk is not None
        found = disk.fragments.get(fragment)
        return cast(CheckedFragment, found or ExpressFragment(empty_head(fragment)))

    # ---- clients ----

    def ask(self, command_of: Callable[[int], c.Command], answered: Answered) -> None:
        request = next(self._requests)
        self._asked[request] = answered
        self.submit(command_of(request))

    def change(self, settings: dict[int, FragmentSettings]) -> None:
        self.trace.add(f"express delays {[int(one.express_ms) for one in settings.values()]}")
        self.settings = {**self.settings, **settings}
        self.host.change_fragments(settings)
        self.check()

    # ---- time, turns and work ----

    def pass_time(self, ms: int) -> None:
        self.trace.add(f"{ms} ms pass")
        self.now += ms
        self.host.fire()
        self.check()

    def fails(self, fault: JobFault | None) -> None:
        self.faults += fault is not None
        if fault is not JobFault.FULL:
            self._outcome_unknown()

    def rest(self) -> None:
        """Without further faults, until the store is served, and nothing is under way or due."""
        if self.host.lifecycle.is_offline:
            self.bring_online()
        for _ in range(ROUNDS):
            self.drain(ends_hangs=True)
            if self.host.is_serving and self.host.is_idle and not self.host.refuses_sends and not self._asked:
                return
            self.pass_time(50)
        raise AssertionError(f"it never comes to rest; unanswered: {sorted(self._asked)[:5]}")

    def _outcome_unknown(self) -> None:
        for book in self.books.values():
            book.outcome_unknown()

    # ---- what the host reports ----

    def machine_observer(self, fragment: int) -> MachineObserver:
        return _NoModel(self.trace)

    def loaded(self, fragment: int, durable: DurableState) -> None: ...

    def job_started(self, fragments: list[int]) -> None: ...

    def job_made(self, fragments: list[int]) -> None:
        for fragment in fragments:
            if fragment in self.books:
                self.books[fragment].written(self.stored(fragment), self.waiting)

    def job_done(self, fragments: list[int]) -> None: ...

    def performed(self, effects: list[e.Effect]) -> None:
        for effect in effects:
            self.trace.add("performed", effect)
            if effect.request:
                assert int(effect.request) in self._asked, "answered once, and only if asked"
                self._asked.pop(int(effect.request))(effect)
            else:
                self._on_effect(effect)

    # ---- checks ----

    def check(self) -> None:
        host = self.host
        if not host.is_serving or host.refuses_sends:
            self._trouble_at = self.now
        elif host.is_idle and not 0 < host.wake_at <= self.now:
            self.quiet_checks += 1
            for book in self.books.values():
                delay = int(self.settings[book.fragment].express_ms)
                since = self._trouble_at + EXPRESS_PAUSE
                book.check_written(self.stored(book.fragment), self.waiting, self.now, since, delay)
