"""Requests to the management node of an entity: peek, renew, schedule, cancel, deferred messages, deletion, sessions.

A request that changes nothing when it is repeated is retried by the factory's Retry. Every other one fails if its answer is
lost. All of them end after the factory's `operation_timeout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from busbar.amqp.events import Delivery
from busbar.amqp.types import Array, Int, Timestamp, UInt
from busbar.client.errors import BusbarClientError, CannotConnect, OperationTimeout, error_of
from busbar.client.message import OutgoingMessage, encode
from busbar.client.received import UNLOCKED, PeekedMessage, Received
from busbar.message.lock_token import uuid_to_tag

if TYPE_CHECKING:
    from busbar.client.factory import MessagingFactory
    from busbar.client.transactions import ClientTransaction

LONG_CODE = 0x81
UUID_CODE = 0x98
NO_TIME = 253_402_300_800_000
"""As `last-updated-time`: sessions with messages or a state, whenever they changed."""
SESSIONS_AT_A_TIME = 1_000
FRAGMENT_BITS = 48
"""A sequence number has the index of its fragment above so many bits."""

BUSBAR = "busbar:"
"""Operations that only a Busbar has begin so."""

Request = dict[str, object]


@dataclass(frozen=True, slots=True)
class SessionView:
    """A message session, as an inspection shows it."""

    session_id: str
    locked_until: int
    """The end of the session lock in ms since 1970; 0 if no client holds the session."""
    holder: str
    """The client that holds it; empty also if it is connected to another broker process."""
    locked_messages: int
    state_size: int
    """The bytes that the broker counts for the state; -1 without a state."""
    state: bytes | None
    """Only if it was asked for."""


class EntityManagement:
    """The management node of an entity, or of one of its dead-letter queues."""

    def __init__(
        self, factory: MessagingFactory, entity: str, address: str, session_id: str | None = None
    ) -> None:
        self._factory = factory
        self._entity = entity
        self._address = f"{address}/$management"
        self._session_id = session_id

    async def ask(
        self,
        operation: str,
        request: Request,
        *,
        is_repeatable: bool = False,
        transaction: ClientTransaction | None = None,
        link_name: str = "",
    ) -> Request:
        """Send a request and return the body of the reply. Raises the broker's refusal."""
        seconds = self._factory.operation_timeout
        name = operation if operation.startswith(BUSBAR) else f"com.microsoft:{operation}"
        properties: dict[str, object] = {"operation": name}
        if link_name:
            properties["associated-link-name"] = link_name
        if self._session_id is not None:
            request = request | {"session-id": self._session_id}
        attempts = self._factory.retry.start()
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        return await self._once(operation, request, properties, transaction)
                    except BusbarClientError as error:
                        is_safe = is_repeatable or isinstance(error, CannotConnect)
                        if not error.retryable or not is_safe or not await attempts.again():
                            raise
        except TimeoutError:
            raise OperationTimeout(
                f"'{self._address}' has not answered {operation} within {seconds:g} s."
            ) from None

    async def _once(
        self,
        operation: str,
        request: Request,
        properties: dict[str, object],
        transaction: ClientTransaction | None,
    ) -> Request:
        node = await self._factory.node(self._entity, self._address)
        state = b"" if transaction is None else transaction.state(node.connection)
        reply = await node.ask(request, properties, self._factory.operation_timeout, state)
        answer = reply.application_properties
        status = answer.get("statusCode")
        if status not in (200, 202, 204):
            condition = answer.get("errorCondition")
            text = str(answer.get("statusDescription") or f"{operation} was answered with {status}")
            raise error_of(str(condition) if isinstance(condition, str) else "", text)
        value = reply.value
        return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}

    # ---- messages --------------------------------------------------------------------------------

    async def peek(
        self, first: int, count: int, *, session_id: str | None = None, state: str = "", body: bool = True
    ) -> list[PeekedMessage]:
        """Messages from a sequence number on, in their order. There may be fewer than requested."""
        request: Request = {
            "from-sequence-number": first,
            "message-count": Int(count),
            "busbar:lock-state": True,
        }
        if session_id is not None:
            request["session-id"] = session_id
        if state:
            request["busbar:message-state"] = state
        if not body:
            request["omit-message-body"] = True
        reply = await self.ask("peek-message", request, is_repeatable=True)
        return [PeekedMessage(payload) for payload, _token in _messages(reply)]

    async def renew(self, tokens: Sequence[UUID]) -> list[int]:
        """Renew locks, all or none. Returns their ends in ms since 1970. Raises LockLost."""
        request: Request = {"lock-tokens": Array(UUID_CODE, list(tokens))}
        reply = await self.ask("renew-lock", request, is_repeatable=True)
        return _integers(reply.get("expirations"))

    async def receive_deferred(self, numbers: Sequence[int], delete: bool) -> list[Received]:
        """Receive deferred messages, those of each fragment together. Raises NotFound if one of them is not deferred."""
        received: list[Received] = []
        for part in _by_fragment(numbers):
            received += await self._receive_deferred(part, delete)
        return received

    async def _receive_deferred(self, numbers: Sequence[int], delete: bool) -> list[Received]:
        request: Request = {
            "sequence-numbers": Array(LONG_CODE, list(numbers)),
            "receiver-settle-mode": UInt(0 if delete else 1),
        }
        reply = await self.ask("receive-by-sequence-number", request)
        received = []
        for payload, token in _messages(reply):
            tag = b"" if token is None else uuid_to_tag(token)
            received.append(Received(None, Delivery(UNLOCKED, tag, 0, payload, False, None, False)))
        return received

    async def schedule(
        self,
        messages: Sequence[OutgoingMessage],
        time: datetime,
        transaction: ClientTransaction | None,
    ) -> list[int]:
        if time.tzinfo is None:
            raise ValueError(f"the time {time} has no time zone")
        at = round(time.timestamp() * 1000)
        entries = [_entry(message, at) for message in messages]
        reply = await self.ask("schedule-message", {"messages": entries}, transaction=transaction)
        return _integers(reply.get("sequence-numbers"))

    async def cancel(self, numbers: Sequence[int], transaction: ClientTransaction | None) -> None:
        """Cancel scheduled messages, those of each fragment together."""
        for part in _by_fragment(numbers):
            request: Request = {"sequence-numbers": Array(LONG_CODE, list(part))}
            await self.ask("cancel-scheduled-message", request, transaction=transaction)

    async def delete(self, count: int, before: int) -> int:
        """Delete active messages that are not locked and were enqueued before a time. Returns how many."""
        request: Request = {"message-count": Int(count), "enqueued-time-utc": Timestamp(before)}
        reply = await self.ask("batch-delete-messages", request)
        deleted = reply.get("message-count")
        return deleted if isinstance(deleted, int) else 0

    # ---- message sessions ------------------------------------------------------------------------

    async def renew_session(self, link_name: str) -> int:
        reply = await self.ask("renew-session-lock", {}, link_name=link_name)
        until = reply.get("expiration")
        return until if isinstance(until, int) else 0

    async def session_state(self, link_name: str) -> bytes | None:
        reply = await self.ask("get-session-state", {}, link_name=link_name)
        state = reply.get("session-state")
        return state if isinstance(state, bytes) else None

    async def set_session_state(
        self, state: bytes | None, link_name: str, transaction: ClientTransaction | None
    ) -> None:
        request: Request = {"session-state": state}
        await self.ask("set-session-state", request, link_name=link_name, transaction=transaction)

    async def inspect_session(self, session_id: str, *, with_state: bool) -> SessionView:
        """Who holds a session and what its state is, without holding it."""
        request: Request = {"session-id": session_id, "with-state": with_state}
        reply = await self.ask(f"{BUSBAR}inspect-session", request, is_repeatable=True)
        until, state, holder = reply.get("locked-until"), reply.get("session-state"), reply.get("holder")
        return SessionView(
            session_id,
            int(until) if isinstance(until, int) else 0,
            holder if isinstance(holder, str) else "",
            _integer(reply.get("locked-messages"), 0),
            _integer(reply.get("state-size"), -1),
            state if isinstance(state, bytes) else None,
        )

    async def sessions(self) -> list[str]:
        """The ids of all sessions that have messages or a state."""
        found: list[str] = []
        while True:
            request: Request = {
                "last-updated-time": Timestamp(NO_TIME),
                "skip": Int(len(found)),
                "top": Int(SESSIONS_AT_A_TIME),
            }
            reply = await self.ask("get-message-sessions", request, is_repeatable=True)
            page = [str(item) for item in _items(reply.get("sessions-ids"))]
            found += page
            if len(page) < SESSIONS_AT_A_TIME:
                return found


def _entry(message: OutgoingMessage, at: int) -> Request:
    message.scheduled_enqueue_time = at
    entry: Request = {"message": encode(message), "message-id": message.message_id}
    if message.session_id is not None:
        entry["session-id"] = message.session_id
    if message.partition_key is not None:
        entry["partition-key"] = message.partition_key
    return entry


def _integer(value: object, otherwise: int) -> int:
    return int(value) if isinstance(value, int) else otherwise


def _by_fragment(numbers: Sequence[int]) -> list[list[int]]:
    """Sequence numbers by the fragment that they name: a request concerns one fragment."""
    parts: dict[int, list[int]] = {}
    for number in numbers:
        parts.setdefault(number >> FRAGMENT_BITS, []).append(number)
    return list(parts.values())


def _items(value: object) -> list[object]:
    if isinstance(value, Array):
        return list(value.items)
    return list(value) if isinstance(value, list) else []


def _integers(value: object) -> list[int]:
    return [int(item) for item in _items(value) if isinstance(item, int)]


def _messages(reply: Request) -> list[tuple[bytes, UUID | None]]:
    """The messages of a reply with their lock tokens."""
    found: list[tuple[bytes, UUID | None]] = []
    for item in _items(reply.get("messages")):
        if not isinstance(item, dict):
            continue
        entry = {str(key): value for key, value in item.items()}
        payload, token = entry.get("message"), entry.get("lock-token")
        if isinstance(payload, bytes):
            found.append((payload, token if isinstance(token, UUID) else None))
    return found
