"""Errors of the protocol: the conditions that the engine itself raises, the value on the wire, the exception inside.

AmqpError is an error that a peer sent or will get. ProtocolError is raised while input is parsed and never leaves the
engine: `Connection.receive_data` turns it into a `close` frame and a Closed event.
"""

from __future__ import annotations

from typing import Final, final

INTERNAL_ERROR: Final = "amqp:internal-error"
DECODE_ERROR: Final = "amqp:decode-error"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_ALLOWED: Final = "amqp:not-allowed"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
ILLEGAL_STATE: Final = "amqp:illegal-state"
RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
UNAUTHORIZED_ACCESS: Final = "amqp:unauthorized-access"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"


@final
class AmqpError:
    """The `error` composite: a condition symbol, a text, and an optional map."""

    def __init__(self, condition: str, description: str, info: dict[object, object] | None = None) -> None:
        self.condition = condition
        self.description = description
        self.info = info

    def __repr__(self) -> str:
        return f"AmqpError({self.condition!r}, {self.description!r}, {self.info!r})"


class ProtocolError(Exception):
    """The peer broke the protocol in a way that ends the connection."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description
