"""Management requests: how the body is read, which right each operation needs, and how the node answers.

The body is a map whose values are read by type, with errors that name key, value and rule. Types in replies are exact
because SDKs cast them: statusCode is an int, errorCondition a symbol.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

from busbar.amqp.types import Array, Int, Symbol
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.message.decoded import DecodedMessage
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    BusbarError,
    InvalidOperation,
    NotImplementedHere,
    Unauthorized,
)
from busbar.partitions.transaction import Transaction

MAX_ITEMS = 10_000
MAX_TEXT = 2_048
"""Characters of an error's text: what a client sent may be part of it."""

ADD_RULE = "com.microsoft:add-rule"
REMOVE_RULE = "com.microsoft:remove-rule"
ENUMERATE_RULES = "com.microsoft:enumerate-rules"

Reply = tuple[int, dict[str, object]]
"""The status of the answer and its own body."""


class RequestBody:
    """Keys may be strings or symbols; arrays and lists are the same here; integers have any width."""

    def __init__(self, operation: str, value: object, transaction: Transaction | None = None) -> None:
        """`transaction` is the one that the request names."""
        self.transaction = transaction
        if not isinstance(value, dict):
            raise ArgumentError(f"The body of {operation} is a {type(value).__name__}; it has to be a map.")
        self._operation = operation
        self._map = {str(key): item for key, item in value.items()}

    def has(self, key: str) -> bool:
        return key in self._map

    def get(self, key: str) -> object:
        return self._map.get(key)

    def integer(self, key: str) -> int:
        value = self._map.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, value, "an integer")
        if not -(1 << 63) <= value < 1 << 63:
            raise ArgumentOutOfRange(f"'{key}' is {value}; it has to fit in 64 bits.")
        return int(value)

    def flag(self, key: str) -> bool:
        """A boolean value; False if it is not there."""
        value = self._map.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self._wrong(key, value, "a boolean")
        return value

    def text(self, key: str) -> str:
        value = self._map.get(key)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return str(value)

    def binary(self, key: str) -> bytes:
        value = self._map.get(key)
        if not isinstance(value, bytes):
            raise self._wrong(key, value, "a binary value")
        return value

    def mapping(self, key: str) -> dict[object, object]:
        value = self._map.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(key, value, "a map")
        return value

    def items(self, key: str) -> list[object]:
        value = self._map.get(key)
        if isinstance(value, Array):
            value = value.items
        if not isinstance(value, list):
            raise self._wrong(key, value, "an array or a list")
        if not value or len(value) > MAX_ITEMS:
            raise ArgumentOutOfRange(f"'{key}' has {len(value)} items; 1 to {MAX_ITEMS} are allowed.")
        return value

    def integers(self, key: str) -> list[int]:
        items = self.items(key)
        for item in items:
            if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < 1 << 63:
                raise self._wrong(key, item, "an array of sequence numbers")
        return [int(item) for item in items if isinstance(item, int)]

    def uuids(self, key: str) -> list[uuid.UUID]:
        items = self.items(key)
        tokens = [item for item in items if isinstance(item, uuid.UUID)]
        if len(tokens) != len(items):
            raise self._wrong(key, items[0], "an array of uuids")
        return tokens

    def _wrong(self, key: str, value: object, rule: str) -> ArgumentError:
        shown = "missing" if value is None else f"a {type(value).__name__}"
        return ArgumentError(f"'{key}' of {self._operation} is {shown}; it has to be {rule}.")


Perform = Callable[[RequestBody], Awaitable[Reply]]
Operations = dict[str, tuple[str, Perform]]
"""By name: the right that an operation needs, and what it does."""


async def answer(
    request: DecodedMessage,
    txn: bytes | None,
    operations: Operations,
    peer: LinkConnection,
    resource: str,
) -> tuple[DecodedMessage, BusbarError | None]:
    """The reply to any request: a result, or an error, which is returned as well."""
    reply = DecodedMessage()
    try:
        status, body = await _run(request, txn, operations, peer, resource)
        reply.application_properties = {
            "statusCode": Int(status),
            "statusDescription": "OK" if status == 200 else "No content",
        }
        reply.value = body
    except BusbarError as error:
        peer.service.refusals.add(error.condition)
        reply.application_properties = {
            "statusCode": Int(error.status),
            "statusDescription": f"{error.text[:MAX_TEXT]} {peer.service.tracking}",
            "errorCondition": Symbol(error.condition),
        }
        reply.value = {}
        return reply, error
    return reply, None


async def _run(
    request: DecodedMessage,
    txn: bytes | None,
    operations: Operations,
    peer: LinkConnection,
    resource: str,
) -> Reply:
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
    transaction = None if txn is None else peer.transactions.find(txn)
    return await perform(RequestBody(operation, request.value, transaction))
