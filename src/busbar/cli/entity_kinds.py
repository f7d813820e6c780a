"""Queues, topics and subscriptions as commands know them: their properties, and the flag of each.

The elements stand in the order of the service. Flags are those of `az servicebus`, with the aliases its versions have had;
the keys of JSON are the elements with a small first letter, as there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from busbar.cli import values


@dataclass(frozen=True, slots=True)
class CommandProperty:
    """A property that can be set."""

    element: str
    flags: tuple[str, ...]
    parse: Callable[[str], str]
    metavar: str
    help: str
    fixed: bool = False
    """Only at creation: the broker refuses a change."""
    without_effect: tuple[str, str] | None = None
    """A value that the broker takes and does not act on, and what it does instead."""


@dataclass(frozen=True, slots=True)
class EntityCommandKind:
    noun: str
    plural: str
    description: str
    """The element that describes one."""
    elements: tuple[str, ...]
    properties: tuple[CommandProperty, ...]
    parent: str = ""
    """What it belongs to, if to anything."""


INTEGERS = frozenset(
    (
        "MaxSizeInMegabytes",
        "MaxDeliveryCount",
        "MaxMessageSizeInKilobytes",
        "SizeInBytes",
        "MessageCount",
        "SubscriptionCount",
        "SqlFilterCount",
        "CorrelationFilterCount",
        "ActiveMessageCount",
        "DeadLetterMessageCount",
        "ScheduledMessageCount",
        "TransferMessageCount",
        "TransferDeadLetterMessageCount",
    )
)
BOOLEANS = frozenset(
    (
        "RequiresDuplicateDetection",
        "RequiresSession",
        "DeadLetteringOnMessageExpiration",
        "DeadLetteringOnFilterEvaluationExceptions",
        "EnableBatchedOperations",
        "IsAnonymousAccessible",
        "SupportOrdering",
        "EnablePartitioning",
        "EnableExpress",
        "EnableSubscriptionPartitioning",
        "FilteringMessagesBeforePublishing",
    )
)
COUNTS = (
    "ActiveMessageCount",
    "DeadLetterMessageCount",
    "ScheduledMessageCount",
    "TransferMessageCount",
    "TransferDeadLetterMessageCount",
)
RUNTIME = (
    "SizeInBytes",
    "MessageCount",
    "CountDetails",
    "SubscriptionCount",
    "SqlFilterCount",
    "CorrelationFilterCount",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "EntityAvailabilityStatus",
)
"""What the service alone knows; never sent."""

_BOOLEAN, _DURATION = "true|false", "DURATION"


def _boolean(element: str, flags: tuple[str, ...], text: str, fixed: bool = False) -> CommandProperty:
    return CommandProperty(element, flags, values.boolean, _BOOLEAN, text, fixed)


def _duration(element: str, flag: str, text: str) -> CommandProperty:
    return CommandProperty(element, (flag,), values.duration, _DURATION, text)


def _integer(element: str, flags: tuple[str, ...], text: str) -> CommandProperty:
    return CommandProperty(element, flags, values.integer, "N", text)


LOCK = _duration("LockDuration", "--lock-duration", "How long a receiver holds a message (5s to 5m).")
SIZE = _integer("MaxSizeInMegabytes", ("--max-size", "--max-size-in-megabytes"), "The quota in megabytes.")
DUPLICATES = _boolean(
    "RequiresDuplicateDetection",
    ("--enable-duplicate-detection", "--duplicate-detection"),
    "Drop messages whose MessageId was seen before; fixed at creation.",
    fixed=True,
)
WINDOW = _duration(
    "DuplicateDetectionHistoryTimeWindow",
    "--duplicate-detection-history-time-window",
    "How long a MessageId is remembered (20s to 7d).",
)
SESSION = _boolean(
    "RequiresSession",
    ("--enable-session", "--requires-session"),
    "Messages belong to sessions; fixed at creation.",
    fixed=True,
)
TTL = _duration(
    "DefaultMessageTimeToLive",
    "--default-message-time-to-live",
    "How long a message lives that does not say.",
)
DEAD_LETTERS = _boolean(
    "DeadLetteringOnMessageExpiration",
    ("--enable-dead-lettering-on-message-expiration", "--dead-lettering-on-message-expiration"),
    "Keep expired messages in the dead-letter queue.",
)
FILTER_ERRORS = _boolean(
    "DeadLetteringOnFilterEvaluationExceptions",
    ("--dead-letter-on-filter-exceptions",),
    "Keep messages whose filter fails in the dead-letter queue.",
)
DELIVERIES = _integer(
    "MaxDeliveryCount",
    ("--max-delivery-count", "--max-delivery"),
    "Deliveries before a message is dead-lettered.",
)
BATCHED = replace(
    _boolean(
        "EnableBatchedOperations",
        ("--enable-batched-operations",),
        "Kept, without effect: writes always share commits, and a lone one never waits.",
    ),
    without_effect=("false", "writes share commits in any case, and a lone one never waits"),
)
STATUS = CommandProperty(
    "Status",
    ("--status",),
    values.status,
    "STATUS",
    "Active, Disabled, SendDisabled or ReceiveDisabled.",
)
FORWARD = CommandProperty(
    "ForwardTo",
    ("--forward-to",),
    values.plain,
    "NAME",
    "Pass messages on to this queue or topic ('': stop). Not served yet: its clients are refused.",
)
FORWARD_DEAD = CommandProperty(
    "ForwardDeadLetteredMessagesTo",
    ("--forward-dead-lettered-messages-to",),
    values.plain,
    "NAME",
    "Not supported yet: the broker refuses any but ''.",
)
METADATA = CommandProperty(
    "UserMetadata", ("--user-metadata",), values.plain, "TEXT", "A note of yours, up to 1024 characters."
)
IDLE = _duration(
    "AutoDeleteOnIdle", "--auto-delete-on-idle", "Delete it when nobody used it for so long (5m+)."
)
PARTITIONING = _boolean(
    "EnablePartitioning",
    ("--enable-partitioning",),
    "Spread it over 16 fragments; fixed at creation.",
    fixed=True,
)
EXPRESS = replace(
    _boolean(
        "EnableExpress",
        ("--enable-express",),
        "Kept, without effect: messages are never in memory alone, but written durably at once.",
    ),
    without_effect=("true", "messages are written durably at once, like those of any other entity"),
)
MESSAGE_SIZE = _integer(
    "MaxMessageSizeInKilobytes",
    ("--max-message-size", "--max-message-size-in-kilobytes"),
    "The largest message, in kilobytes.",
)
ORDERING = _boolean(
    "SupportOrdering",
    ("--enable-ordering",),
    "Kept, without effect: a regular topic keeps the order of messages in any case.",
)

QUEUE = EntityCommandKind(
    "queue",
    "Queues",
    "QueueDescription",
    (
        "LockDuration",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DuplicateDetectionHistoryTimeWindow",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "SizeInBytes",
        "MessageCount",
        "IsAnonymousAccessible",
        "AuthorizationRules",
        "Status",
        "ForwardTo",
        "UserMetadata",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "SupportOrdering",
        "CountDetails",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "EntityAvailabilityStatus",
        "EnableExpress",
        "ForwardDeadLetteredMessagesTo",
        "MaxMessageSizeInKilobytes",
    ),
    (
        LOCK,
        SIZE,
        PARTITIONING,
        SESSION,
        DUPLICATES,
        WINDOW,
        TTL,
        DEAD_LETTERS,
        DELIVERIES,
        FORWARD,
        FORWARD_DEAD,
        IDLE,
        STATUS,
        BATCHED,
        EXPRESS,
        MESSAGE_SIZE,
        METADATA,
    ),
)
TOPIC = EntityCommandKind(
    "topic",
    "Topics",
    "TopicDescription",
    (
        "DefaultMessageTimeToLive",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "DuplicateDetectionHistoryTimeWindow",
        "EnableBatchedOperations",
        "SizeInBytes",
        "FilteringMessagesBeforePublishing",
        "IsAnonymousAccessible",
        "AuthorizationRules",
        "Status",
        "UserMetadata",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "SupportOrdering",
        "CountDetails",
        "SubscriptionCount",
        "SqlFilterCount",
        "CorrelationFilterCount",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "EntityAvailabilityStatus",
        "EnableSubscriptionPartitioning",
        "EnableExpress",
        "MaxMessageSizeInKilobytes",
    ),
    (
        SIZE,
        PARTITIONING,
        DUPLICATES,
        WINDOW,
        TTL,
        IDLE,
        STATUS,
        ORDERING,
        BATCHED,
        EXPRESS,
        MESSAGE_SIZE,
        METADATA,
    ),
)
SUBSCRIPTION = EntityCommandKind(
    "subscription",
    "Subscriptions",
    "SubscriptionDescription",
    (
        "LockDuration",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DeadLetteringOnFilterEvaluationExceptions",
        "DefaultRuleDescription",
        "MessageCount",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "Status",
        "ForwardTo",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "CountDetails",
        "UserMetadata",
        "ForwardDeadLetteredMessagesTo",
        "AutoDeleteOnIdle",
        "EntityAvailabilityStatus",
    ),
    (
        LOCK,
        SESSION,
        TTL,
        DEAD_LETTERS,
        FILTER_ERRORS,
        DELIVERIES,
        FORWARD,
        FORWARD_DEAD,
        IDLE,
        STATUS,
        BATCHED,
        METADATA,
    ),
    parent="topic",
)
KINDS = {kind.description: kind for kind in (QUEUE, TOPIC, SUBSCRIPTION)}


def json_key(element: str) -> str:
    return element[0].lower() + element[1:]
