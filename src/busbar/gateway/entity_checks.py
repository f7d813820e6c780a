"""Checks that every protocol makes before it uses an entity: does it have messages, does it forward them, is it enabled, how
large may a message be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from busbar.model.api import EntityView
from busbar.model.entities import (
    EntityStatus,
    NamespaceDescription,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.errors import (
    ArgumentError,
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
)
from busbar.model.limits import Limits
from busbar.model.message import ACTIVE, DEAD, TRANSFER_DEAD

TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"
NO_RECEIVER: Final = "Cannot create a message receiver on an entity with auto-forwarding enabled."


def check_has_messages(entity: EntityView) -> None:
    """Nothing can be sent to a rule or to the namespace, or received from it."""
    if isinstance(entity.description, RuleDescription | NamespaceDescription):
        raise EntityNotFound(entity.path)


def requires_session(entity: EntityView) -> bool:
    description = entity.description
    return (
        isinstance(description, QueueDescription | SubscriptionDescription) and description.requires_session
    )


def destination_of(properties: Mapping[object, object]) -> str | None:
    """The address where the messages of a link are to end, if that is not the entity of the link. Raises ArgumentError."""
    destination = properties.get(TRANSFER_DESTINATION)
    if destination is None:
        return None
    if not isinstance(destination, str):
        raise ArgumentError(
            f"The link property {TRANSFER_DESTINATION} is a {type(destination).__name__}; it has to be a string."
        )
    return str(destination)


def not_sent_to(subscription: str) -> str:
    return f"Messages cannot be sent to the subscription '{subscription}', but to its topic."


def not_received_from(topic: str) -> str:
    return f"Messages cannot be received from the topic '{topic}', but from its subscriptions."


def check_can_send(entity: EntityView, dead_letter: bool) -> None:
    """Raise an error if messages cannot be sent to the entity."""
    if dead_letter:
        raise InvalidOperation(f"Messages cannot be sent to the dead-letter queue of '{entity.path}'.")
    if isinstance(entity.description, SubscriptionDescription):
        raise InvalidOperation(not_sent_to(entity.path))
    status = _status(entity)
    if not status.can_send:
        raise EntityDisabled(f"'{entity.path}' is {status.value}: it takes no messages.")


def check_can_receive(entity: EntityView, sub: int) -> None:
    """Raise an error if messages cannot be received from the sub-queue. A topic has only that of failed transfers."""
    description = entity.description
    if isinstance(description, TopicDescription):
        if sub != TRANSFER_DEAD:
            raise InvalidOperation(not_received_from(entity.path))
    elif not isinstance(description, RuleDescription | NamespaceDescription):
        _check_keeps_messages(entity.path, sub, description)
    status = _status(entity)
    if not status.can_receive:
        raise EntityDisabled(f"'{entity.path}' is {status.value}: it gives no messages.")


def _check_keeps_messages(
    path: str, sub: int, description: QueueDescription | SubscriptionDescription
) -> None:
    """The sub-queue does not forward its messages."""
    target = ""
    if sub == ACTIVE:
        target = description.forward_to
    elif sub == DEAD:
        path = f"{path}/$DeadLetterQueue"
        target = description.forward_dead_lettered_messages_to
    if target:
        raise InvalidOperation(f"{NO_RECEIVER} '{path}' forwards to '{target}'.")


def message_size(entity: EntityView, limits: Limits) -> int:
    """The maximum size in bytes of a message of this entity."""
    description = entity.description
    own = (
        0
        if isinstance(description, SubscriptionDescription | RuleDescription | NamespaceDescription)
        else description.max_message_size
    )
    return limits.message_size(own)


def _status(entity: EntityView) -> EntityStatus:
    if isinstance(entity.description, RuleDescription | NamespaceDescription):
        raise EntityNotFound(entity.path)
    return entity.description.status
