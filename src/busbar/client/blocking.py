"""The client for code that blocks: Spark workers, commands, scripts.

    with connect("Endpoint=sb://...") as factory:
        factory.sender("orders").send([...])

One event loop runs in a daemon thread of the process and serves all factories. A forked process has no such thread: its
first call starts a loop of its own. A factory that was created before the fork cannot be used there, because its socket is
the parent's. Calls may come from any thread. Every call ends: each exchange has the factory's timeout, and if a wait is
interrupted (KeyboardInterrupt), the call is cancelled.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from busbar.client.blocking_loop import LoopThread, loop_thread
from busbar.client.blocking_messages import (
    BlockingHandler,
    BlockingMessageReceiver,
    BlockingMessageSender,
    BlockingProcessor,
    BlockingQueueClient,
    BlockingSessionReceiver,
    HandlerThreads,
)
from busbar.client.blocking_transaction import BlockingTransaction, awaited
from busbar.client.factory import (
    BATCH_FLUSH_INTERVAL,
    LOCK_RENEWAL_DURATION,
    OPERATION_TIMEOUT,
    SESSION_IDLE_TIMEOUT,
    MessagingFactory,
)
from busbar.client.management import SessionView
from busbar.client.message_receiver import ReceiveMode
from busbar.client.received import Received
from busbar.client.receiver import Receiver
from busbar.client.retry import Retry
from busbar.client.sender import Sender, SendOutcome, Writer
from busbar.client.tap_selection import TapSelection
from busbar.client.taps import MESSAGES, PAGE_BYTES, PAGE_MESSAGES, Ends, Page, Span, Taps, TapView


def connect(
    connection_string: str,
    *,
    batch_flush_interval: float = BATCH_FLUSH_INTERVAL,
    retry: Retry | None = None,
    name: str = "",
    operation_timeout: float = OPERATION_TIMEOUT,
    trust: Path | None = None,
) -> BlockingFactory:
    """Open a connection, as MessagingFactory.connect does. Batching is for the completions of processors: all other calls of
    this client go at once."""
    thread = loop_thread()
    factory = thread.run(
        MessagingFactory.connect(
            connection_string,
            batch_flush_interval=batch_flush_interval,
            retry=retry,
            name=name,
            operation_timeout=operation_timeout,
            trust=trust,
        )
    )
    return BlockingFactory(thread, factory)


class BlockingFactory:
    """MessagingFactory, without await."""

    def __init__(self, thread: LoopThread, factory: MessagingFactory) -> None:
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

    def message_sender(
        self, entity: str, *, via: str | None = None, resend_unanswered: bool = False
    ) -> BlockingMessageSender:
        made = self._factory.message_sender(entity, via=via, resend_unanswered=resend_unanswered)
        return BlockingMessageSender(self._thread, made)

    def message_receiver(
        self,
        entity: str,
        *,
        sub_queue: str = "",
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> BlockingMessageReceiver:
        made = self._factory.message_receiver(
            entity, sub_queue=sub_queue, receive_mode=receive_mode, prefetch_count=prefetch_count
        )
        return BlockingMessageReceiver(self._thread, made)

    def queue_client(
        self,
        path: str,
        *,
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> BlockingQueueClient:
        made = self._factory.queue_client(path, receive_mode=receive_mode, prefetch_count=prefetch_count)
        return BlockingQueueClient(self._thread, made)

    def topic_client(self, path: str) -> BlockingMessageSender:
        return BlockingMessageSender(self._thread, self._factory.topic_client(path))

    def subscription_client(
        self,
        topic: str,
        name: str,
        *,
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> BlockingMessageReceiver:
        made = self._factory.subscription_client(
            topic, name, receive_mode=receive_mode, prefetch_count=prefetch_count
        )
        return BlockingMessageReceiver(self._thread, made)

    def accept_session(
        self,
        entity: str,
        session_id: str | None = None,
        *,
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
        max_wait_time: float | None = None,
    ) -> BlockingSessionReceiver:
        accepting = self._factory.accept_session(
            entity,
            session_id,
            receive_mode=receive_mode,
            prefetch_count=prefetch_count,
            max_wait_time=max_wait_time,
        )
        return BlockingSessionReceiver(self._thread, self._thread.run(accepting))

    def list_sessions(self, entity: str) -> list[str]:
        return self._thread.run(self._factory.list_sessions(entity))

    def inspect_session(self, entity: str, session_id: str, *, with_state: bool = False) -> SessionView:
        return self._thread.run(self._factory.inspect_session(entity, session_id, with_state=with_state))

    def processor(
        self,
        entity: str,
        handler: BlockingHandler,
        *,
        max_concurrent_calls: int = 1,
        max_lock_renewal_duration: float = LOCK_RENEWAL_DURATION,
        sub_queue: str = "",
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> BlockingProcessor:
        """A processor whose handler blocks. A message is completed when it returns, and abandoned if it raises."""
        threads = HandlerThreads(handler, max_concurrent_calls)
        made = self._factory.processor(
            entity,
            threads.handle,
            max_concurrent_calls=max_concurrent_calls,
            max_lock_renewal_duration=max_lock_renewal_duration,
            sub_queue=sub_queue,
            receive_mode=receive_mode,
            prefetch_count=prefetch_count,
        )
        return BlockingProcessor(self._thread, made, threads)

    def session_processor(
        self,
        entity: str,
        handler: BlockingHandler,
        *,
        max_concurrent_sessions: int = 8,
        session_idle_timeout: float = SESSION_IDLE_TIMEOUT,
        max_lock_renewal_duration: float = LOCK_RENEWAL_DURATION,
        receive_mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> BlockingProcessor:
        """A processor of message sessions whose handler blocks."""
        threads = HandlerThreads(handler, max_concurrent_sessions)
        made = self._factory.session_processor(
            entity,
            threads.handle,
            max_concurrent_sessions=max_concurrent_sessions,
            session_idle_timeout=session_idle_timeout,
            max_lock_renewal_duration=max_lock_renewal_duration,
            receive_mode=receive_mode,
            prefetch_count=prefetch_count,
        )
        return BlockingProcessor(self._thread, made, threads)

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


class BlockingSender:
    """Sender, without await."""

    def __init__(self, thread: LoopThread, sender: Sender) -> None:
        self._thread = thread
        self._sender = sender

    def send(
        self, messages: Sequence[bytes], *, transaction: BlockingTransaction | None = None
    ) -> SendOutcome:
        return self._thread.run(self._sender.send(messages, transaction=awaited(transaction)))

    @property
    def duplicates(self) -> int | None:
        return self._sender.duplicates

    @property
    def doubtful(self) -> int:
        return self._sender.doubtful

    def close(self) -> None:
        self._thread.run(self._sender.close())

    def __enter__(self) -> BlockingSender:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class BlockingReceiver:
    """Receiver, without await."""

    def __init__(self, thread: LoopThread, receiver: Receiver) -> None:
        self._thread = thread
        self._receiver = receiver

    def receive(self, max_messages: int = 100, timeout: float = 10.0) -> list[Received]:
        return self._thread.run(self._receiver.receive(max_messages, timeout))

    def complete(
        self, messages: Sequence[Received], *, transaction: BlockingTransaction | None = None
    ) -> None:
        self._thread.run(self._receiver.complete(messages, transaction=awaited(transaction)))

    def abandon(
        self,
        messages: Sequence[Received],
        properties: dict[str, object] | None = None,
        *,
        transaction: BlockingTransaction | None = None,
    ) -> None:
        self._thread.run(self._receiver.abandon(messages, properties, transaction=awaited(transaction)))

    def defer(
        self,
        messages: Sequence[Received],
        properties: dict[str, object] | None = None,
        *,
        transaction: BlockingTransaction | None = None,
    ) -> None:
        self._thread.run(self._receiver.defer(messages, properties, transaction=awaited(transaction)))

    def dead_letter(
        self,
        messages: Sequence[Received],
        reason: str = "",
        description: str = "",
        *,
        transaction: BlockingTransaction | None = None,
    ) -> None:
        self._thread.run(
            self._receiver.dead_letter(messages, reason, description, transaction=awaited(transaction))
        )

    def close(self, *, release: bool = False) -> None:
        self._thread.run(self._receiver.close(release=release))

    def __enter__(self) -> BlockingReceiver:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class BlockingTaps:
    """Taps, without await."""

    def __init__(self, thread: LoopThread, taps: Taps) -> None:
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

    def own(self, name: str, owner: str, *, take_over: bool = False, reader: str = "") -> TapView:
        return self._thread.run(self._taps.own(name, owner, take_over=take_over, reader=reader))

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
        select: TapSelection | None = None,
    ) -> Page:
        return self._thread.run(
            self._taps.read(
                name, fragment, after, upto, stream=stream, count=count, max_bytes=max_bytes, select=select
            )
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
        select: TapSelection | None = None,
    ) -> Iterator[Page]:
        """Yield all pages of a range of one fragment; see `pages_of`."""
        spans = [(fragment, after, upto)]
        pages = self.pages_of(name, spans, stream=stream, count=count, max_bytes=max_bytes, select=select)
        for _, page in pages:
            yield page

    def pages_of(
        self,
        name: str | None,
        spans: Iterable[Span],
        *,
        stream: str = MESSAGES,
        count: int = PAGE_MESSAGES,
        max_bytes: int = PAGE_BYTES,
        select: TapSelection | None = None,
    ) -> Generator[tuple[int, Page], None, None]:
        """Pages; they are read ahead in the loop's thread while the caller works on the last one."""
        pages = self._taps.pages_of(
            name, spans, stream=stream, count=count, max_bytes=max_bytes, select=select
        )
        return self._thread.iterate(pages)

    def commit_writes(self, writer: str, batch: int) -> None:
        self._thread.run(self._taps.commit_writes(writer, batch))
