"""The properties of queues, topics and subscriptions, each described once.

The configuration file, ATOM, the flags of the commands and the forms of the console derive from these rows. The fields of
the descriptions (entities.py) define which kinds of entity have a property.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum, auto

from busbar.model.entities import (
    EntityDescription,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)


class PropertyType(Enum):
    """How a value is written and read."""

    BOOLEAN = auto()
    INTEGER = auto()
    KILOBYTES = auto()
    """A whole number of kilobytes; bytes in the description."""
    DURATION = auto()
    STATUS = auto()
    PATH = auto()
    """The path of another entity, or nothing."""
    TEXT = auto()


@dataclass(frozen=True, slots=True)
class EntityProperty:
    """A property that clients set."""

    element: str
    """Its name in ATOM and in the configuration file."""
    attribute: str
    """Its field in the description."""
    type: PropertyType
    help: str
    fixed: bool = False
    """Set at creation only: a change is refused."""
    without_effect: tuple[str, str] | None = None
    """A value that is stored and has no effect, and what happens instead."""
    only_atom: bool = False
    """The configuration file and the commands do not have it."""


PROPERTIES = (
    EntityProperty(
        "LockDuration",
        "lock_duration",
        PropertyType.DURATION,
        "How long a receiver holds a message (5s to 5m).",
    ),
    EntityProperty(
        "MaxSizeInMegabytes",
        "max_size_in_megabytes",
        PropertyType.INTEGER,
        "The quota in megabytes; with partitioning, of each of the 16 fragments.",
    ),
    EntityProperty(
        "EnablePartitioning",
        "enable_partitioning",
        PropertyType.BOOLEAN,
        "Spread it over 16 fragments in several messaging stores; fixed at creation.",
        fixed=True,
    ),
    EntityProperty(
        "RequiresSession",
        "requires_session",
        PropertyType.BOOLEAN,
        "Messages belong to sessions: first in, first out, one receiver for each session; fixed at creation.",
        fixed=True,
    ),
    EntityProperty(
        "RequiresDuplicateDetection",
        "requires_duplicate_detection",
        PropertyType.BOOLEAN,
        "Drop messages whose MessageId was seen before (by default: in the last 10 minutes); fixed at creation.",
        fixed=True,
    ),
    EntityProperty(
        "DuplicateDetectionHistoryTimeWindow",
        "duplicate_detection_history_time_window",
        PropertyType.DURATION,
        "How long a MessageId is remembered (20s to 7d).",
    ),
    EntityProperty(
        "DefaultMessageTimeToLive",
        "default_message_time_to_live",
        PropertyType.DURATION,
        "How long a message lives that does not say: 90s, 1h30m, 14d, unlimited.",
    ),
    EntityProperty(
        "DeadLetteringOnMessageExpiration",
        "dead_lettering_on_message_expiration",
        PropertyType.BOOLEAN,
        "Keep expired messages in the dead-letter queue.",
    ),
    EntityProperty(
        "DeadLetteringOnFilterEvaluationExceptions",
        "dead_lettering_on_filter_evaluation_exceptions",
        PropertyType.BOOLEAN,
        "Keep messages whose filter fails in the dead-letter queue.",
    ),
    EntityProperty(
        "MaxDeliveryCount",
        "max_delivery_count",
        PropertyType.INTEGER,
        "Deliveries before a message is dead-lettered.",
    ),
    EntityProperty(
        "ForwardTo",
        "forward_to",
        PropertyType.PATH,
        "Pass messages on to this queue or topic ('': stop).",
    ),
    EntityProperty(
        "ForwardDeadLetteredMessagesTo",
        "forward_dead_lettered_messages_to",
        PropertyType.PATH,
        "Pass dead letters on to this queue or topic ('': stop).",
    ),
    EntityProperty(
        "AutoDeleteOnIdle",
        "auto_delete_on_idle",
        PropertyType.DURATION,
        "Delete it when nobody used it for so long (5m+).",
    ),
    EntityProperty(
        "Status", "status", PropertyType.STATUS, "Active, Disabled, SendDisabled or ReceiveDisabled."
    ),
    EntityProperty(
        "SupportOrdering",
        "support_ordering",
        PropertyType.BOOLEAN,
        "Kept, without effect: a regular topic keeps the order of messages in any case.",
        without_effect=("false", "a topic that is not partitioned keeps the order of messages in any case"),
    ),
    EntityProperty(
        "FilteringMessagesBeforePublishing",
        "filtering_messages_before_publishing",
        PropertyType.BOOLEAN,
        "Refuse a message that no subscription selects.",
        only_atom=True,
    ),
    EntityProperty(
        "EnableBatchedOperations",
        "enable_batched_operations",
        PropertyType.BOOLEAN,
        "Writes share commits with those of other entities; false: each has a commit of its own.",
    ),
    EntityProperty(
        "EnableExpress",
        "enable_express",
        PropertyType.BOOLEAN,
        "Acknowledge messages from memory, and write those that stay for some seconds; a crash loses the others.",
    ),
    EntityProperty(
        "MaxMessageSizeInKilobytes",
        "max_message_size",
        PropertyType.KILOBYTES,
        "The largest message, in kilobytes.",
    ),
    EntityProperty(
        "UserMetadata",
        "user_metadata",
        PropertyType.TEXT,
        "A note of yours, up to 1024 characters.",
    ),
)
"""In the order in which the commands show them."""

FIXED = tuple(row for row in PROPERTIES if row.fixed)


def properties_of(kind: type[EntityDescription]) -> tuple[EntityProperty, ...]:
    """The rows of one kind of entity."""
    there = {field.name for field in fields(kind)}
    return tuple(row for row in PROPERTIES if row.attribute in there)


# fmt: off
ELEMENTS: dict[type[EntityDescription], tuple[str, ...]] = {
    QueueDescription: (
        "LockDuration", "MaxSizeInMegabytes", "RequiresDuplicateDetection", "RequiresSession", "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration", "DuplicateDetectionHistoryTimeWindow", "MaxDeliveryCount",
        "EnableBatchedOperations", "SizeInBytes", "MessageCount", "IsAnonymousAccessible", "AuthorizationRules", "Status",
        "ForwardTo", "UserMetadata", "CreatedAt", "UpdatedAt", "AccessedAt", "SupportOrdering", "CountDetails",
        "AutoDeleteOnIdle", "EnablePartitioning", "EntityAvailabilityStatus", "EnableExpress",
        "ForwardDeadLetteredMessagesTo", "MaxMessageSizeInKilobytes",
    ),
    TopicDescription: (
        "DefaultMessageTimeToLive", "MaxSizeInMegabytes", "RequiresDuplicateDetection",
        "DuplicateDetectionHistoryTimeWindow", "EnableBatchedOperations", "SizeInBytes",
        "FilteringMessagesBeforePublishing", "IsAnonymousAccessible", "AuthorizationRules", "Status", "UserMetadata",
        "CreatedAt", "UpdatedAt", "AccessedAt", "SupportOrdering", "CountDetails", "SubscriptionCount", "SqlFilterCount",
        "CorrelationFilterCount", "AutoDeleteOnIdle", "EnablePartitioning", "EntityAvailabilityStatus",
        "EnableSubscriptionPartitioning", "EnableExpress", "MaxMessageSizeInKilobytes",
    ),
    SubscriptionDescription: (
        "LockDuration", "RequiresSession", "DefaultMessageTimeToLive", "DeadLetteringOnMessageExpiration",
        "DeadLetteringOnFilterEvaluationExceptions", "DefaultRuleDescription", "MessageCount", "MaxDeliveryCount",
        "EnableBatchedOperations", "Status", "ForwardTo", "CreatedAt", "UpdatedAt", "AccessedAt", "CountDetails",
        "UserMetadata", "ForwardDeadLetteredMessagesTo", "AutoDeleteOnIdle", "EntityAvailabilityStatus",
    ),
}
"""Every element of a description in ATOM, in the order of the service. Elements that are not properties are written by the
broker only, except DefaultRuleDescription, which clients send at creation."""
# fmt: on

CORRELATION = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
"""The system properties of a correlation filter: the elements of ATOM, in the order of the service, and the fields."""
