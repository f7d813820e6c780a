"""What the path of a runtime request names.

    {entity}/messages                       SEND
    {entity}/messages/head                  HEAD     receive
    {entity}/messages/{id}/{lock token}     LOCK     settle

{entity} is a queue, a topic (to send to) or `{topic}/subscriptions/{name}`, with `/$DeadLetterQueue` behind it for the
dead-letter queue. The fixed words are known in any case. An entity's name may have slashes, and may even begin with one of
these words, so the path is read from its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from busbar.model.errors import EntityNotFound
from busbar.model.port import EntityView

MESSAGES = "messages"
DEAD_LETTER = "$DeadLetterQueue"
TRANSFER = "$Transfer"


class Node(Enum):
    SEND = "messages"
    HEAD = "messages/head"
    LOCK = "messages/{id}/{lock token}"


@dataclass(frozen=True, slots=True)
class Target:
    node: Node
    entity: str
    """The entity's path, without sub-queue."""
    dead_letter: bool = False
    transfer: bool = False
    message: str = ""
    """Sequence number or message id, of a LOCK."""
    lock: str = ""

    def location(self, entity: EntityView) -> str:
        """The path of the messages of this target, with the entity's name as it was created."""
        return f"{entity.path}{'/' + DEAD_LETTER if self.dead_letter else ''}/{MESSAGES}"


def target_of(path: str) -> Target:
    """Raises EntityNotFound for a path that names nothing of the above."""
    segments = path.split("/")
    lowered = [segment.lower() for segment in segments]
    if len(segments) > 1 and lowered[-1] == MESSAGES:
        return _within(Node.SEND, segments[:-1], path)
    if len(segments) > 2 and lowered[-2:] == [MESSAGES, "head"]:
        return _within(Node.HEAD, segments[:-2], path)
    if len(segments) > 3 and lowered[-3] == MESSAGES:
        return _within(Node.LOCK, segments[:-3], path, segments[-2], segments[-1])
    raise EntityNotFound(path)


def _within(node: Node, entity: list[str], path: str, message: str = "", lock: str = "") -> Target:
    dead_letter = transfer = False
    if entity[-1].lower() == DEAD_LETTER.lower():
        dead_letter = True
        entity = entity[:-1]
        if entity and entity[-1].lower() == TRANSFER.lower():
            transfer = True
            entity = entity[:-1]
    if not entity or entity[0].startswith("$"):
        raise EntityNotFound(path)
    return Target(node, "/".join(entity), dead_letter, transfer, message, lock)
