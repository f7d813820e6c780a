"""How a management node answers: the operations it has, each with the right it needs, and errors as status, condition and
text.

Types in replies are exact because SDKs cast them: statusCode is an int, errorCondition a symbol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from busbar.amqp.types import Int, Symbol
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.amqp.management_request import Reply, RequestBody
from busbar.message.decoded import DecodedMessage
from busbar.model.errors import ArgumentError, BusbarError, InvalidOperation, NotImplementedHere, Unauthorized

Perform = Callable[[RequestBody], Awaitable[Reply]]
Operations = dict[str, tuple[str, Perform]]
"""By name: the right that an operation needs, and what it does."""

MAX_TEXT = 2_048
"""Characters of an error's text: what a client sent may be part of it."""

ADD_RULE = "com.microsoft:add-rule"
REMOVE_RULE = "com.microsoft:remove-rule"
ENUMERATE_RULES = "com.microsoft:enumerate-rules"


async def answer(
    request: DecodedMessage, operations: Operations, peer: LinkConnection, resource: str
) -> DecodedMessage:
    """The reply to any request: a result, or an error."""
    reply = DecodedMessage()
    try:
        status, body = await _run(request, operations, peer, resource)
        reply.application_properties = {
            "statusCode": Int(status),
            "statusDescription": "OK" if status == 200 else "No content",
        }
        reply.value = body
    except BusbarError as error:
        reply.application_properties = {
            "statusCode": Int(error.status),
            "statusDescription": f"{error.text[:MAX_TEXT]} {peer.service.tracking}",
            "errorCondition": Symbol(error.condition),
        }
        reply.value = {}
    return reply


async def _run(request: DecodedMessage, operations: Operations, peer: LinkConnection, resource: str) -> Reply:
    operation = (request.application_properties or {}).get("operation")
    if not isinstance(operation, str):
        raise ArgumentError("A management request needs the application property 'operation'.")
    known = operations.get(operation)
    if known is None and operation in (ADD_RULE, REMOVE_RULE, ENUMERATE_RULES):
        raise InvalidOperation(f"'{resource}' has no rules: they belong to a topic's subscriptions.")
    if known is None:
        raise NotImplementedHere(
            f"The operation '{operation:.80}' is not served on '{resource}'; "
            f"served are {', '.join(sorted(operations)) or 'none'}."
        )
    right, perform = known
    if not peer.may(right, resource):
        raise Unauthorized(f"The operation '{operation}' on '{resource}' needs the right {right}.")
    return await perform(RequestBody(operation, request.value))
