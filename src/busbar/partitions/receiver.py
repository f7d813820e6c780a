"""Receives the messages of a partitioned entity for one client, from all its fragments.

    demand      the number of messages that the client can take becomes credit of the fragments (credit_allocation.py,
                rebalancing.py)
    delivered   the client gets messages at once if it can take them (handover.py). The rest is cached (receive_cache.py)
    cached      the client gets cached messages when it can take more. If they stayed for half their lock, or the client
                is gone, they return to their fragment
    late        messages that were enqueued after the client got all it requested return at once: they were not there
                when the client asked, and others may wait for them
    revoked     REVOKE_MS after the client requested its last message, the unused credit of the fragments is revoked
    drained     client_drain.py

ReceiveAndDelete: fragments deliver locked messages, since the client may not take all of them. Each is deleted on its way to
the client.
"""

from __future__ import annotations

from busbar.model.api import EntityView
from busbar.model.effects import Delivered
from busbar.model.message import ACTIVE, Record
from busbar.partitions.credit_allocation import FragmentCredit
from busbar.partitions.handover import Handover
from busbar.partitions.origin import Origin
from busbar.partitions.rebalancing import Rebalancer
from busbar.partitions.receive_cache import LockedBatch, ReceiveCache
from busbar.partitions.receiver_base import EntityReceiver
from busbar.partitions.receiving_client import ReceivingClient
from busbar.partitions.regular_receiver import RegularReceiver

CACHE_BYTES = 256 * 1024
REVOKE_MS = 50
"""Time before unused credit is revoked: a client that receives in a loop asks again within it."""


def receiver_of(
    origin: Origin, client: ReceivingClient, entity: EntityView, sub: int, delete: bool
) -> EntityReceiver:
    """The receiver for this number of fragments."""
    kind = PartitionedReceiver if len(entity.fragments) > 1 else RegularReceiver
    return kind(origin, client, entity, sub, delete)


class PartitionedReceiver(EntityReceiver):
    __slots__ = ("_cache", "_handover", "_rebalancer", "_revoke_at", "_satisfied_since", "_sub")

    def __init__(
        self, origin: Origin, client: ReceivingClient, entity: EntityView, sub: int, delete: bool
    ) -> None:
        super().__init__(origin, client, entity, sub, False)
        self._sub = sub
        self._rebalancer = Rebalancer(self._demands)
        self._handover = Handover(origin, client, self._demands, self, delete)
        self._cache = ReceiveCache(CACHE_BYTES)
        self._satisfied_since = 0
        """Since when (ms) the client has no open request; 0 while it has one."""
        self._revoke_at = 0
        """When (ms) unused credit is revoked; 0 while the client has an open request."""

    def release_all(self) -> None:
        super().release_all()
        self._handover.close()
        for batch in self._cache.take(len(self._cache)):
            self._demands.release(batch)

    def receive_and_delete(self, delete: bool) -> None:
        """Set whether the client gets messages deleted or locked, from now on."""
        self._handover.deletes = delete

    def return_messages(self, demand: FragmentCredit, records: list[Record], nonce: int, until: int) -> None:
        """Return messages that the client was given and could not take. Those that were deleted are lost."""
        if until:
            self._demands.release(LockedBatch(demand, records, nonce, until, 0))

    # Credit

    def replenish(self, now: int) -> None:
        if self._closed:
            return
        if self._drain.is_active:
            self._drain_on(now)
            return
        wanted = self._client.wanted(self._slice) - self._handover.reserved
        if wanted > 0 and self._cache:
            wanted -= self._deliver_cached(wanted, now)
        demands = self._demands
        if wanted > 0:
            self._satisfied_since = self._revoke_at = 0
            self._rebalancer.plan(wanted, self._slice, now)
            self._note_wake(self._rebalancer.due_at)
        elif demands.allocator.outstanding:
            credit = self._client.credit() - self._handover.reserved
            if credit <= 0:
                if not self._satisfied_since:
                    self._satisfied_since = now
                if not self._revoke_at:
                    self._revoke_at = now + REVOKE_MS
                    self._note_wake(self._revoke_at)
            elif demands.allocator.outstanding > credit + 2 * len(demands.credits):
                demands.revoke_all()  # the client has lowered its credit

    def drain(self, now: int) -> None:
        if not self._drain.is_active:
            self._satisfied_since = 0
        super().drain(now)

    def _drain_on(self, now: int) -> None:
        """Deliver cached messages to the client, then drain the fragments that may have more."""
        capacity = self._client.capacity() - self._handover.reserved
        if capacity > 0 and self._cache:
            capacity -= self._deliver_cached(capacity, now)
        if not self._handover.reserved:
            self._drain_step(capacity, now)

    # Messages

    def on_delivered(self, demand: FragmentCredit, effect: Delivered, now: int) -> None:
        records = effect.records
        self._demands.allocator.delivered(demand, len(records))
        self._measure(records)
        credit = self._client.credit() - self._handover.reserved
        batch = LockedBatch(demand, records, effect.nonce, effect.until, now)
        if demand.returning:
            self._demands.release(batch)
        elif credit >= len(records) and not self._cache:
            self._handover.deliver(batch, now)
        elif 0 < self._satisfied_since <= records[0].enqueued:
            self._demands.refuse(batch)
        else:
            self._cache_surplus(batch, max(0, credit), now)
        self.replenish(now)

    def _cache_surplus(self, batch: LockedBatch, credit: int, now: int) -> None:
        if credit and not self._cache:
            first, batch = batch.split(credit)
            self._handover.deliver(first, now)
        rest = self._cache.add(batch)
        if rest.records:
            self._demands.refuse(rest)
        self._note_wake(self._cache.stale_at)

    def _deliver_cached(self, most: int, now: int) -> int:
        """Deliver cached messages to the client; returns their number."""
        count = 0
        for batch in self._cache.take(most):
            if self._sub == ACTIVE:
                # The time to live is checked when a message goes out. The fragment decides what happens to an expired one.
                expired = [record for record in batch.records if record.expired(now)]
                if expired:
                    self._demands.release(batch.with_records(expired))
                    batch = batch.with_records([r for r in batch.records if not r.expired(now)])
            if batch.records:
                count += len(batch.records)
                self._handover.deliver(batch, now)
        return count

    # Time

    def _act(self, now: int) -> None:
        super()._act(now)
        if self._rebalancer.is_due(now) and not self._drain.is_active:
            wanted = self._client.wanted(self._slice) - self._handover.reserved
            if wanted > 0:
                self._rebalancer.rebalance(wanted, self._slice, now)
        if 0 < self._revoke_at <= now:
            self._revoke_at = 0
            if self._client.credit() - self._handover.reserved <= 0:
                self._demands.revoke_all()
        for batch in self._cache.take_stale(now):
            self._demands.release(batch)

    def _deadlines(self) -> tuple[int, ...]:
        return self._drain.overdue_at, self._rebalancer.due_at, self._revoke_at, self._cache.stale_at
