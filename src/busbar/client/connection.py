"""One TCP connection to a broker, with one AMQP session for its links and others for coordinators of transactions.

1. Reports of the engine go to the link's end (LinkEnd). What ends write is sent in one write at the end of the event loop's
   turn (`touch`). If the client makes one call after the other, it is sent at once, which saves a turn for each call.
2. A connection ends once, with one error, which all its links get. It is never opened again: the factory opens another one.
   If the broker closes it before it has accepted a link, the error is that of the refusal: QuotaExceeded, for example.
   Later it is ConnectionLost, since operations may have been under way.
3. If the broker closes a link while the connection lives, only that link ends.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Coroutine
from typing import cast

from busbar.amqp.connection import Connection as Engine
from busbar.amqp.connection import ConnectionConfig
from busbar.amqp.errors import AmqpError
from busbar.amqp.events import (
    Arrived,
    Closed,
    CreditChanged,
    Delivery,
    Disposed,
    Event,
    LinkAttached,
    LinkDetached,
    SessionBegun,
    SessionEnded,
)
from busbar.amqp.link import Link
from busbar.amqp.outcomes import Outcome
from busbar.amqp.performatives import Terminus
from busbar.amqp.session import Session
from busbar.client.connection_string import Endpoint
from busbar.client.errors import (
    BusbarClientError,
    CannotConnect,
    ConnectionLost,
    EntityGone,
    NotFound,
    OperationTimeout,
    error_of,
    reason_of,
)

FRAME_SIZE = 1024 * 1024
WINDOW = 20_000
LARGEST_MESSAGE = 256 * 1024 * 1024
IDLE_MS = 60_000
WRITE_BUFFER = 4 * 1024 * 1024
FAREWELL_SECONDS = 2.0

SETTLED = 1  # snd-settle-mode
SECOND = 1  # rcv-settle-mode: the broker confirms a settlement when it is durable


class LinkEnd:
    """The client's end of a link; subclasses override what they need."""

    link: Link

    def credit_changed(self) -> None:
        """More messages may be sent."""

    def arrived(self, deliveries: list[Delivery]) -> None:
        """Messages have arrived."""

    def disposed(self, ids: list[int], tags: list[bytes], outcome: Outcome | None) -> None:
        """The broker has settled sent messages, or confirmed a settlement."""

    def ended(self, error: BusbarClientError) -> None:
        """The link ended, and the client did not close it."""


class ClientConnection(asyncio.Protocol):
    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self.endpoint = endpoint
        self.error: BusbarClientError | None = None
        self.writable = True
        self._loop = asyncio.get_running_loop()
        self._engine = Engine(
            ConnectionConfig(
                container_id=name,
                hostname=endpoint.host,
                max_frame_size=FRAME_SIZE,
                idle_timeout=IDLE_MS,
                mechanisms=["ANONYMOUS"],
                incoming_window=WINDOW,
                outgoing_window=WINDOW,
                max_message_size=LARGEST_MESSAGE,
                max_partial_bytes=2 * LARGEST_MESSAGE,
                server=False,
            )
        )
        self._transport: asyncio.Transport | None = None
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._attaching: dict[Link, asyncio.Future[None]] = {}
        self._ends: dict[Link, LinkEnd] = {}
        self._ending: set[Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._flush_due = False
        self._touches = 0  # since the last input
        self._one_at_a_time = False  # one touch at most came between the last two inputs
        self._links_made = 0
        self._was_used = False
        self._engine.open()
        self._session = self._engine.begin()

    @classmethod
    async def open(
        cls, endpoint: Endpoint, name: str, timeout: float, context: ssl.SSLContext | None
    ) -> ClientConnection:
        """Open a connection. Raises CannotConnect, the broker's refusal (QuotaExceeded if the namespace has as many
        connections as it may have), or BusbarClientError if the broker's certificate is not trusted."""
        loop = asyncio.get_running_loop()
        connection: ClientConnection | None = None
        try:
            async with asyncio.timeout(timeout):
                _transport, connection = await loop.create_connection(
                    lambda: cls(endpoint, name), endpoint.host, endpoint.port, ssl=context
                )
                await asyncio.shield(connection._begun)
                connection._check()  # a refusal may follow the begin in the same frames
        except asyncio.CancelledError:
            if connection is not None:
                connection.abort(CannotConnect("The call that opened the connection was cancelled."))
            raise
        except ssl.SSLCertVerificationError as problem:
            raise BusbarClientError(
                f"The certificate of {endpoint.authority} is not trusted: {problem.verify_message}."
            ) from None
        except TimeoutError:
            if connection is not None:
                connection.abort(CannotConnect(f"{endpoint.authority} does not answer."))
            raise CannotConnect(f"{endpoint.authority} does not answer within {timeout:g} s.") from None
        except OSError as problem:
            raise CannotConnect(f"{endpoint.authority} cannot be reached: {reason_of(problem)}.") from None
        except ConnectionLost as lost:
            raise CannotConnect(lost.text) from None
        return connection

    @property
    def is_over(self) -> bool:
        return self.error is not None

    # ---- links -----------------------------------------------------------------------------------

    async def attach_sender(
        self,
        end: LinkEnd,
        address: str,
        timeout: float,
        *,
        properties: dict[object, object] | None = None,
        capabilities: list[str] | None = None,
    ) -> None:
        """Attach a link on which `end` sends to a node. Raises the broker's refusal."""
        self._check()
        name = self._link_name()
        link = self._session.attach_sender(
            name, Terminus(name), Terminus(address), 0, 0, properties, 0, capabilities
        )
        await self._wait_attached(end, link, address, timeout)

    async def attach_receiver(
        self,
        end: LinkEnd,
        address: str,
        timeout: float,
        *,
        settled: bool = False,
        reply_address: str | None = None,
        filter: dict[object, object] | None = None,
        properties: dict[object, object] | None = None,
    ) -> None:
        """Attach a link on which `end` receives from a node."""
        self._check()
        name = self._link_name()
        link = self._session.attach_receiver(
            name,
            Terminus(address, filter),
            Terminus(reply_address or name),
            SETTLED if settled else 0,
            0 if settled else SECOND,
            properties,
        )
        await self._wait_attached(end, link, address, timeout)

    def begin_session(self) -> Session:
        """Another AMQP session, for what is not to share the first one."""
        self._check()
        try:
            return self._engine.begin()
        except ValueError as full:
            raise BusbarClientError(f"The connection has no room for another session: {full}.") from None

    def end_session(self, session: Session) -> None:
        """End a session that `begin_session` has begun. The ends of its links get no more reports."""
        if self.is_over or session in self._ending:
            return
        for link in [link for link in self._ends if link.session is session]:
            del self._ends[link]
            link.user = None
        self._ending.add(session)
        session.end()
        self.touch()

    async def attach(
        self,
        end: LinkEnd,
        session: Session,
        what: str,
        timeout: float,
        *,
        source: Terminus | None = None,
        target: Terminus | None = None,
    ) -> None:
        """Attach a link on a session: one that sends to a target, or one that receives from a source."""
        self._check()
        name = self._link_name()
        if target is not None:
            link = session.attach_sender(name, Terminus(name), target)
        else:
            assert source is not None
            link = session.attach_receiver(name, source, Terminus(name), 0, SECOND)
        await self._wait_attached(end, link, what, timeout)

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def _link_name(self) -> str:
        self._links_made += 1
        return f"{self._engine.config.container_id}-{self._links_made}"

    async def _wait_attached(self, end: LinkEnd, link: Link, address: str, timeout: float) -> None:
        end.link = link
        link.user = end
        self._ends[link] = end
        answer: asyncio.Future[None] = self._loop.create_future()
        self._attaching[link] = answer
        self.touch()
        try:
            async with asyncio.timeout(timeout):
                await answer
        except TimeoutError:
            self.detach(link)
            raise OperationTimeout(f"No link to '{address}' within {timeout:g} s.") from None
        except asyncio.CancelledError:
            self.detach(link)
            raise
        finally:
            self._attaching.pop(link, None)

    def detach(self, link: Link) -> None:
        """Close a link; its end gets no more reports."""
        self._ends.pop(link, None)
        link.user = None
        link.detach()
        self.touch()

    # ---- output ----------------------------------------------------------------------------------

    def touch(self) -> None:
        """Send what was written, at the end of this turn or at once."""
        if self._flush_due:
            return
        self._touches += 1
        if self._one_at_a_time and self._touches == 1:
            self._flush()
        else:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        parts = self._engine.parts_to_send()
        data = self._engine.data_to_send() if parts is None else b""
        if self._transport is None:
            return
        if parts is not None:
            self._transport.writelines(parts)
        elif data:
            self._transport.write(data)

    # ---- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._flush()
        self._tick()

    def data_received(self, data: bytes) -> None:
        self._flush_due = True  # below, once for everything that this input leads to
        self._one_at_a_time = self._touches <= 1
        self._touches = 0
        try:
            self._handle(self._engine.receive_data(data, _now()))
        finally:
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        why = f": {exc}" if exc is not None else ""
        self._over(ConnectionLost(f"The connection to {self.endpoint.authority} is lost{why}."))
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        for end in list(self._ends.values()):
            end.credit_changed()

    def _tick(self) -> None:
        self._timer = None
        if self._transport is None or self.is_over:
            return
        self._handle(self._engine.tick(_now()))
        self._flush()
        due = self._engine.next_tick(_now())
        if due:
            self._timer = self._loop.call_later(max(due - _now(), 10) / 1000, self._tick)

    # ---- input -----------------------------------------------------------------------------------

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Arrived):
                end = event.link.user
                if isinstance(end, LinkEnd):
                    end.arrived(event.deliveries)
            elif isinstance(event, Disposed):
                end = event.link.user
                if isinstance(end, LinkEnd):
                    end.disposed(event.ids, event.tags, event.outcome)
            elif isinstance(event, CreditChanged):
                end = event.link.user
                if isinstance(end, LinkEnd):
                    end.credit_changed()
            elif isinstance(event, LinkAttached):
                self._on_attached(event.link)
            elif isinstance(event, LinkDetached):
                self._on_detached(event.link, event.error)
            elif isinstance(event, SessionBegun):
                if not self._begun.done():
                    self._begun.set_result(None)
                self._arm()
            elif isinstance(event, SessionEnded):
                if event.session in self._ending:
                    self._ending.discard(event.session)
                else:
                    self._fail("ended the session", event.error)
            elif isinstance(event, Closed):
                self._fail("closed the connection", event.error)

    def _arm(self) -> None:
        """Send heartbeats as often as the broker's idle timeout needs."""
        if self._timer is not None:
            self._timer.cancel()
        self._tick()

    def _on_attached(self, link: Link) -> None:
        self._was_used = True
        answer = self._attaching.get(link)
        accepted = link.target if link.sending else link.source
        if answer is not None and not answer.done() and accepted is not None:
            answer.set_result(None)  # without a terminus it is a refusal: a detach follows

    def _on_detached(self, link: Link, error: AmqpError | None) -> None:
        end = self._ends.pop(link, None)
        if end is None:
            return
        if error is None:
            problem: BusbarClientError = ConnectionLost("The broker ended the link without a reason.")
        else:
            problem = error_of(error.condition, error.description)
        answer = self._attaching.get(link)
        if answer is not None and not answer.done():
            answer.set_exception(problem)
            return
        if isinstance(problem, NotFound):
            problem = EntityGone(problem.text, problem.condition)
        end.ended(problem)

    # ---- the end ---------------------------------------------------------------------------------

    def _fail(self, what: str, error: AmqpError | None) -> None:
        why = f": {error.description} ({error.condition})" if error is not None else ""
        problem: BusbarClientError = ConnectionLost(f"{self.endpoint.authority} {what}{why}")
        if error is not None and not self._was_used:
            refusal = error_of(error.condition, f"{self.endpoint.authority} {what}: {error.description}")
            if type(refusal) is not BusbarClientError and not refusal.retryable:
                problem = refusal
        self._over(problem)
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def _over(self, error: BusbarClientError) -> None:
        if self.error is not None:
            return
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
        if not self._begun.done():
            self._begun.set_exception(error)
            self._begun.exception()  # no call need be waiting for it
        for answer in self._attaching.values():
            if not answer.done():
                answer.set_exception(error)
        ends, self._ends = self._ends, {}
        for link, end in ends.items():
            if link not in self._attaching:
                end.ended(error)
        for task in self._tasks:
            task.cancel()

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run a task that ends with the connection at the latest."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def abort(self, error: BusbarClientError) -> None:
        self._over(error)
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        self._engine.close()
        self._flush()
        self._over(ConnectionLost("The connection was closed by its owner."))
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await asyncio.shield(self._lost)
        except TimeoutError:
            self._transport.abort()


def _now() -> int:
    return time.monotonic_ns() // 1_000_000
