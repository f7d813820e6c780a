"""Parses the path of a runtime request.

    {entity}/messages                       SEND
    {entity}/messages/head                  HEAD     receive
    {entity}/messages/{id}/{lock token}     LOCK     settle

{entity} is a queue, a topic (to send to) or `{topic}/subscriptions/{name}`, with `/$DeadLetterQueue` behind it for the
dead-letter queue. The fixed words are recognized in any case. Only the first segment of a queue's or topic's name can be
`messages` or `subscriptions`. So the first `messages` that is not the name of a subscription or a rule is the word. An id
may have slashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from busbar.model.api import EntityView
from busbar.model.errors import EntityNotFound

MESSAGES = "messages"
DEAD_LETTER = "$DeadLetterQueue"
TRANSFER = "$Transfer"


class RuntimePathKind(Enum):
    SEND = "messages"
    HEAD = "messages/head"
    LOCK = "messages/{id}/{lock token}"


@dataclass(frozen=True, slots=True)
class RuntimePath:
    node: RuntimePathKind
    entity: str
    """The entity's path, without sub-queue."""
    dead_letter: bool = False
    transfer: bool = False
    message: str = ""
    """Sequence number or message id, of a LOCK."""
    lock: str = ""

    def location(self, entity: EntityView) -> str:
        """The path of the messages of this target, with the entity's name as it was created."""
        transfer = "/" + TRANSFER if self.transfer else ""
        return f"{entity.path}{transfer}{'/' + DEAD_LETTER if self.dead_letter else ''}/{MESSAGES}"


def is_runtime(path: str) -> bool:
    """Whether the path is that of a runtime operation, and not of a resource to manage."""
    return _word_at([segment.lower() for segment in path.split("/")]) > 0


def target_of(path: str) -> RuntimePath:
    """Parse a path. Raises EntityNotFound if it is none of the above."""
    segments = path.split("/")
    word = _word_at([segment.lower() for segment in segments])
    entity, rest = segments[:word], segments[word + 1 :]
    if word > 0 and not rest:
        return _within(RuntimePathKind.SEND, entity, path)
    if word > 0 and len(rest) == 1 and rest[0].lower() == "head":
        return _within(RuntimePathKind.HEAD, entity, path)
    if word > 0 and len(rest) > 1:
        return _within(RuntimePathKind.LOCK, entity, path, "/".join(rest[:-1]), rest[-1])
    raise EntityNotFound(path)


def _word_at(lowered: list[str]) -> int:
    """The index of the word `messages`; -1: there is none."""
    for index in range(1, len(lowered)):
        if lowered[index] != MESSAGES:
            continue
        subscription = index > 1 and lowered[index - 1] == "subscriptions"
        rule = index > 3 and lowered[index - 1] == "rules" and lowered[index - 3] == "subscriptions"
        if not subscription and not rule:
            return index
    return -1


def _within(
    node: RuntimePathKind, entity: list[str], path: str, message: str = "", lock: str = ""
) -> RuntimePath:
    dead_letter = transfer = False
    if entity[-1].lower() == DEAD_LETTER.lower():
        dead_letter = True
        entity = entity[:-1]
        if entity and entity[-1].lower() == TRANSFER.lower():
            transfer = True
            entity = entity[:-1]
    if not entity or entity[0].startswith("$"):
        raise EntityNotFound(path)
    return RuntimePath(node, "/".join(entity), dead_letter, transfer, message, lock)
