"""The `<entity>/$management` node: peek, renew, schedule, cancel, deferred messages, settlement by token, deletion. What
concerns message sessions alone is in session_management.py, what concerns taps in tap_management.py, rules in
rule_management.py. Messages are scheduled in a queue or a topic; all else is done where they are received.

Types in replies are exact because SDKs cast them: arrays of timestamp and of long, lists of maps, statusCode an int,
errorCondition a symbol.

On a partitioned entity a request reaches the fragments that its sequence numbers or lock tokens name (resolver.py), or the
one that its message's key chooses (routing.py). All or none holds within a fragment. A peek goes from fragment to fragment,
in the order of sequence numbers. It leaves out unavailable fragments. While one of them may have more messages, the reply
is not that there are none.

In a transaction messages are scheduled, cancelled and settled, and states set, when it is committed (enlisting.py). Reads
and renewals are done at once, since SDKs name the transaction in them too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from busbar.amqp.types import Array, Int, Timestamp
from busbar.clock import wall_clock
from busbar.gateway.amqp.enlisting import ask_fragment, release_locks
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.amqp.management_request import Operations, Perform, Reply, RequestBody, answer
from busbar.gateway.amqp.outgoing import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    dead_letter_overlay,
    overlay_of,
)
from busbar.gateway.amqp.pending import PendingBatch
from busbar.gateway.amqp.rule_management import RuleOperations
from busbar.gateway.amqp.session_link import SESSION_LOCK_LOST
from busbar.gateway.amqp.session_management import SessionOperations
from busbar.gateway.amqp.tap_management import TapOperations
from busbar.gateway.entity_checks import not_received_from, not_sent_to
from busbar.gateway.routers import new_router
from busbar.message.decoded import DecodedMessage
from busbar.message.delivery import (
    STATE_ACTIVE,
    STATE_DEFERRED,
    STATE_SCHEDULED,
    encode_delivery,
    encode_peeked,
)
from busbar.message.lock_token import lock_tag, tag_to_uuid
from busbar.message.parsing import parse_message
from busbar.model.api import EntityView
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
    ReserveNumbers,
    Settle,
)
from busbar.model.effects import DeferredReceived, NumbersReserved, Peeked, Purged, Renewed, Sent
from busbar.model.entities import SubscriptionDescription, TopicDescription
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    BusbarError,
    InvalidOperation,
    MessageLockLost,
    MessageSizeExceeded,
    ServerBusy,
    SessionLockLost,
)
from busbar.model.message import (
    ACTIVE,
    DEAD,
    DEAD_DEFERRED,
    DEFERRED,
    SCHEDULED,
    TRANSFER_DEAD,
    TRANSFER_DEAD_DEFERRED,
    Draft,
    Overlay,
)
from busbar.model.partitioning import index_of_key
from busbar.model.sas import LISTEN, SEND
from busbar.partitions.resolver import FragmentResolver, Locks
from busbar.partitions.sends import BatchSend
from busbar.partitions.transaction import OtherFragment, Transaction, TransactionalSender

LONG: Final = 0x81
TIMESTAMP: Final = 0x83
STATES: Final = {
    DEFERRED: STATE_DEFERRED,
    DEAD_DEFERRED: STATE_DEFERRED,
    TRANSFER_DEAD_DEFERRED: STATE_DEFERRED,
    SCHEDULED: STATE_SCHEDULED,
}
STATUSES: Final = {
    "completed": COMPLETE,
    "abandoned": ABANDON,
    "suspended": DEAD_LETTER,
    "defered": DEFER,  # sic: so it is spelt on the wire
    "deferred": DEFER,
    "unlocked": RELEASE,
}
PEEK_STATE: Final = "busbar:message-state"
"""A peek with it shows only messages of that state."""
PEEK_LOCKS: Final = "busbar:lock-state"
"""If true, a peek also shows until when each message is locked."""
LANES_OF_STATES: Final = {
    (ACTIVE, "deferred"): DEFERRED,
    (ACTIVE, "scheduled"): SCHEDULED,
    (DEAD, "deferred"): DEAD_DEFERRED,
    (TRANSFER_DEAD, "deferred"): TRANSFER_DEAD_DEFERRED,
}
READ_STATE: Final = ("com.microsoft:get-session-state", "busbar:inspect-session")
MAX_NUMBER: Final = (1 << 63) - 1
NO_DELETION: Final = "Messages cannot be received and deleted in a transaction. Receive them with PeekLock."


@dataclass(frozen=True, slots=True)
class _PeekedPart:
    """What a peek shows of a fragment."""

    lane: int
    session: str | None
    with_locks: bool


class _PeekPage:
    """The messages of one reply to a peek, bounded in bytes. It has at least one, however large."""

    def __init__(self, fragments: FragmentResolver, max_bytes: int, omit_body: bool) -> None:
        self._fragments = fragments
        self._omit_body = omit_body
        self.left = max_bytes
        self.messages: list[object] = []

    def add(self, index: int, found: Peeked) -> bool:
        """Add messages of a fragment. False if the page is full: the next peek begins at the first that is missing."""
        partition = self._fragments.partition_id(index)
        ends = found.locked or [0] * len(found.records)
        for record, lane, locked_until in zip(found.records, found.lanes, ends, strict=True):
            if record.size > self.left and self.messages:
                return False
            self.left -= record.size
            number = self._fragments.sequence_number(index, record.n)
            state = STATES.get(lane, STATE_ACTIVE)
            encoded = encode_peeked(record, number, partition, state, self._omit_body, locked_until)
            self.messages.append({"message": encoded})
        return True


class ManagementNode:
    """The operations of one entity, or of one of its dead-letter queues."""

    def __init__(
        self, peer: LinkConnection, entity: EntityView, resource: str, sub: int, max_message_size: int
    ) -> None:
        self._peer = peer
        self._entity = entity
        self._resource = resource
        self._fragments = FragmentResolver(entity)
        self._router = new_router(peer.service.broker, entity)
        self._sub = sub
        self._max_message_size = max_message_size
        self._sessions = SessionOperations(peer, entity, resource, sub, peer.service.limits.max_message_size)
        self._taps = TapOperations(peer, entity, sub)
        self._rules: RuleOperations | None = None
        if isinstance(entity.description, SubscriptionDescription) and sub == ACTIVE:
            self._rules = RuleOperations(peer, entity, resource)

    def _operations(self) -> Operations:
        """The operations by name, made for each request: a node that kept them would form a cycle with its connection."""
        sending, receiving = self._sending(), self._receiving()
        description = self._entity.description
        if isinstance(description, SubscriptionDescription):
            sending = {name: (right, self._not_sent_to) for name, (right, _) in sending.items()}
        if isinstance(description, TopicDescription) and self._sub != TRANSFER_DEAD:
            receiving = {name: (right, self._not_received_from) for name, (right, _) in receiving.items()}
        operations = sending | receiving | self._taps.operations
        return operations if self._rules is None else operations | self._rules.operations

    def _sending(self) -> Operations:
        return {
            "com.microsoft:schedule-message": (SEND, self._schedule),
            "com.microsoft:cancel-scheduled-message": (SEND, self._cancel),
        }

    async def _not_sent_to(self, body: RequestBody) -> Reply:
        raise InvalidOperation(not_sent_to(self._entity.path))

    async def _not_received_from(self, body: RequestBody) -> Reply:
        raise InvalidOperation(not_received_from(self._entity.path))

    def _receiving(self) -> Operations:
        operations: Operations = {
            "com.microsoft:peek-message": (LISTEN, self._in_turn(self._peek)),
            "com.microsoft:renew-lock": (LISTEN, self._renew),
            "com.microsoft:receive-by-sequence-number": (LISTEN, self._in_turn(self._receive)),
            "com.microsoft:update-disposition": (LISTEN, self._settle),
            "com.microsoft:batch-delete-messages": (LISTEN, self._delete),
        }
        for name, perform in self._sessions.operations.items():
            operations[name] = (LISTEN, self._in_turn(perform) if name in READ_STATE else perform)
        return operations

    def _in_turn(self, perform: Perform) -> Perform:
        """Make the reply of an operation, which may be large, when the client takes what it has asked for."""

        async def later(body: RequestBody) -> Reply:
            return await self._peer.pages.take(lambda: perform(body))

        return later

    async def perform(
        self, request: DecodedMessage, txn: bytes | None
    ) -> tuple[DecodedMessage, BusbarError | None]:
        return await answer(request, txn, self._operations(), self._peer, self._resource)

    async def _peek(self, body: RequestBody) -> Reply:
        limits = self._peer.service.limits
        count = body.integer("message-count")
        if count < 1:
            raise ArgumentOutOfRange(f"message-count is {count}; at least 1 is needed.")
        session = self._sessions.named(body)
        index, number = self._fragments.position(body.integer("from-sequence-number"))
        last = len(self._fragments)
        if session is not None:
            # A session lies in one fragment.
            only = index_of_key(session, last)
            if index < only:
                index, number = only, 1
            last = only + 1
        count = min(count, limits.max_peek_count)
        page = _PeekPage(self._fragments, limits.max_peek_bytes, body.get("omit-message-body") is True)
        busy: ServerBusy | None = None
        look = _PeekedPart(self._peeked_lane(body), session, body.flag(PEEK_LOCKS))
        while index < last and len(page.messages) < count:
            found: Peeked | None = None
            try:
                found = await self._peek_at(index, number, count - len(page.messages), page.left, look)
            except ServerBusy as error:
                busy = error
            if found is None or not found.records:
                index, number = index + 1, 1
                continue
            if not page.add(index, found) or not self._fragments.partitioned:
                break
            number = found.records[-1].n + 1  # the page may have been cut short
        if page.messages:
            return 200, {"messages": page.messages}
        if busy is not None:
            raise busy
        return 204, {}

    def _peeked_lane(self, body: RequestBody) -> int:
        """The sub-queue that a peek shows, or the lane of the state that it is limited to."""
        if body.get(PEEK_STATE) is None:
            return self._sub
        state = body.text(PEEK_STATE)
        lane = LANES_OF_STATES.get((self._sub, state))
        if lane is None:
            known = [name for sub, name in LANES_OF_STATES if sub == self._sub]
            raise ArgumentError(f"'{PEEK_STATE}' is '{state:.80}'; here it is one of {', '.join(known)}.")
        return lane

    async def _peek_at(self, index: int, number: int, count: int, size: int, look: _PeekedPart) -> Peeked:
        effect = await self._peer.ask(
            lambda request: Peek(
                self._fragments.ids[index],
                self._peer.origin,
                request,
                look.lane,
                number,
                count,
                max(1, size),
                look.session,
                look.with_locks,
            )
        )
        assert isinstance(effect, Peeked)
        return effect

    async def _renew(self, body: RequestBody) -> Reply:
        if self._sessions.required:
            raise InvalidOperation(
                f"'{self._entity.path}' requires sessions: a message is locked with its session. Renew the session lock."
            )
        tokens = body.uuids("lock-tokens")
        expirations = [Timestamp(0)] * len(tokens)
        for fragment, indexes, numbers, nonces in self._fragments.resolve_tokens(tokens):
            until = await self._renew_in(fragment, numbers, nonces)
            for index in indexes:
                expirations[index] = Timestamp(until)
        return 200, {"expirations": Array(TIMESTAMP, list(expirations))}

    async def _renew_in(self, fragment: int, numbers: list[int], nonces: list[int]) -> int:
        effect = await self._peer.ask(
            lambda request: Renew(fragment, self._peer.origin, request, numbers, nonces)
        )
        assert isinstance(effect, Renewed)
        return effect.until

    async def _receive(self, body: RequestBody) -> Reply:
        fragments = self._fragments
        index, numbers = fragments.resolve_numbers(body.integers("sequence-numbers"))
        fragment = fragments.ids[index]
        delete = body.integer("receiver-settle-mode") == 0
        if delete and body.transaction is not None:
            raise InvalidOperation(NO_DELETION)
        consumer = self._sessions.holder(body).consumer if self._sessions.required else 0
        effect = await self._peer.ask(
            lambda request: ReceiveDeferred(
                fragment, self._peer.origin, request, self._sub, numbers, delete, consumer
            )
        )
        assert isinstance(effect, DeferredReceived)
        messages: list[object] = []
        for record in effect.records:
            number = fragments.sequence_number(index, record.n)
            tag = b"" if delete else lock_tag(fragment, record.n, effect.nonce)
            partition = fragments.partition_id(index)
            encoded = encode_delivery(record, number, effect.until, partition, tag, STATE_DEFERRED)
            message: dict[str, object] = {"message": encoded}
            if not delete:
                message["lock-token"] = tag_to_uuid(tag)
            messages.append(message)
        return 200, {"messages": messages}

    async def _settle(self, body: RequestBody) -> Reply:
        status = body.text("disposition-status")
        outcome = STATUSES.get(status)
        if outcome is None:
            raise ArgumentError(
                f"disposition-status is '{status}'; it is one of {', '.join(sorted(STATUSES))}."
            )
        if self._sessions.required and body.get("session-id") is not None:
            self._sessions.holder(body)
        tokens = body.uuids("lock-tokens")
        properties = dict(body.mapping("properties-to-modify"))
        if outcome == DEAD_LETTER:
            properties[DEAD_LETTER_REASON] = body.get("deadletter-reason")
            properties[DEAD_LETTER_DESCRIPTION] = body.get("deadletter-description")
            overlay = dead_letter_overlay(properties, self._peer.service.limits)
        else:
            overlay = overlay_of(properties)
        locks = self._fragments.resolve_tokens(tokens)
        try:
            if body.transaction is not None:
                await self._settle_in_transaction(body.transaction, locks, outcome, overlay)
                return 200, {}
            for fragment, _indexes, numbers, nonces in locks:
                await self._settle_in(fragment, outcome, numbers, nonces, overlay)
        except MessageLockLost:
            if self._sessions.required:
                raise SessionLockLost(SESSION_LOCK_LOST) from None
            raise
        return 200, {}

    async def _settle_in_transaction(
        self, transaction: Transaction, locks: list[Locks], outcome: int, overlay: Overlay | None
    ) -> None:
        right = (LISTEN, self._resource)
        try:
            operation = transaction.settle(self._entity, locks, outcome, overlay, right, wall_clock())
        except OtherFragment:
            release_locks(self._peer, locks)
            raise
        await ask_fragment(self._peer, transaction, operation)

    async def _settle_in(
        self, fragment: int, outcome: int, numbers: list[int], nonces: list[int], overlay: Overlay | None
    ) -> None:
        await self._peer.ask(
            lambda request: Settle(
                fragment, self._peer.origin, request, outcome, numbers, nonces, overlay, True
            )
        )

    async def _schedule(self, body: RequestBody) -> Reply:
        if self._sub != ACTIVE:
            raise ArgumentError("Messages cannot be scheduled in a dead-letter queue.")
        limits = self._peer.service.limits
        entries = body.items("messages")
        if not 1 <= len(entries) <= limits.max_schedule_count:
            raise ArgumentOutOfRange(
                f"messages has {len(entries)} entries; 1 to {limits.max_schedule_count} are allowed."
            )
        drafts = []
        for entry in entries:
            payload = RequestBody("schedule-message", entry).binary("message")
            if len(payload) > self._max_message_size:
                raise MessageSizeExceeded(
                    f"The message has {len(payload)} bytes; at most {self._max_message_size} are allowed."
                )
            drafts.append(
                parse_message(
                    payload,
                    0,
                    len(payload),
                    self._peer.fresh_id(),
                    limits.max_id_length,
                    limits.max_header_size,
                )
            )
        if body.transaction is not None:
            return await self._schedule_in_transaction(body.transaction, drafts)
        stored: asyncio.Future[tuple[int, Sent]] = asyncio.get_running_loop().create_future()
        BatchSend(self._peer, self._router, drafts, PendingBatch(stored)).send()
        self._peer.flush()
        index, effect = await stored
        numbers = [self._fragments.sequence_number(index, number) for number in effect.numbers]
        return 200, {"sequence-numbers": Array(LONG, list(numbers))}

    async def _schedule_in_transaction(self, transaction: Transaction, drafts: list[Draft]) -> Reply:
        """Reserve the numbers now, for use at the commit. After a rollback they stay unused."""
        peer = self._peer
        sender = TransactionalSender(self._entity, self._router, [self._resource])
        operation = transaction.schedule(sender, drafts, wall_clock())
        fragment = operation.parts[0].fragment
        command = ReserveNumbers(fragment, peer.origin, 0, len(drafts))
        effect = await ask_fragment(peer, transaction, operation, command)
        assert isinstance(effect, NumbersReserved)
        numbers = range(effect.first, effect.first + len(drafts))
        for draft, number in zip(drafts, numbers, strict=True):
            draft.number = number
        shown = [self._fragments.sequence_number(operation.index, number) for number in numbers]
        return 200, {"sequence-numbers": Array(LONG, list(shown))}

    async def _cancel(self, body: RequestBody) -> Reply:
        index, numbers = self._fragments.resolve_numbers(body.integers("sequence-numbers"))
        if body.transaction is not None:
            right = (SEND, self._resource)
            operation = body.transaction.cancel(self._entity, index, numbers, right, wall_clock())
            await ask_fragment(self._peer, body.transaction, operation)
            return 200, {}
        await self._peer.ask(
            lambda request: CancelScheduled(self._fragments.ids[index], self._peer.origin, request, numbers)
        )
        return 200, {}

    async def _delete(self, body: RequestBody) -> Reply:
        if body.transaction is not None:
            raise InvalidOperation(NO_DELETION)
        limit = self._peer.service.limits.max_delete_count
        count = body.integer("message-count")
        if not 1 <= count <= limit:
            raise ArgumentOutOfRange(f"message-count is {count}; 1 to {limit} are allowed.")
        # Clients cut their time to a millisecond: what was enqueued within it was enqueued before.
        before = body.integer("enqueued-time-utc") + 1
        deleted = 0
        session = self._sessions.named(body)
        among = self._fragments.ids if session is None else (self._sessions.holder(body).fragment,)
        for fragment in among:
            while deleted < count:
                gone = await self._purge(fragment, min(before, MAX_NUMBER), count - deleted, session)
                if not gone:
                    break
                deleted += gone
        return (200, {"message-count": Int(deleted)}) if deleted else (204, {})

    async def _purge(self, fragment: int, before: int, count: int, session: str | None) -> int:
        """Do one step of a deletion: a fragment bounds what it deletes at a time."""
        effect = await self._peer.ask(
            lambda request: Purge(fragment, self._peer.origin, request, self._sub, before, count, session)
        )
        assert isinstance(effect, Purged)
        return effect.count
