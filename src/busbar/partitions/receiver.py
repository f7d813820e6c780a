"""The messages of an entity for one receiver: asked of all its fragments, handed to the client as it can take them.

    demand      what the client can take becomes demand on the fragments (shares.py)
    obtained    what a fragment gives is handed over at once if the client can take it; of a regular entity the rest goes
                back, with all that comes until the fragment has heard of it, of a partitioned one it is cached
                (receive_cache.py)
    cached      handed over when the client can take more. A lock that is not fresh is renewed first; a message whose lock
                is gone is dropped without a word. One that nobody wanted for half its lock, or whose client has gone,
                returns to its fragment without a trace
    late        what came into a partitioned entity after its client had been given all it wanted goes back at once: it was
                not there when the client asked, and others may be waiting for it
    withdrawn   when the client takes nothing more, what a partitioned entity was asked for beyond it is soon called back
    drained     the client wants what there is and an answer: all fragments are drained, in rounds while one may have more.
                A fragment that does not answer (its store is out) is waited for once, and not for long

ReceiveAndDelete: a regular entity deletes as it delivers. The fragments of a partitioned one are asked for locked messages,
since not all that is obtained goes out; each is deleted on its way to the client and handed over when that is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from busbar.model.api import EntityView
from busbar.model.commands import COMPLETE, RELEASE, Demand, Leave, Renew, Settle
from busbar.model.effects import Delivered, Effect, Refused, Renewed, Settled
from busbar.model.message import ACTIVE, Record
from busbar.partitions.credit_allocation import CreditAllocator, FragmentCredit
from busbar.partitions.origin import Origin
from busbar.partitions.receive_cache import LockedBatch, ReceiveCache
from busbar.partitions.routing import indexes_by_store

MAX_SLICE = 1_000
FIRST_SLICE = 16
SLICE_BYTES = 1024 * 1024
CACHE_BYTES = 256 * 1024

REBALANCE_SECONDS = 0.05
"""Seconds that a fragment is left unasked for the sake of others who give nothing."""
REVOKE_SECONDS = 0.05
"""Seconds before unused demand is called back: a client that receives in a loop comes again within it."""
DRAIN_WAIT = 1.0
"""Seconds that a client's drain waits for a fragment that does not answer."""
RENEW_AFTER_MS = 1_000
"""A lock that was taken less than so many ms ago (and a tenth of its time) is not renewed at hand-out."""


class ReceivingClient(Protocol):
    """The client's end."""

    def capacity(self) -> int:
        """Messages that the client may be given."""

    def wanted(self, most: int) -> int:
        """Messages that should be asked for now: not more than `most`, none while it reads too slowly."""

    def credit(self) -> int:
        """Messages that the client has asked for."""

    def deliver(self, demand: FragmentCredit, records: list[Record], nonce: int, until: int) -> None: ...

    def drained(self) -> None:
        """The drain is over: what there was has been handed over."""


class _Nobody:
    """The receiver of a supply that is closed."""

    def capacity(self) -> int:
        return 0

    def wanted(self, most: int) -> int:
        return 0

    def credit(self) -> int:
        return 0

    def deliver(self, demand: FragmentCredit, records: list[Record], nonce: int, until: int) -> None:
        """Its link is gone: the locks end by time."""

    def drained(self) -> None: ...


_NOBODY = _Nobody()


class PartitionedReceiver:
    def __init__(
        self,
        peer: Origin,
        receiver: ReceivingClient,
        entity: EntityView,
        sub: int,
        delete: bool,
        clock: Callable[[], int],
    ) -> None:
        fragments = entity.fragments
        partitioned = len(fragments) > 1
        self._peer = peer
        self._clock = clock
        self._receiver: ReceivingClient = receiver
        self._sub = sub
        self._shares = CreditAllocator(
            [
                FragmentCredit(fragments[index], index, index if partitioned else -1)
                for index in indexes_by_store(entity)
            ]
        )
        for demand in self._shares.demands:
            demand.consumer = peer.consumer(_Consumer(self, demand))
        self._only = None if partitioned else self._shares.demands[0]
        self._deletes_here = delete and partitioned
        self._delete = delete and not partitioned
        self._slice = FIRST_SLICE
        self._cache = ReceiveCache(CACHE_BYTES)
        self._on_the_way: set[_PendingHandover] = set()
        self._reserved = 0
        """Messages on their way to the client: their locks are being renewed, or they are being deleted."""
        self._satisfied_since = 0
        """Since when (ms) the client wants nothing more; 0 while it does. Of a partitioned entity."""
        self._called_back = self._shares.demands[0]
        """The fragment that was last called back for the sake of others."""
        self._client_drains = False
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._balancing: asyncio.TimerHandle | None = None
        self._withdrawing: asyncio.TimerHandle | None = None
        self._overdue: asyncio.TimerHandle | None = None
        self._stale: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """The receiver is gone; what it has not been given returns."""
        for demand in self._shares.demands:
            self._peer.forget_consumer(demand.consumer)
            self._peer.command(Leave(demand.fragment, self._peer.origin, demand.consumer))
        self.release_all()

    def release_all(self) -> None:
        """Release all that was obtained and not handed over."""
        self._closed = True
        for timer in (self._balancing, self._withdrawing, self._overdue, self._stale):
            if timer is not None:
                timer.cancel()
        for handing in self._on_the_way:
            if not handing.deletes:
                self._release(handing.parcel)
        self._on_the_way.clear()
        for parcel in self._cache.take(len(self._cache)):
            self._release(parcel)
        self._receiver = _NOBODY  # a link and its supply would refer to each other for ever

    def receive_and_delete(self, delete: bool) -> None:
        """From now on, of a partitioned entity: what is handed over is deleted, or locked."""
        self._deletes_here = delete

    def return_messages(self, demand: FragmentCredit, records: list[Record], nonce: int, until: int) -> None:
        """What was handed over and could not be taken returns; what was deleted is lost."""
        if until:
            self._release(LockedBatch(demand, records, nonce, until, 0))

    # Demand

    def replenish(self) -> None:
        """Bring the demand on the fragments in line with what the client can take."""
        if self._client_drains:
            self._drain_on()
            return
        only = self._only
        if only is not None:
            self._replenish_only(only)
            return
        if self._closed:
            return
        room = self._receiver.wanted(self._slice) - self._reserved
        if room > 0 and self._cache:
            room -= self._deliver_cached(room)
        if room > 0:
            self._satisfied_since = 0
            self._keep_demand()
            self._plan(room, pressing=False)
        elif self._shares.outstanding:
            credit = self._receiver.credit() - self._reserved
            if credit <= 0:
                if not self._satisfied_since:
                    self._satisfied_since = self._clock()
                self._withdraw_soon()
            elif self._shares.outstanding > credit + 2 * len(self._shares.demands):
                self._revoke_all()  # the client has lowered its credit

    def _plan(self, room: int, *, pressing: bool) -> None:
        shares = self._shares
        for demand, credit in shares.plan(room, self._slice, force=pressing).items():
            self._demand(demand, credit, drain=False)
        if shares.starved and self._balancing is None:
            self._balance_later()
        if shares.starved and not self._called_back.draining:
            largest = shares.largest_holder()
            if largest is not None:
                self._called_back = largest
                self._revoke(largest)

    def _balance_later(self) -> None:
        self._balancing = self._loop.call_later(REBALANCE_SECONDS, self._balance, self._shares.grants_made)

    def _balance(self, turns_before: int) -> None:
        """Some fragment was left unasked. That is well while others give and answer; else they hold demand in vain."""
        self._balancing = None
        shares = self._shares
        if self._closed or self._client_drains or not shares.starved:
            return
        room = self._receiver.wanted(self._slice) - self._reserved
        if room <= 0:
            return
        if shares.grants_made > turns_before:
            self._balance_later()
            return
        for demand in shares.stalled():
            self._revoke(demand)
        self._plan(room, pressing=True)
        self._peer.flush()

    def _replenish_only(self, only: FragmentCredit) -> None:
        if only.draining:
            return
        outstanding = only.outstanding
        want = self._receiver.wanted(self._slice)
        credit = self._receiver.credit()
        if want > outstanding:
            # Small top-ups are left to gather: half a slice at a time, or all there is to ask for.
            if want - outstanding >= self._slice // 2 or want >= credit or not outstanding:
                self._shares.grant_credit(only, want - outstanding)
                self._demand(only, want - outstanding, drain=False)
        elif credit < outstanding:
            self._revoke(only)

    def _demand(self, demand: FragmentCredit, credit: int, *, drain: bool) -> None:
        if drain:
            demand.draining = True
        self._peer.command(
            Demand(
                demand.fragment, self._peer.origin, demand.consumer, self._sub, credit, drain, self._delete
            )
        )

    def _keep_demand(self) -> None:
        if self._withdrawing is not None:
            self._withdrawing.cancel()
            self._withdrawing = None

    def _withdraw_soon(self) -> None:
        if self._withdrawing is None:
            self._withdrawing = self._loop.call_later(REVOKE_SECONDS, self._withdraw_now)

    def _withdraw_now(self) -> None:
        self._withdrawing = None
        if not self._closed and self._receiver.credit() - self._reserved <= 0:
            self._revoke_all()
            self._peer.flush()

    def _revoke_all(self) -> None:
        for demand in self._shares.demands:
            if demand.outstanding and not demand.draining:
                self._revoke(demand)

    def _revoke(self, demand: FragmentCredit) -> None:
        demand.round = -1
        self._demand(demand, 0, drain=True)

    # The client drains

    def drain(self) -> None:
        if not self._client_drains:
            self._client_drains = True
            self._satisfied_since = 0
            for demand in self._shares.demands:
                demand.more = True
        self._drain_on()

    def _drain_on(self) -> None:
        """The next step of a drain: hand out what is cached, then drain the fragments that may have more."""
        capacity = self._receiver.capacity() - self._reserved
        if capacity > 0 and self._cache:
            capacity -= self._deliver_cached(capacity)
        if self._reserved:
            return
        demands = self._shares.demands
        if any(demand.draining and not demand.drain_overdue for demand in demands):
            return
        asked = [demand for demand in demands if demand.more and not demand.draining]
        if capacity <= 0 or not asked:
            self._end_drain()
            return
        share = -(-capacity // len(asked))
        for demand in asked:
            credit = max(0, share - demand.outstanding)
            self._shares.grant_credit(demand, credit)
            demand.round = demand.outstanding
            demand.delivered = 0
            self._demand(demand, credit, drain=True)
        if self._overdue is None:
            self._overdue = self._loop.call_later(DRAIN_WAIT, self._drain_overdue)

    def _drain_overdue(self) -> None:
        """Who has not answered by now is not waited for, in this drain and in the next ones, until it does."""
        self._overdue = None
        if self._client_drains and not self._closed:
            for demand in self._shares.demands:
                demand.drain_overdue = demand.draining
            self._drain_on()
            self._peer.flush()

    def _end_drain(self) -> None:
        self._client_drains = False
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        self._receiver.drained()
        self.replenish()

    def drained(self, demand: FragmentCredit) -> None:
        """The fragment has given what there was and has forgotten the rest of our demand."""
        self._shares.drained(demand)
        if demand.round >= 0:
            # It gave all that it was asked for: then there may be more.
            demand.more = 0 < demand.round <= demand.delivered
        demand.round = 0
        self.replenish()

    # What fragments give

    def on_delivered(self, demand: FragmentCredit, effect: Delivered) -> None:
        records = effect.records
        self._shares.delivered(demand, len(records))
        receiver = self._receiver
        mean = max(1, sum([record.size for record in records]) // len(records))
        self._slice = max(1, min(MAX_SLICE, SLICE_BYTES // mean))
        credit = receiver.credit() - self._reserved
        if self._delete or (self._only is not None and credit >= len(records) and not demand.returning):
            receiver.deliver(demand, records, effect.nonce, effect.until)
        else:
            parcel = LockedBatch(demand, records, effect.nonce, effect.until, self._clock())
            if demand.returning:
                self._release(parcel)
            elif self._only is not None:
                kept, rest = parcel.split(max(0, credit))  # the client has lowered its credit meanwhile
                if kept.records:
                    receiver.deliver(demand, kept.records, kept.nonce, kept.until)
                self._refuse(rest)
            elif credit >= len(records) and not self._cache:
                self._deliver(parcel, parcel.since)
            elif 0 < self._satisfied_since <= records[0].enqueued:
                self._refuse(parcel)
            else:
                self._cache_surplus(parcel, max(0, credit))
        self.replenish()

    def _cache_surplus(self, parcel: LockedBatch, credit: int) -> None:
        if credit and not self._cache:
            first, parcel = parcel.split(credit)
            self._deliver(first, parcel.since)
        rest = self._cache.add(parcel)
        if rest.records:
            self._refuse(rest)
        if self._cache and self._stale is None:
            self._stale = self._loop.call_later(_half_lock(parcel) / 1000, self._release_stale)

    def _refuse(self, parcel: LockedBatch) -> None:
        """Give it back. Nothing later of its fragment may be taken before that is done, or it would be overtaken."""
        demand = parcel.demand
        demand.returning = True
        if not demand.draining:
            self._revoke(demand)
        self._release(parcel)

    # The cache

    def _deliver_cached(self, most: int) -> int:
        """Give cached messages to the client; how many of them count against its credit beyond now."""
        now = self._clock()
        count = 0
        for parcel in self._cache.take(most):
            if self._sub == ACTIVE:
                # Time to live is looked at when a message goes out; the fragment knows what becomes of it.
                expired = [record for record in parcel.records if record.expired(now)]
                if expired:
                    self._release(parcel.with_records(expired))
                    parcel = parcel.with_records([r for r in parcel.records if not r.expired(now)])
            if parcel.records:
                count += len(parcel.records)
                self._deliver(parcel, now)
        return count

    def _deliver(self, parcel: LockedBatch, now: int) -> None:
        """On the way to the client: at once if its locks are fresh and nothing of the fragment is before it."""
        demand = parcel.demand
        fresh = now - parcel.since <= min(RENEW_AFTER_MS, (parcel.until - parcel.since) // 10)
        if self._deletes_here or demand.renewing or not fresh:
            self._hand_out_later(parcel)
        else:
            self._receiver.deliver(demand, parcel.records, parcel.nonce, parcel.until)

    def _hand_out_later(self, parcel: LockedBatch) -> None:
        count = len(parcel.records)
        parcel.demand.renewing += count
        self._reserved += count
        handing = _PendingHandover(self, parcel, self._deletes_here)
        self._on_the_way.add(handing)
        peer = self._peer
        fragment = parcel.demand.fragment
        numbers = [record.n for record in parcel.records]
        nonces = [parcel.nonce] * count
        request = peer.expect(handing)
        if self._deletes_here:
            peer.command(Settle(fragment, peer.origin, request, COMPLETE, numbers, nonces, None, False))
        else:
            peer.command(Renew(fragment, peer.origin, request, numbers, nonces))

    def answered(self, handing: _PendingHandover, effect: Effect) -> None:
        """The locks were renewed, or the messages deleted; or not."""
        if handing not in self._on_the_way:
            return  # the receiver is gone: they have been released, or what is deleted is lost with it
        self._on_the_way.discard(handing)
        parcel = handing.parcel
        demand, records = parcel.demand, parcel.records
        demand.renewing -= len(records)
        self._reserved -= len(records)
        if isinstance(effect, Renewed):
            self._receiver.deliver(demand, records, parcel.nonce, effect.until)
        elif isinstance(effect, Settled):
            lost = set(effect.lost)
            kept = [record for index, record in enumerate(records) if index not in lost]
            if kept:
                self._receiver.deliver(demand, kept, 0, 0)
        else:
            assert isinstance(effect, Refused)
            self._not_renewed(parcel, handing.deletes)
        self.replenish()

    def _not_renewed(self, parcel: LockedBatch, deletes: bool) -> None:
        """One of the locks is lost, or the fragment cannot say. The others are tried one by one."""
        if len(parcel.records) > 1 and not deletes:
            for record in parcel.records:
                self._hand_out_later(parcel.with_records([record]))
        else:
            self._release(parcel)

    def _release_stale(self) -> None:
        """Half of their lock is over: whoever receives next, it is not this client."""
        self._stale = None
        now = self._clock()
        while (parcel := self._cache.oldest()) is not None:
            wait = parcel.since + _half_lock(parcel) - now
            if wait > 0:
                self._stale = self._loop.call_later(wait / 1000, self._release_stale)
                break
            for stale in self._cache.take(len(parcel.records)):
                self._release(stale)
        self._peer.flush()

    def _release(self, parcel: LockedBatch) -> None:
        """Back to where it stood, as if it had never left."""
        numbers = [record.n for record in parcel.records]
        if numbers:
            self._peer.command(
                Settle(
                    parcel.demand.fragment,
                    self._peer.origin,
                    0,
                    RELEASE,
                    numbers,
                    [parcel.nonce] * len(numbers),
                    None,
                    False,
                )
            )


def _half_lock(parcel: LockedBatch) -> int:
    return max(1, (parcel.until - parcel.since) // 2)


class _Consumer:
    """A fragment's view of the receiver."""

    __slots__ = ("_demand", "_supply")

    def __init__(self, supply: PartitionedReceiver, demand: FragmentCredit) -> None:
        self._supply = supply
        self._demand = demand

    def delivered(self, effect: Effect) -> None:
        assert isinstance(effect, Delivered)
        self._supply.on_delivered(self._demand, effect)

    def drained(self) -> None:
        self._supply.drained(self._demand)

    def replenish(self) -> None:
        self._supply.replenish()


class _PendingHandover:
    """Messages on their way from a fragment to the client, by way of a renewal or a deletion."""

    __slots__ = ("_supply", "deletes", "parcel")

    def __init__(self, supply: PartitionedReceiver, parcel: LockedBatch, deletes: bool) -> None:
        self._supply = supply
        self.parcel = parcel
        self.deletes = deletes

    def answered(self, effect: Effect, now: int) -> None:
        self._supply.answered(self, effect)
