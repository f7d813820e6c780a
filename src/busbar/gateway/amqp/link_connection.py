"""Defines what a link needs of its connection. Links use this, never the connection's class."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol, TypeVar

from busbar.amqp.link import Link
from busbar.gateway.amqp.transactions import ConnectionTransactions
from busbar.gateway.authority import Grant
from busbar.gateway.services import GatewayServices
from busbar.model.commands import Command
from busbar.model.effects import Effect
from busbar.partitions.origin import CancellingOrigin, CreditListener, SendingOrigin

T = TypeVar("T")


class HeldSession(Protocol):
    """A message session that a link of the connection holds."""

    index: int
    """Of the fragment it lies in."""
    fragment: int
    consumer: int

    def renewed(self, until: int) -> None:
        """Note the new end of the session lock."""


class LargeReplies(Protocol):
    async def take(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read for a large reply when it is its turn, and when the client takes the replies before it."""


class AnsweringLink(Protocol):
    def answer(self) -> None:
        """Write the answers of this turn."""


class LinkConnection(CancellingOrigin, SendingOrigin, Protocol):
    """The connection, as its links see it."""

    service: GatewayServices
    transactions: ConnectionTransactions
    writable: bool
    """False while the client reads too slowly: then no more messages are asked for."""

    async def ask(self, build: Callable[[int], Command]) -> Effect:
        """Submit the command that is built with a new request number, and wait for its effect. Raises a refusal."""

    @property
    def is_authenticated(self) -> bool:
        """Whether the client holds a grant for anything."""

    @property
    def address(self) -> str:
        """The address of the client, without its port; empty if it is not known."""

    @property
    def pages(self) -> LargeReplies: ...

    def replies_wait(self) -> bool:
        """Whether a reply on some link waits for the client to take it."""

    def held_session(self, path: str, session: str) -> HeldSession | None:
        """The message session of that entity, if the connection holds it."""

    def end_link(self, link: Link, condition: str, text: str) -> None:
        """Detach a link of this connection, with the reason for the client."""

    def hold_reply(self, size: int) -> None:
        """Count a reply of this size that waits for the client to take it. Ends the connection if that is too much."""

    def release_reply(self, size: int) -> None:
        """Count a reply of this size no more."""

    def request_begun(self, size: int) -> None:
        """Note that a request of this size to a request-response node is under way."""

    def request_answered(self, size: int) -> None:
        """Note that a request of this size was answered."""

    def answer_at_end(self, who: AnsweringLink) -> None:
        """Let it answer at the end of this turn."""

    def retry(self, who: CreditListener) -> None:
        """Let it replenish once more after the client's next bytes."""

    def may(self, right: str, path: str) -> bool:
        """Whether a grant that has not expired gives the right on the path."""

    def granted(self, grant: Grant) -> None: ...

    async def add_link_to(self, link: Link, path: str) -> bool:
        """Count the link for this entity, beside others that were named before. Whether that had to wait. Raises
        QuotaExceeded."""

    def fresh_id(self) -> str:
        """A message id for a message that came without one."""

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run work that belongs to this connection and ends with it."""
