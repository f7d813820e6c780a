"""What every way to an entity asks before it is used, whatever the protocol: is it served, is it enabled, how large."""

from __future__ import annotations

from busbar.model.entities import QueueDescription
from busbar.model.errors import EntityDisabled, InvalidOperation, NotImplementedHere
from busbar.model.limits import Limits
from busbar.model.port import EntityView


def check_served(entity: EntityView) -> None:
    """What is described but not served yet is refused, plainly."""
    queue = entity.description
    missing = ""
    if not isinstance(queue, QueueDescription):
        missing = "topics"
    elif queue.requires_session:
        missing = "message sessions"
    elif queue.enable_partitioning:
        missing = "partitioning"
    elif queue.requires_duplicate_detection:
        missing = "duplicate detection"
    elif queue.forward_to:
        missing = "automatic forwarding"
    if missing:
        raise NotImplementedHere(
            f"'{entity.path}' uses {missing}, which this version of Busbar does not serve yet."
        )


def check_no_transfer(entity: EntityView, transfer: bool) -> None:
    if transfer:
        raise NotImplementedHere(
            f"The transfer dead-letter queue of '{entity.path}' is not served by this version of Busbar."
        )


def check_takes(entity: EntityView, dead_letter: bool) -> None:
    """Messages can be sent there."""
    if dead_letter:
        raise InvalidOperation(f"Messages cannot be sent to the dead-letter queue of '{entity.path}'.")
    if not entity.description.status.can_send:
        raise EntityDisabled(f"'{entity.path}' is {entity.description.status.value}: it takes no messages.")


def check_gives(entity: EntityView) -> None:
    """Messages can be received from there."""
    if not entity.description.status.can_receive:
        raise EntityDisabled(f"'{entity.path}' is {entity.description.status.value}: it gives no messages.")


def message_size(entity: EntityView, limits: Limits) -> int:
    """The size in bytes that a message of this entity may have."""
    own = entity.description.max_message_size if isinstance(entity.description, QueueDescription) else 0
    return own or limits.max_message_size
