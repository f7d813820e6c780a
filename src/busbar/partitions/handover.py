"""Messages of a partitioned entity on their way from a fragment to the client.

1. If the lock is fresh, and nothing of the same fragment is on its way, the client gets the messages at once.
2. Else the locks are renewed first, and the client gets the messages when that is durable. If one lock is lost, the batch is
   renewed message by message. A message whose lock is lost is dropped: its fragment delivers it again.
3. In ReceiveAndDelete mode, messages are deleted first, and the client gets them when that is durable.
4. When the client is gone, messages whose lock was being renewed return. Those that were being deleted are lost.
"""

from __future__ import annotations

from busbar.model.commands import COMPLETE, Renew, Settle
from busbar.model.effects import Effect, Refused, Renewed, Settled
from busbar.partitions.demands import FragmentDemands
from busbar.partitions.origin import CreditListener, Origin
from busbar.partitions.receive_cache import LockedBatch
from busbar.partitions.receiving_client import CLOSED_CLIENT, ReceivingClient

RENEW_AFTER_MS = 1_000
"""If a lock was taken less than so many ms ago (and less than a tenth of its time), it is not renewed at hand-over."""


class Handover:
    def __init__(
        self,
        origin: Origin,
        client: ReceivingClient,
        demands: FragmentDemands,
        listener: CreditListener,
        deletes: bool,
    ) -> None:
        """`listener.replenish` is called when messages have reached the client, or could not."""
        self._origin = origin
        self._client: ReceivingClient = client
        self._demands = demands
        self._listener: CreditListener = listener
        self._pending: set[_PendingHandover] = set()
        self.deletes = deletes
        self.reserved = 0
        """Messages whose locks are being renewed, or that are being deleted: they use up the client's credit."""

    def deliver(self, batch: LockedBatch, now: int) -> None:
        credit = batch.demand
        is_fresh = now - batch.since <= min(RENEW_AFTER_MS, (batch.until - batch.since) // 10)
        if self.deletes or credit.renewing or not is_fresh:
            self._deliver_later(batch)
        else:
            self._client.deliver(credit, batch.records, batch.nonce, batch.until)

    def _deliver_later(self, batch: LockedBatch) -> None:
        count = len(batch.records)
        batch.demand.renewing += count
        self.reserved += count
        pending = _PendingHandover(self, batch, self.deletes)
        self._pending.add(pending)
        origin = self._origin
        fragment = batch.demand.fragment
        numbers = [record.n for record in batch.records]
        nonces = [batch.nonce] * count
        request = origin.expect(pending)
        if self.deletes:
            origin.command(Settle(fragment, origin.origin, request, COMPLETE, numbers, nonces, None, False))
        else:
            origin.command(Renew(fragment, origin.origin, request, numbers, nonces))

    def answered(self, pending: _PendingHandover, effect: Effect, now: int) -> None:
        """Continue with the batch: its locks were renewed or its messages deleted, or that failed."""
        if pending not in self._pending:
            return  # the client is gone, and `close` has released them
        self._pending.discard(pending)
        batch = pending.batch
        credit, records = batch.demand, batch.records
        credit.renewing -= len(records)
        self.reserved -= len(records)
        if isinstance(effect, Renewed):
            self._client.deliver(credit, records, batch.nonce, effect.until)
        elif isinstance(effect, Settled):
            lost = set(effect.lost)
            kept = [record for index, record in enumerate(records) if index not in lost]
            if kept:
                self._client.deliver(credit, kept, 0, 0)
        else:
            assert isinstance(effect, Refused)
            self._not_renewed(batch, pending.deletes)
        self._listener.replenish(now)

    def _not_renewed(self, batch: LockedBatch, deletes: bool) -> None:
        """Try the messages one by one: one of the locks is lost, or the fragment is unavailable."""
        if len(batch.records) > 1 and not deletes:
            for record in batch.records:
                self._deliver_later(batch.with_records([record]))
        else:
            self._demands.release(batch)

    def close(self) -> None:
        for pending in self._pending:
            if not pending.deletes:
                self._demands.release(pending.batch)
        self._pending.clear()
        self._client = CLOSED_CLIENT
        self._listener = CLOSED_CLIENT  # breaks the reference cycle of a receiver and its handover


class _PendingHandover:
    """The handler of the effect of one renewal or deletion."""

    __slots__ = ("_owner", "batch", "deletes")

    def __init__(self, owner: Handover, batch: LockedBatch, deletes: bool) -> None:
        self._owner = owner
        self.batch = batch
        self.deletes = deletes

    def answered(self, effect: Effect, now: int) -> None:
        self._owner.answered(self, effect, now)
