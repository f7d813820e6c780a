"""One client connection: bytes to the engine, events to links, commands to the broker, effects back to links.

A turn is one read of the socket or one batch of effects. The output of a turn goes out once, at its end: commands in one
`submit`, frames in one `write`.

The connection is the one asyncio.Protocol, and owns the one timer of its deadlines. Each of its parts has one job:

    connection_links.py       its links, from attach to detach
    connection_origin.py      its commands, and the parts that get their effects
    connection_view.py        what operators see of it
    connection_deadlines.py   when it is closed because it is not used or not authenticated
    connection_tasks.py       its tasks
    read_control.py           when it reads from its socket
    sasl.py                   how its client logs in
    transactions.py           its transactions, which belong to it and not to one of its links
    grants.py                 what its tokens allow (in the folder above)

"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, cast

from busbar.amqp.connection import Connection, ConnectionConfig
from busbar.amqp.events import Closed, Event, Opened, SaslInit
from busbar.amqp.link import Link
from busbar.clock import wall_clock
from busbar.gateway.amqp.connection_deadlines import ConnectionDeadlines
from busbar.gateway.amqp.connection_links import ConnectionLinks
from busbar.gateway.amqp.connection_origin import ConnectionOrigin
from busbar.gateway.amqp.connection_tasks import ConnectionTasks
from busbar.gateway.amqp.connection_view import MAX_TEXT, address_text, product_of, shown_links
from busbar.gateway.amqp.link_connection import AnsweringLink
from busbar.gateway.amqp.read_control import ReadControl
from busbar.gateway.amqp.requests import LargeReplyLimiter
from busbar.gateway.amqp.sasl import MECHANISMS, SASL_AUTH, SASL_OK, log_in
from busbar.gateway.amqp.session_link import SessionLink
from busbar.gateway.amqp.transactions import ConnectionTransactions
from busbar.gateway.authority import Grant
from busbar.gateway.grants import Grants
from busbar.gateway.refused_tokens import host_of
from busbar.gateway.services import GatewayServices
from busbar.gateway.wake_timer import WakeTimer
from busbar.model.api import EntityView
from busbar.model.commands import Command
from busbar.model.connection_views import ConnectionView, LinkShown
from busbar.model.effects import Effect
from busbar.model.errors import QuotaExceeded, Unauthorized
from busbar.model.limits import Limits
from busbar.partitions.origin import CreditListener, DeliveryHandler, EffectHandler

if TYPE_CHECKING:
    from busbar.gateway.listening.connection_limiter import TrackedConnection

LONGEST_CLIENT_ID = 128
"""Characters that are kept of a client's container id: an unauthenticated client chooses it."""
CLOSE_TIMEOUT = 2.0
"""Seconds for the last frames to reach a client that is closed. After that the connection is aborted."""


class GatewayConnection(asyncio.Protocol):
    """Drives the engine of one client; implements `LinkConnection` for its links."""

    def __init__(self, tracked: TrackedConnection, service: GatewayServices) -> None:
        limits = service.limits
        self.service = service
        self.writable = True
        self.origin = 0
        self._tracked = tracked
        self._transport: asyncio.Transport | None = None
        self._engine = Connection(_engine_config(limits, service.container_id))
        self._broker = ConnectionOrigin(service.broker)
        self._grants = Grants(service, self)
        self._deadlines = ConnectionDeadlines(limits, wall_clock())
        self._tasks = ConnectionTasks()
        self._links = ConnectionLinks(service, self, self._tasks, self._deadlines)
        self._read_control = ReadControl(limits.max_uncommitted_bytes)
        self._wakes = WakeTimer(self.flush)
        self.transactions = ConnectionTransactions(limits, service.transactions, self._wakes.wake_at)
        self._pages: LargeReplyLimiter | None = None
        self._answering: list[AnsweringLink] = []
        self._id_base = ""
        self._ids_given = 0
        self._requests_under_way = 0
        self._last_answer = -math.inf
        self._client_id = ""
        self._is_surplus = False
        self._early: bytearray | None = None
        """What came before it was known whether there is room for the connection; None once that is known."""
        self._timer: asyncio.TimerHandle | None = None
        self.wake_at = self._wakes.wake_at
        self._since = wall_clock()
        self._container = ""
        self._product = ""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        self._read_control.use(transport)
        self.service.connections.add(self)
        transport.set_write_buffer_limits(high=1024 * 1024, low=256 * 1024)
        if self._tracked.admit(self):
            self.origin = self._broker.connect(self.effects, transport.abort)
        else:
            self._early = bytearray()
            self._read_control.set_admitted(False)
            self._tasks.spawn(self._await_admission(transport))
        self._set_timer()

    async def _await_admission(self, transport: asyncio.Transport) -> None:
        """Find out whether the namespace has room for this connection. Until then what its client sends is kept."""
        self._is_surplus = not await self._tracked.request(self)
        if not self._is_surplus:
            self.origin = self._broker.connect(self.effects, transport.abort)
        early, self._early = self._early, None
        self._read_control.set_admitted(True)
        if early:
            self.data_received(bytes(early))

    def data_received(self, data: bytes) -> None:
        if self._early is not None:
            self._early += data
            return
        now = wall_clock()
        self._handle(self._engine.receive_data(data, now), now)
        self._broker.replenish_retrying(now)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._read_control.use(None)
        self._tracked.closed(self)
        self.service.connections.remove(self)
        self.service.held_replies.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel()
        self._broker.discard_commands()
        self._links.release_undelivered()
        self._broker.disconnect()
        self.service.clients.ended(self.origin)
        self._links.close()
        self.transactions.close()
        self._grants.close()
        self._wakes.close()
        self._pages = None
        self._engine.release()

    def pause_writing(self) -> None:
        self.writable = False
        self._read_control.set_writable(False)

    def resume_writing(self) -> None:
        self.writable = True
        self._read_control.set_writable(True)
        self._broker.replenish_all(wall_clock())
        self.flush()

    # Of the broker and the gateway

    def effects(self, effects: list[Effect]) -> None:
        """Handle the broker's effects for this connection, in order."""
        self._broker.route(effects, wall_clock())
        self.flush()

    def entity_changed(self, path: str, view: EntityView | None) -> None:
        """Handle the change or deletion of an entity that links are to, or whose rules allowed them."""
        if self._grants.renew(path):
            self._deadlines.token_ended(wall_clock())
            self._links.end_unauthorized(self.may, "was signed with a rule that has been changed")
        self._links.entity_changed(path, view)
        self.flush()

    def stop_reading(self) -> None:
        """Take nothing more from the client: it gets the answers that are under way."""
        self._read_control.stop()

    @property
    def is_answered(self) -> bool:
        """Whether the broker has answered all that the client asked for."""
        return not self._broker.has_requests

    @property
    def last_request(self) -> float:
        """When the last request to a request-response node was answered, by the clock of the event loop. Infinite while one
        is under way."""
        return math.inf if self._requests_under_way else self._last_answer

    def shut_down(self) -> None:
        """Close the connection, with the reason that the broker stops."""
        self.end("amqp:connection:forced", "The broker is shutting down; connect again later.")

    def end(self, condition: str, text: str) -> None:
        """Close the connection, with the reason for the client."""
        if self._transport is not None:
            self._engine.close(condition, text)
            self._close()

    # Of operators (connection_registry.py)

    def shown(self) -> ConnectionView:
        transport = self._transport
        info = transport.get_extra_info if transport is not None else lambda _: None
        return ConnectionView(
            "",
            address_text(info("peername")),
            self._since,
            self.service.broker_name,
            self._container,
            self._product,
            self._grants.key_names,
            tls=info("ssl_object") is not None,
            websocket=info("websocket") is not None,
            slow=not self.writable,
        )

    def shown_links(self) -> Iterator[LinkShown]:
        return shown_links(self._links)

    # LinkConnection: commands and effects

    def command(self, command: Command) -> None:
        self._broker.command(command)

    def expect(self, who: EffectHandler) -> int:
        return self._broker.expect(who)

    def forget_request(self, number: int) -> None:
        self._broker.forget_request(number)

    async def ask(self, build: Callable[[int], Command]) -> Effect:
        effect = self._broker.ask(build)
        self.flush()
        return await effect

    def consumer(self, who: DeliveryHandler) -> int:
        return self._broker.consumer(who)

    def forget_consumer(self, number: int) -> None:
        self._broker.forget_consumer(number)

    def retry(self, who: CreditListener) -> None:
        self._broker.retry(who)

    def arriving(self, size: int) -> None:
        self._read_control.arriving(size)

    def request_begun(self, size: int) -> None:
        self._requests_under_way += 1
        self._read_control.arriving(size)

    def request_answered(self, size: int) -> None:
        self._requests_under_way -= 1
        self._last_answer = asyncio.get_running_loop().time()
        self._read_control.arriving(-size)

    # LinkConnection: links

    async def add_link_to(self, link: Link, path: str) -> bool:
        return await self._links.add_link_to(link, path)

    def end_link(self, link: Link, condition: str, text: str) -> None:
        self._links.end(link, condition, text)

    def held_session(self, path: str, session: str) -> SessionLink | None:
        return self._links.held_session(path, session)

    def session_holder(self, path: str, session: str) -> str:
        if self.held_session(path, session) is None:
            return ""
        return f"{self._client_id} at {self.address}"

    def replies_wait(self) -> bool:
        return self._links.replies_wait()

    # LinkConnection: the rest

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        return self._tasks.spawn(work)

    @property
    def is_authenticated(self) -> bool:
        return bool(self._grants)

    @property
    def address(self) -> str:
        return "" if self._transport is None else host_of(self._transport.get_extra_info("peername"))

    @property
    def pages(self) -> LargeReplyLimiter:
        if self._pages is None:
            self._pages = LargeReplyLimiter(self)
        return self._pages

    def hold_reply(self, size: int) -> None:
        self.service.held_replies.add(self, size, self.service.limits)

    def release_reply(self, size: int) -> None:
        self.service.held_replies.remove(self, size)

    def may(self, right: str, path: str) -> bool:
        return self._grants.may(right, path, wall_clock())

    def granted(self, grant: Grant) -> None:
        self._deadlines.has_changed = True
        if self._is_surplus:
            return  # it stays unauthenticated until it ends
        self._grants.add(grant)
        self._tracked.authenticated()

    def fresh_id(self) -> str:
        if not self._id_base:
            self._id_base = secrets.token_hex(8)
        self._ids_given += 1
        return f"{self._id_base}{self._ids_given:016x}"

    def flush(self) -> None:
        """End a turn: submit its commands, write its frames, and set the timer if a deadline has moved."""
        self.transactions.end_turn()
        self._answer()
        self._broker.submit()
        parts = self._engine.parts_to_send()
        data = self._engine.data_to_send() if parts is None else b""
        if self._transport is None:
            return
        if parts is not None:
            self._transport.writelines(parts)
        elif data:
            self._transport.write(data)
        if self._deadlines.has_changed:
            self._set_timer()

    def answer_at_end(self, who: AnsweringLink) -> None:
        self._answering.append(who)

    def _answer(self) -> None:
        if self._answering:
            answering, self._answering = self._answering, []
            for link in answering:
                link.answer()

    # Events

    def _handle(self, events: list[Event], now: int) -> None:
        for event in events:
            if not self._is_surplus and self._links.handle(event, self, now):
                continue
            if isinstance(event, SaslInit):
                self._authenticate(event, now)
            elif isinstance(event, Opened):
                self._container = event.container_id[:MAX_TEXT]
                self._product = product_of(event.properties)
                # Not used otherwise, and an unauthenticated client could fill it.
                self._engine.remote_properties = {}
                self.service.clients.opened(self.origin, event.container_id, self.address)
                self._client_id = event.container_id[:LONGEST_CLIENT_ID]
                self._deadlines.has_changed = True
                if self._is_surplus:
                    self._refuse()
            elif isinstance(event, Closed):
                self._close()

    def _refuse(self) -> None:
        """Close a connection beyond the limit of the namespace, with the reason; its frames after the open are ignored.

        The socket stays open for a moment. A client that still writes would otherwise get a broken pipe, and not the reason.
        """
        most = self.service.limits.max_connections
        self._engine.close(
            QuotaExceeded.condition,
            f"The namespace has {most} AMQP connections; more are not allowed. Share or close connections, "
            "or use HTTP, which is not counted.",
        )
        self._abort_later()

    def _authenticate(self, event: SaslInit, now: int) -> None:
        try:
            grant = log_in(event, self.service.authority, self.address, now)
        except Unauthorized:
            self._engine.sasl_outcome(SASL_AUTH)
            self._close()
            return
        if grant is not None:
            self.granted(grant)
        self._engine.sasl_outcome(SASL_OK)

    def _close(self) -> None:
        """Write the last frames and close; `connection_lost` follows, at the latest after CLOSE_TIMEOUT."""
        self.flush()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._abort_later()

    def _abort_later(self) -> None:
        if self._transport is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT, self._transport.abort)

    # Time

    def _set_timer(self) -> None:
        """Set the timer for the next of all times of this connection: heartbeats, idleness, ends of tokens."""
        self._deadlines.has_changed = False
        if self._transport is None or self._transport.is_closing():
            return
        if self._is_surplus and self._engine.is_open:
            return  # it was refused, and has its last timer
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = wall_clock()
        times = self._grants.ends() + self._deadlines.pending(bool(self._grants), bool(self._links))
        heartbeat = self._engine.next_tick(now)
        if heartbeat:
            times.append(heartbeat)
        if times:
            delay = max(0.01, (min(times) - now) / 1000)
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = wall_clock()
        self._handle(self._engine.tick(now), now)
        reason = self._deadlines.reason_to_close(bool(self._grants), bool(self._links), now)
        if reason is not None:
            self._engine.close("amqp:connection:forced", reason)
            self._close()
        elif self._grants.expire(now):
            # The links end. The client may put another token as it did at first.
            self._deadlines.token_ended(now)
            self._links.end_unauthorized(self.may, "has expired; put a new one to $cbs")
        self._deadlines.has_changed = True
        self.flush()


def _engine_config(limits: Limits, container_id: str) -> ConnectionConfig:
    return ConnectionConfig(
        server=True,
        container_id=container_id,
        max_frame_size=limits.max_frame_size,
        idle_timeout=limits.idle_timeout,
        mechanisms=MECHANISMS,
        max_sessions=limits.max_sessions,
        max_links=limits.max_links,
        max_message_size=limits.max_message_size,
        # Half-sent messages weigh as much as those that are not durable yet, and at least two must fit.
        max_partial_bytes=max(limits.max_uncommitted_bytes, 2 * limits.max_message_size),
    )
