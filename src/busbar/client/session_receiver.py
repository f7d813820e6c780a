"""Receives the messages of one message session, and keeps its lock and its state.

1. The session belongs to this receiver from its acceptance until its lock ends: when the receiver is closed, when the lock
   expires, or when the connection is lost. After that every operation raises SessionLockLost; the program accepts a session
   again, perhaps at another place.
2. The messages are locked with the session. Their locks are renewed with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from busbar.amqp.types import Described, Symbol, UInt
from busbar.client.errors import (
    BusbarClientError,
    ConnectionLost,
    OperationTimeout,
    ServerBusy,
    SessionLockLost,
)
from busbar.client.fetch_link import FetchLink
from busbar.client.message_receiver import MessageReceiver, ReceiveMode

if TYPE_CHECKING:
    from busbar.client.factory import MessagingFactory
    from busbar.client.transactions import ClientTransaction

SESSION_FILTER = "com.microsoft:session-filter"
LOCKED_UNTIL = "com.microsoft:locked-until-utc"
TIMEOUT = "com.microsoft:timeout"
TICKS_OF_1970 = 621_355_968_000_000_000
"""In units of 100 ns since the year 1."""
ANSWER_SECONDS = 5.0
"""The time for the broker's answer after the time that it waits for a session."""


class SessionFetchLink(FetchLink):
    """The link of a SessionReceiver: as long as it is attached, the session is locked."""

    session_id = ""
    locked_until = 0

    async def accept(self, address: str, session_id: str | None, wait: float, timeout: float) -> None:
        """Attach to a session, or to the next available one. Raises OperationTimeout, SessionCannotBeLocked."""
        await self.connection.attach_receiver(
            self,
            address,
            wait + min(ANSWER_SECONDS, timeout),
            settled=self.delete,
            filter={Symbol(SESSION_FILTER): session_id},
            properties={Symbol(TIMEOUT): UInt(round(wait * 1000))},
        )
        source = self.link.source
        filters = {str(key): value for key, value in ((source and source.filter) or {}).items()}
        granted = filters.get(SESSION_FILTER)
        self.session_id = str(granted.value if isinstance(granted, Described) else granted)
        ticks = {str(key): value for key, value in self.link.properties.items()}.get(LOCKED_UNTIL)
        self.locked_until = (ticks - TICKS_OF_1970) // 10_000 if isinstance(ticks, int) else 0


class SessionReceiver(MessageReceiver):
    """Receives from one message session. MessagingFactory.accept_session creates it."""

    survives_links = False

    def __init__(
        self,
        factory: MessagingFactory,
        entity: str,
        link: SessionFetchLink,
        *,
        receive_mode: ReceiveMode | str,
        prefetch_count: int,
    ) -> None:
        super().__init__(
            factory,
            entity,
            entity,
            receive_mode=receive_mode,
            prefetch_count=prefetch_count,
            session_id=link.session_id,
        )
        self.session_id = link.session_id
        self.locked_until = link.locked_until
        """The end of the session lock in ms since 1970."""
        self._link = self._session_link = link

    @classmethod
    async def accept(
        cls,
        factory: MessagingFactory,
        entity: str,
        session_id: str | None,
        *,
        receive_mode: ReceiveMode | str,
        prefetch_count: int,
        wait: float,
    ) -> SessionReceiver:
        """Attach a link to a session, again by the factory's Retry if the connection is lost or the broker is busy."""
        delete = ReceiveMode(receive_mode) is ReceiveMode.RECEIVE_AND_DELETE
        loop, timeout = asyncio.get_running_loop(), factory.operation_timeout
        deadline = loop.time() + max(wait, 0.0)
        attempts = factory.retry.start()
        try:
            async with asyncio.timeout_at(deadline + timeout):
                while True:
                    try:
                        connection = await factory.connection_for(entity)
                        link = SessionFetchLink(connection, prefetch_count, delete, timeout)
                        await link.accept(entity, session_id, max(0.0, deadline - loop.time()), timeout)
                        break
                    except (ConnectionLost, ServerBusy):
                        if not await attempts.again():
                            raise
        except TimeoutError:
            raise OperationTimeout(f"No session of '{entity}' within {wait:g} s.") from None
        return cls(factory, entity, link, receive_mode=receive_mode, prefetch_count=prefetch_count)

    def _goes_on(self, problem: BusbarClientError) -> bool:
        """False: a session is not accepted again. Raises SessionLockLost if its lock has ended."""
        self.check_lock()
        return False

    async def _attached(self) -> FetchLink:
        self._check()
        self.check_lock()
        return self._session_link

    @property
    def is_locked(self) -> bool:
        """Whether the session belongs to this receiver, as far as the broker has reported."""
        return self._session_link.error is None

    def check_lock(self) -> None:
        """Raise SessionLockLost if the lock has ended."""
        error = self._session_link.error
        if error is not None:
            raise SessionLockLost(f"The lock of session '{self.session_id}' has ended: {error.text}")

    async def renew_lock(self) -> int:
        """Renew the session lock. Returns its end in ms since 1970."""
        self.check_lock()
        self.locked_until = await self._management.renew_session(self._session_link.link.name)
        return self.locked_until

    async def get_state(self) -> bytes | None:
        """The state of the session; None if it has none."""
        self.check_lock()
        return await self._management.session_state(self._session_link.link.name)

    async def set_state(self, state: bytes | None, *, transaction: ClientTransaction | None = None) -> None:
        """Set the state of the session, or clear it with None."""
        self.check_lock()
        await self._management.set_session_state(state, self._session_link.link.name, transaction)
