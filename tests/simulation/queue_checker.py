"""Holds the machine of a queue's fragment against the model (queue_model.py), through all that happens to its store.

Changes are gathered, then in flight, then durable; effects are performed only when everything they rest on is durable. The
model follows the machine when a command is applied. If a commit fails, the model goes back to what the store really has: to
`durable`, or, if the commit was made and only its report was lost, to `landing`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from busbar.broker.fragment_loading import DurableState
from busbar.fragment.changes import empty_head
from busbar.fragment.machine import Fragment
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, KEPT, Record
from busbar.model.settings import FragmentSettings
from harness.checked_fragment import CheckedFragment
from tests.simulation.queue_model import Model, Seat
from tests.simulation.store_world import ACTS_ON_READS, StoreWorld

TICKS = 500
"""In a row: then the machine never comes to rest."""


class QueueChecker:
    model_of: type[Model] = Model

    def __init__(self, world: StoreWorld, settings: FragmentSettings, fragment: int = 1) -> None:
        self.world = world
        self.settings = settings
        self.fragment = fragment
        self.model = self.model_of()
        self.model.now = world.now
        self.durable = self.model.snapshot()  # what all that was performed rests on
        self.landing = self.model.snapshot()  # ... once what is in flight is durable
        self.in_flight = False
        self.made = False
        self.gathered = False
        self.is_foreign = (
            True  # no machine of this process is loaded, or another owner has had the store since
        )
        self.seats: dict[int, Seat] = {}
        self.seen: list[
            tuple[int, int]
        ] = []  # locks that clients have heard of: number and nonce, old ones too
        self.released: set[tuple[int, int]] = set()
        self.ticks = 0
        self._gathered_requests: set[int] = set()
        self._flight_requests: set[int] = set()
        self._changes_before = 0
        self._most_dropped = 0
        self.known_last = 0  # the last number that this process knows
        world.checkers[fragment] = self

    @property
    def machine(self) -> Fragment:
        return self.world.host.machine(self.fragment)

    @property
    def stored(self) -> CheckedFragment:
        """What is durable, also while nobody can see it."""
        disk = self.world.place.disk or self.world.place.lost
        found = None if disk is None else disk.fragments.get(self.fragment)
        return cast(CheckedFragment, found or CheckedFragment(empty_head(self.fragment)))

    def lane(self, lane: int) -> dict[int, Record]:
        return self.stored.lanes[lane].records

    def do(self, command: c.Command) -> None:
        """A client of the fragment asks for something."""
        self.ticks = 0
        self.world.request(command)
        self.world.submit(command)

    def change(self, settings: FragmentSettings) -> None:
        self.ticks = 0
        self.world.change(self.fragment, settings)

    # ---- the machine, and the job ----

    def before_apply(self, command: c.Command, now: int) -> None:
        self.world.trace.add("apply", command)
        self.model.now = now
        self._changes_before = self.machine.change_count()
        if self._changes_before == 0:
            self.landing = self.model.snapshot()
        self.ticks = self.ticks + 1 if isinstance(command, c.Tick) else 0
        assert self.ticks < TICKS, "the machine never comes to rest"

    def applied(self, command: c.Command, effects: list[e.Effect]) -> None:
        self._follow(command, effects)
        self._expire_the_same()
        self.known_last = self.model.last
        changes = self.machine.change_count()
        if changes:
            self.gathered = True
            if changes != self._changes_before:
                self._gathered_requests |= {
                    int(one.request) for one in effects if one.request > 0 and not isinstance(one, e.Refused)
                }
        elif self.in_flight:
            self.landing = self.model.snapshot()
        else:
            self.durable = self.model.snapshot()

    def job_started(self) -> None:
        self.in_flight, self.made, self.gathered = True, False, False
        self._flight_requests, self._gathered_requests = self._gathered_requests, set()
        self.landing = self.model.snapshot()

    def job_made(self) -> None:
        self.made = True
        self._most_dropped = self.landing.dropped
        self.world.requests_made(self._flight_requests)

    def job_done(self, is_dirty: bool) -> None:
        self.in_flight = False
        self.durable = self.landing
        if not is_dirty:
            self.durable = self.model.snapshot()
        self.released = set()

    def performed(self, effect: e.Effect) -> None:
        if isinstance(effect, (e.Delivered, e.DeferredReceived)) and effect.until:
            self.seen += [(record.n, effect.nonce) for record in effect.records]

    # ---- when a job failed ----

    def undone(self, effects: list[e.Effect]) -> None:
        """All that is not durable is undone."""
        if self.is_foreign:
            return
        dropped = self.durable.dropped
        self._go_back()
        self.model.dropped = dropped  # those of which no sender was told are not counted
        for effect in effects:
            if isinstance(effect, e.Delivered) and effect.consumer in self.seats:
                self.seats[effect.consumer].credit += len(effect.records)
            elif isinstance(effect, e.Drained) and effect.consumer in self.seats:
                self.seats[effect.consumer].draining = True
        self._accept_releases()
        self._begin_again()

    def _begin_again(self) -> None:
        """The model is what is durable."""
        self.in_flight = self.made = self.gathered = False
        self._gathered_requests = set()
        self.released = set()
        self.durable = self.model.snapshot()
        self.known_last = self.model.last
        self.ticks = 0

    def _go_back(self) -> None:
        """The model becomes what it was when all that is durable had been applied."""
        durable = self.durable
        is_made = self.in_flight and self.made
        self.model = (self.landing if is_made else durable).snapshot()
        self.model.now = self.world.now
        if is_made:
            self._restore_locks(durable)
        self._remove_what_has_expired()

    def _restore_locks(self, before: Model) -> None:
        """Locks of discarded deliveries are not held. Those that had ended are held again, unless that was made durable."""
        for n, message in list(self.model.messages.items()):
            old = before.messages.get(n)
            lock = old.lock if old is not None and old.looks_like(message) else None
            self.model.messages[n] = replace(message, lock=lock)

    def _remove_what_has_expired(self) -> None:
        """The model removes it a little later than the machine, which may have been interrupted."""
        for message in self.model.available(ACTIVE):
            if message.expired(self.model.now) and message.n not in self.lane(ACTIVE):
                self.model.expire(message, self.settings)

    def _expire_the_same(self) -> None:
        """How many expired messages are removed in one turn is the machine's choice; the model removes the same ones."""
        expired = [message for message in self.model.available(ACTIVE) if message.expired(self.model.now)]
        if expired:
            active = self.active_numbers()
            for message in expired:
                if message.n not in active:
                    self.model.expire(message, self.settings)

    def active_numbers(self) -> set[int]:
        """What the machine takes for active."""
        slot = self.world.host.slot(self.fragment)
        assert slot is not None
        ledger = self.machine._state.ledger
        numbers = set(self.lane(ACTIVE))
        for changes in (slot.committing, ledger._changes):
            if changes is not None:
                numbers |= {record.n for record in changes.puts.get(ACTIVE, [])}
                numbers -= {edit.n for edit in changes.edits if edit.to != ACTIVE}
                numbers -= set(changes.deletes.get(ACTIVE, []))
                numbers -= {n for keep in changes.keeps for n in keep.numbers}
        return numbers - ledger._cancelled - set(ledger._kept)

    def _accept_releases(self) -> None:
        """A release of which nothing was to be written may stay one."""
        locked = {lock.record.n for lock in self.machine.locks()}
        for n, nonce in self.model.locked().items():
            if n not in locked:
                assert (n, nonce) in self.released
                self.model.unlock(n)

    # ---- other machines ----

    def memory_lost(self) -> None:
        """Locks are not durable, except those that a clean end kept and no machine was loaded with."""
        self.stopped(kept=False)

    def stopped(self, kept: bool) -> None:
        if self.in_flight or self.gathered:
            self._go_back()
        if not kept and not self.is_foreign:
            for n in self.model.locked():
                self.model.unlock(n)
        self._begin_again()
        self.is_foreign = True

    def loaded(self, durable: DurableState, recreated: bool) -> None:
        kept = {lock.record.n: lock.nonce for lock in durable.locks}
        for n, nonce in self.model.locked().items():
            if kept.get(n) != nonce:
                self.model.unlock(n)
        self.is_foreign = False
        self.seats = {}
        if recreated:
            self._store_lost(durable)
        # Drops are counted durably only with the next commit.
        assert durable.head.dropped <= max(self.model.dropped, self._most_dropped)
        self.model.dropped = durable.head.dropped
        self._begin_again()

    def _store_lost(self, durable: DurableState) -> None:
        """Numbers go on."""
        assert durable.head.last >= self.known_last
        lost = self.model
        self.model = self.model_of()
        self.model.now, self.model.last, self.model.dropped = lost.now, durable.head.last, lost.dropped
        self.model.ever = {n for n in (*lost.ever, *lost.messages) if n <= self.model.last}

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
        elif isinstance(command, c.StoreCopies):
            model.store_copies(command, settings)
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

    def check_quiet(self) -> None:
        """The machine says that nothing is to be done at once."""
        model = self.model
        model.now = self.world.now
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
        assert self._credit() == {consumer: seat.credit for consumer, seat in self.seats.items()}
        wake = self.machine.wake_at()
        times = [m.lock.until for m in model.messages.values() if m.lock is not None]
        if not self.world.host.refuses_sends:  # then what is due waits, too
            times += [m.due for m in model.messages.values() if m.due]
        assert wake == 0 or wake > model.now
        assert not times or 0 < wake <= min(times)
        self._check_bounds()
        if not self.in_flight and not self.gathered and self.world.place.disk is not None:
            self._check_store()

    def _credit(self) -> dict[int, int]:
        return {int(demand.consumer): int(demand.credit) for demand in self.machine.demands()}

    def _check_store(self) -> None:
        stored = {n: lane for lane in range(KEPT) for n in self.lane(lane)}
        assert stored == {m.n: m.lane for m in self.model.messages.values()}
        for message in self.model.messages.values():
            record = self.lane(message.lane)[message.n]
            assert message.same_as(record)
        self._check_ids()

    def _check_ids(self) -> None:
        """What is remembered is in the store, and what is not goes: a segment, with its last id."""
        since = self.model.now - self.settings.duplicate_window_ms
        newest: dict[int, int] = {}
        kept = set(self.stored.ids.values())
        for (segment, _), (at, _n) in self.stored.ids.items():
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
