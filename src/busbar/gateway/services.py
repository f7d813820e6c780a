"""What every connection of a gateway shares."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from busbar.gateway.authority import Authority
from busbar.gateway.held_replies import HeldReplies
from busbar.gateway.link_registry import LinkRegistry
from busbar.model.api import BrokerApi
from busbar.model.limits import Limits
from busbar.partitions.session_rotation import SessionRotations


def wall_clock() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class GatewayServices:
    broker: BrokerApi
    authority: Authority
    limits: Limits
    attached: LinkRegistry
    container_id: str
    tracking: str
    """Ends every error text, so that a user's report finds its place in the operator's log."""
    session_turns: SessionRotations = field(default_factory=SessionRotations)
    held_replies: HeldReplies = field(default_factory=HeldReplies)
