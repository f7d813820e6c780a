"""Receives messages, with credit ahead of demand, and settles them in ranges.

1. The receiver requests up to `credit` messages ahead. They wait here, locked, for the next `receive`. When the receiver is
   closed, messages that were not fetched are released, and their delivery counts do not rise. With `delete` the broker
   deletes messages as soon as it sends them.
2. A settlement is done when the broker confirms it: then it is durable. Consecutive messages are settled with one
   disposition. If a message could not be settled (its lock had expired), SettleFailed names it; the others are settled.
3. In a transaction a settlement is done at the commit. After a rollback the messages are still locked, and the receiver
   settles them by their lock tokens, since their deliveries are settled.
4. Locks end with the connection. After ConnectionLost the next `receive` opens another one. Earlier messages cannot be
   settled any more and are delivered again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from busbar.amqp.codec import decode_value, encode_value
from busbar.amqp.errors import AmqpError
from busbar.amqp.events import Delivery
from busbar.amqp.outcomes import ACCEPTED, MODIFIED, REJECTED, RELEASED, Outcome, empty_state, rejected_state
from busbar.amqp.types import Array, Described, ULong
from busbar.client.connection import ClientConnection, LinkEnd
from busbar.client.errors import BusbarClientError, ConnectionLost, LockLost, SettleFailed, error_of
from busbar.message.decoded import DecodedMessage, decode_message
from busbar.message.lock_token import tag_to_uuid
from busbar.message.sections import Sections, find_sections, value_of

if TYPE_CHECKING:
    from busbar.client.factory import MessagingFactory
    from busbar.client.transactions import ClientTransaction

COMPLETE = empty_state(ACCEPTED)
RELEASE = empty_state(RELEASED)
DEAD_LETTER = "com.microsoft:dead-letter"
LONGEST_TEXT = 8192
UPDATE_DISPOSITION = "com.microsoft:update-disposition"
UUID_CODE = 0x98


class Received:
    """A message and its lock."""

    __slots__ = ("_annotations", "_found", "_link", "delivery_id", "payload", "tag")

    def __init__(self, link: ReceiverLink, delivery: Delivery) -> None:
        self._link = link
        self.delivery_id = delivery.id
        self.tag = delivery.tag
        self.payload = delivery.payload
        """The message as it came: header, annotations, and all that the sender wrote."""
        self._found: Sections | None = None
        self._annotations: dict[object, object] | None = None

    @property
    def link(self) -> ReceiverLink:
        return self._link

    @property
    def sections(self) -> Sections:
        if self._found is None:
            self._found = find_sections(self.payload, 0, len(self.payload))
        return self._found

    @property
    def annotations(self) -> dict[object, object]:
        if self._annotations is None:
            found = self.sections
            self._annotations = {}
            if found.annotations < found.properties:
                at = value_of(self.payload, found.annotations, found.end)
                value, _ = decode_value(self.payload, at, found.properties)
                if isinstance(value, dict):
                    self._annotations = value
        return self._annotations

    @property
    def sequence_number(self) -> int:
        return self._integer("x-opt-sequence-number")

    @property
    def enqueued_time(self) -> int:
        """The enqueued time in ms since 1970."""
        return self._integer("x-opt-enqueued-time")

    @property
    def locked_until(self) -> int:
        """The end of the lock in ms since 1970; 0 without a lock."""
        return self._integer("x-opt-locked-until")

    @property
    def delivery_count(self) -> int:
        """How often it was delivered before."""
        found = self.sections
        if found.header == found.delivery_annotations:
            return 0
        fields, _ = decode_value(
            self.payload, value_of(self.payload, found.header, found.end), found.annotations
        )
        count = fields[4] if isinstance(fields, list) and len(fields) > 4 else 0
        return int(count) if isinstance(count, int) else 0

    @property
    def bare(self) -> bytes:
        """The message in the form that can be sent again."""
        found = self.sections
        return self.payload[found.annotations : found.end]

    def decode(self) -> DecodedMessage:
        """Decode properties, application properties and body."""
        return decode_message(self.payload)

    def _integer(self, key: str) -> int:
        value = self.annotations.get(key)
        return int(value) if isinstance(value, int) else 0


class _Settlement:
    """One call whose messages the broker has still to confirm."""

    def __init__(self, ids: list[int], code: int) -> None:
        self.places = {number: place for place, number in enumerate(ids)}
        self.code = code
        self.failed: dict[int, tuple[str, str]] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(self, number: int, outcome: Outcome | None) -> None:
        place = self.places.pop(number)
        error = None if outcome is None else outcome.error
        # A dead-lettering is confirmed by a rejection without an error; a refusal is a rejection with its reason.
        if outcome is None or outcome.code != self.code or error is not None:
            self.failed[place] = (
                ("amqp:internal-error", "The broker did not settle it.")
                if error is None
                else (error.condition, error.description)
            )
        if not self.places and not self.done.done():
            self.done.set_result(None)


_SETTLED_BEFORE = Outcome(REJECTED, AmqpError(LockLost.default_condition, "The message was settled before."))


class ReceiverLink(LinkEnd):
    """A receiver on one connection, with which it ends."""

    def __init__(self, connection: ClientConnection, credit: int, delete: bool) -> None:
        self.connection = connection
        self.delete = delete
        self.error: BusbarClientError | None = None
        self._credit = credit
        self._buffer: deque[Received] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._held: set[int] = set()  # delivered and not settled: the broker confirms no others
        self._settling: dict[int, _Settlement] = {}
        self.locked: set[int] = set()
        """Deliveries that are settled while their messages are locked: a transaction was rolled back."""

    async def attach(self, address: str, timeout: float) -> None:
        await self.connection.attach_receiver(self, address, timeout, settled=self.delete)
        self._give_credit()

    def _give_credit(self) -> None:
        """Give the broker credit for the messages that the caller waits for."""
        room = self._credit - len(self._buffer)
        if room > 0 and self.link.credit <= room // 2:
            self.link.grant(room)
            self.connection.touch()

    def arrived(self, deliveries: list[Delivery]) -> None:
        self._buffer.extend([Received(self, delivery) for delivery in deliveries])
        if not self.delete:
            self._held.update([delivery.id for delivery in deliveries])
        self._give_credit()
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self, timeout: float) -> None:
        """Wait until there is a message, the link ends, or the time has passed."""
        if self._buffer or self.error is not None:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait([self._waiter], timeout=timeout)
        finally:
            self._waiter = None

    def take(self, most: int) -> list[Received]:
        buffer = self._buffer
        if len(buffer) <= most:
            taken = list(buffer)
            buffer.clear()
        else:
            taken = [buffer.popleft() for _ in range(most)]
        if self.error is None:
            self._give_credit()
        return taken

    async def settle(self, ids: list[int], state: bytes, code: int, timeout: float) -> None:
        settlement = _Settlement(ids, code)
        held = [number for number in ids if number in self._held]
        self._held.difference_update(held)
        for number in held:
            self._settling[number] = settlement
        if len(held) < len(ids):
            for number in set(ids).difference(held):
                settlement.answered(number, _SETTLED_BEFORE)
        if held:
            self.link.dispose(held, state, False)
            self.connection.touch()
            await asyncio.wait([settlement.done], timeout=timeout)
        if not settlement.done.done():
            lost = ConnectionLost(f"No answer to a settlement for {timeout:g} s: the connection is given up.")
            self.connection.abort(lost)
        if settlement.failed:
            first = settlement.failed[min(settlement.failed)]
            text = f"Of {len(ids)} messages {len(settlement.failed)} were not settled. {first[1]}"
            raise SettleFailed(text, first[0], settlement.failed)

    def still_locked(self, ids: list[int]) -> None:
        """The transaction in which these deliveries were settled was rolled back."""
        if self.error is None:
            self.locked.update(ids)

    def disposed(self, ids: list[int], tags: list[bytes], outcome: Outcome | None) -> None:
        for number in ids:
            settlement = self._settling.pop(number, None)
            if settlement is not None:
                settlement.answered(number, outcome)

    def ended(self, error: BusbarClientError) -> None:
        self.error = error
        if not self.delete:
            self._buffer.clear()  # their locks are lost
        settling, self._settling = self._settling, {}
        denial = Outcome(REJECTED, AmqpError(error.condition, error.text))
        for number, settlement in settling.items():
            settlement.answered(number, denial)
        self._wake()

    def close(self, release: bool = False) -> None:
        if self.error is not None:
            return
        given_back = [received.delivery_id for received in self._buffer]
        if release:
            given_back = sorted(self._held)
        if given_back and not self.delete:
            self.link.dispose(given_back, RELEASE, True)
        self.ended(ConnectionLost("The receiver was closed by its owner."))
        self.connection.detach(self.link)


class Receiver:
    """Receives from one entity. MessagingFactory.receiver creates it."""

    def __init__(
        self, factory: MessagingFactory, entity: str, address: str, credit: int, delete: bool
    ) -> None:
        if credit < 1:
            raise ValueError(f"credit is {credit}; at least one message has to be asked for")
        self.entity = entity
        self.address = address
        self._factory = factory
        self._credit = credit
        self._delete = delete
        self._link: ReceiverLink | None = None
        self._lock = asyncio.Lock()

    async def attached(self) -> ReceiverLink:
        """The attached link, or a new one."""
        async with self._lock:
            link = self._link
            if link is None or link.error is not None:
                connection = await self._factory.connection_for(self.entity)
                link = ReceiverLink(connection, self._credit, self._delete)
                await link.attach(self.address, self._factory.timeout)
                self._link = link
            return link

    async def receive(self, max_messages: int = 100, timeout: float = 10.0) -> list[Received]:
        """Return the messages that are there, at most `max_messages`. Waits up to `timeout` seconds for the first. If the
        link ended since the last call, raises ConnectionLost once."""
        link = self._link
        if link is None:
            link = await self.attached()
        await link.wait(timeout)
        taken = link.take(max_messages)
        if not taken and link.error is not None:
            self._link = None
            raise link.error
        return taken

    async def complete(
        self, messages: Sequence[Received], *, transaction: ClientTransaction | None = None
    ) -> None:
        """Complete messages: the broker deletes them."""
        await self._settle(messages, COMPLETE, ACCEPTED, _request("completed", None), transaction)

    async def abandon(
        self,
        messages: Sequence[Received],
        properties: dict[str, object] | None = None,
        *,
        transaction: ClientTransaction | None = None,
    ) -> None:
        """Abandon messages: the broker delivers them again. `properties` are set on them."""
        request = _request("abandoned", properties)
        await self._settle(messages, _encode_modified(False, properties), MODIFIED, request, transaction)

    async def defer(
        self,
        messages: Sequence[Received],
        properties: dict[str, object] | None = None,
        *,
        transaction: ClientTransaction | None = None,
    ) -> None:
        """Defer messages: they can be received only by their sequence numbers."""
        request = _request("defered", properties)
        await self._settle(messages, _encode_modified(True, properties), MODIFIED, request, transaction)

    async def dead_letter(
        self,
        messages: Sequence[Received],
        reason: str = "",
        description: str = "",
        *,
        transaction: ClientTransaction | None = None,
    ) -> None:
        """Move them to the dead-letter queue."""
        info: dict[object, object] = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        state = rejected_state(AmqpError(DEAD_LETTER, description, info), LONGEST_TEXT)
        request = _request("suspended", None)
        request |= {"deadletter-reason": reason, "deadletter-description": description}
        await self._settle(messages, state, REJECTED, request, transaction)

    async def _settle(
        self,
        messages: Sequence[Received],
        state: bytes,
        code: int,
        request: dict[str, object],
        transaction: ClientTransaction | None,
    ) -> None:
        """Settle by disposition or, what a rollback has left locked, by `request` to the management node."""
        if not messages:
            return
        if self._delete:
            raise ValueError("messages that were deleted as they came cannot be settled")
        link = messages[0].link
        if any(message.link is not link for message in messages):
            raise ValueError("the messages came on different connections; settle those of each by themselves")
        if link.error is not None:
            raise LockLost(f"The lock ended with the link: {link.error.text}")
        txn = None if transaction is None else transaction.state(link.connection)
        by_token = [message for message in messages if message.delivery_id in link.locked]
        ids = [message.delivery_id for message in messages if message.delivery_id not in link.locked]
        if by_token:
            await self._settle_by_token(link, by_token, request, txn)
        if transaction is not None:
            transaction.settling(link, [message.delivery_id for message in messages])
            state = transaction.state(link.connection, state)
        if not ids:
            return
        try:
            await link.settle(ids, state, code, self._factory.timeout)
        except SettleFailed as refused:
            if transaction is not None:
                link.still_locked([ids[place] for place in refused.failed])
            raise

    async def _settle_by_token(
        self, link: ReceiverLink, messages: Sequence[Received], request: dict[str, object], txn: bytes | None
    ) -> None:
        tokens = Array(UUID_CODE, [tag_to_uuid(message.tag) for message in messages])
        node = await self._factory.node(self.entity, f"{self.address}/$management")
        reply = await node.ask(
            request | {"lock-tokens": tokens},
            {"operation": UPDATE_DISPOSITION},
            self._factory.timeout,
            txn or b"",
        )
        said = reply.application_properties
        if said.get("statusCode") != 200:
            raise error_of(str(said.get("errorCondition")), str(said.get("statusDescription")))
        link.locked.difference_update([message.delivery_id for message in messages])

    async def close(self, *, release: bool = False) -> None:
        """Close the link. Messages that were not fetched are released, with `release` also those that were fetched and not
        settled. Their delivery counts do not rise."""
        link, self._link = self._link, None
        if link is not None:
            link.close(release)

    async def __aenter__(self) -> Receiver:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


def _encode_modified(undeliverable_here: bool, properties: dict[str, object] | None) -> bytes:
    fields: list[object] = [True, undeliverable_here]
    if properties:
        fields.append(properties)
    return encode_value(Described(ULong(MODIFIED), fields))


def _request(status: str, properties: dict[str, object] | None) -> dict[str, object]:
    """A settlement as the management node takes it."""
    request: dict[str, object] = {"disposition-status": status}
    if properties:
        request["properties-to-modify"] = properties
    return request
