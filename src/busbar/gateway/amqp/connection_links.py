"""The links of one client connection, from attach to detach.

A link goes through these steps:

    attaching     PendingLink     its attach is decided in a task, which may wait long for a message session
    attached      GatewayLink     what it became (attach.py)
    gone          -               detached by the client or by the gateway, or its AMQP session has ended

Rules:
1. Deliveries that the client sends ahead on a link that is being attached are kept, MAX_EARLY of them at most. The link
   takes them when it is attached.
2. A link counts for its entity from the time that the entity is found until the link is gone.
3. A link ends with its entity, with what the entity allows, and with the token that allowed it.
4. A reply link serves the requests of its own AMQP session only.

A new kind of link is a class of its own, which `attach` returns. It joins the unions of attach.py for the events that it
takes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from busbar.amqp.events import (
    Arrived,
    CreditChanged,
    Delivery,
    Disposed,
    Event,
    LinkAttaching,
    LinkDetached,
    SessionEnded,
    SettledDisposed,
)
from busbar.amqp.link import Link
from busbar.clock import wall_clock
from busbar.gateway.address import node_of
from busbar.gateway.amqp.attach import (
    CreditedLink,
    DeliveringLink,
    GatewayLink,
    MessageLink,
    RepliesByNode,
    attach,
)
from busbar.gateway.amqp.connection_deadlines import ConnectionDeadlines
from busbar.gateway.amqp.connection_tasks import ConnectionTasks
from busbar.gateway.amqp.incoming import IncomingLink
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.amqp.outgoing import OutgoingLink
from busbar.gateway.amqp.pending import PendingLink
from busbar.gateway.amqp.requests import ReplyLink
from busbar.gateway.amqp.session_link import SessionLink
from busbar.gateway.entity_checks import check_can_receive, check_can_send
from busbar.gateway.link_registry import EntityListener
from busbar.gateway.services import GatewayServices
from busbar.model.api import EntityView
from busbar.model.errors import BusbarError, EntityNotFound, InvalidOperation, ServerBusy, Unauthorized
from busbar.model.message import ACTIVE
from busbar.model.names import key_of
from busbar.model.sas import LISTEN, SEND

log = logging.getLogger(__name__)

MAX_EARLY = 1_000
CLOSED = "The connection is closed."
SETTLED_BEFORE = "The delivery is settled already, as in ReceiveAndDelete. Transactions need PeekLock."


class AttachedLink(NamedTuple):
    """What a link became, and the right on a path that it rests on (none: it needs no right while it is open)."""

    end: GatewayLink
    path: str
    right: str


class ConnectionLinks:
    """The links of a connection. `holder` is called when an entity changes that a link is to."""

    __slots__ = (
        "_attached",
        "_deadlines",
        "_entities",
        "_holder",
        "_pending",
        "_replies",
        "_service",
        "_tasks",
    )

    def __init__(
        self,
        service: GatewayServices,
        holder: EntityListener,
        tasks: ConnectionTasks,
        deadlines: ConnectionDeadlines,
    ) -> None:
        self._service = service
        self._holder: EntityListener | None = holder
        self._tasks = tasks
        self._deadlines = deadlines
        self._pending: dict[Link, PendingLink] = {}
        self._attached: dict[Link, AttachedLink] = {}
        self._entities: dict[Link, list[str]] = {}
        """The paths of the entities of all links, also of those that are being attached. A via link has two."""
        self._replies: dict[object, RepliesByNode] = {}

    def __bool__(self) -> bool:
        return bool(self._attached) or bool(self._pending)

    def attached(self) -> list[tuple[Link, AttachedLink]]:
        """The links that are attached, and what they became."""
        return [*self._attached.items()]

    def release_undelivered(self) -> None:
        """Have the fragments unlock what the client has not got, since the connection is lost."""
        for attached in self._attached.values():
            if isinstance(attached.end, OutgoingLink):
                attached.end.vanished()

    def close(self) -> None:
        """Release all links, their entities and the holder, since the connection is gone."""
        for link in [*self._entities]:
            self._leave_entities(link)
        self._holder = None
        self._attached.clear()
        self._pending.clear()
        self._replies.clear()

    # Events of the engine

    def handle(self, event: Event, peer: LinkConnection, now: int) -> bool:
        """Handle an event that concerns links; False if it is of another kind."""
        if isinstance(event, Arrived):
            self._arrived(event.link, event.deliveries)
        elif isinstance(event, Disposed):
            end = event.link.user
            if isinstance(end, OutgoingLink):
                end.disposed(event.ids, event.tags, event.settled, event.outcome, now)
        elif isinstance(event, CreditChanged):
            end = event.link.user
            if isinstance(end, CreditedLink):
                end.credit_changed(event.drain, now)
        elif isinstance(event, LinkAttaching):
            self._begin_attach(event.link, peer)
        elif isinstance(event, LinkDetached):
            self._detached(event.link)
        elif isinstance(event, SessionEnded):
            self._session_ended(event.session)
            peer.transactions.session_ended(event.session)
        elif isinstance(event, SettledDisposed):
            event.session.deny_settled(event.first, event.last, InvalidOperation.condition, SETTLED_BEFORE)
        else:
            return False
        return True

    def _arrived(self, link: Link, deliveries: list[Delivery]) -> None:
        end = link.user
        if isinstance(end, DeliveringLink):
            end.arrived(deliveries)
        elif isinstance(end, PendingLink):
            end.early.extend(deliveries)
            if len(end.early) > MAX_EARLY:
                end.gone = True
                end.early.clear()
                link.detach(
                    "amqp:link:transfer-limit-exceeded", "Too many deliveries before the link was attached."
                )

    # Attach

    def _begin_attach(self, link: Link, peer: LinkConnection) -> None:
        peer.transactions.attaching(link)
        pending = PendingLink()
        link.user = pending
        self._pending[link] = pending
        pending.task = self._tasks.spawn(self._attach(link, pending, peer))

    async def _attach(self, link: Link, pending: PendingLink, peer: LinkConnection) -> None:
        try:
            end = await self._decide(link, pending, peer)
        except asyncio.CancelledError:
            self._leave_entities(link)
            peer.flush()
            raise
        except BusbarError as error:
            self._refuse(link, pending, error, peer.address)
            peer.flush()
            return
        if pending.gone:
            self._leave_entities(link)
            end.closed()
        else:
            self._open(link, pending, end)
        peer.flush()

    async def _decide(self, link: Link, pending: PendingLink, peer: LinkConnection) -> GatewayLink:
        """Decide what the link becomes. While this waits for a message session, the gateway may refuse the link."""
        try:
            return await attach(peer, link, self._replies.setdefault(link.session, {}))
        except asyncio.CancelledError:
            if pending.refused is None:
                raise
            raise pending.refused from None
        finally:
            self._pending.pop(link, None)

    def _refuse(self, link: Link, pending: PendingLink, error: BusbarError, client: str) -> None:
        self._service.refusals.add(error.condition)
        if log.isEnabledFor(logging.DEBUG):
            address = link.source if link.sending else link.target
            said = {
                "address": client,
                "entity": node_of(None if address is None else address.address).resource,
                "tracking_id": self._service.tracking.removeprefix("Reference:"),
            }
            log.debug("link refused with %s: %r", error.condition, error.text, extra=said)
        self._leave_entities(link)
        if not pending.gone:
            link.user = None
            link.refuse(error.condition, f"{error.text} {self._service.tracking}")

    def _open(self, link: Link, pending: PendingLink, end: GatewayLink) -> None:
        link.user = end
        link.shed()
        if isinstance(end, MessageLink):
            address = link.source if link.sending else link.target
            path = node_of(None if address is None else address.address).resource
            self._attached[link] = AttachedLink(end, path, LISTEN if link.sending else SEND)
        else:
            self._attached[link] = AttachedLink(end, "", "")
        end.opened(wall_clock())
        if pending.early and isinstance(end, DeliveringLink):
            end.arrived(pending.early)

    # Detach

    def end(self, link: Link, condition: str, text: str) -> None:
        """Detach a link, with the reason for the client."""
        self._service.refusals.add(condition)
        link.detach(condition, text)
        self._detached(link)

    def _detached(self, link: Link) -> None:
        end = link.user
        link.user = None
        if isinstance(end, PendingLink):
            self._pending.pop(link, None)
            end.give_up()
        elif isinstance(end, GatewayLink):
            end.closed()
            self._leave_entities(link)
            self._attached.pop(link, None)
            if isinstance(end, ReplyLink):
                for siblings in self._replies.get(link.session, {}).values():
                    if end in siblings:
                        siblings.remove(end)
        if not self._attached:
            self._deadlines.last_link_ended(wall_clock())

    def _session_ended(self, session: object) -> None:
        self._replies.pop(session, None)
        for link in [link for link in (*self._attached, *self._pending) if link.session is session]:
            self._detached(link)

    # Entities and rights

    async def add_link_to(self, link: Link, path: str) -> bool:
        """Count the link for the entity. Whether that had to wait. Raises QuotaExceeded, or ServerBusy after the end of the
        connection."""
        holder = self._holder
        if holder is None:
            raise ServerBusy(CLOSED)
        waited = await self._service.attached.add_link(path, holder)
        if self._holder is None:  # it has ended meanwhile
            self._service.attached.remove_link(path, holder)
            raise ServerBusy(CLOSED)
        self._entities.setdefault(link, []).append(path)
        self._service.broker.in_use((path,))  # at once: it may have been about to be deleted as idle
        return waited

    def _leave_entities(self, link: Link) -> None:
        for path in self._entities.pop(link, ()):
            if self._holder is not None and self._service.attached.remove_link(path, self._holder):
                self._service.broker.out_of_use((path,))

    def entity_changed(self, path: str, view: EntityView | None) -> None:
        """End the links that the entity does not allow any more; `view` is None if it was deleted."""
        key = key_of(path)
        for link, entities in list(self._entities.items()):
            if key not in [key_of(entity) for entity in entities]:
                continue
            pending = self._pending.get(link)
            if pending is not None:
                # Only a receiver waits, for a message session. A sender is checked when its attach is decided.
                error = _reason_to_end(path, view, receives_from=ACTIVE if link.sending else None)
                if error is not None:
                    pending.refuse(error)
                continue
            attached = self._attached.get(link)
            if attached is None:
                continue
            end = attached.end
            receives_from = end.sub if isinstance(end, OutgoingLink) else None
            is_sender = isinstance(end, IncomingLink)
            error = _reason_to_end(path, view, receives_from=receives_from, is_sender=is_sender)
            if error is not None:
                self.end(link, error.condition, f"{error.text} {self._service.tracking}")

    def end_unauthorized(self, may: Callable[[str, str], bool], why: str) -> None:
        """End the links whose right is not granted any more."""
        for link, attached in list(self._attached.items()):
            if attached.right and not may(attached.right, attached.path):
                self.end(link, Unauthorized.condition, f"The token for '{attached.path}' {why}.")

    # Questions of links about others

    def held_session(self, path: str, session: str) -> SessionLink | None:
        for attached in self._attached.values():
            end = attached.end
            if isinstance(end, SessionLink) and end.session == session and end.path == path:
                return end
        return None

    def replies_wait(self) -> bool:
        return any(
            isinstance(attached.end, ReplyLink) and attached.end.waiting
            for attached in self._attached.values()
        )


def _reason_to_end(
    path: str, view: EntityView | None, *, receives_from: int | None, is_sender: bool = False
) -> BusbarError | None:
    """Why a link cannot stay after a change of its entity. A receiver names its sub-queue."""
    if view is None:
        return EntityNotFound(path)
    try:
        if is_sender:
            check_can_send(view, False)
        if receives_from is not None:
            check_can_receive(view, receives_from)
    except BusbarError as error:
        return error
    return None
