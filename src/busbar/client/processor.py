"""Processors: the library receives, calls the program's handler for each message, settles, and renews locks.

1. At most `max_concurrent_calls` handlers run at a time. Each has a message of its own.
2. With `auto_complete` a message is completed when its handler returns. If the handler raises, the message is abandoned and
   the error is passed to `on_error`. A handler may settle its message itself; then nothing more is done with it.
3. Locks are renewed while handlers run, for `max_lock_renewal_duration` seconds of each.
4. `close` receives no more, waits for the handlers that run, and releases what was prefetched.
5. Errors of the connection, and all others, are passed to `on_error`, and the processor goes on with growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from busbar.client.errors import BusbarClientError, LockLost
from busbar.client.lock_renewal import LockRenewal
from busbar.client.message_receiver import MessageReceiver, ReceiveMode
from busbar.client.received import Received

_log = logging.getLogger(__name__)

WAIT_SECONDS = 60.0
"""The time for which one call of the message loop waits for messages."""
LONGEST_PAUSE = 30.0


class MessageContext:
    """What a handler gets: the message, and the settlements of it."""

    __slots__ = ("_receiver", "is_settled", "message")

    def __init__(self, receiver: MessageReceiver, message: Received) -> None:
        self._receiver = receiver
        self.message = message
        self.is_settled = receiver.receive_mode is ReceiveMode.RECEIVE_AND_DELETE

    @property
    def receiver(self) -> MessageReceiver:
        """The receiver that the message came from: for a session, its SessionReceiver."""
        return self._receiver

    async def complete_message(self) -> None:
        await self._receiver.complete_message(self.message)
        self.is_settled = True

    async def abandon_message(self, properties: dict[str, object] | None = None) -> None:
        await self._receiver.abandon_message(self.message, properties)
        self.is_settled = True

    async def defer_message(self, properties: dict[str, object] | None = None) -> None:
        await self._receiver.defer_message(self.message, properties)
        self.is_settled = True

    async def dead_letter_message(self, *, reason: str = "", error_description: str = "") -> None:
        await self._receiver.dead_letter_message(
            self.message, reason=reason, error_description=error_description
        )
        self.is_settled = True


Handler = Callable[[MessageContext], Awaitable[None]]
OnError = Callable[[BaseException], Awaitable[None]]


async def log_error(error: BaseException) -> None:
    """The `on_error` of processors without one."""
    _log.error("a processor has failed: %r", error)


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """How messages are passed to a handler."""

    handler: Handler
    on_error: OnError = log_error
    auto_complete: bool = True
    max_lock_renewal_duration: float = 300.0


async def call_handler(settings: HandlerSettings, context: MessageContext) -> None:
    """Call the handler for a message and settle it."""
    try:
        await settings.handler(context)
        if settings.auto_complete and not context.is_settled:
            await context.complete_message()
    except Exception as error:
        if settings.auto_complete and not context.is_settled and not isinstance(error, LockLost):
            with suppress(BusbarClientError):
                await context.abandon_message()
        await report(settings, error)


async def report(settings: HandlerSettings, error: BaseException) -> None:
    """Pass an error to the program. An exception of its own handler is logged."""
    try:
        await settings.on_error(error)
    except Exception:
        _log.exception("the error handler of a processor has failed")


class MessageLoops(ABC):
    """The tasks of a processor: each runs `step` again and again until it is stopped."""

    def __init__(self, settings: HandlerSettings, count: int) -> None:
        if count < 1:
            raise ValueError(f"{count} concurrent calls; at least 1 is needed")
        self.settings = settings
        self._count = count
        self._tasks: list[asyncio.Task[None]] = []
        self._busy: set[asyncio.Task[None]] = set()
        self.is_stopping = False
        self.renewal: LockRenewal | None = None

    @property
    def is_running(self) -> bool:
        return bool(self._tasks)

    async def start(self) -> None:
        """Begin to receive."""
        if self._tasks or self.is_stopping:
            raise ValueError("a processor is started once; make another one")
        self.renewal = LockRenewal(self.settings.max_lock_renewal_duration)
        self._tasks = [asyncio.create_task(self._loop()) for _ in range(self._count)]

    async def _loop(self) -> None:
        pause = 0.0
        while not self.is_stopping:
            try:
                await self.step()
                pause = 0.0
            except Exception as error:
                await report(self.settings, error)
                pause = min(max(0.1, 2 * pause), LONGEST_PAUSE)
                await asyncio.sleep(pause)

    @abstractmethod
    async def step(self) -> None:
        """Receive, and call the handler for what came."""

    def begin_handling(self) -> None:
        """Note that this task has a message: `close` waits for it."""
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)

    def end_handling(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.discard(task)

    async def stop_loops(self) -> None:
        """Receive no more, and wait for the handlers that run."""
        self.is_stopping = True
        for task in self._tasks:
            if task not in self._busy:
                task.cancel()
        tasks, self._tasks = self._tasks, []
        if tasks:
            await asyncio.wait(tasks)
        if self.renewal is not None:
            await self.renewal.close()


class Processor(MessageLoops):
    """Calls a handler for each message of an entity. MessagingFactory.processor creates it."""

    def __init__(self, receiver: MessageReceiver, settings: HandlerSettings, count: int) -> None:
        super().__init__(settings, count)
        self.receiver = receiver

    async def step(self) -> None:
        for message in await self.receiver.receive_messages(1, WAIT_SECONDS):
            self.begin_handling()
            try:
                await self._handle(message)
            finally:
                self.end_handling()

    async def _handle(self, message: Received) -> None:
        assert self.renewal is not None
        context = MessageContext(self.receiver, message)
        if context.is_settled:
            await call_handler(self.settings, context)
            return
        lock = self.renewal.register(lambda: self.receiver.renew_message_lock(message), message.locked_until)
        try:
            await call_handler(self.settings, context)
        finally:
            lock.stop()

    async def close(self) -> None:
        """Stop as the rules above describe."""
        self.receiver.stop_prefetching()
        await self.stop_loops()
        await self.receiver.close()

    async def __aenter__(self) -> Processor:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()
