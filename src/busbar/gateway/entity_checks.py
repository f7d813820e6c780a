"""Checks that every protocol makes before it uses an entity: is it served, is it enabled, how large may a message be."""

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
from busbar.model.errors import EntityDisabled, EntityNotFound, InvalidOperation, NotImplementedHere
from busbar.model.limits import Limits

TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"
LONGEST_SHOWN: Final = 300
"""Maximum number of characters of a client's text in an error."""


def check_served(entity: EntityView) -> None:
    """Refuse an entity with properties that are not served yet."""
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


def check_not_via(properties: Mapping[object, object]) -> None:
    """Refuse a link with this property: its messages would stay in this entity instead of the one they are meant for."""
    if TRANSFER_DESTINATION in properties:
        destination = str(properties[TRANSFER_DESTINATION])[:LONGEST_SHOWN]
        raise NotImplementedHere(
            f"The link has the property {TRANSFER_DESTINATION} ('{destination}'): sending via another entity is not served "
            "by this version of Busbar. Send to the destination itself."
        )


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


def check_can_receive(entity: EntityView) -> None:
    """Raise an error if messages cannot be received from the entity."""
    if isinstance(entity.description, TopicDescription):
        raise InvalidOperation(not_received_from(entity.path))
    status = _status(entity)
    if not status.can_receive:
        raise EntityDisabled(f"'{entity.path}' is {status.value}: it gives no messages.")


def message_size(entity: EntityView, limits: Limits) -> int:
    """The maximum size in bytes of a message of this entity. The limit of the namespace always holds, because it may have
    been lowered since the entity was created."""
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
