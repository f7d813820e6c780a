"""A fragment machine with a host, a store that may fail or crash, clients, and the model beside it.

The host is pipelined as the real one: changes are gathered, then in flight, then durable; effects are heard only when
everything they rest on is durable. When a commit fails, what was in flight and what was gathered is discarded. The model
follows the machine at once; snapshots say where it goes back to.
"""

from __future__ import annotations

from itertools import count
from random import Random

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Changes, Lock
from busbar.fragment.machine import Fragment
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, KEPT
from busbar.model.settings import FragmentSettings
from tests.simulation.machine_model import Model, Seat
from tests.unit.fragment.reference_store import ReferenceStore


def small_bounds(seed: int = 0) -> Bounds:
    """So small that a handful of messages meets every one of them; which ones are met differs from life to life."""
    r = Random(seed)
    bounds = Bounds()
    bounds.turn_messages = r.choice([3, 5, 50])
    bounds.burst_bytes = r.choice([100, 300, 3000])
    bounds.ready_records = r.choice([2, 4, 12])
    bounds.ready_bytes = r.choice([300, 600, 3000])
    bounds.page_records = r.choice([1, 3, 8])
    bounds.page_bytes = r.choice([400, 500, 3000])  # no message is larger
    bounds.returned_records = r.choice([1, 3, 6])
    bounds.kept_bytes = r.choice([0, 500, 3000])
    r = Random(f"ids of {seed}")
    bounds.recent_ids = r.choice([1, 3, 50])
    bounds.segment_ids = r.choice([1, 3, 50])
    bounds.id_page = r.choice([1, 3, 50])
    bounds.expired_ids = r.choice([1, 3, 50])
    bounds.filter_bytes = r.choice([16, 64, 256])
    bounds.filter_most = r.choice([256, 1024])
    bounds.filter_slice = r.choice([50, 5000])
    r = Random(f"sessions of {seed}")
    bounds.line_page = r.choice([1, 2, 10])
    bounds.line_sessions = r.choice([1, 2, 10])
    bounds.session_page = r.choice([1, 3, 20])
    bounds.session_locks = r.choice([2, 5, 100])
    bounds.session_bytes = r.choice([0, 500, 10_000])
    bounds.sessions_at_once = r.choice([1, 2, 10])
    bounds.offer_ms = 7
    r = Random(f"taps of {seed}")
    bounds.swept = r.choice([1, 3, 50])
    bounds.span_records = r.choice([1, 4, 50])
    bounds.span_bytes = r.choice([100, 500, 5000])
    return bounds


ACTS_ON_READS = (c.ReceiveDeferred, c.Purge, c.Peek, c.ListSessions)
"""Commands that come before the ends of locks."""


class World:
    model_of: type[Model] = Model

    def __init__(self, settings: FragmentSettings, seed: int = 0) -> None:
        self.settings = settings
        self.seed = seed
        self.store = ReferenceStore()
        self.machine = Fragment(1, settings, self.store.head, 0, [], small_bounds(seed))
        self.model = self.model_of()
        self.model.now = 1_000
        self.durable = self.model.snapshot()  # what all that was heard rests on
        self.landing = self.model.snapshot()  # ... once what is in flight is durable
        self.flight: Changes | None = None
        self.flying: list[e.Effect] = []
        self.gathered: list[e.Effect] = []
        self.seats: dict[int, Seat] = {}
        self.seen: list[
            tuple[int, int]
        ] = []  # locks that clients have heard of: number and nonce, old ones too
        self.released: set[tuple[int, int]] = set()
        self._nonces = count(100)
        # Time passes while the store reads for a command, and in some lives for ticks and demands, too: in those without
        # times to live, since the model cannot tell what had expired before a lock ended between two ticks.
        self.slow_reads = False
        self._read_times = Random(f"reads of {seed}")

    # ---- the host ----

    def do(self, command: c.Command) -> None:
        """Apply a command and the ticks that follow from it, until the machine is quiet."""
        self._step(command)
        for _ in range(500):
            if not self.machine.has_work(self.model.now):
                break
            self._step(c.Tick(1))
        else:
            raise AssertionError("the machine never comes to rest")
        self._check_quiet()

    def _step(self, command: c.Command) -> None:
        reads = self.machine.needs(command, self.model.now)
        if reads:
            self.land()
            self.take_off()
            self.land()
            self.store.read(reads)
            if self.slow_reads or isinstance(command, ACTS_ON_READS):
                self.model.now += self._read_times.choice([0, 0, 1, 30, 60])
            self.machine.supply(reads)
        if self.machine.change_count() == 0:
            self.landing = self.model.snapshot()
        self.machine.apply(command, self.model.now, next(self._nonces))
        effects = self.machine.take_effects()
        self._follow(command, effects)
        if self.machine.change_count():
            self.gathered += effects
        elif self.flight is not None:
            self.flying += effects
            self.landing = self.model.snapshot()
        else:
            self._hear(effects)
            self.durable = self.model.snapshot()

    def _hear(self, effects: list[e.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, (e.Delivered, e.DeferredReceived)) and effect.until:
                self.seen += [(record.n, effect.nonce) for record in effect.records]

    def take_off(self) -> None:
        """The gathered changes are on their way to the disk."""
        if self.flight is None and self.machine.change_count():
            self.flight = self.machine.take_changes()
            self.flying, self.gathered = self.gathered, []
            self.landing = self.model.snapshot()

    def land(self) -> None:
        """What was in flight is durable, and is heard."""
        if self.flight is not None:
            self.store.commit(self.flight)
            self.flight = None
            self._hear(self.flying)
            self.flying = []
            self.durable = self.landing
            if not self.machine.change_count():
                self.durable = self.model.snapshot()
            self.released = set()

    def fail(self) -> None:
        """The commit was refused: all that is not durable is undone."""
        batches = [self.machine.take_changes(), self.flight]
        effects = self.flying + self.gathered
        self.flight, self.flying, self.gathered = None, [], []
        self.machine.undo(
            [batch for batch in batches if batch is not None],
            effects,
            self.store.head,
            self.store.next_due(),
            self.store.tap_rows(),
            dict(self.store.writers),
        )
        self._go_back()
        for effect in effects:
            if isinstance(effect, e.Delivered) and effect.consumer in self.seats:
                self.seats[effect.consumer].credit += len(effect.records)
            elif isinstance(effect, e.Drained) and effect.consumer in self.seats:
                self.seats[effect.consumer].draining = True
        self._accept_releases()
        self.durable = self.model.snapshot()
        self.released = set()
        self.do(c.Tick(1))

    def _go_back(self) -> None:
        """The model becomes what it was when all that is durable had been applied."""
        now = self.model.now
        self.model = self.durable.snapshot()
        self.model.now = now
        # The model removes what has expired a little later than the machine, which may have been interrupted.
        for message in self.model.available(ACTIVE):
            if message.expired(now) and message.n not in self.store.lanes[ACTIVE]:
                self.model.expire(message, self.settings)

    def _accept_releases(self) -> None:
        """A release of which nothing was to be written may stay one."""
        locked = {lock.record.n for lock in self.machine.locks()}
        for n, nonce in self.model.locked().items():
            if n not in locked:
                assert (n, nonce) in self.released
                self.model.unlock(n)

    def crash(self, landed: bool) -> None:
        """Memory is gone; what was in flight has reached the disk or not."""
        if landed:
            self.land()
        if self.flight is not None or self.machine.change_count():
            self._go_back()
        for n in self.model.locked():
            self.model.unlock(n)
        self._start([])

    def shut_down(self) -> None:
        """A clean end and a new start: locks are kept."""
        self.land()
        self.take_off()
        self.land()
        self._start(self.store.stubs(self.machine.locks()))

    def _start(self, locks: list[Lock]) -> None:
        self.machine = Fragment(
            1,
            self.settings,
            self.store.head,
            self.store.next_due(),
            locks,
            small_bounds(self.seed),
            self.store.id_segments(),
            self.store.tap_rows(),
            dict(self.store.writers),
        )
        # Drops are counted durably only with the next commit.
        dropped = self.machine._state.duplicates.dropped
        assert dropped <= self.model.dropped
        self.model.dropped = dropped
        self.flight, self.flying, self.gathered, self.seats = None, [], [], {}
        self.released = set()
        self.durable = self.model.snapshot()
        self.do(c.Tick(1))

    def set(self, settings: FragmentSettings) -> None:
        self.settings = settings
        self.machine.settings = settings
        self.do(c.Tick(1))

    # ---- the model follows ----

    def _follow(self, command: c.Command, effects: list[e.Effect]) -> None:
        model, settings = self.model, self.settings
        rest = effects
        if not isinstance(command, ACTS_ON_READS):
            self._end_locks()
        if isinstance(command, c.Demand):
            seat = self.seats.setdefault(command.consumer, Seat(command.sub, command.delete))
            seat.credit = max(0, seat.credit + command.credit)
            seat.draining = seat.draining or command.drain
        elif isinstance(command, c.Leave):
            self.seats.pop(command.consumer, None)
            if command.consumer == 0:
                self.seats.clear()
        elif isinstance(command, c.Tick):
            model.activated(self.machine._state.ledger.head.last, settings)
        else:
            answer, rest = effects[0], effects[1:]
            assert answer.request == command.request
            if isinstance(command, c.Send):
                model.send(command.drafts, answer, settings)
            elif isinstance(command, c.Settle):
                if command.outcome == c.RELEASE:
                    self.released |= set(zip(command.numbers, command.nonces, strict=True))
                model.settle(command, answer, settings)
            elif isinstance(command, c.Renew):
                model.renew(command, answer, settings)
            elif isinstance(command, c.ReceiveDeferred):
                model.receive_deferred(command, answer, settings)
            elif isinstance(command, c.CancelScheduled):
                model.cancel(command, answer)
            elif isinstance(command, c.Purge):
                model.purge(command, answer)
            elif isinstance(command, c.Peek):
                model.peek(command, answer)
            if isinstance(command, ACTS_ON_READS):
                self._end_locks()
        for effect in rest:
            if isinstance(effect, e.Delivered):
                wanted = any(seat.credit for seat in self.seats.values() if seat.sub == ACTIVE)
                model.delivered(effect, self.seats[effect.consumer], settings, wanted)
            else:
                assert isinstance(effect, e.Drained), effect
                self._drained(self.seats[effect.consumer])

    def _end_locks(self) -> None:
        """How many locks end in one turn is the machine's choice; the model ends the same ones."""
        held = {lock.record.n: lock.nonce for lock in self.machine.locks()}
        for n, nonce in self.model.locked().items():
            if held.get(n) != nonce:
                self.model.end_lock_if_over(n, self.settings)

    def _drained(self, seat: Seat) -> None:
        assert seat.draining
        if seat.credit and self.settings.can_receive:
            self._nothing_for(seat)
        seat.draining = False
        seat.credit = 0

    def _nothing_for(self, seat: Seat) -> None:
        """Somebody with credit got no more: then there is nothing, but for what has expired."""
        if seat.sub == ACTIVE:
            self.model.remove_expired(self.model.last + 1, self.settings)
        assert self.model.available(seat.sub) == []

    def _check_quiet(self) -> None:
        """The machine says that nothing is to be done at once."""
        model = self.model
        model.end_all_locks_that_are_over(self.settings)
        if self.settings.can_receive:
            for sub in (ACTIVE, DEAD):
                for seat in self.seats.values():
                    if seat.sub == sub and seat.credit:
                        self._nothing_for(seat)
        assert not any(seat.draining for seat in self.seats.values())
        head = self.machine._state.ledger.head
        assert head.last == model.last
        assert head.counts[:KEPT] == model.counts()[:KEPT]
        assert self.machine._state.duplicates.dropped == model.dropped
        assert {lock.record.n: lock.nonce for lock in self.machine.locks()} == model.locked()
        wake = self.machine.wake_at()
        times = [m.lock.until for m in model.messages.values() if m.lock is not None]
        times += [m.due for m in model.messages.values() if m.due]
        assert wake == 0 or wake > model.now
        assert not times or 0 < wake <= min(times)
        self._check_bounds()
        if self.flight is None and not self.machine.change_count():
            self._check_store()

    def _check_store(self) -> None:
        stored = {n: lane for lane in range(KEPT) for n in self.store.lanes[lane]}
        assert stored == {m.n: m.lane for m in self.model.messages.values()}
        for message in self.model.messages.values():
            record = self.store.lanes[message.lane][message.n]
            assert message.same_as(record)
        self._check_ids()

    def _check_ids(self) -> None:
        """What is remembered is in the store, and what is not goes: a segment, with its last id."""
        since = self.model.now - self.settings.duplicate_window_ms
        newest: dict[int, int] = {}
        kept = set(self.store.ids.values())
        for (segment, _), (at, _n) in self.store.ids.items():
            newest[segment] = max(at, newest.get(segment, 0))
        assert all(at > since for at in newest.values())
        assert all(known in kept for known in self.model.ids.values() if known[0] > since)

    def _check_bounds(self) -> None:
        state = self.machine._state
        bounds = state.bounds
        kept = 0
        for window in (state.main, state.dead):
            ready = window.ready[window.at :]
            numbers = [record.n for record in ready]
            assert numbers == sorted(numbers)
            assert all(n < window.cursor for n in [*numbers, *window.returned])
            assert not set(numbers) & set(window.returned)
            assert window.bytes == sum(record.size for record in ready)
            with_content = [r for r in window.returned.values() if r.content is not None]
            assert window.returned_bytes == sum(r.size for r in with_content)
            assert len(window.returned) <= bounds.returned_records
            # Everything available below the cursor is in memory, and nothing else.
            below = [m.n for m in self.model.available(window.lane) if m.n < window.cursor]
            assert sorted([*numbers, *window.returned]) == below
            kept += window.returned_bytes
        locked = [lock.record for lock in self.machine.locks() if lock.record.content is not None]
        assert state.locks.bytes == sum(record.size for record in locked)
        assert kept + state.locks.bytes <= bounds.kept_bytes + 2 * bounds.page_bytes
