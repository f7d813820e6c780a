"""Where `busbar redrive` takes messages from: a dead-letter queue, or a transfer dead-letter queue.

- A dead-letter queue is read through taps, up to its current end, without locks.
- A transfer dead-letter queue has no taps. It is read by peeks, as far as they show something. A topic has one too.
- A deferred message can only be received by its number, so neither source offers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from busbar.client.blocking import BlockingFactory
from busbar.client.received import PeekedMessage
from busbar.jobs.edits import shown_value
from busbar.message.decoded import DecodedMessage, decode_message
from busbar.model.message import DEAD
from busbar.model.names import key_of
from busbar.operations.browsing import MessageKind, browse
from busbar.operations.paths import DEAD_LETTER, TRANSFER_DEAD_LETTER, MessagePath
from busbar.operations.rewriting import DEAD_LETTER_PROPERTIES, Changes
from busbar.pages.rows import TapMessageRow, decode_messages, properties_of, raw_message

REASON: Final = DEAD_LETTER_PROPERTIES[0]
NUMBER_BITS: Final = 48
Offer = Callable[[int, int, str], None]
"""Gets the sequence number, the enqueued time in ms and the reason of a message."""


class RedriveSource(Protocol):
    """A sub-queue whose messages are moved."""

    entity: str
    sub_queue: str
    """As a receiver names it."""
    name: str
    """Identifies the sub-queue in the ids of messages that are sent again."""
    incarnation: str
    """Changes when the entity is created again."""

    def offer_all(self, offer: Offer) -> None:
        """Offer the messages that are there now."""

    def samples(self, wanted: Mapping[int, Changes], most: int) -> list[dict[str, Any]]:
        """The first of the selected messages, each with the result of its edits."""


class DeadLetterSource:
    sub_queue = DEAD_LETTER

    def __init__(self, factory: BlockingFactory, entity: str) -> None:
        self._taps = factory.taps(entity, sub_queue=DEAD_LETTER)
        self._ends = self._taps.ends()
        # As the broker spells it: the same entity under another spelling is the same source.
        self.entity = self.name = self._ends.entity
        self.incarnation = self._ends.incarnation

    def offer_all(self, offer: Offer) -> None:
        for number, row in self._rows():
            offer(number, row.enqueued, _reason(row))

    def samples(self, wanted: Mapping[int, Changes], most: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if not most:
            return found
        for number, row in self._rows():
            if number in wanted:
                message = decode_message(raw_message(row.content))
                found.append(_sample(number, message, row.deliveries, _reason(row), wanted[number]))
                if len(found) == most:
                    break
        return found

    def _rows(self) -> Iterator[tuple[int, TapMessageRow]]:
        for index, end in sorted(self._ends.dead_ends.items()):
            for page in self._taps.pages(None, index, 0, end):
                for row in decode_messages(page.rows):
                    if row.lane == DEAD:
                        yield index << NUMBER_BITS | row.n, row


class FailedTransferSource:
    """The enqueued time in the ids of its messages distinguishes the entity from a later one of the same name."""

    sub_queue = TRANSFER_DEAD_LETTER
    incarnation = ""

    def __init__(self, factory: BlockingFactory, entity: str) -> None:
        self.entity = entity
        self._factory = factory
        self._path = str(MessagePath(entity, TRANSFER_DEAD_LETTER))
        self.name = key_of(self._path)

    def offer_all(self, offer: Offer) -> None:
        for message in self._messages():
            offer(message.sequence_number, message.enqueued_time, message.dead_letter_reason or "")

    def samples(self, wanted: Mapping[int, Changes], most: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if not most:
            return found
        for each in self._messages():
            number = each.sequence_number
            if number in wanted:
                reason = each.dead_letter_reason or ""
                found.append(_sample(number, each.decode(), each.delivery_count, reason, {}))
                if len(found) == most:
                    break
        return found

    def _messages(self) -> Iterator[PeekedMessage]:
        return browse(self._factory, self._path, kind=MessageKind.ACTIVE)


def _reason(row: TapMessageRow) -> str:
    found = properties_of(row.overlay).get(REASON)
    if found is None:
        found = decode_message(raw_message(row.content)).application_properties.get(REASON)
    return "" if found is None else str(found)


def _sample(
    number: int, message: DecodedMessage, deliveries: int, reason: str, changes: Changes
) -> dict[str, Any]:
    about = {
        "sequenceNumber": number,
        "messageId": None if message.message_id is None else str(message.message_id),
        "sessionId": None if message.group_id is None else str(message.group_id),
        "subject": None if message.subject is None else str(message.subject),
        "deliveryCount": int(deliveries),
        "reason": reason,
    }
    edits = {name: shown_value(value) for name, value in changes.items()}
    return {**about, "edits": edits} if edits else about
