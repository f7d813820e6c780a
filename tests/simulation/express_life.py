"""An express queue through faults in virtual time: the real host, random clients, and what each of them was told.

Every message has its own content. What is checked, against what clients were told:
- A message whose completion was acknowledged is never delivered again, also after a crash.
- A message that was acknowledged, and not completed, is there at the end, whatever commits have failed. After a crash this
  holds for those that were forced, and those that the store had.
- A message that was refused for certain is never delivered.
- A number is given to one message.
- No message is delivered while it is locked.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from uuid import uuid4

from busbar.broker.fragment_loading import DurableState
from busbar.fragment.bounds import Bounds
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import Draft
from busbar.model.settings import FragmentSettings
from busbar.rules.selection import RuleCompiler
from harness.checked_fragment import CheckedFragment
from harness.memory_place import MemoryPlace
from harness.memory_store import Disk
from harness.observed_machine import MachineObserver
from harness.simulated_host import JobFault, SimulatedHost
from tests.simulation.small_bounds import small_bounds

EXPRESS, DURABLE = 1, 2
DELAY = 500
LOCK = 2_000
FAULTS = (JobFault.FULL, JobFault.LOST, JobFault.UNHEARD, JobFault.TORN)


class ExpressFragment(CheckedFragment):
    writes_ahead = True


class _Nobody:
    """Follows a machine without a model."""

    def before_apply(self, command: c.Command, now: int) -> None: ...

    def applied(self, command: c.Command, effects: list[e.Effect]) -> None: ...

    def undone(self, effects: list[e.Effect]) -> None: ...


class ExpressLife:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 1_000_000
        self.place = MemoryPlace(lambda: Disk(fragment_class=ExpressFragment))
        self._nonces = count(100)
        self._requests = count(1)
        self._contents = count(1)
        self._seed = seed
        self.deletes = seed % 4 == 0
        """Some receive in ReceiveAndDelete mode. A commit whose outcome is not known then loses messages, as it may."""
        self.asked: dict[int, c.Command] = {}
        self.sent: dict[bytes, bool] = {}  # acknowledged: whether it was forced
        self.unknown: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.completed: set[bytes] = set()
        self.maybe_completed: set[bytes] = set()
        self.may_be_lost: set[bytes] = set()
        self.locked: dict[bytes, tuple[int, int, int]] = {}  # number, nonce, until
        self.numbers: dict[int, bytes] = {}
        self.delivered = self.crashes = 0
        self.host = self._start(is_new=True)

    # ---- the host ----

    def _start(self, is_new: bool = False) -> SimulatedHost:
        settings = FragmentSettings(LOCK, 1_000, 0, False, 0, True, True, express_ms=DELAY)
        durable = FragmentSettings(LOCK, 1_000, 0, False, 0, True, True)

        def bounds(fragment: int) -> Bounds:
            small = small_bounds(self._seed + fragment)
            small.unwritten_messages = Random(self._seed).choice([3, 10, 1_000])
            return small

        host = SimulatedHost(
            self.place,
            {EXPRESS: settings, DURABLE: durable},
            lambda: self.now,
            lambda: next(self._nonces),
            RuleCompiler(uuid4),
            bounds,
            self,
        )
        host.open(is_new=is_new)
        return host

    def machine_observer(self, fragment: int) -> MachineObserver:
        return _Nobody()

    def loaded(self, fragment: int, durable: DurableState) -> None: ...

    def job_started(self, fragments: list[int]) -> None: ...

    def job_made(self, fragments: list[int]) -> None: ...

    def job_done(self, fragments: list[int]) -> None: ...

    def performed(self, effects: list[e.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, e.Delivered):
                self._delivered(effect)
            elif effect.request:
                self._answered(effect, self.asked.pop(int(effect.request)))

    def _delivered(self, effect: e.Delivered) -> None:
        for record in effect.records:
            if effect.fragment != EXPRESS:
                continue
            content = record.content
            assert content is not None
            number = int(record.n)
            self.delivered += 1
            assert content not in self.completed, f"{content!r} was completed, and comes again"
            assert content not in self.refused, f"{content!r} was refused, and comes"
            assert self.numbers.setdefault(number, content) == content, f"{number} was given twice"
            lock = self.locked.get(content)
            assert lock is None or lock[2] <= self.now, f"{content!r} is locked, and comes again"
            if effect.until == 0:
                self.completed.add(content)
            else:
                self.locked[content] = (number, int(effect.nonce), int(effect.until))

    def _answered(self, effect: e.Effect, command: c.Command) -> None:
        if isinstance(command, c.Send) and command.fragment == EXPRESS:
            for draft in command.drafts:
                if isinstance(effect, e.Sent):
                    self.sent[draft.content] = draft.forced
                else:
                    self._not_sent(effect, draft.content)
            if isinstance(effect, e.Sent):
                for number, draft in zip(effect.numbers, command.drafts, strict=True):
                    known = self.numbers.setdefault(int(number), draft.content)
                    assert known == draft.content, f"{number} was given twice"
        elif isinstance(command, c.Settle) and command.fragment == EXPRESS:
            content = self.numbers[int(command.numbers[0])]
            if command.outcome == c.COMPLETE:
                if isinstance(effect, e.Settled) and not effect.lost:
                    self.completed.add(content)
                elif isinstance(effect, e.Refused) and not effect.certain:
                    self.maybe_completed.add(content)

    def _not_sent(self, effect: e.Effect, content: bytes) -> None:
        assert isinstance(effect, e.Refused), effect
        if effect.certain:
            self.refused.add(content)
        else:
            self.unknown.add(content)

    # ---- what happens ----

    def step(self) -> None:
        r = self.random
        roll = r.random()
        if roll < 0.30:
            self._send(EXPRESS, r.choice([1, 1, 2, 5]), r.random() < 0.1)
        elif roll < 0.34:
            self._send(DURABLE, 1, False)
        elif roll < 0.46:
            delete = self.deletes and r.random() < 0.2
            self.host.submit(
                [c.Demand(EXPRESS, 1, 2 if delete else 1, 0, r.choice([1, 3, 10]), False, delete)]
            )
        elif roll < 0.64:
            self._settle()
        elif roll < 0.66:
            self._ask(lambda request: c.Peek(EXPRESS, 1, request, 0, 1, 10, 10_000))
        elif roll < 0.90:
            self._proceed(r.choice(FAULTS) if r.random() < 0.06 else None)
        elif roll < 0.995:
            self.now += r.choice([1, 20, 100, 700])
            self.host.fire()
        else:
            self.crash()

    def _ask(self, command_of: Callable[[int], c.Command]) -> None:
        request = next(self._requests)
        self.asked[request] = command_of(request)
        self.host.submit([self.asked[request]])

    def _send(self, fragment: int, messages: int, forced: bool) -> None:
        contents = [
            b"%06d" % next(self._contents) + b"x" * self.random.choice([1, 40]) for _ in range(messages)
        ]
        drafts = [Draft(content, "id", None, None, 0, 0, forced=forced) for content in contents]
        self._ask(lambda request: c.Send(fragment, 1, request, drafts, True))

    def _settle(self) -> None:
        held = [(content, lock) for content, lock in self.locked.items() if lock[2] > self.now]
        if held:
            content, (number, nonce, _) = self.random.choice(held)
            outcome = self.random.choice([c.COMPLETE, c.COMPLETE, c.COMPLETE, c.ABANDON, c.RELEASE])
            del self.locked[content]
            self._ask(lambda request: c.Settle(EXPRESS, 1, request, outcome, [number], [nonce], None, False))

    def _proceed(self, fault: JobFault | None = None) -> None:
        if self.host.has_turn:
            self.host.turn()
        if self.host.thread:
            self.host.work(fault)

    def crash(self) -> None:
        self.crashes += 1
        written: set[bytes | None] = set()
        if self.place.disk is not None:
            for lane in self.place.disk.fragment(EXPRESS).lanes:
                written |= {record.content for record in lane.records.values()}
        for content, forced in self.sent.items():
            if not forced and content not in written:
                self.may_be_lost.add(content)
        self.host.crash(self.random.random() < 0.5)
        for command in self.asked.values():
            if isinstance(command, c.Send):
                self.unknown.update(draft.content for draft in command.drafts)
            elif isinstance(command, c.Settle) and command.fragment == EXPRESS:
                self.maybe_completed.add(self.numbers[int(command.numbers[0])])
        self.asked = {}
        self.locked = {}
        self.host = self._start()

    # ---- the end ----

    def settle_down(self) -> None:
        """Let everything become idle, with time passing, and without faults."""
        for _ in range(400):
            for _ in range(20):
                self._proceed()
            if self.host.is_serving and self.host.is_idle and not self.asked:
                return
            self.now += 50
            self.host.fire()
        raise AssertionError(f"it does not become idle; unanswered: {list(self.asked)[:5]}")

    def check_end(self) -> None:
        self.settle_down()
        self.host.submit([c.Leave(EXPRESS, 1, 1)])
        self.settle_down()
        self.now += LOCK + 1  # all locks end
        self.host.fire()
        for _ in range(200):
            before = self.delivered
            self.host.submit([c.Demand(EXPRESS, 1, 9, 0, 50, False, True)])
            self.settle_down()
            if self.delivered == before:
                break
        owed = set(self.sent) - self.completed - self.maybe_completed - self.may_be_lost
        assert self.deletes or not owed, f"{len(owed)} acknowledged messages are lost: {sorted(owed)[:3]}"


def live(seed: int, steps: int) -> ExpressLife:
    life = ExpressLife(seed)
    for _ in range(steps):
        life.step()
    life.check_end()
    return life
