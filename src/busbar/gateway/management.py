"""The `<entity>/$management` node: peek, renew, schedule, cancel, deferred messages, settlement by token, deletion.

Types in replies are exact because SDKs cast them: arrays of timestamp and of long, lists of maps, statusCode an int,
errorCondition a symbol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from busbar.amqp.envelope import (
    encode_delivery,
    encode_peeked,
    lock_tag,
    parse_message,
    split_tags,
    tag_fragment,
    tag_to_uuid,
    uuid_to_tag,
)
from busbar.amqp.message import Message
from busbar.amqp.types import Array, Int, Symbol, Timestamp
from busbar.gateway.authority import LISTEN, SEND
from busbar.gateway.body import Body
from busbar.gateway.outgoing import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    LOCK_LOST,
    dead_letter_overlay,
    overlay_of,
)
from busbar.gateway.peer import Peer
from busbar.model.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    RELEASE,
    CancelScheduled,
    Peek,
    Purge,
    ReceiveDeferred,
    Renew,
    Send,
    Settle,
)
from busbar.model.effects import Peeked, Purged, Received, Renewed, Sent
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    BusbarError,
    MessageLockLost,
    MessageSizeExceeded,
    NotImplementedHere,
    Unauthorized,
    error_of,
)
from busbar.model.message import ACTIVE, DEAD_DEFERRED, DEFERRED, SCHEDULED
from busbar.model.port import EntityView

Reply = tuple[int, dict[str, object]]
LONG: Final = 0x81
TIMESTAMP: Final = 0x83
STATES: Final = {DEFERRED: 1, DEAD_DEFERRED: 1, SCHEDULED: 2}
STATUSES: Final = {
    "completed": COMPLETE,
    "abandoned": ABANDON,
    "suspended": DEAD_LETTER,
    "defered": DEFER,  # sic: so it is spelt on the wire
    "deferred": DEFER,
    "unlocked": RELEASE,
}
MAX_NUMBER: Final = (1 << 63) - 1


class ManagementNode:
    """The operations of one queue, or of its dead-letter queue."""

    def __init__(
        self, peer: Peer, entity: EntityView, resource: str, sub: int, max_message_size: int
    ) -> None:
        self._peer = peer
        self._entity = entity
        self._resource = resource
        self._fragment = entity.fragments[0]
        self._sub = sub
        self._max_message_size = max_message_size
        self._operations: dict[str, tuple[str, Callable[[Body], Awaitable[Reply]]]] = {
            "com.microsoft:peek-message": (LISTEN, self._peek),
            "com.microsoft:renew-lock": (LISTEN, self._renew),
            "com.microsoft:receive-by-sequence-number": (LISTEN, self._receive),
            "com.microsoft:update-disposition": (LISTEN, self._settle),
            "com.microsoft:batch-delete-messages": (LISTEN, self._delete),
            "com.microsoft:schedule-message": (SEND, self._schedule),
            "com.microsoft:cancel-scheduled-message": (SEND, self._cancel),
        }

    async def perform(self, request: Message) -> Message:
        """The reply to any request: a result, or an error as status, condition and text."""
        reply = Message()
        try:
            status, body = await self._run(request)
            reply.application_properties = {
                "statusCode": Int(status),
                "statusDescription": "OK" if status == 200 else "No content",
            }
            reply.value = body
        except BusbarError as error:
            reply.application_properties = {
                "statusCode": Int(error.status),
                "statusDescription": f"{error.text} {self._peer.service.tracking}",
                "errorCondition": Symbol(error.condition),
            }
            reply.value = {}
        return reply

    async def _run(self, request: Message) -> Reply:
        properties = request.application_properties or {}
        operation = properties.get("operation")
        if not isinstance(operation, str):
            raise ArgumentError("A management request needs the application property 'operation'.")
        known = self._operations.get(operation)
        if known is None:
            raise NotImplementedHere(
                f"The operation '{operation}' is not served on '{self._entity.path}'; "
                f"served are {', '.join(sorted(self._operations))}."
            )
        right, perform = known
        if not self._peer.may(right, self._resource):
            raise Unauthorized(f"The operation '{operation}' on '{self._resource}' needs the right {right}.")
        return await perform(Body(operation, request.value))

    async def _peek(self, body: Body) -> Reply:
        limits = self._peer.service.limits
        start = max(1, body.integer("from-sequence-number"))
        count = body.integer("message-count")
        if count < 1:
            raise ArgumentOutOfRange(f"message-count is {count}; at least 1 is needed.")
        if body.get("session-id") is not None:
            raise NotImplementedHere(
                "Peeking into a message session is not served by this version of Busbar."
            )
        omit_body = body.get("omit-message-body") is True
        effect = await self._peer.ask(
            lambda request: Peek(
                self._fragment,
                self._peer.origin,
                request,
                self._sub,
                start,
                min(count, limits.peek_count),
                limits.peek_bytes,
            )
        )
        assert isinstance(effect, Peeked)
        if not effect.records:
            return 204, {}
        messages: list[object] = [
            {"message": encode_peeked(record, record.n, -1, STATES.get(lane, 0), omit_body)}
            for record, lane in zip(effect.records, effect.lanes, strict=True)
        ]
        return 200, {"messages": messages}

    async def _renew(self, body: Body) -> Reply:
        numbers, nonces = self._locks(body)
        effect = await self._peer.ask(
            lambda request: Renew(self._fragment, self._peer.origin, request, numbers, nonces)
        )
        assert isinstance(effect, Renewed)
        until = Timestamp(effect.until)
        return 200, {"expirations": Array(TIMESTAMP, [until] * len(numbers))}

    async def _receive(self, body: Body) -> Reply:
        numbers = body.integers("sequence-numbers")
        delete = body.integer("receiver-settle-mode") == 0
        effect = await self._peer.ask(
            lambda request: ReceiveDeferred(
                self._fragment, self._peer.origin, request, self._sub, numbers, delete
            )
        )
        assert isinstance(effect, Received)
        messages: list[object] = []
        for record in effect.records:
            message: dict[str, object] = {"message": encode_delivery(record, record.n, effect.until, -1)}
            if not delete:
                message["lock-token"] = tag_to_uuid(lock_tag(self._fragment, record.n, effect.nonce))
            messages.append(message)
        return 200, {"messages": messages}

    async def _settle(self, body: Body) -> Reply:
        status = body.text("disposition-status")
        outcome = STATUSES.get(status)
        if outcome is None:
            raise ArgumentError(
                f"disposition-status is '{status}'; it is one of {', '.join(sorted(STATUSES))}."
            )
        numbers, nonces = self._locks(body)
        properties = dict(body.mapping("properties-to-modify"))
        if outcome == DEAD_LETTER:
            properties[DEAD_LETTER_REASON] = body.get("deadletter-reason")
            properties[DEAD_LETTER_DESCRIPTION] = body.get("deadletter-description")
            overlay = dead_letter_overlay(properties, self._peer.service.limits)
        else:
            overlay = overlay_of(properties)
        await self._peer.ask(
            lambda request: Settle(
                self._fragment, self._peer.origin, request, outcome, numbers, nonces, overlay, True
            )
        )
        return 200, {}

    async def _schedule(self, body: Body) -> Reply:
        if self._sub != ACTIVE:
            raise ArgumentError("Messages cannot be scheduled in a dead-letter queue.")
        limits = self._peer.service.limits
        entries = body.items("messages")
        if not 1 <= len(entries) <= limits.schedule_count:
            raise ArgumentOutOfRange(
                f"messages has {len(entries)} entries; 1 to {limits.schedule_count} are allowed."
            )
        drafts = []
        for entry in entries:
            payload = Body("schedule-message", entry).binary("message")
            if len(payload) > self._max_message_size:
                raise MessageSizeExceeded(
                    f"The message has {len(payload)} bytes; at most {self._max_message_size} are allowed."
                )
            drafts.append(
                parse_message(payload, 0, len(payload), self._peer.fresh_id(), limits.max_id_length)
            )
        effect = await self._peer.ask(
            lambda request: Send(self._fragment, self._peer.origin, request, drafts, True)
        )
        assert isinstance(effect, Sent)
        if effect.refused:
            _index, condition, text = effect.refused[0]
            raise error_of(condition, text)
        return 200, {"sequence-numbers": Array(LONG, list(effect.numbers))}

    async def _cancel(self, body: Body) -> Reply:
        numbers = body.integers("sequence-numbers")
        await self._peer.ask(
            lambda request: CancelScheduled(self._fragment, self._peer.origin, request, numbers)
        )
        return 200, {}

    async def _delete(self, body: Body) -> Reply:
        limit = self._peer.service.limits.delete_count
        count = body.integer("message-count")
        if not 1 <= count <= limit:
            raise ArgumentOutOfRange(f"message-count is {count}; 1 to {limit} are allowed.")
        before = body.integer("enqueued-time-utc")
        deleted = 0
        while deleted < count:
            gone = await self._purge(min(before, MAX_NUMBER), count - deleted)
            if not gone:
                break
            deleted += gone
        return (200, {"message-count": Int(deleted)}) if deleted else (204, {})

    async def _purge(self, before: int, count: int) -> int:
        """One step of a deletion: a fragment bounds what it deletes at a time."""
        effect = await self._peer.ask(
            lambda request: Purge(self._fragment, self._peer.origin, request, self._sub, before, count)
        )
        assert isinstance(effect, Purged)
        return effect.count

    def _locks(self, body: Body) -> tuple[list[int], list[int]]:
        """Numbers and nonces of the lock tokens; a token of another entity is lost here."""
        tags = [uuid_to_tag(token) for token in body.uuids("lock-tokens")]
        if any(tag_fragment(tag) != self._fragment for tag in tags):
            raise MessageLockLost(LOCK_LOST)
        return split_tags(tags)
