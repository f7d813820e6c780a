"""Messages as they come from the broker: peeked ones, and received ones with their locks.

Properties are decoded when they are used. `payload` is the message as it came: header, annotations, and all that the sender
wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from busbar.amqp.codec import decode_value
from busbar.amqp.events import Delivery
from busbar.message.decoded import DecodedMessage, decode_message
from busbar.message.lock_token import tag_to_uuid
from busbar.message.sections import Sections, find_sections, value_of

if TYPE_CHECKING:
    from busbar.client.receiver_link import ReceiverLink

STATES = ("active", "deferred", "scheduled")
UNLOCKED = -1
"""In the place of a delivery id: the message did not come on a link."""


class PeekedMessage:
    """A message without a lock."""

    __slots__ = ("_annotations", "_decoded", "_found", "payload")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self._found: Sections | None = None
        self._annotations: dict[object, object] | None = None
        self._decoded: DecodedMessage | None = None

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
    def scheduled_enqueue_time(self) -> int:
        """The time at which a scheduled message becomes active, in ms since 1970; 0 if it was not scheduled."""
        return self._integer("x-opt-scheduled-enqueue-time")

    @property
    def state(self) -> str:
        """The state of the message: active, deferred or scheduled."""
        number = self._integer("x-opt-message-state")
        return STATES[number] if 0 <= number < len(STATES) else STATES[0]

    @property
    def locked_until(self) -> int:
        """The end of the lock in ms since 1970; 0 without a lock."""
        return self._integer("x-opt-locked-until")

    @property
    def time_to_live(self) -> int:
        """The time to live in ms; 0 if the message does not expire, or after more than 49 days."""
        return self._header_integer(2)

    @property
    def partition_key(self) -> str | None:
        return _text(self.annotations.get("x-opt-partition-key"))

    @property
    def delivery_count(self) -> int:
        """The number of deliveries before this one."""
        return self._header_integer(4)

    @property
    def bare(self) -> bytes:
        """The message in the form that can be sent again."""
        found = self.sections
        return self.payload[found.annotations : found.end]

    def decode(self) -> DecodedMessage:
        """Decode properties, application properties and body."""
        return decode_message(self.payload)

    @property
    def body(self) -> bytes:
        """The data of the message; empty if its body is an AMQP value."""
        return self._whole.data or b""

    @property
    def message_id(self) -> str | None:
        return _text(self._whole.message_id)

    @property
    def session_id(self) -> str | None:
        return _text(self._whole.group_id)

    @property
    def correlation_id(self) -> str | None:
        return _text(self._whole.correlation_id)

    @property
    def subject(self) -> str | None:
        return _text(self._whole.subject)

    @property
    def content_type(self) -> str | None:
        return _text(self._whole.content_type)

    @property
    def to(self) -> str | None:
        return _text(self._whole.to)

    @property
    def reply_to(self) -> str | None:
        return _text(self._whole.reply_to)

    @property
    def reply_to_session_id(self) -> str | None:
        return _text(self._whole.reply_to_group_id)

    @property
    def application_properties(self) -> dict[str, object]:
        return self._whole.application_properties

    @property
    def dead_letter_reason(self) -> str | None:
        return _text(self.application_properties.get("DeadLetterReason"))

    @property
    def dead_letter_error_description(self) -> str | None:
        return _text(self.application_properties.get("DeadLetterErrorDescription"))

    @property
    def dead_letter_source(self) -> str | None:
        """The entity that dead-lettered the message, if it was then moved to another one."""
        return _text(self.annotations.get("x-opt-deadletter-source"))

    @property
    def _whole(self) -> DecodedMessage:
        if self._decoded is None:
            self._decoded = decode_message(self.payload)
        return self._decoded

    def _integer(self, key: str) -> int:
        value = self.annotations.get(key)
        return int(value) if isinstance(value, int) else 0

    def _header_integer(self, index: int) -> int:
        found = self.sections
        if found.header == found.delivery_annotations:
            return 0
        fields, _ = decode_value(
            self.payload, value_of(self.payload, found.header, found.end), found.annotations
        )
        value = fields[index] if isinstance(fields, list) and len(fields) > index else 0
        return int(value) if isinstance(value, int) else 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sequence_number}>"


class Received(PeekedMessage):
    """A message and its lock."""

    __slots__ = ("_link", "_renewed_until", "delivery_id", "tag")

    def __init__(self, link: ReceiverLink | None, delivery: Delivery) -> None:
        """`link` is None for a deferred message: it came in the reply to a request."""
        super().__init__(delivery.payload)
        self._link = link
        self._renewed_until = 0
        self.delivery_id = delivery.id
        self.tag = delivery.tag

    @property
    def link(self) -> ReceiverLink | None:
        return self._link

    @property
    def lock_token(self) -> UUID:
        """The identifier of the lock."""
        return tag_to_uuid(self.tag)

    @property
    def locked_until(self) -> int:
        """The end of the lock in ms since 1970; 0 without a lock."""
        return self._renewed_until or self._integer("x-opt-locked-until")

    def renewed(self, until: int) -> None:
        """Note the end of the lock after a renewal."""
        self._renewed_until = until


def _text(value: object) -> str | None:
    return None if value is None else str(value)
