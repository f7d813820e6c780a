"""The `$cbs` node: a client puts tokens, and the connection may then use what they grant.

The kind of a token is seen from its text, not from the request's `type`: the Python SDK labels signatures `jwt`.
"""

from __future__ import annotations

from busbar.amqp.types import Int
from busbar.clock import wall_clock
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.amqp.management_request import MAX_TEXT
from busbar.message.decoded import DecodedMessage
from busbar.model.errors import ArgumentError, BusbarError, Unauthorized

MAX_REQUEST = 64 * 1024


class TokenNode:
    def __init__(self, peer: LinkConnection) -> None:
        self._peer = peer

    async def perform(
        self, request: DecodedMessage, txn: bytes | None
    ) -> tuple[DecodedMessage, BusbarError | None]:
        """Take a token at once, also in a transaction."""
        try:
            self._put_token(request)
        except Unauthorized as error:
            token = request.value if isinstance(request.value, str) else ""
            service = self._peer.service
            service.authority.refused.token(self._peer.address, token, error.text, wall_clock())
            return _reply(401, f"{error.text[:MAX_TEXT]} {service.tracking}"), error
        except BusbarError as error:
            return _reply(400, error.text[:MAX_TEXT]), error
        return _reply(202, "Accepted"), None

    def _put_token(self, request: DecodedMessage) -> None:
        properties = request.application_properties or {}
        operation = properties.get("operation")
        if operation != "put-token":
            raise ArgumentError(f"The operation {operation!r:.80} is not known here; 'put-token' is.")
        audience = properties.get("name")
        if not isinstance(audience, str) or not audience:
            raise ArgumentError("A put-token request needs the application property 'name': the audience.")
        if not isinstance(request.value, str):
            raise ArgumentError("A put-token request needs the token, a string, as its value.")
        self._peer.granted(self._peer.service.authority.verify_token(request.value, audience, wall_clock()))


def _reply(code: int, text: str) -> DecodedMessage:
    reply = DecodedMessage()
    # No `error-condition`, not even in a refusal: the Python SDK would drop the description, which it otherwise keeps as the
    # inner exception. Its error's own text never has it. A detach of the link or a rejected request instead of an answer is
    # no better: that SDK then waits for its timeout, or fails in its own code.
    reply.application_properties = {"status-code": Int(code), "status-description": text}
    reply.value = None
    return reply
