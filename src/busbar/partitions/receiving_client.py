"""The client's end of a receiver: how many messages it takes now, and where they go."""

from __future__ import annotations

from typing import Protocol

from busbar.model.message import Record
from busbar.partitions.credit_allocation import FragmentCredit


class ReceivingClient(Protocol):
    """An AMQP link, or the HTTP request that waits for a message."""

    def capacity(self) -> int:
        """Messages that the client may be given."""

    def wanted(self, most: int) -> int:
        """Messages that should be asked for now: not more than `most`, none while the client reads too slowly."""

    def credit(self) -> int:
        """Messages that the client has asked for."""

    def deliver(self, demand: FragmentCredit, records: list[Record], nonce: int, until: int) -> None: ...

    def drained(self) -> None:
        """The drain is over: the client has been given what there was."""


class _ClosedClient:
    """Takes the place of a client that is gone: takes nothing."""

    def capacity(self) -> int:
        return 0

    def wanted(self, most: int) -> int:
        return 0

    def credit(self) -> int:
        return 0

    def deliver(self, demand: FragmentCredit, records: list[Record], nonce: int, until: int) -> None:
        """The link is gone: the locks end by time."""

    def drained(self) -> None: ...

    def replenish(self, now: int) -> None: ...


CLOSED_CLIENT = _ClosedClient()
