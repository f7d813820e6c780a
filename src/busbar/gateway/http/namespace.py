"""What every HTTP request can reach: the port for messages and entities, the authority for tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from busbar.gateway.authority import Authority
from busbar.model.api import BrokerApi
from busbar.model.limits import Limits


@dataclass(frozen=True, slots=True)
class HttpContext:
    broker: BrokerApi
    authority: Authority
    limits: Limits
    clock: Callable[[], int]
    """Milliseconds since 1970 UTC."""
    tracking: str = ""
    """Names this instance in error texts, so that a user's report finds its place in the operator's log."""
