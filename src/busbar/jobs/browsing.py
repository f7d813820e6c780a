"""Reads the messages of a queue, a subscription or a sub-queue without locking them (peek of the management link).

    browse("orders/$Transfer/$DeadLetterQueue", connection=..., look=print)

The path of a sub-queue is that of the entity with /$DeadLetterQueue or /$Transfer/$DeadLetterQueue. The fragments of a
partitioned entity are read one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from busbar.amqp.codec import DecodeError, decode_value
from busbar.amqp.types import Int
from busbar.client import BusbarClientError, MessagingFactory, Retry
from busbar.client.errors import error_of
from busbar.message.decoded import DecodedMessage, decode_message
from busbar.message.sections import find_sections, value_of
from busbar.model.errors import MalformedMessage

if TYPE_CHECKING:
    from pathlib import Path

DEAD_LETTERS: Final = "/$DeadLetterQueue"
TRANSFER_DEAD_LETTERS: Final = "/$Transfer/$DeadLetterQueue"
PAGE: Final = 100
STATES: Final = ("Active", "Deferred", "Scheduled")


@dataclass(frozen=True, slots=True)
class BrowsedMessage:
    """A message as a peek shows it."""

    sequence_number: int
    enqueued: int
    """In ms since 1970; 0: not known."""
    state: str
    """One of STATES."""
    delivery_count: int
    message: DecodedMessage

    @property
    def reason(self) -> str:
        """Of a dead letter; else empty."""
        return str(self.message.application_properties.get("DeadLetterReason") or "")


def without_sub_queue(path: str) -> tuple[str, str]:
    """The path of an entity and the name of a sub-queue ('', 'deadletter' or 'transferdeadletter'), from the path of one."""
    for suffix, name in ((TRANSFER_DEAD_LETTERS, "transferdeadletter"), (DEAD_LETTERS, "deadletter")):
        if path.lower().endswith(suffix.lower()):
            return path[: -len(suffix)], name
    return path, ""


def browse(
    path: str,
    *,
    connection: str,
    look: Callable[[BrowsedMessage], bool | None],
    start: int = 1,
    wait: float = 60.0,
    trust: Path | None = None,
) -> None:
    """Show `look` the messages from a sequence number on, in their order, until it returns False.

    `wait` is how long a broker may be unreachable, in seconds. Raises BusbarClientError.
    """

    async def read() -> None:
        async with await MessagingFactory.connect(
            connection, retry=Retry(patience=wait), name="busbar-browse", trust=trust
        ) as factory:
            await _read(factory, path.strip("/"), start, look)

    asyncio.run(read())


async def _read(
    factory: MessagingFactory, path: str, start: int, look: Callable[[BrowsedMessage], bool | None]
) -> None:
    entity, _ = without_sub_queue(path)
    while True:
        page = await factory.retry.run(partial(_page, factory, entity, path, start))
        if not page:
            return
        for message in page:
            if look(message) is False:
                return
        start = page[-1].sequence_number + 1


async def _page(factory: MessagingFactory, entity: str, path: str, start: int) -> list[BrowsedMessage]:
    node = await factory.node(entity, f"{path}/$management")
    request = {"from-sequence-number": start, "message-count": Int(PAGE)}
    reply = await node.ask(request, {"operation": "com.microsoft:peek-message"}, 30.0)
    status = reply.application_properties.get("statusCode")
    if status == 204:
        return []
    entries = reply.value.get("messages") if isinstance(reply.value, dict) else None
    if status != 200 or not isinstance(entries, list):
        condition = reply.application_properties.get("errorCondition")
        text = str(reply.application_properties.get("statusDescription") or f"the broker answered {status}")
        raise error_of(str(condition or ""), text)
    return [_decoded(bytes(entry["message"])) for entry in entries]


def _decoded(payload: bytes) -> BrowsedMessage:
    try:
        message, annotations = decode_message(payload), _annotations(payload)
    except (MalformedMessage, DecodeError) as error:
        raise BusbarClientError(f"a message that was peeked cannot be read: {error}") from None
    state = _integer(annotations.get("x-opt-message-state"))
    return BrowsedMessage(
        _integer(annotations.get("x-opt-sequence-number")),
        _integer(annotations.get("x-opt-enqueued-time")),
        STATES[state] if 0 <= state < len(STATES) else STATES[0],
        _delivery_count(payload),
        message,
    )


def _annotations(payload: bytes) -> dict[str, object]:
    found = find_sections(payload, 0, len(payload))
    if found.annotations == found.properties:
        return {}
    decoded, _ = decode_value(payload, value_of(payload, found.annotations, found.end), found.properties)
    return {str(key): value for key, value in decoded.items()} if isinstance(decoded, dict) else {}


def _delivery_count(payload: bytes) -> int:
    found = find_sections(payload, 0, len(payload))
    if found.header == found.delivery_annotations:
        return 0
    decoded, _ = decode_value(payload, value_of(payload, found.header, found.end), found.delivery_annotations)
    fields = decoded if isinstance(decoded, list) else []
    return _integer(fields[4]) if len(fields) > 4 else 0


def _integer(value: object) -> int:
    return int(value) if isinstance(value, int) else 0
