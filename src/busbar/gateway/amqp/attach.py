"""Decides what a link that a client attaches becomes, or why it is refused.

    who sends   address                 becomes
    client      $cbs, x/$management     RequestLink
    broker      $cbs, x/$management     ReplyLink
    client      queue, topic            IncomingLink    needs Send
    client      either, with a
                destination             ViaLink         needs Send on both
    client      a coordinator           CoordinatorLink
    broker      queue or subscription,
                its dead letters        OutgoingLink    needs Listen
    broker      either with sessions    SessionLink     needs Listen; waits for a session

The right is checked before the entity is looked up: a client that may not use a name does not learn whether it exists. It is
checked again after the wait for a session. On an AMQP session that crosses entities, transactions.py decides which links are
allowed.
"""

from __future__ import annotations

from busbar.amqp.link import Link
from busbar.gateway.address import Node, NodeKind, node_of
from busbar.gateway.amqp.cbs import MAX_REQUEST, TokenNode
from busbar.gateway.amqp.coordinator import MAX_REQUEST as MAX_COORDINATOR_REQUEST
from busbar.gateway.amqp.coordinator import CoordinatorLink
from busbar.gateway.amqp.incoming import DUPLICATES, MIXED_BATCHES, IncomingLink
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.amqp.management import ManagementNode
from busbar.gateway.amqp.outgoing import OutgoingLink
from busbar.gateway.amqp.requests import ReplyLink, RequestLink
from busbar.gateway.amqp.session_accepting import accept_named, accept_next
from busbar.gateway.amqp.session_filter import SessionFilter, locked_until, session_wish, wait_of
from busbar.gateway.amqp.session_link import SESSION_LOCK_LOST, SessionConsumer, SessionLink
from busbar.gateway.amqp.via_link import ViaLink
from busbar.gateway.amqp.writer_properties import BATCH, WRITER, writer_of_link
from busbar.gateway.entity_checks import (
    TRANSFER_DESTINATION,
    check_can_receive,
    check_can_send,
    check_has_messages,
    destination_of,
    message_size,
    requires_session,
)
from busbar.model.api import EntityView
from busbar.model.entities import Tier
from busbar.model.errors import (
    ArgumentError,
    BusbarError,
    InvalidOperation,
    SessionLockLost,
    Unauthorized,
)
from busbar.model.names import key_of
from busbar.model.partitioning import index_of_key
from busbar.model.sas import LISTEN, SEND

GatewayLink = IncomingLink | OutgoingLink | RequestLink | ReplyLink | CoordinatorLink
"""Every kind of link: it can be opened and closed."""
MessageLink = IncomingLink | OutgoingLink
"""Links to messages of an entity: they need a right as long as they are open."""
DeliveringLink = IncomingLink | RequestLink | CoordinatorLink
"""Links on which the client delivers."""
CreditedLink = OutgoingLink | ReplyLink
"""Links on which the client gives credit."""
RepliesByNode = dict[str, list[ReplyLink]]
"""The reply links of one AMQP session, by the node they belong to."""

MAX_ADDRESS = 2_048
"""Characters of an address of either end; it is kept for as long as the link lives."""
SETTLED = 1
"""snd-settle-mode: the broker settles as it sends, which is ReceiveAndDelete."""


DEAD_LETTERS = "/$deadletterqueue"
NO_SESSIONS = (
    "A sessionful message receiver cannot be created on an entity that does not require sessions. Ensure RequiresSession "
    "is set to true when creating a Queue or Subscription to enable sessionful behavior: '{}' does not require sessions."
)
ONLY_SESSIONS = (
    "It is not possible for an entity that requires sessions to create a non-sessionful message receiver; '{}' requires "
    "sessions: accept one to receive from it."
)


async def attach(peer: LinkConnection, link: Link, replies: RepliesByNode) -> GatewayLink:
    """The gateway's end of a link, with the engine's end accepted; raises BusbarError to refuse."""
    for end in (link.source, link.target):
        if end is not None and end.address is not None and len(end.address) > MAX_ADDRESS:
            raise ArgumentError(
                f"An address has {len(end.address)} characters; at most {MAX_ADDRESS} are allowed."
            )
    end = link.source if link.sending else link.target
    if end is not None and end.coordinator:
        return await _coordinator(peer, link)
    node = node_of(None if end is None else end.address)
    if node.kind is NodeKind.CBS:
        return _request_response(peer, link, node, replies, None)
    if node.kind is NodeKind.MANAGEMENT:
        entity = await _find(peer, link, node)
        return _request_response(peer, link, node, replies, entity)
    crossing = peer.transactions.crossing(link)
    if crossing is None:
        return await _attach_to(peer, link, node, await _find(peer, link, node))
    try:
        async with crossing.in_order:
            entity = await _find(peer, link, node)
            await crossing.name(link, entity, peer.service.broker)
        return await _attach_to(peer, link, node, entity)
    except BaseException:
        crossing.forget(link)
        raise


async def _coordinator(peer: LinkConnection, link: Link) -> CoordinatorLink:
    if link.sending:
        raise InvalidOperation("A coordinator takes requests: it cannot be received from.")
    if (await peer.service.broker.namespace()).tier is Tier.BASIC:
        raise InvalidOperation("Transactions are not available in the Basic tier.")
    link.accept(MAX_COORDINATOR_REQUEST)
    return CoordinatorLink(peer, link)


async def _find(peer: LinkConnection, link: Link, node: Node) -> EntityView:
    """The entity of a link, for which the link counts from now on."""
    _authorize(peer, link, node)
    entity = await peer.service.broker.entity(node.path)
    check_has_messages(entity)
    if await peer.add_link_to(link, entity.path):
        # From here on the link is notified of changes. Those before are in what is read now.
        entity = await peer.service.broker.entity(node.path)
        check_has_messages(entity)
    return entity


async def _attach_to(peer: LinkConnection, link: Link, node: Node, entity: EntityView) -> GatewayLink:
    """A link to messages of an entity."""
    if not link.sending:
        destination = destination_of(link.properties)
        if destination is not None:
            return await _via(peer, link, node, entity, node_of(destination))
        return _incoming(peer, link, node, entity)
    check_can_receive(entity, node.sub)
    wish = session_wish(link, peer.service.limits)
    if not requires_session(entity) or node.dead_letter:
        if wish is not None:
            raise InvalidOperation(
                NO_SESSIONS.format(f"{entity.path}{DEAD_LETTERS if node.dead_letter else ''}")
            )
        return _outgoing(peer, link, node, entity)
    if wish is None:
        raise InvalidOperation(ONLY_SESSIONS.format(entity.path))
    return await _session(peer, link, node, entity, wish)


def _authorize(peer: LinkConnection, link: Link, node: Node) -> None:
    if node.kind is NodeKind.MANAGEMENT:
        if not (peer.may(LISTEN, node.resource) or peer.may(SEND, node.resource)):
            raise Unauthorized(f"A link to '{node.resource}' needs the right Listen or Send.")
        return
    right = LISTEN if link.sending else SEND
    if not peer.may(right, node.resource):
        raise Unauthorized(
            f"A link to '{node.resource}' needs the right {right}; put a token that grants it to $cbs first."
        )


async def _via(
    peer: LinkConnection, link: Link, node: Node, entity: EntityView, destination: Node
) -> ViaLink:
    if destination.kind is not NodeKind.ENTITY or destination.transfer:
        raise ArgumentError("The destination of a link has to be a queue or a topic.")
    check_can_send(entity, node.dead_letter)
    target = await _find(peer, link, destination)
    check_can_send(target, destination.dead_letter)
    if key_of(target.path) == key_of(entity.path):
        raise InvalidOperation(f"'{entity.path}' cannot be sent to via itself.")
    limits = peer.service.limits
    size = min(message_size(entity, limits), message_size(target, limits))
    link.accept(size, properties={TRANSFER_DESTINATION: str(link.properties[TRANSFER_DESTINATION])})
    return ViaLink(peer, link, entity, target, size, [node.resource, destination.resource])


def _incoming(peer: LinkConnection, link: Link, node: Node, entity: EntityView) -> IncomingLink:
    check_can_send(entity, node.dead_letter)
    size = message_size(entity, peer.service.limits)
    desired = link.desired_capabilities or ()
    offered = [each for each in (MIXED_BATCHES, DUPLICATES) if each in desired]
    writer = writer_of_link(link.properties)
    said: dict[object, object] | None = None if writer is None else {WRITER: writer.name, BATCH: writer.batch}
    link.accept(size, properties=said, offered_capabilities=offered or None)
    mixed, counting = MIXED_BATCHES in offered, DUPLICATES in offered
    return IncomingLink(peer, link, entity, size, node.resource, mixed, writer, counting)


def _outgoing(peer: LinkConnection, link: Link, node: Node, entity: EntityView) -> OutgoingLink:
    link.accept(message_size(entity, peer.service.limits))
    return OutgoingLink(peer, link, entity, node.sub, link.snd_settle_mode == SETTLED, node.resource)


async def _session(
    peer: LinkConnection, link: Link, node: Node, entity: EntityView, wish: SessionFilter
) -> SessionLink:
    seat = SessionConsumer(peer)
    index = 0
    try:
        if wish.session is None:
            wait = wait_of(link, peer.service.limits)
            link.shed()
            turns = peer.service.session_turns.of(entity.path, len(entity.fragments))
            index, accepted = await accept_next(peer, entity.fragments, seat.number, turns, wait)
        else:
            link.shed()
            index = index_of_key(wish.session, len(entity.fragments))
            accepted = await accept_named(peer, entity.fragments[index], seat.number, wish.session)
    except BaseException:
        seat.give_up()
        raise
    delete = link.snd_settle_mode == SETTLED
    end = SessionLink(peer, link, entity, seat, index, accepted, delete, node.resource)
    try:
        _authorize(peer, link, node)
        if seat.lost:
            raise SessionLockLost(SESSION_LOCK_LOST)
    except BusbarError:
        end.closed()
        raise
    link.accept(
        message_size(entity, peer.service.limits),
        properties=locked_until(accepted.until),
        filter=wish.granted(accepted.session),
    )
    return end


def _request_response(
    peer: LinkConnection, link: Link, node: Node, replies: RepliesByNode, entity: EntityView | None
) -> GatewayLink:
    siblings = replies.setdefault(node.key, [])
    size = MAX_REQUEST
    if entity is not None:
        # Several messages to be scheduled, or the state of a session.
        limits = peer.service.limits
        size = max(4 * message_size(entity, limits), limits.max_message_size + MAX_REQUEST)
    link.accept(size)
    if link.sending:
        reply = ReplyLink(peer, link)
        siblings.append(reply)
        return reply
    if entity is None:
        return RequestLink(peer, link, siblings, TokenNode(peer).perform, size)
    size_of_messages = message_size(entity, peer.service.limits)
    management = ManagementNode(peer, entity, node.resource, node.sub, size_of_messages)
    return RequestLink(peer, link, siblings, management.perform, size)
