"""Keeps messages of a receiver that its client could not take yet. They are locked, and serve its next receives.

The cache is first in, first out, so messages of a fragment stay in order. It has at most `max_bytes` in all, but always room
for one message. A message in the cache is locked, never deleted. The caller that takes it out passes it to the client, or
returns it to its fragment.
"""

from __future__ import annotations

from collections import deque

from busbar.model.message import Record
from busbar.partitions.credit_allocation import FragmentCredit


class LockedBatch:
    """Messages of one fragment that were locked together."""

    __slots__ = ("demand", "nonce", "records", "since", "until")

    def __init__(
        self, demand: FragmentCredit, records: list[Record], nonce: int, until: int, since: int
    ) -> None:
        self.demand = demand
        self.records = records
        self.nonce = nonce
        self.until = until
        self.since = since
        """When they were locked, in ms."""

    @property
    def stale_at(self) -> int:
        """When half of the lock is over, in ms."""
        return self.since + max(1, (self.until - self.since) // 2)

    def split(self, count: int) -> tuple[LockedBatch, LockedBatch]:
        """The first `count` messages, and the rest."""
        return self.with_records(self.records[:count]), self.with_records(self.records[count:])

    def with_records(self, records: list[Record]) -> LockedBatch:
        return LockedBatch(self.demand, records, self.nonce, self.until, self.since)


class ReceiveCache:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parcels: deque[LockedBatch] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parcels)

    def __len__(self) -> int:
        return sum(len(parcel.records) for parcel in self._parcels)

    def add(self, parcel: LockedBatch) -> LockedBatch:
        """Keep what there is room for; return the rest."""
        count = 0
        for record in parcel.records:
            if self._bytes + record.size > self._max_bytes and (count or self._parcels):
                break
            self._bytes += record.size
            count += 1
        kept, rest = parcel.split(count)
        if kept.records:
            self._parcels.append(kept)
        return rest

    def take(self, count: int) -> list[LockedBatch]:
        """Remove and return the oldest messages, at most `count`."""
        taken: list[LockedBatch] = []
        parcels = self._parcels
        while parcels and count > 0:
            parcel = parcels.popleft()
            if len(parcel.records) > count:
                parcel, rest = parcel.split(count)
                parcels.appendleft(rest)
            count -= len(parcel.records)
            self._bytes -= sum(record.size for record in parcel.records)
            taken.append(parcel)
        return taken

    @property
    def stale_at(self) -> int:
        """When (ms) half the lock of the oldest messages is over; 0 if the cache is empty."""
        return self._parcels[0].stale_at if self._parcels else 0

    def take_stale(self, now: int) -> list[LockedBatch]:
        """Remove and return messages whose lock is half over: the client has not taken them in time."""
        stale: list[LockedBatch] = []
        while self._parcels and self._parcels[0].stale_at <= now:
            stale += self.take(len(self._parcels[0].records))
        return stale
