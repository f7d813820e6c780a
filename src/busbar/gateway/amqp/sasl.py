"""SASL as Service Bus has it: clients log in with a rule and its key (PLAIN), or put tokens to $cbs later (all others)."""

from __future__ import annotations

from busbar.amqp.events import SaslInit
from busbar.gateway.authority import Authority, Grant
from busbar.model.errors import BusbarError, Unauthorized

MECHANISMS = ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"]
SASL_OK, SASL_AUTH = 0, 1


def log_in(event: SaslInit, authority: Authority, address: str, now: int) -> Grant | None:
    """What the client may do by its password; None without one. Raises Unauthorized, and has a wrong password logged."""
    if event.mechanism not in MECHANISMS:
        raise Unauthorized(f"The SASL mechanism {event.mechanism!r:.80} is not known here.")
    if event.mechanism != "PLAIN":
        return None
    parts = event.response.split(b"\0")
    try:
        if len(parts) != 3:
            raise Unauthorized("A PLAIN response has three parts.")
        return authority.verify_password(parts[1].decode(), parts[2].decode())
    except (BusbarError, UnicodeDecodeError) as error:
        rule = parts[1].decode("utf-8", "replace") if len(parts) == 3 else ""
        reason = error.text if isinstance(error, BusbarError) else "It is not UTF-8."
        authority.refused.password(address, rule, reason, now)
        raise Unauthorized(reason) from None
