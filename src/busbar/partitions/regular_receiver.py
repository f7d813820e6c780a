"""The messages of one fragment for one receiver: a regular entity, or a session.

1. The fragment gets credit for what the client can take now, and delivers straight to the client.
2. When the client has lowered its credit, the fragment's is revoked, and messages beyond it return. Nothing is cached.
3. In ReceiveAndDelete mode the fragment deletes messages as it delivers them: the client gets all of them.
"""

from __future__ import annotations

from busbar.model.api import EntityView
from busbar.model.effects import Delivered
from busbar.partitions.credit_allocation import FragmentCredit
from busbar.partitions.origin import Origin
from busbar.partitions.receive_cache import LockedBatch
from busbar.partitions.receiver_base import EntityReceiver
from busbar.partitions.receiving_client import ReceivingClient


class RegularReceiver(EntityReceiver):
    __slots__ = ("_delete", "_only")

    def __init__(
        self, origin: Origin, client: ReceivingClient, entity: EntityView, sub: int, delete: bool
    ) -> None:
        super().__init__(origin, client, entity, sub, delete)
        self._delete = delete
        (self._only,) = self._demands.credits

    def replenish(self, now: int) -> None:
        if self._drain.is_active:
            self._drain_on(now)
            return
        only = self._only
        if only.draining:
            return
        outstanding = only.outstanding
        client = self._client
        want = client.wanted(self._slice)
        credit = client.credit()
        if want > outstanding:
            # Small additions wait: half a slice at a time, or all that is to be requested.
            if want - outstanding >= self._slice // 2 or want >= credit or not outstanding:
                self._demands.allocator.grant_credit(only, want - outstanding)
                self._demands.ask(only, want - outstanding)
        elif credit < outstanding:
            self._demands.revoke(only)

    def _drain_on(self, now: int) -> None:
        self._drain_step(self._client.capacity(), now)

    def on_delivered(self, demand: FragmentCredit, effect: Delivered, now: int) -> None:
        records = effect.records
        self._demands.allocator.delivered(demand, len(records))
        self._measure(records)
        client = self._client
        credit = client.credit()
        if self._delete or (credit >= len(records) and not demand.returning):
            client.deliver(demand, records, effect.nonce, effect.until)
        else:
            batch = LockedBatch(demand, records, effect.nonce, effect.until, now)
            if demand.returning:
                self._demands.release(batch)
            else:
                kept, rest = batch.split(max(0, credit))  # the client has lowered its credit meanwhile
                if kept.records:
                    client.deliver(demand, kept.records, kept.nonce, kept.until)
                self._demands.refuse(rest)
        self.replenish(now)
