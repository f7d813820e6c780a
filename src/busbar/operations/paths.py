"""The entity and the sub-queue that a path names.

    orders                                    the queue
    orders/$DeadLetterQueue                   its dead-letter queue
    orders/$Transfer/$DeadLetterQueue         what could not be moved to another entity
    news/Subscriptions/eu/$DeadLetterQueue    the same of a subscription

Upper and lower case make no difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from busbar.model.names import parent_and_name

MAIN: Final = ""
DEAD_LETTER: Final = "deadletter"
TRANSFER_DEAD_LETTER: Final = "transferdeadletter"

DEAD_LETTERS: Final = "/$DeadLetterQueue"
TRANSFER_DEAD_LETTERS: Final = "/$Transfer/$DeadLetterQueue"
_SUFFIXES: Final = {MAIN: "", DEAD_LETTER: DEAD_LETTERS, TRANSFER_DEAD_LETTER: TRANSFER_DEAD_LETTERS}


class OperationRefused(ValueError):
    """An operation that cannot be done on this entity, with what can be done instead."""


@dataclass(frozen=True, slots=True)
class MessagePath:
    """Where messages are: an entity, and one of its sub-queues."""

    entity: str
    sub_queue: str = MAIN
    """As MessagingFactory.message_receiver takes it."""

    @classmethod
    def parse(cls, path: str) -> MessagePath:
        stripped = path.strip("/")
        for name, suffix in ((TRANSFER_DEAD_LETTER, TRANSFER_DEAD_LETTERS), (DEAD_LETTER, DEAD_LETTERS)):
            if stripped.lower().endswith(suffix.lower()):
                return cls(stripped[: -len(suffix)], name)
        return cls(stripped)

    def of(self, sub_queue: str) -> MessagePath:
        """Another sub-queue of the same entity. Raises OperationRefused if the path names a third one."""
        if self.sub_queue not in (MAIN, sub_queue):
            raise OperationRefused(f"'{self}' is a sub-queue itself; name the entity '{self.entity}'")
        return MessagePath(self.entity, sub_queue)

    @property
    def topic(self) -> str:
        """The topic of a subscription; empty for any other entity."""
        return parent_and_name(self.entity)[0]

    def __str__(self) -> str:
        return self.entity + _SUFFIXES[self.sub_queue]
