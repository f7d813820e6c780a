"""The client's end of a receiver: how many messages it takes now, and where they go."""

from __future__ import annotations

from typing import Protocol

from busbar.model.message import Record
from busbar.partitions.credit_allocation import FragmentCredit


class ReceivingClient(Protocol):
    """An AMQP link, or the HTTP request that waits for a message."""

    def capacity(self) -> int:
        """The number of messages that the client can be given."""

    def wanted(self, most: int) -> int:
        """The number of messages to request now: at most `most`, and 0 while the client reads too slowly."""

    def credit(self) -> int:
        """The number of messages that the client has requested."""

    def deliver(self, demand: FragmentCredit, records: list[Record], nonce: int, until: int) -> None: ...

    def drained(self) -> None:
        """Complete the drain: the client has been given what there was."""


class _ClosedClient:
    """Replaces a client that is gone: it takes nothing."""

    def capacity(self) -> int:
        return 0

    def wanted(self, most: int) -> int:
        return 0

    def credit(self) -> int:
        return 0

    def deliver(self, demand: FragmentCredit, records: list[Record], nonce: int, until: int) -> None:
        """Do nothing: the link is gone, and the locks expire."""

    def drained(self) -> None: ...

    def replenish(self, now: int) -> None: ...


CLOSED_CLIENT = _ClosedClient()
