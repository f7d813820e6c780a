"""A processor of message sessions: accepts sessions, and calls the handler for their messages in order.

1. At most `max_concurrent_sessions` sessions are held at a time. Within a session one handler runs at a time.
2. A session is closed when no message has come for `session_idle_timeout` seconds. The next one is then accepted.
3. The session lock is renewed for `max_lock_renewal_duration` seconds after the acceptance. If it is lost, no more messages
   of the session are handled.
4. `close` accepts no more, and waits for the handlers that run. Sessions are then free for other receivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from busbar.client.errors import LockLost, OperationTimeout
from busbar.client.message_receiver import ReceiveMode
from busbar.client.processor import HandlerSettings, MessageContext, MessageLoops, call_handler, report
from busbar.client.received import Received
from busbar.client.session_receiver import SessionReceiver

if TYPE_CHECKING:
    from busbar.client.factory import MessagingFactory

ACCEPT_SECONDS = 60.0
"""The time for which one attempt waits for a session."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Which sessions a processor accepts, and how it receives from them."""

    entity: str
    receive_mode: ReceiveMode | str
    prefetch_count: int
    session_idle_timeout: float


class SessionProcessor(MessageLoops):
    """Calls a handler for the messages of sessions. MessagingFactory.session_processor creates it."""

    def __init__(
        self, factory: MessagingFactory, sessions: SessionSettings, settings: HandlerSettings, count: int
    ) -> None:
        super().__init__(settings, count)
        self._factory = factory
        self._sessions = sessions

    async def step(self) -> None:
        """Accept a session and handle its messages until it is idle."""
        sessions = self._sessions
        try:
            receiver = await self._factory.accept_session(
                sessions.entity,
                receive_mode=sessions.receive_mode,
                prefetch_count=sessions.prefetch_count,
                max_wait_time=ACCEPT_SECONDS,
            )
        except OperationTimeout:
            return  # no session has messages
        try:
            await self._work(receiver)
        except LockLost as lost:
            await report(self.settings, lost)
        finally:
            await receiver.close()

    async def _work(self, receiver: SessionReceiver) -> None:
        assert self.renewal is not None
        lock = self.renewal.register(receiver.renew_lock, receiver.locked_until)
        try:
            while not self.is_stopping:
                received = await receiver.receive_messages(1, self._sessions.session_idle_timeout)
                if not received:
                    return
                await self._handle(receiver, received[0])
        finally:
            lock.stop()

    async def _handle(self, receiver: SessionReceiver, message: Received) -> None:
        self.begin_handling()
        try:
            await call_handler(self.settings, MessageContext(receiver, message))
        finally:
            self.end_handling()

    async def close(self) -> None:
        """Stop as the rules above describe."""
        await self.stop_loops()

    async def __aenter__(self) -> SessionProcessor:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()
