"""Receives over HTTP: one message for each request.

From a regular entity each request is a consumer of its own, which ends with the request.

From a partitioned entity the message comes from any fragment that has one. All fragments get credit, as over AMQP
(partitions/receiver.py). Messages beyond the first are cached for the next receives of the same connection, so keep-alive
pays off. If a client opens a connection for every request, its cached messages return to the queue each time.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from busbar.clock import wall_clock
from busbar.model.api import EntityView
from busbar.model.commands import Demand, Leave
from busbar.model.effects import Delivered, Effect
from busbar.model.message import Record
from busbar.partitions.credit_allocation import FragmentCredit
from busbar.partitions.origin import Origin
from busbar.partitions.receiver import PartitionedReceiver

Receipt = asyncio.Future[Delivered | None]


class HttpReceiver(Protocol):
    """Waits for one message for one request at a time."""

    def ask(self, receipt: Receipt, *, delete: bool, drain: bool) -> None:
        """Request the next message, locked or deleted, for the receipt; with `drain`, None if there is none now."""

    def drain(self) -> None:
        """End the wait: the receipt gets None if there is no message now."""

    def end(self) -> None:
        """End the request."""


class ReleasingOrigin(Origin, Protocol):
    """An origin that returns a message whose request is over."""

    def release(self, delivered: Delivered | None) -> None: ...


class RegularHttpReceiver:
    """One request to one fragment."""

    def __init__(self, origin: ReleasingOrigin, fragment: int, sub: int) -> None:
        self._origin = origin
        self._fragment = fragment
        self._sub = sub
        self._delete = False
        self._consumer = origin.consumer(self)
        self._receipt: Receipt | None = None

    def ask(self, receipt: Receipt, *, delete: bool, drain: bool) -> None:
        self._receipt = receipt
        self._delete = delete
        self._demand(1, drain)

    def drain(self) -> None:
        self._demand(0, drain=True)

    def end(self) -> None:
        self._receipt = None
        self._origin.forget_consumer(self._consumer)
        self._origin.command(Leave(self._fragment, self._origin.origin, self._consumer))
        self._origin.flush()

    def _demand(self, credit: int, drain: bool) -> None:
        self._origin.command(
            Demand(
                self._fragment, self._origin.origin, self._consumer, self._sub, credit, drain, self._delete
            )
        )
        self._origin.flush()

    # For the fragment

    def delivered(self, effect: Effect, now: int) -> None:
        assert isinstance(effect, Delivered)
        if self._receipt is not None and not self._receipt.done():
            self._receipt.set_result(effect)
        else:
            self._origin.release(effect)

    def drained(self, now: int) -> None:
        if self._receipt is not None and not self._receipt.done():
            self._receipt.set_result(None)

    def replenish(self, now: int) -> None:
        """Do nothing: a request gets one message, and has requested it."""


class PartitionedHttpReceiver:
    """The client's end of a receiver: it takes one message, or none."""

    def __init__(self, asker: Origin, entity: EntityView, sub: int) -> None:
        self._asker = asker
        self._receiver = PartitionedReceiver(asker, self, entity, sub, False)
        self._wanted = 0
        self._receipt: Receipt | None = None

    def ask(self, receipt: Receipt, *, delete: bool, drain: bool) -> None:
        self._receiver.receive_and_delete(delete)
        self._receipt = receipt
        self._wanted = 1
        if drain:
            self._receiver.drain(wall_clock())
        else:
            self._receiver.replenish(wall_clock())
        self._asker.flush()

    def drain(self) -> None:
        self._receiver.drain(wall_clock())
        self._asker.flush()

    def end(self) -> None:
        self._receipt = None
        if self._wanted:
            self._wanted = 0
            self._receiver.replenish(wall_clock())
            self._asker.flush()

    def give_back(self) -> None:
        """Return all messages: the connection is lost."""
        self._receiver.release_all()

    def close(self) -> None:
        self._receiver.close()
        self._asker.flush()

    # For the receiver

    def credit(self) -> int:
        return self._wanted

    def capacity(self) -> int:
        return self._wanted

    def wanted(self, most: int) -> int:
        return min(self._wanted, most)

    def deliver(self, demand: FragmentCredit, records: list[Record], nonce: int, until: int) -> None:
        self._wanted = 0
        delivered = Delivered(self._asker.origin, demand.consumer, demand.fragment, records, nonce, until)
        receipt = self._receipt
        if receipt is not None and not receipt.done():
            receipt.set_result(delivered)
        else:
            self._receiver.return_messages(demand, records, nonce, until)

    def drained(self) -> None:
        self._wanted = 0
        if self._receipt is not None and not self._receipt.done():
            self._receipt.set_result(None)
