"""The client for code that blocks: Spark workers, commands, scripts.

    with connect("Endpoint=sb://...") as factory:
        factory.sender("orders").send([...])

One event loop runs in a daemon thread of the process and serves all factories. A forked process has no such thread: its
first call starts a loop of its own. A factory that was created before the fork cannot be used there, because its socket is
the parent's. Calls may come from any thread. Every call ends: each exchange has the factory's timeout, and if a wait is
interrupted (KeyboardInterrupt), the call is cancelled.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from busbar.client.factory import OPERATION_TIMEOUT, MessagingFactory
from busbar.client.received import Received
from busbar.client.receiver import Receiver
from busbar.client.retry import Retry
from busbar.client.sender import Sender, SendOutcome, Writer
from busbar.client.taps import MESSAGES, PAGE_BYTES, PAGE_MESSAGES, Ends, Page, Span, Taps, TapView
from busbar.client.transactions import ClientTransaction

T = TypeVar("T")


class _LoopThread:
    """The event loop of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="busbar-client", daemon=True)
        self._thread.start()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        if self.pid != os.getpid():
            call.close()
            raise RuntimeError("this factory was made before a fork; connect again in the new process")
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_current: _LoopThread | None = None
_lock = threading.Lock()


def _loop_thread() -> _LoopThread:
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = _LoopThread()
        return _current


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


def connect(
    connection_string: str,
    *,
    retry: Retry | None = None,
    name: str = "",
    operation_timeout: float = OPERATION_TIMEOUT,
    trust: Path | None = None,
) -> BlockingFactory:
    """Open a connection, as MessagingFactory.connect does."""
    thread = _loop_thread()
    factory = thread.run(
        MessagingFactory.connect(
            connection_string, retry=retry, name=name, operation_timeout=operation_timeout, trust=trust
        )
    )
    return BlockingFactory(thread, factory)


class BlockingFactory:
    """MessagingFactory, without await."""

    def __init__(self, thread: _LoopThread, factory: MessagingFactory) -> None:
        self._thread = thread
        self._factory = factory

    def sender(
        self, entity: str, *, writer: Writer | None = None, in_flight: int = 2_000, via: str | None = None
    ) -> BlockingSender:
        made = self._thread.run(self._factory.sender(entity, writer=writer, in_flight=in_flight, via=via))
        return BlockingSender(self._thread, made)

    def receiver(
        self, entity: str, *, sub_queue: str = "", credit: int = 1_000, delete: bool = False
    ) -> BlockingReceiver:
        made = self._thread.run(
            self._factory.receiver(entity, sub_queue=sub_queue, credit=credit, delete=delete)
        )
        return BlockingReceiver(self._thread, made)

    def taps(self, entity: str, *, sub_queue: str = "") -> BlockingTaps:
        return BlockingTaps(self._thread, self._thread.run(self._factory.taps(entity, sub_queue=sub_queue)))

    def transaction(self, *, via: str | None = None) -> BlockingTransaction:
        return BlockingTransaction(self._thread, self._factory.transaction(via=via))

    def close(self) -> None:
        self._thread.run(self._factory.close())

    def __enter__(self) -> BlockingFactory:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<blocking {self._factory!r}>"


class BlockingTransaction:
    """ClientTransaction, without await."""

    def __init__(self, thread: _LoopThread, transaction: ClientTransaction) -> None:
        self._thread = thread
        self.transaction = transaction

    @property
    def is_open(self) -> bool:
        return self.transaction.is_open

    def begin(self) -> None:
        self._thread.run(self.transaction.begin())

    def commit(self) -> None:
        self._thread.run(self.transaction.commit())

    def rollback(self) -> None:
        self._thread.run(self.transaction.rollback())

    def __enter__(self) -> BlockingTransaction:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        self._thread.run(self.transaction.__aexit__(kind))


def _awaited(transaction: BlockingTransaction | None) -> ClientTransaction | None:
    return None if transaction is None else transaction.transaction


class BlockingSender:
    """Sender, without await."""

    def __init__(self, thread: _LoopThread, sender: Sender) -> None:
        self._thread = thread
        self._sender = sender

    def send(
        self, messages: Sequence[bytes], *, transaction: BlockingTransaction | None = None
    ) -> SendOutcome:
        return self._thread.run(self._sender.send(messages, transaction=_awaited(transaction)))

    def close(self) -> None:
        self._thread.run(self._sender.close())

    def __enter__(self) -> BlockingSender:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class BlockingReceiver:
    """Receiver, without await."""

    def __init__(self, thread: _LoopThread, receiver: Receiver) -> None:
        self._thread = thread
        self._receiver = receiver

    def receive(self, max_messages: int = 100, timeout: float = 10.0) -> list[Received]:
        return self._thread.run(self._receiver.receive(max_messages, timeout))

    def complete(
        self, messages: Sequence[Received], *, transaction: BlockingTransaction | None = None
    ) -> None:
        self._thread.run(self._receiver.complete(messages, transaction=_awaited(transaction)))

    def abandon(
        self,
        messages: Sequence[Received],
        properties: dict[str, object] | None = None,
        *,
        transaction: BlockingTransaction | None = None,
    ) -> None:
        self._thread.run(self._receiver.abandon(messages, properties, transaction=_awaited(transaction)))

    def defer(
        self,
        messages: Sequence[Received],
        properties: dict[str, object] | None = None,
        *,
        transaction: BlockingTransaction | None = None,
    ) -> None:
        self._thread.run(self._receiver.defer(messages, properties, transaction=_awaited(transaction)))

    def dead_letter(
        self,
        messages: Sequence[Received],
        reason: str = "",
        description: str = "",
        *,
        transaction: BlockingTransaction | None = None,
    ) -> None:
        self._thread.run(
            self._receiver.dead_letter(messages, reason, description, transaction=_awaited(transaction))
        )

    def close(self, *, release: bool = False) -> None:
        self._thread.run(self._receiver.close(release=release))

    def __enter__(self) -> BlockingReceiver:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class BlockingTaps:
    """Taps, without await."""

    def __init__(self, thread: _LoopThread, taps: Taps) -> None:
        self._thread = thread
        self._taps = taps

    @property
    def entity(self) -> str:
        return self._taps.entity

    def create(
        self,
        name: str,
        *,
        events: bool = False,
        consumes: bool = False,
        from_earliest: bool = False,
        owner: str = "",
        max_age: int | None = None,
        max_size: int | None = None,
        lease: int | None = None,
    ) -> TapView:
        return self._thread.run(
            self._taps.create(
                name,
                events=events,
                consumes=consumes,
                from_earliest=from_earliest,
                owner=owner,
                max_age=max_age,
                max_size=max_size,
                lease=lease,
            )
        )

    def show(self, name: str) -> TapView:
        return self._thread.run(self._taps.show(name))

    def list(self) -> tuple[TapView, ...]:
        return self._thread.run(self._taps.list())

    def delete(self, name: str) -> None:
        self._thread.run(self._taps.delete(name))

    def own(self, name: str, owner: str, *, take_over: bool = False) -> TapView:
        return self._thread.run(self._taps.own(name, owner, take_over=take_over))

    def advance(self, name: str, owner: str, positions: Mapping[int, int], *, stream: str = MESSAGES) -> None:
        self._thread.run(self._taps.advance(name, owner, positions, stream=stream))

    def resume(self, name: str, owner: str) -> TapView:
        return self._thread.run(self._taps.resume(name, owner))

    def find_time(self, time: int) -> dict[int, int]:
        return self._thread.run(self._taps.find_time(time))

    def ends(self) -> Ends:
        return self._thread.run(self._taps.ends())

    def read(
        self,
        name: str | None,
        fragment: int,
        after: int,
        upto: int,
        *,
        stream: str = MESSAGES,
        count: int = PAGE_MESSAGES,
        max_bytes: int = PAGE_BYTES,
    ) -> Page:
        return self._thread.run(
            self._taps.read(name, fragment, after, upto, stream=stream, count=count, max_bytes=max_bytes)
        )

    def pages(
        self,
        name: str | None,
        fragment: int,
        after: int,
        upto: int,
        *,
        stream: str = MESSAGES,
        count: int = PAGE_MESSAGES,
        max_bytes: int = PAGE_BYTES,
    ) -> Iterator[Page]:
        """Yield all pages of a range of one fragment; see `pages_of`."""
        spans = [(fragment, after, upto)]
        for _, page in self.pages_of(name, spans, stream=stream, count=count, max_bytes=max_bytes):
            yield page

    def pages_of(
        self,
        name: str | None,
        spans: Iterable[Span],
        *,
        stream: str = MESSAGES,
        count: int = PAGE_MESSAGES,
        max_bytes: int = PAGE_BYTES,
    ) -> Generator[tuple[int, Page], None, None]:
        """Yield pages; they are read ahead in the loop's thread while the caller works on the last one."""
        pages = self._taps.pages_of(name, spans, stream=stream, count=count, max_bytes=max_bytes)
        try:
            while (item := self._thread.run(_next(pages))) is not None:
                yield item
        finally:
            self._thread.run(pages.aclose())

    def commit_writes(self, writer: str, batch: int) -> None:
        self._thread.run(self._taps.commit_writes(writer, batch))


async def _next(pages: AsyncIterator[tuple[int, Page]]) -> tuple[int, Page] | None:
    return await anext(pages, None)
