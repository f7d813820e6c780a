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

from busbar.gateway.origin import Asker
from busbar.gateway.receive_cache import Parcel, ReceiveCache
from busbar.gateway.routing import in_order_of_stores
from busbar.gateway.shares import FragmentDemand, Shares
from busbar.model.commands import COMPLETE, RELEASE, Demand, Leave, Renew, Settle
from busbar.model.effects import Delivered, Effect, Refused, Renewed, Settled
from busbar.model.message import ACTIVE, Record
from busbar.model.port import EntityView

MAX_SLICE = 1_000
FIRST_SLICE = 16
SLICE_BYTES = 1024 * 1024
CACHE_BYTES = 256 * 1024

PATIENCE = 0.05
"""Seconds that a fragment is left unasked for the sake of others who give nothing."""
LINGER = 0.05
"""Seconds before unused demand is called back: a client that receives in a loop comes again within it."""
DRAIN_WAIT = 1.0
"""Seconds that a client's drain waits for a fragment that does not answer."""
FRESH = 1_000
"""A lock that was taken less than so many ms ago (and a tenth of its time) is not renewed at hand-out."""


class Receiver(Protocol):
    """The client's end."""

    def capacity(self) -> int:
        """Messages that the client may be given."""

    def room(self, most: int) -> int:
        """Messages that should be asked for now: not more than `most`, none while it reads too slowly."""

    def credit(self) -> int:
        """Messages that the client has asked for."""

    def hand_over(self, demand: FragmentDemand, records: list[Record], nonce: int, until: int) -> None: ...

    def drained(self) -> None:
        """The drain is over: what there was has been handed over."""


class _Nobody:
    """The receiver of a supply that is closed."""

    def capacity(self) -> int:
        return 0

    def room(self, most: int) -> int:
        return 0

    def credit(self) -> int:
        return 0

    def hand_over(self, demand: FragmentDemand, records: list[Record], nonce: int, until: int) -> None:
        """Its link is gone: the locks end by time."""

    def drained(self) -> None: ...


_NOBODY = _Nobody()


class Supply:
    def __init__(
        self,
        peer: Asker,
        receiver: Receiver,
        entity: EntityView,
        sub: int,
        delete: bool,
        clock: Callable[[], int],
    ) -> None:
        fragments = entity.fragments
        partitioned = len(fragments) > 1
        self._peer = peer
        self._clock = clock
        self._receiver: Receiver = receiver
        self._sub = sub
        self._shares = Shares(
            [
                FragmentDemand(fragments[index], index, index if partitioned else -1)
                for index in in_order_of_stores(entity)
            ]
        )
        for demand in self._shares.demands:
            demand.consumer = peer.consumer(_Consumer(self, demand))
        self._only = None if partitioned else self._shares.demands[0]
        self._deletes_here = delete and partitioned
        self._delete = delete and not partitioned
        self._slice = FIRST_SLICE
        self._cache = ReceiveCache(CACHE_BYTES)
        self._on_the_way: set[_HandingOut] = set()
        self._reserved = 0
        """Messages on their way to the client: their locks are being renewed, or they are being deleted."""
        self._content_since = 0
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
        self.give_back()

    def give_back(self) -> None:
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

    def take_back(self, demand: FragmentDemand, records: list[Record], nonce: int, until: int) -> None:
        """What was handed over and could not be taken returns; what was deleted is lost."""
        if until:
            self._release(Parcel(demand, records, nonce, until, 0))

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
        room = self._receiver.room(self._slice) - self._reserved
        if room > 0 and self._cache:
            room -= self._hand_out(room)
        if room > 0:
            self._content_since = 0
            self._keep_demand()
            self._plan(room, pressing=False)
        elif self._shares.outstanding:
            credit = self._receiver.credit() - self._reserved
            if credit <= 0:
                if not self._content_since:
                    self._content_since = self._clock()
                self._withdraw_soon()
            elif self._shares.outstanding > credit + 2 * len(self._shares.demands):
                self._withdraw()  # the client has lowered its credit

    def _plan(self, room: int, *, pressing: bool) -> None:
        shares = self._shares
        for demand, credit in shares.plan(room, self._slice, pressing=pressing).items():
            self._demand(demand, credit, drain=False)
        if shares.unasked and self._balancing is None:
            self._balance_later()
        if shares.unasked and not self._called_back.draining:
            largest = shares.largest()
            if largest is not None:
                self._called_back = largest
                self._call_back(largest)

    def _balance_later(self) -> None:
        self._balancing = self._loop.call_later(PATIENCE, self._balance, self._shares.turns_taken)

    def _balance(self, turns_before: int) -> None:
        """Some fragment was left unasked. That is well while others give and answer; else they hold demand in vain."""
        self._balancing = None
        shares = self._shares
        if self._closed or self._client_drains or not shares.unasked:
            return
        room = self._receiver.room(self._slice) - self._reserved
        if room <= 0:
            return
        if shares.turns_taken > turns_before:
            self._balance_later()
            return
        for demand in shares.hoarders():
            self._call_back(demand)
        self._plan(room, pressing=True)
        self._peer.flush()

    def _replenish_only(self, only: FragmentDemand) -> None:
        if only.draining:
            return
        outstanding = only.outstanding
        want = self._receiver.room(self._slice)
        credit = self._receiver.credit()
        if want > outstanding:
            # Small top-ups are left to gather: half a slice at a time, or all there is to ask for.
            if want - outstanding >= self._slice // 2 or want >= credit or not outstanding:
                self._shares.ask(only, want - outstanding)
                self._demand(only, want - outstanding, drain=False)
        elif credit < outstanding:
            self._call_back(only)

    def _demand(self, demand: FragmentDemand, credit: int, *, drain: bool) -> None:
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
            self._withdrawing = self._loop.call_later(LINGER, self._withdraw_now)

    def _withdraw_now(self) -> None:
        self._withdrawing = None
        if not self._closed and self._receiver.credit() - self._reserved <= 0:
            self._withdraw()
            self._peer.flush()

    def _withdraw(self) -> None:
        for demand in self._shares.demands:
            if demand.outstanding and not demand.draining:
                self._call_back(demand)

    def _call_back(self, demand: FragmentDemand) -> None:
        demand.round = -1
        self._demand(demand, 0, drain=True)

    # The client drains

    def drain(self) -> None:
        if not self._client_drains:
            self._client_drains = True
            self._content_since = 0
            for demand in self._shares.demands:
                demand.more = True
        self._drain_on()

    def _drain_on(self) -> None:
        """The next step of a drain: hand out what is cached, then drain the fragments that may have more."""
        capacity = self._receiver.capacity() - self._reserved
        if capacity > 0 and self._cache:
            capacity -= self._hand_out(capacity)
        if self._reserved:
            return
        demands = self._shares.demands
        if any(demand.draining and not demand.silent for demand in demands):
            return
        asked = [demand for demand in demands if demand.more and not demand.draining]
        if capacity <= 0 or not asked:
            self._end_drain()
            return
        share = -(-capacity // len(asked))
        for demand in asked:
            credit = max(0, share - demand.outstanding)
            self._shares.ask(demand, credit)
            demand.round = demand.outstanding
            demand.given = 0
            self._demand(demand, credit, drain=True)
        if self._overdue is None:
            self._overdue = self._loop.call_later(DRAIN_WAIT, self._drain_overdue)

    def _drain_overdue(self) -> None:
        """Who has not answered by now is not waited for, in this drain and in the next ones, until it does."""
        self._overdue = None
        if self._client_drains and not self._closed:
            for demand in self._shares.demands:
                demand.silent = demand.draining
            self._drain_on()
            self._peer.flush()

    def _end_drain(self) -> None:
        self._client_drains = False
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        self._receiver.drained()
        self.replenish()

    def drained(self, demand: FragmentDemand) -> None:
        """The fragment has given what there was and has forgotten the rest of our demand."""
        self._shares.drained(demand)
        if demand.round >= 0:
            # It gave all that it was asked for: then there may be more.
            demand.more = 0 < demand.round <= demand.given
        demand.round = 0
        self.replenish()

    # What fragments give

    def obtained(self, demand: FragmentDemand, effect: Delivered) -> None:
        records = effect.records
        self._shares.given(demand, len(records))
        receiver = self._receiver
        mean = max(1, sum([record.size for record in records]) // len(records))
        self._slice = max(1, min(MAX_SLICE, SLICE_BYTES // mean))
        credit = receiver.credit() - self._reserved
        if self._delete or (self._only is not None and credit >= len(records) and not demand.refusing):
            receiver.hand_over(demand, records, effect.nonce, effect.until)
        else:
            parcel = Parcel(demand, records, effect.nonce, effect.until, self._clock())
            if demand.refusing:
                self._release(parcel)
            elif self._only is not None:
                kept, rest = parcel.split(max(0, credit))  # the client has lowered its credit meanwhile
                if kept.records:
                    receiver.hand_over(demand, kept.records, kept.nonce, kept.until)
                self._refuse(rest)
            elif credit >= len(records) and not self._cache:
                self._give(parcel, parcel.since)
            elif 0 < self._content_since <= records[0].enqueued:
                self._refuse(parcel)
            else:
                self._obtained_too_much(parcel, max(0, credit))
        self.replenish()

    def _obtained_too_much(self, parcel: Parcel, credit: int) -> None:
        if credit and not self._cache:
            first, parcel = parcel.split(credit)
            self._give(first, parcel.since)
        rest = self._cache.add(parcel)
        if rest.records:
            self._refuse(rest)
        if self._cache and self._stale is None:
            self._stale = self._loop.call_later(_half_lock(parcel) / 1000, self._return_stale)

    def _refuse(self, parcel: Parcel) -> None:
        """Give it back. Nothing later of its fragment may be taken before that is done, or it would be overtaken."""
        demand = parcel.demand
        demand.refusing = True
        if not demand.draining:
            self._call_back(demand)
        self._release(parcel)

    # The cache

    def _hand_out(self, most: int) -> int:
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
                self._give(parcel, now)
        return count

    def _give(self, parcel: Parcel, now: int) -> None:
        """On the way to the client: at once if its locks are fresh and nothing of the fragment is before it."""
        demand = parcel.demand
        fresh = now - parcel.since <= min(FRESH, (parcel.until - parcel.since) // 10)
        if self._deletes_here or demand.handing or not fresh:
            self._hand_out_later(parcel)
        else:
            self._receiver.hand_over(demand, parcel.records, parcel.nonce, parcel.until)

    def _hand_out_later(self, parcel: Parcel) -> None:
        count = len(parcel.records)
        parcel.demand.handing += count
        self._reserved += count
        handing = _HandingOut(self, parcel, self._deletes_here)
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

    def answered(self, handing: _HandingOut, effect: Effect) -> None:
        """The locks were renewed, or the messages deleted; or not."""
        if handing not in self._on_the_way:
            return  # the receiver is gone: they have been released, or what is deleted is lost with it
        self._on_the_way.discard(handing)
        parcel = handing.parcel
        demand, records = parcel.demand, parcel.records
        demand.handing -= len(records)
        self._reserved -= len(records)
        if isinstance(effect, Renewed):
            self._receiver.hand_over(demand, records, parcel.nonce, effect.until)
        elif isinstance(effect, Settled):
            lost = set(effect.lost)
            kept = [record for index, record in enumerate(records) if index not in lost]
            if kept:
                self._receiver.hand_over(demand, kept, 0, 0)
        else:
            assert isinstance(effect, Refused)
            self._not_renewed(parcel, handing.deletes)
        self.replenish()

    def _not_renewed(self, parcel: Parcel, deletes: bool) -> None:
        """One of the locks is lost, or the fragment cannot say. The others are tried one by one."""
        if len(parcel.records) > 1 and not deletes:
            for record in parcel.records:
                self._hand_out_later(parcel.with_records([record]))
        else:
            self._release(parcel)

    def _return_stale(self) -> None:
        """Half of their lock is over: whoever receives next, it is not this client."""
        self._stale = None
        now = self._clock()
        while (parcel := self._cache.oldest()) is not None:
            wait = parcel.since + _half_lock(parcel) - now
            if wait > 0:
                self._stale = self._loop.call_later(wait / 1000, self._return_stale)
                break
            for stale in self._cache.take(len(parcel.records)):
                self._release(stale)
        self._peer.flush()

    def _release(self, parcel: Parcel) -> None:
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


def _half_lock(parcel: Parcel) -> int:
    return max(1, (parcel.until - parcel.since) // 2)


class _Consumer:
    """A fragment's view of the receiver."""

    __slots__ = ("_demand", "_supply")

    def __init__(self, supply: Supply, demand: FragmentDemand) -> None:
        self._supply = supply
        self._demand = demand

    def delivered(self, effect: Effect) -> None:
        assert isinstance(effect, Delivered)
        self._supply.obtained(self._demand, effect)

    def drained(self) -> None:
        self._supply.drained(self._demand)

    def replenish(self) -> None:
        self._supply.replenish()


class _HandingOut:
    """Messages on their way from a fragment to the client, by way of a renewal or a deletion."""

    __slots__ = ("_supply", "deletes", "parcel")

    def __init__(self, supply: Supply, parcel: Parcel, deletes: bool) -> None:
        self._supply = supply
        self.parcel = parcel
        self.deletes = deletes

    def answered(self, effect: Effect) -> None:
        self._supply.answered(self, effect)
