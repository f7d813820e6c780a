"""Receives over HTTP from a partitioned entity: one message for each request, from whichever fragment has one.

All fragments are asked, as over AMQP (partitions/receiver.py). What they give beyond the one message is cached for the next
receives of the same connection, so keep-alive pays off: a client that connects anew for every request asks anew, and finds
that what it has not taken returned to the queue when the connection before was closed.
"""

from __future__ import annotations

import asyncio

from busbar.gateway.services import wall_clock
from busbar.model.api import EntityView
from busbar.model.effects import Delivered
from busbar.model.message import Record
from busbar.partitions.credit_allocation import FragmentCredit
from busbar.partitions.origin import Origin
from busbar.partitions.receiver import PartitionedReceiver

Receipt = asyncio.Future[Delivered | None]


class HttpReceiver:
    """The client's end of a receiver: it wants one message, or none."""

    def __init__(self, asker: Origin, entity: EntityView, sub: int) -> None:
        self._asker = asker
        self._receiver = PartitionedReceiver(asker, self, entity, sub, False)
        self._wanted = 0
        self._receipt: Receipt | None = None

    def ask(self, receipt: Receipt, *, delete: bool, drain: bool) -> None:
        """The next message, locked or deleted, goes to the receipt; with `drain`, None if there is none now."""
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
        """The request is over, one way or another."""
        self._receipt = None
        if self._wanted:
            self._wanted = 0
            self._receiver.replenish(wall_clock())
            self._asker.flush()

    def give_back(self) -> None:
        """The connection is lost."""
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
