"""Reads the messages of a queue, a subscription or a sub-queue without locking them. Delivery counts stay as they are.

The fragments of a partitioned entity are read one after the other, in the order of sequence numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from busbar.client.blocking import BlockingFactory
from busbar.client.received import PeekedMessage
from busbar.operations.paths import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, MessagePath

PAGE: Final = 250
"""Messages in a request. A broker answers with no more."""


class MessageKind(StrEnum):
    """Which messages of an entity a person looks at."""

    ALL = "all"
    """Those that are active, deferred or scheduled."""
    ACTIVE = "active"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"
    DEAD_LETTER = "dead-letter"
    TRANSFER_DEAD_LETTER = "transfer-dead-letter"


_SUB_QUEUES: Final = {
    MessageKind.DEAD_LETTER: DEAD_LETTER,
    MessageKind.TRANSFER_DEAD_LETTER: TRANSFER_DEAD_LETTER,
}


def place_of(path: str, kind: MessageKind) -> MessagePath:
    """The sub-queue that has the messages of this kind. The path of a sub-queue names itself."""
    found = MessagePath.parse(path)
    wanted = _SUB_QUEUES.get(kind)
    if wanted is not None:
        return found.of(wanted)
    return found.of(MAIN) if kind is MessageKind.SCHEDULED else found


def browse(
    factory: BlockingFactory,
    path: str,
    *,
    kind: MessageKind = MessageKind.ALL,
    start: int = 1,
    session_id: str | None = None,
    body: bool = True,
    at_once: int = PAGE,
) -> Iterator[PeekedMessage]:
    """Yield messages from a sequence number on, in their order; with `session_id` those of that session. A request asks for
    `at_once` of them."""
    place = place_of(path, kind)
    receiver = factory.message_receiver(place.entity, sub_queue=place.sub_queue)
    state = kind.value if kind in (MessageKind.DEFERRED, MessageKind.SCHEDULED) else ""
    try:
        while True:
            page = receiver.peek_messages(
                at_once, sequence_number=start, session_id=session_id, state=state, body=body
            )
            if not page:
                return
            for message in page:
                if kind is not MessageKind.ACTIVE or message.state == MessageKind.ACTIVE:
                    yield message
            start = page[-1].sequence_number + 1
    finally:
        receiver.close()


def find(
    factory: BlockingFactory, path: str, number: int, *, kind: MessageKind = MessageKind.ALL
) -> PeekedMessage | None:
    """The message with a sequence number; None if it is not there."""
    place = place_of(path, kind)
    with factory.message_receiver(place.entity, sub_queue=place.sub_queue) as receiver:
        page = receiver.peek_messages(1, sequence_number=number)
    return page[0] if page and page[0].sequence_number == number else None
