"""What receivers of regular and of partitioned entities share: consumers, the client's drain, the next wake time.

Each call brings the time, in ms. If a receiver has work at a later time, it asks its origin to call `wake` then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from mypy_extensions import i64

from busbar.model.api import EntityView
from busbar.model.effects import Delivered, Effect
from busbar.model.message import Record
from busbar.partitions.client_drain import ClientDrain
from busbar.partitions.credit_allocation import FragmentCredit
from busbar.partitions.demands import FragmentDemands
from busbar.partitions.origin import Origin
from busbar.partitions.receiving_client import CLOSED_CLIENT, ReceivingClient

MAX_SLICE = 1_000
FIRST_SLICE = 16
SLICE_BYTES = 1024 * 1024


class EntityReceiver(ABC):
    """The receiver of one client. Subclasses define how credit and messages are handled."""

    __slots__ = ("_client", "_closed", "_demands", "_drain", "_origin", "_slice", "_wake_at")

    def __init__(
        self, origin: Origin, client: ReceivingClient, entity: EntityView, sub: int, delete: bool
    ) -> None:
        """With `delete`, fragments delete messages as they deliver them."""
        self._origin = origin
        self._client: ReceivingClient = client
        self._demands = FragmentDemands(origin, entity, sub, delete)
        for credit in self._demands.credits:
            credit.consumer = origin.consumer(_FragmentConsumer(self, credit))
        self._drain = ClientDrain(self._demands)
        self._slice = FIRST_SLICE
        """The number of messages to request at a time: about SLICE_BYTES."""
        self._wake_at = 0
        self._closed = False

    def consumers(self) -> list[int]:
        """The numbers of its consumers, one of each fragment."""
        return [credit.consumer for credit in self._demands.credits]

    @abstractmethod
    def replenish(self, now: int) -> None:
        """Adjust the credit of the fragments to what the client can take."""

    @abstractmethod
    def on_delivered(self, demand: FragmentCredit, effect: Delivered, now: int) -> None:
        """Pass the messages that a fragment delivered to the client, as far as it can take them."""

    def drain(self, now: int) -> None:
        """Begin a drain: the client requests the messages that there are now, and an answer."""
        if not self._drain.is_active:
            self._drain.begin()
        self._drain_on(now)

    @abstractmethod
    def _drain_on(self, now: int) -> None:
        """Take the next step of the client's drain."""

    def _drain_step(self, capacity: int, now: int) -> None:
        if self._drain.step(capacity, now):
            self._client.drained()
            self.replenish(now)
        else:
            self._note_wake(self._drain.overdue_at)

    def on_drained(self, credit: FragmentCredit, now: int) -> None:
        """Record that the fragment has delivered what it had and dropped the rest of its credit."""
        self._demands.allocator.drained(credit)
        self._drain.answered(credit)
        self.replenish(now)

    def close(self) -> None:
        """End the receiver: the client is gone, and the messages that it was not given return."""
        self._demands.leave()
        self.release_all()

    def release_all(self) -> None:
        """Return all messages that the client has not been given."""
        self._closed = True
        self._origin.wake_at(self, 0)
        self._client = CLOSED_CLIENT  # breaks the reference cycle of a link and its receiver

    # Time

    def wake(self, now: int) -> int:
        """Do what is due; the next wake time, 0 if there is none."""
        self._wake_at = 0
        if self._closed:
            return 0
        self._act(now)
        self._wake_at = min([at for at in self._deadlines() if at], default=0)
        return self._wake_at

    def _act(self, now: int) -> None:
        if self._drain.is_overdue(now) and self._drain.is_active:
            self._drain_on(now)

    def _deadlines(self) -> tuple[int, ...]:
        return (self._drain.overdue_at,)

    def _note_wake(self, at: int) -> None:
        """Request a wake at that time (0: none), unless an earlier one is requested."""
        if at and (not self._wake_at or at < self._wake_at):
            self._wake_at = at
            self._origin.wake_at(self, at)

    def _measure(self, records: list[Record]) -> None:
        size: i64 = 0
        for record in records:
            size += record.size
        mean = max(1, int(size) // len(records))
        self._slice = max(1, min(MAX_SLICE, SLICE_BYTES // mean))


class _FragmentConsumer:
    """The receiver as one fragment's consumer."""

    __slots__ = ("_credit", "_receiver")

    def __init__(self, receiver: EntityReceiver, credit: FragmentCredit) -> None:
        self._receiver = receiver
        self._credit = credit

    def delivered(self, effect: Effect, now: int) -> None:
        assert isinstance(effect, Delivered)
        self._receiver.on_delivered(self._credit, effect, now)

    def drained(self, now: int) -> None:
        self._receiver.on_drained(self._credit, now)

    def replenish(self, now: int) -> None:
        self._receiver.replenish(now)
