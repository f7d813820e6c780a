"""One client connection: bytes to the engine, events to links, commands to the broker, effects back to links.

A turn is one read of the socket or one batch of effects. What a turn has to say goes out once, at its end: commands in
one `submit`, frames in one `write`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, cast

from busbar.amqp.connection import Connection, ConnectionConfig
from busbar.amqp.events import (
    Arrived,
    Closed,
    CreditChanged,
    Delivery,
    Disposed,
    Event,
    LinkAttaching,
    LinkDetached,
    Opened,
    SaslInit,
    SessionEnded,
)
from busbar.amqp.link import Link
from busbar.clock import wall_clock
from busbar.gateway.address import node_of
from busbar.gateway.amqp.attach import GatewayLink, RepliesByNode, attach
from busbar.gateway.amqp.incoming import IncomingLink
from busbar.gateway.amqp.outgoing import OutgoingLink
from busbar.gateway.amqp.pending import PendingEffect, PendingLink
from busbar.gateway.amqp.requests import LargeReplyLimiter, ReplyLink, RequestLink
from busbar.gateway.amqp.session_link import SESSION_LOCK_LOST, SessionConsumer, SessionLink
from busbar.gateway.authority import Grant
from busbar.gateway.entity_checks import check_can_receive, check_can_send
from busbar.gateway.grants import Grants
from busbar.gateway.refused_tokens import host_of
from busbar.gateway.services import GatewayServices
from busbar.gateway.wake_timer import WakeTimer
from busbar.model.api import EntityView
from busbar.model.commands import Command
from busbar.model.effects import Delivered, Drained, Effect, SessionLost
from busbar.model.errors import (
    BusbarError,
    EntityNotFound,
    ServerBusy,
    SessionLockLost,
    Unauthorized,
)
from busbar.model.names import key_of
from busbar.partitions.demands import release_of
from busbar.partitions.origin import CreditListener, DeliveryHandler, EffectHandler

if TYPE_CHECKING:
    from busbar.gateway.listening.connection_limiter import TrackedConnection

log = logging.getLogger(__name__)

MECHANISMS = ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"]
SASL_OK, SASL_AUTH = 0, 1
MAX_EARLY = 1_000
"""Deliveries that a client may send on a link before its attach is answered."""
CLOSE_WAIT = 2.0
"""Seconds for the last frames to reach a client that is closed; one that does not read is cut off then."""
LINKLESS_WAIT = 300_000
"""A connection whose links are all gone is closed after this time."""


class GatewayConnection(asyncio.Protocol):
    """Drives the engine of one client; implements `LinkConnection` for its links."""

    def __init__(self, tracked: TrackedConnection, service: GatewayServices) -> None:
        limits = service.limits
        self.service = service
        self.writable = True
        self.origin = 0
        self._pages: LargeReplyLimiter | None = None
        self._tracked = tracked
        self._loop = asyncio.get_running_loop()
        self._engine = Connection(
            ConnectionConfig(
                server=True,
                container_id=service.container_id,
                max_frame_size=limits.max_frame_size,
                idle_timeout=limits.idle_timeout,
                mechanisms=MECHANISMS,
                max_sessions=limits.max_sessions,
                max_links=limits.max_links,
                max_message_size=limits.max_message_size,
                # Half-sent messages weigh as much as those that are not durable yet, and at least two must fit.
                max_partial_bytes=max(limits.max_uncommitted_bytes, 2 * limits.max_message_size),
            )
        )
        self._transport: asyncio.Transport | None = None
        self._commands: list[Command] = []
        self._requests: dict[int, EffectHandler] = {}
        self._last_request = 0
        self._consumers: dict[int, DeliveryHandler] = {}
        self._last_consumer = 0
        self._retrying: list[CreditListener] = []
        self._grants = Grants(service, self)
        self._replies: dict[object, RepliesByNode] = {}
        self._links: dict[Link, tuple[GatewayLink, str, str]] = {}
        self._pending: dict[Link, PendingLink] = {}
        self._occupied: dict[Link, str] = {}  # the entities of links, also of those not attached yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._arriving = 0
        self._reading = True
        self._id_base = ""
        self._ids_given = 0
        self._since = wall_clock()
        self._linkless_since = self._since
        self._tokenless_since = self._since
        self._timer: asyncio.TimerHandle | None = None
        self._wakes = WakeTimer(self.flush)
        self.wake_at = self._wakes.wake_at

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=1024 * 1024, low=256 * 1024)
        if not self._tracked.admit(self):
            transport.abort()
            return
        self.origin = self.service.broker.connect(self.effects, transport.abort)
        self._arm()

    def data_received(self, data: bytes) -> None:
        now = wall_clock()
        self._handle(self._engine.receive_data(data, now), now)
        if self._retrying:
            retrying, self._retrying = self._retrying, []
            for consumer in retrying:
                consumer.replenish(now)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._tracked.closed(self)
        self.service.held_replies.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._commands.clear()
        for end, _path, _right in self._links.values():
            if isinstance(end, OutgoingLink):
                end.vanished()
        if self.origin:
            if self._commands:
                self.service.broker.submit(self._commands)
            self.service.broker.disconnect(self.origin)
        for link in [*self._occupied]:
            self._remove_link_to(link)
        self._grants.close()
        self._wakes.close()
        self._links.clear()
        self._pending.clear()
        self._requests.clear()
        self._consumers.clear()
        self._retrying.clear()
        self._replies.clear()
        self._commands = []
        self._pages = None
        self._engine.release()

    def pause_writing(self) -> None:
        self.writable = False
        self._update_reading()

    def resume_writing(self) -> None:
        self.writable = True
        self._update_reading()
        now = wall_clock()
        for consumer in self._consumers.values():
            consumer.replenish(now)
        self.flush()

    def shut_down(self) -> None:
        """Tell the client that the broker stops, and close."""
        self.end("amqp:connection:forced", "The broker is shutting down; connect again later.")

    def end(self, condition: str, text: str) -> None:
        """Close the connection, and tell the client why."""
        if self._transport is not None:
            self._engine.close(condition, text)
            self._close()

    # Effects

    def effects(self, effects: list[Effect]) -> None:
        """The broker's effects for this connection, in order."""
        now = wall_clock()
        for effect in effects:
            if isinstance(effect, Delivered):
                consumer = self._consumers.get(effect.consumer)
                if consumer is not None:
                    consumer.delivered(effect, now)
                elif effect.until:
                    self.command(release_of(effect.fragment, self.origin, effect.records, effect.nonce))
            elif isinstance(effect, Drained):
                consumer = self._consumers.get(effect.consumer)
                if consumer is not None:
                    consumer.drained(now)
            elif isinstance(effect, SessionLost):
                self.session_lost(effect.consumer)
            elif effect.request:
                waiting = self._requests.pop(effect.request, None)
                if waiting is not None:
                    waiting.answered(effect, now)
        self.flush()

    # LinkConnection

    @property
    def pages(self) -> LargeReplyLimiter:
        if self._pages is None:
            self._pages = LargeReplyLimiter(self)
        return self._pages

    def command(self, command: Command) -> None:
        self._commands.append(command)

    def expect(self, who: EffectHandler) -> int:
        self._last_request += 1
        self._requests[self._last_request] = who
        return self._last_request

    async def ask(self, build: Callable[[int], Command]) -> Effect:
        future: asyncio.Future[Effect] = self._loop.create_future()
        self.command(build(self.expect(PendingEffect(future))))
        self.flush()
        return await future

    def consumer(self, who: DeliveryHandler) -> int:
        self._last_consumer += 1
        self._consumers[self._last_consumer] = who
        return self._last_consumer

    def forget_consumer(self, number: int) -> None:
        self._consumers.pop(number, None)

    def forget_request(self, number: int) -> None:
        self._requests.pop(number, None)

    def session_lost(self, consumer: int) -> None:
        seat = self._consumers.get(consumer)
        if isinstance(seat, SessionConsumer):
            seat.lost = True
            link = seat.link
            if link is not None:
                link.detach(SessionLockLost.condition, f"{SESSION_LOCK_LOST} {self.service.tracking}")
                self._detached(link)

    def held_session(self, path: str, session: str) -> SessionLink | None:
        for end, _path, _right in self._links.values():
            if isinstance(end, SessionLink) and end.session == session and end.path == path:
                return end
        return None

    def replies_wait(self) -> bool:
        return any(isinstance(end, ReplyLink) and end.waiting for end, _path, _right in self._links.values())

    def hold_reply(self, size: int) -> None:
        self.service.held_replies.add(self, size, self.service.limits)

    def release_reply(self, size: int) -> None:
        self.service.held_replies.remove(self, size)

    def retry(self, who: CreditListener) -> None:
        self._retrying.append(who)

    def arriving(self, size: int) -> None:
        self._arriving += size
        self._update_reading()

    def _update_reading(self) -> None:
        """Read while what arrived becomes durable in time, and while the client reads what it is answered."""
        if self._transport is None:
            return
        limit = self.service.limits.max_uncommitted_bytes
        if self._reading and (self._arriving > limit or not self.writable):
            self._reading = False
            self._transport.pause_reading()
        elif not self._reading and self.writable and self._arriving <= limit // 2:
            self._reading = True
            self._transport.resume_reading()

    def may(self, right: str, path: str) -> bool:
        return self._grants.may(right, path, wall_clock())

    @property
    def address(self) -> str:
        return "" if self._transport is None else host_of(self._transport.get_extra_info("peername"))

    def granted(self, grant: Grant) -> None:
        self._grants.add(grant)
        self._tracked.authenticated()
        self._arm()

    def add_link_to(self, link: Link, path: str) -> None:
        if self._transport is None:
            raise ServerBusy("The connection is closed.")
        self.service.attached.add_link(path, self)
        self._occupied[link] = path
        self.service.broker.in_use((path,))  # at once: it may have been about to be deleted as idle

    def _remove_link_to(self, link: Link) -> None:
        path = self._occupied.pop(link, None)
        if path is not None and self.service.attached.remove_link(path, self):
            self.service.broker.out_of_use((path,))

    def fresh_id(self) -> str:
        if not self._id_base:
            self._id_base = secrets.token_hex(8)
        self._ids_given += 1
        return f"{self._id_base}{self._ids_given:016x}"

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def flush(self) -> None:
        if self._commands:
            commands, self._commands = self._commands, []
            self.service.broker.submit(commands)
        parts = self._engine.parts_to_send()
        data = self._engine.data_to_send() if parts is None else b""
        if self._transport is None:
            return
        if parts is not None:
            self._transport.writelines(parts)
        elif data:
            self._transport.write(data)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a request failed in the gateway", exc_info=task.exception())

    # Events

    def _handle(self, events: list[Event], now: int) -> None:
        for event in events:
            if isinstance(event, Arrived):
                self._arrived(event.link, event.deliveries)
            elif isinstance(event, Disposed):
                link = event.link.user
                if isinstance(link, OutgoingLink):
                    link.disposed(event.ids, event.tags, event.settled, event.outcome, now)
            elif isinstance(event, CreditChanged):
                link = event.link.user
                if isinstance(link, OutgoingLink | ReplyLink):
                    link.credit_changed(event.drain, now)
            elif isinstance(event, LinkAttaching):
                self._attaching(event.link)
            elif isinstance(event, LinkDetached):
                self._detached(event.link)
            elif isinstance(event, SessionEnded):
                self._ended(event.session)
            elif isinstance(event, SaslInit):
                self._authenticate(event)
            elif isinstance(event, Opened):
                self._engine.remote_properties = {}  # read by nobody, and kept by whoever has proven nothing yet
                self._arm()
            elif isinstance(event, Closed):
                self._close()

    def _arrived(self, link: Link, deliveries: list[Delivery]) -> None:
        end = link.user
        if isinstance(end, IncomingLink | RequestLink):
            end.arrived(deliveries)
        elif isinstance(end, PendingLink):
            end.early.extend(deliveries)
            if len(end.early) > MAX_EARLY:
                end.gone = True
                end.early.clear()
                link.detach(
                    "amqp:link:transfer-limit-exceeded", "Too many deliveries before the link was attached."
                )

    def _attaching(self, link: Link) -> None:
        pending = PendingLink()
        link.user = pending
        self._pending[link] = pending
        pending.task = self.spawn(self._attach_async(link, pending))

    async def _attach_async(self, link: Link, pending: PendingLink) -> None:
        session = link.session
        replies = self._replies.setdefault(session, {})
        try:
            end = await self._attach(link, pending, replies)
        except asyncio.CancelledError:
            self._remove_link_to(link)
            self.flush()
            raise
        except BusbarError as error:
            log.debug("link refused with %s: %r", error.condition, error.text)
            self._remove_link_to(link)
            if not pending.gone:
                link.user = None
                link.refuse(error.condition, f"{error.text} {self.service.tracking}")
            self.flush()
            return
        if pending.gone:
            self._remove_link_to(link)
            end.closed()
            self.flush()
            return
        link.user = end
        link.shed()
        if isinstance(end, IncomingLink | OutgoingLink):
            address = link.source if link.sending else link.target
            path = node_of(None if address is None else address.address).resource
            self._links[link] = (end, path, "Listen" if link.sending else "Send")
        else:
            self._links[link] = (end, "", "")
        end.opened(wall_clock())
        if pending.early and isinstance(end, IncomingLink | RequestLink):
            end.arrived(pending.early)
        self.flush()

    async def _attach(self, link: Link, pending: PendingLink, replies: RepliesByNode) -> GatewayLink:
        """Some wait in here for long, and may be called off meanwhile."""
        try:
            return await attach(self, link, replies)
        except asyncio.CancelledError:
            if pending.refused is None:
                raise
            raise pending.refused from None
        finally:
            self._pending.pop(link, None)

    def _detached(self, link: Link) -> None:
        end = link.user
        link.user = None
        if isinstance(end, PendingLink):
            self._pending.pop(link, None)
            end.give_up()
        elif isinstance(end, IncomingLink | OutgoingLink | RequestLink | ReplyLink):
            end.closed()
            self._remove_link_to(link)
            self._links.pop(link, None)
            if isinstance(end, ReplyLink):
                for siblings in self._replies.get(link.session, {}).values():
                    if end in siblings:
                        siblings.remove(end)
        if not self._links:
            self._linkless_since = wall_clock()
            self._arm()

    def _ended(self, session: object) -> None:
        self._replies.pop(session, None)
        for link in [link for link in (*self._links, *self._pending) if link.session is session]:
            self._detached(link)

    def _authenticate(self, event: SaslInit) -> None:
        if event.mechanism == "PLAIN":
            parts = event.response.split(b"\0")
            try:
                if len(parts) != 3:
                    raise Unauthorized("A PLAIN response has three parts.")
                name, key = parts[1].decode(), parts[2].decode()
                self.granted(self.service.authority.verify_password(name, key))
            except (BusbarError, UnicodeDecodeError) as error:
                rule = parts[1].decode("utf-8", "replace") if len(parts) == 3 else ""
                reason = error.text if isinstance(error, BusbarError) else "It is not UTF-8."
                self.service.authority.refused.password(self.address, rule, reason, wall_clock())
                self._engine.sasl_outcome(SASL_AUTH)
                self._close()
                return
        elif event.mechanism not in MECHANISMS:
            self._engine.sasl_outcome(SASL_AUTH)
            self._close()
            return
        self._engine.sasl_outcome(SASL_OK)

    def _close(self) -> None:
        """Say what is left to say, and leave; `connection_lost` follows, at the latest when the wait is over."""
        self.flush()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(CLOSE_WAIT, self._transport.abort)

    # Time

    def _arm(self) -> None:
        """One timer for everything that time brings to this connection: heartbeats, idleness, tokens that end."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = wall_clock()
        at = [deadline for deadline in (self._engine.next_tick(now), *self._deadlines()) if deadline]
        if at:
            self._timer = self._loop.call_later(max(0.01, (min(at) - now) / 1000), self._tick)

    def _deadlines(self) -> list[int]:
        limits = self.service.limits
        deadlines = self._grants.ends()
        if not self._grants:
            deadlines.append(self._tokenless_since + limits.token_timeout)
        if not self._links and not self._pending:
            deadlines.append(self._linkless_deadline())
        return deadlines

    def _linkless_deadline(self) -> int:
        never_had_one = self._linkless_since == self._since
        return self._linkless_since + (
            self.service.limits.first_link_timeout if never_had_one else LINKLESS_WAIT
        )

    def _tick(self) -> None:
        self._timer = None
        now = wall_clock()
        self._handle(self._engine.tick(now), now)
        if not self._grants and now >= self._tokenless_since + self.service.limits.token_timeout:
            self._engine.close(
                "amqp:connection:forced", "No token was put in time; put one to $cbs after connecting."
            )
            self._close()
        elif not (self._links or self._pending) and now >= self._linkless_deadline():
            self._engine.close("amqp:connection:forced", "The connection has had no link for too long.")
            self._close()
        else:
            self._expire(now)
        self.flush()
        self._arm()

    def _expire(self, now: int) -> None:
        """Tokens that have ended take their links with them; the client may put another one as it did at first."""
        if not self._grants.expire(now):
            return
        self._tokenless_since = now
        self._end_unauthorized("has expired; put a new one to $cbs")

    def _end_unauthorized(self, why: str) -> None:
        for link, (_end, path, right) in list(self._links.items()):
            if right and not self.may(right, path):
                link.detach(Unauthorized.condition, f"The token for '{path}' {why}.")
                self._detached(link)

    # Entities

    def entity_changed(self, path: str, view: EntityView | None) -> None:
        """Links end with their entity, with what it allows, and with the rules that allowed them."""
        if self._grants.renew(path):
            self._tokenless_since = wall_clock()
            self._end_unauthorized("was signed with a rule that has been changed")
        key = key_of(path)
        for link, occupied in list(self._occupied.items()):
            if key_of(occupied) != key:
                continue
            if link in self._pending:
                self._reconsider(self._pending[link], link.sending, path, view)
                continue
            held = self._links.get(link)
            error = None if held is None else _ending(held[0], path, view)
            if error is not None:
                link.detach(error.condition, f"{error.text} {self.service.tracking}")
                self._detached(link)
        self.flush()
        self._arm()

    def _reconsider(self, pending: PendingLink, sending: bool, path: str, view: EntityView | None) -> None:
        """A link that waits for a session does not wait for what cannot come any more."""
        try:
            if view is None:
                raise EntityNotFound(path)
            if sending:
                check_can_receive(view)
        except BusbarError as error:
            pending.refuse(error)


def _ending(end: GatewayLink, path: str, view: EntityView | None) -> BusbarError | None:
    """Why a link cannot stay after a change of its entity."""
    if view is None:
        return EntityNotFound(path)
    try:
        if isinstance(end, IncomingLink):
            check_can_send(view, False)
        elif isinstance(end, OutgoingLink):
            check_can_receive(view)
    except BusbarError as error:
        return error
    return None
