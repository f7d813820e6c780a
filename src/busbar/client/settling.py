"""Settles received messages: by a disposition on the link they came on, or by their lock tokens.

1. A disposition is the normal way. The receiver uses lock tokens if a message has no delivery to dispose of. Then it was
   deferred, its settlement was rolled back with a transaction, or (`survives_links`) its link has ended before its lock.
2. Messages that were received and deleted have no locks. They cannot be settled, also not in a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from busbar.amqp.codec import encode_value
from busbar.amqp.errors import AmqpError
from busbar.amqp.outcomes import ACCEPTED, MODIFIED, REJECTED, empty_state, rejected_state
from busbar.amqp.types import Array, Described, ULong
from busbar.client.errors import LockLost, NotInThisMode, SettleFailed, error_of
from busbar.client.received import Received
from busbar.message.lock_token import tag_to_uuid

if TYPE_CHECKING:
    from busbar.client.factory import MessagingFactory
    from busbar.client.receiver_link import ReceiverLink
    from busbar.client.transactions import ClientTransaction

DEAD_LETTER = "com.microsoft:dead-letter"
LONGEST_TEXT = 8192
UPDATE_DISPOSITION = "com.microsoft:update-disposition"
UUID_CODE = 0x98


@dataclass(frozen=True, slots=True)
class SettlementForm:
    """A settlement as a delivery state with its code, and as a request to the management node."""

    state: bytes
    code: int
    request: dict[str, object]


COMPLETION = SettlementForm(empty_state(ACCEPTED), ACCEPTED, {"disposition-status": "completed"})


def abandonment(properties: dict[str, object] | None) -> SettlementForm:
    """Return the message for another delivery, with properties set on it."""
    return SettlementForm(_modified(False, properties), MODIFIED, _request("abandoned", properties))


def deferral(properties: dict[str, object] | None) -> SettlementForm:
    return SettlementForm(_modified(True, properties), MODIFIED, _request("defered", properties))


def dead_lettering(reason: str, description: str) -> SettlementForm:
    info: dict[object, object] = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    state = rejected_state(AmqpError(DEAD_LETTER, description, info), LONGEST_TEXT)
    request = _request("suspended", None)
    request |= {"deadletter-reason": reason, "deadletter-description": description}
    return SettlementForm(state, REJECTED, request)


class Settlements:
    """The settlements of one receiver."""

    def __init__(
        self,
        factory: MessagingFactory,
        entity: str,
        address: str,
        *,
        delete: bool,
        survives_links: bool = False,
        session_id: str | None = None,
    ) -> None:
        self._factory = factory
        self._entity = entity
        self._address = address
        self._delete = delete
        self._survives_links = survives_links
        self._session_id = session_id

    def check(self, what: str) -> None:
        """Raise NotInThisMode if the receiver deletes what it receives."""
        if self._delete:
            raise NotInThisMode(
                f"Messages that were received and deleted cannot be {what}: they have no locks. Receive with PeekLock."
            )

    async def settle(
        self,
        messages: Sequence[Received],
        form: SettlementForm,
        what: str,
        transaction: ClientTransaction | None = None,
    ) -> None:
        """Settle messages of one connection. Raises SettleFailed, LockLost."""
        if not messages:
            return
        self.check(what)
        link = messages[0].link
        if any(message.link is not link for message in messages):
            raise ValueError("the messages came on different connections; settle those of each by themselves")
        if link is None or (self._survives_links and link.error is not None):
            await self._by_token(messages, form, await self._named(transaction))
            return
        if link.error is not None:
            raise LockLost(f"The lock ended with the link: {link.error.text}")
        txn = None if transaction is None else transaction.state(link.connection)
        by_token = [message for message in messages if message.delivery_id in link.locked]
        ids = [message.delivery_id for message in messages if message.delivery_id not in link.locked]
        if by_token:
            await self._by_token(by_token, form, txn)
            link.locked.difference_update([message.delivery_id for message in by_token])
        await self._by_disposition(link, messages, ids, form, transaction)

    async def _by_disposition(
        self,
        link: ReceiverLink,
        messages: Sequence[Received],
        ids: list[int],
        form: SettlementForm,
        transaction: ClientTransaction | None,
    ) -> None:
        state = form.state
        if transaction is not None:
            transaction.settling(link, [message.delivery_id for message in messages])
            state = transaction.state(link.connection, state)
        if not ids:
            return
        try:
            await link.settle(ids, state, form.code)
        except SettleFailed as refused:
            if transaction is not None:
                link.still_locked([ids[place] for place in refused.failed])
            raise

    async def _named(self, transaction: ClientTransaction | None) -> bytes | None:
        return None if transaction is None else transaction.state(await self._factory.connection())

    async def _by_token(self, messages: Sequence[Received], form: SettlementForm, txn: bytes | None) -> None:
        tokens = Array(UUID_CODE, [tag_to_uuid(message.tag) for message in messages])
        request = form.request | {"lock-tokens": tokens}
        if self._session_id is not None:
            request["session-id"] = self._session_id
        node = await self._factory.node(self._entity, f"{self._address}/$management")
        reply = await node.ask(
            request, {"operation": UPDATE_DISPOSITION}, self._factory.operation_timeout, txn or b""
        )
        answer = reply.application_properties
        if answer.get("statusCode") != 200:
            raise error_of(str(answer.get("errorCondition")), str(answer.get("statusDescription")))


def _modified(undeliverable_here: bool, properties: dict[str, object] | None) -> bytes:
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
