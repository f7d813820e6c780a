"""Decides what a link that a client attaches becomes, or why it is refused.

    who sends   address                 becomes
    client      $cbs, x/$management     RequestLink
    broker      $cbs, x/$management     ReplyLink
    client      queue                   IncomingLink    needs Send
    broker      queue, its dead letters OutgoingLink    needs Listen

The right is checked before the entity is looked up: who may not use a name does not learn whether it exists.
"""

from __future__ import annotations

from busbar.amqp.link import Link
from busbar.gateway.address import Node, NodeKind, node_of
from busbar.gateway.authority import LISTEN, SEND
from busbar.gateway.cbs import MAX_REQUEST, TokenNode
from busbar.gateway.incoming import MIXED_BATCHES, IncomingLink
from busbar.gateway.management import ManagementNode
from busbar.gateway.outgoing import OutgoingLink
from busbar.gateway.peer import Peer
from busbar.gateway.requests import ReplyLink, RequestLink
from busbar.gateway.served import check_gives, check_no_transfer, check_served, check_takes, message_size
from busbar.model.errors import InvalidOperation, NotImplementedHere, Unauthorized
from busbar.model.message import ACTIVE, DEAD
from busbar.model.port import EntityView

GatewayLink = IncomingLink | OutgoingLink | RequestLink | ReplyLink
RepliesByNode = dict[str, list[ReplyLink]]
"""The reply links of one AMQP session, by the node they belong to."""

SESSION_FILTER = "com.microsoft:session-filter"
SETTLED = 1
"""snd-settle-mode: the broker settles as it sends, which is ReceiveAndDelete."""


async def attach(peer: Peer, link: Link, replies: RepliesByNode) -> GatewayLink:
    """The gateway's end of a link, with the engine's end accepted; raises BusbarError to refuse."""
    end = link.source if link.sending else link.target
    if end is not None and end.coordinator:
        raise NotImplementedHere("Transactions are not served by this version of Busbar.")
    node = node_of(None if end is None else end.address)
    if node.kind is NodeKind.CBS:
        return _request_response(peer, link, node, replies, None)
    _authorize(peer, link, node)
    entity = await peer.service.port.entity(node.path)
    check_served(entity)
    check_no_transfer(entity, node.transfer)
    peer.occupy(link, entity.path)
    if node.kind is NodeKind.MANAGEMENT:
        return _request_response(peer, link, node, replies, entity)
    return _outgoing(peer, link, node, entity) if link.sending else _incoming(peer, link, node, entity)


def _authorize(peer: Peer, link: Link, node: Node) -> None:
    if node.kind is NodeKind.MANAGEMENT:
        if not (peer.may(LISTEN, node.resource) or peer.may(SEND, node.resource)):
            raise Unauthorized(f"A link to '{node.resource}' needs the right Listen or Send.")
        return
    right = LISTEN if link.sending else SEND
    if not peer.may(right, node.resource):
        raise Unauthorized(
            f"A link to '{node.resource}' needs the right {right}; put a token that grants it to $cbs first."
        )


def _incoming(peer: Peer, link: Link, node: Node, entity: EntityView) -> IncomingLink:
    check_takes(entity, node.dead_letter)
    size = message_size(entity, peer.service.limits)
    mixed = MIXED_BATCHES in (link.desired_capabilities or ())
    link.accept(size, offered_capabilities=[MIXED_BATCHES] if mixed else None)
    return IncomingLink(peer, link, entity, size, mixed)


def _outgoing(peer: Peer, link: Link, node: Node, entity: EntityView) -> OutgoingLink:
    check_gives(entity)
    filters = link.source.filter if link.source is not None else None
    if filters and any(str(key) == SESSION_FILTER for key in filters):
        raise InvalidOperation(
            f"'{entity.path}' does not require sessions: a receiver for a message session cannot be opened on it."
        )
    link.accept(message_size(entity, peer.service.limits))
    return OutgoingLink(
        peer, link, entity, DEAD if node.dead_letter else ACTIVE, link.snd_settle_mode == SETTLED
    )


def _request_response(
    peer: Peer, link: Link, node: Node, replies: RepliesByNode, entity: EntityView | None
) -> GatewayLink:
    siblings = replies.setdefault(node.key, [])
    size = MAX_REQUEST if entity is None else 4 * message_size(entity, peer.service.limits)
    link.accept(size)
    if link.sending:
        reply = ReplyLink(link)
        siblings.append(reply)
        return reply
    if entity is None:
        return RequestLink(peer, link, siblings, TokenNode(peer).perform, size)
    sub = DEAD if node.dead_letter else ACTIVE
    management = ManagementNode(peer, entity, node.resource, sub, message_size(entity, peer.service.limits))
    return RequestLink(peer, link, siblings, management.perform, size)
