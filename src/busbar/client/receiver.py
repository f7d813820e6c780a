"""Receives messages, with credit ahead of demand, and settles them in ranges.

1. The receiver requests up to `credit` messages ahead. They wait here, locked, for the next `receive`. When the receiver is
   closed, messages that were not fetched are released, and their delivery counts do not rise. With `delete` the broker
   deletes messages as soon as it sends them.
2. A settlement is done when the broker confirms it: then it is durable. Consecutive messages are settled with one
   disposition. If a message could not be settled (its lock had expired), SettleFailed names it; the others are settled.
3. In a transaction a settlement is done at the commit. After a rollback the messages are still locked, and the receiver
   settles them by their lock tokens, since their deliveries are settled.
4. Locks end with the connection. After ConnectionLost the next `receive` opens another one. Earlier messages cannot be
   settled any more and are delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from busbar.client.received import Received
from busbar.client.receiver_link import ReceiverLink
from busbar.client.settling import COMPLETION, Settlements, abandonment, dead_lettering, deferral

if TYPE_CHECKING:
    from busbar.client.factory import MessagingFactory
    from busbar.client.transactions import ClientTransaction


class Receiver:
    """Receives from one entity. MessagingFactory.receiver creates it."""

    def __init__(
        self, factory: MessagingFactory, entity: str, address: str, credit: int, delete: bool
    ) -> None:
        if credit < 1:
            raise ValueError(f"credit is {credit}; at least one message has to be asked for")
        self.entity = entity
        self.address = address
        self._factory = factory
        self._credit = credit
        self._delete = delete
        self._settlements = Settlements(factory, entity, address, delete=delete)
        self._link: ReceiverLink | None = None
        self._lock = asyncio.Lock()

    async def attached(self) -> ReceiverLink:
        """The attached link, or a new one."""
        async with self._lock:
            link = self._link
            if link is None or link.error is not None:
                connection = await self._factory.connection_for(self.entity)
                seconds = self._factory.operation_timeout
                link = ReceiverLink(connection, self._credit, self._delete, seconds)
                await link.attach(self.address, seconds)
                self._link = link
            return link

    async def receive(self, max_messages: int = 100, timeout: float = 10.0) -> list[Received]:
        """Return the messages that are there, at most `max_messages`. Waits up to `timeout` seconds for the first. If the
        link ended since the last call, raises ConnectionLost once. Calls at the same time are served in their order."""
        link = self._link
        if link is None:
            link = await self.attached()
        taken = await link.receive(max_messages, timeout)
        if not taken and link.error is not None:
            if self._link is link:
                self._link = None
            raise link.error
        return taken

    async def complete(
        self, messages: Sequence[Received], *, transaction: ClientTransaction | None = None
    ) -> None:
        """Complete messages: the broker deletes them."""
        await self._settlements.settle(messages, COMPLETION, "completed", transaction)

    async def abandon(
        self,
        messages: Sequence[Received],
        properties: dict[str, object] | None = None,
        *,
        transaction: ClientTransaction | None = None,
    ) -> None:
        """Abandon messages: the broker delivers them again. `properties` are set on them."""
        await self._settlements.settle(messages, abandonment(properties), "abandoned", transaction)

    async def defer(
        self,
        messages: Sequence[Received],
        properties: dict[str, object] | None = None,
        *,
        transaction: ClientTransaction | None = None,
    ) -> None:
        """Defer messages: they can be received only by their sequence numbers."""
        await self._settlements.settle(messages, deferral(properties), "deferred", transaction)

    async def dead_letter(
        self,
        messages: Sequence[Received],
        reason: str = "",
        description: str = "",
        *,
        transaction: ClientTransaction | None = None,
    ) -> None:
        """Move them to the dead-letter queue."""
        form = dead_lettering(reason, description)
        await self._settlements.settle(messages, form, "dead-lettered", transaction)

    async def close(self, *, release: bool = False) -> None:
        """Close the link. Messages that were not fetched are released, with `release` also those that were fetched and not
        settled. Their delivery counts do not rise."""
        link, self._link = self._link, None
        if link is not None:
            link.close(release)

    async def __aenter__(self) -> Receiver:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()
