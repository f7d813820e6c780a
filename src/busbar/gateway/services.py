"""What every connection of a gateway shares, over AMQP and over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field

from busbar.gateway.amqp.transactions import GatewayTransactions
from busbar.gateway.authority import Authority
from busbar.gateway.client_names import ClientNames
from busbar.gateway.connection_registry import ConnectionRegistry
from busbar.gateway.held_replies import HeldReplies
from busbar.gateway.link_registry import LinkRegistry
from busbar.gateway.refusals import Refusals
from busbar.gateway.tracing import Tracer
from busbar.model.api import BrokerApi
from busbar.model.figures import DELIVERY_BOUNDS
from busbar.model.histogram import Histogram
from busbar.model.limits import Limits
from busbar.partitions.session_rotation import SessionRotations


@dataclass(frozen=True, slots=True)
class GatewayServices:
    """The broker, the authority for tokens, and the state that connections share."""

    broker: BrokerApi
    authority: Authority
    limits: Limits
    attached: LinkRegistry
    container_id: str
    tracking: str
    """The end of every error text: it connects a user's report with the operator's log."""
    broker_name: str = ""
    """The name of the broker process; empty if there is only one process."""
    session_turns: SessionRotations = field(default_factory=SessionRotations)
    held_replies: HeldReplies = field(default_factory=HeldReplies)
    transactions: GatewayTransactions = field(default_factory=GatewayTransactions)
    clients: ClientNames = field(default_factory=ClientNames)
    connections: ConnectionRegistry = field(default_factory=ConnectionRegistry)
    refusals: Refusals = field(default_factory=Refusals)
    deliveries: Histogram = field(default_factory=lambda: Histogram(DELIVERY_BOUNDS))
    """Times from enqueuing to delivery, in milliseconds."""
    tracer: Tracer | None = None
    """Exports spans of messages; None: there are no traces."""
