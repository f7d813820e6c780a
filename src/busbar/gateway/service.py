"""What every connection of a gateway shares."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from busbar.gateway.attached import Attached
from busbar.gateway.authority import Authority
from busbar.gateway.held_replies import HeldReplies
from busbar.gateway.session_turns import SessionTurns
from busbar.model.limits import Limits
from busbar.model.port import NamespacePort


def wall_clock() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Service:
    port: NamespacePort
    authority: Authority
    limits: Limits
    attached: Attached
    container_id: str
    tracking: str
    """Ends every error text, so that a user's report finds its place in the operator's log."""
    session_turns: SessionTurns = field(default_factory=SessionTurns)
    held_replies: HeldReplies = field(default_factory=HeldReplies)
