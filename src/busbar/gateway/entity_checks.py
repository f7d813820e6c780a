"""What every way to an entity asks before it is used, whatever the protocol: is it served, is it enabled, how large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from busbar.model.api import EntityView
from busbar.model.entities import (
    EntityStatus,
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
    NotImplementedHere,
)
from busbar.model.limits import Limits

TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"


def check_served(entity: EntityView) -> None:
    """What is described but not served yet is refused, plainly."""
    description = entity.description
    if isinstance(description, RuleDescription):
        raise EntityNotFound(entity.path)  # nothing can be sent to a rule or received from it
    if not isinstance(description, TopicDescription) and description.forward_to:
        raise NotImplementedHere(
            f"'{entity.path}' uses automatic forwarding, which this version of Busbar does not serve yet."
        )


def requires_session(entity: EntityView) -> bool:
    description = entity.description
    return (
        isinstance(description, QueueDescription | SubscriptionDescription) and description.requires_session
    )


def check_no_transfer(entity: EntityView, transfer: bool) -> None:
    if transfer:
        raise NotImplementedHere(
            f"The transfer dead-letter queue of '{entity.path}' is not served by this version of Busbar."
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
    """Messages can be sent there."""
    if dead_letter:
        raise InvalidOperation(f"Messages cannot be sent to the dead-letter queue of '{entity.path}'.")
    if isinstance(entity.description, SubscriptionDescription):
        raise InvalidOperation(not_sent_to(entity.path))
    status = _status(entity)
    if not status.can_send:
        raise EntityDisabled(f"'{entity.path}' is {status.value}: it takes no messages.")


def check_can_receive(entity: EntityView) -> None:
    """Messages can be received from there."""
    if isinstance(entity.description, TopicDescription):
        raise InvalidOperation(not_received_from(entity.path))
    status = _status(entity)
    if not status.can_receive:
        raise EntityDisabled(f"'{entity.path}' is {status.value}: it gives no messages.")


def message_size(entity: EntityView, limits: Limits) -> int:
    """The size in bytes that a message of this entity may have. The namespace's limit is everyone's: it may have been
    lowered since the entity was made."""
    description = entity.description
    own = (
        0
        if isinstance(description, SubscriptionDescription | RuleDescription)
        else description.max_message_size
    )
    return min(own or limits.default_message_size or limits.max_message_size, limits.max_message_size)


def _status(entity: EntityView) -> EntityStatus:
    if isinstance(entity.description, RuleDescription):
        raise EntityNotFound(entity.path)
    return entity.description.status
