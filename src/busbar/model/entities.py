"""Descriptions of entities. Names follow the Azure SDK's; times are ms, 0 = unlimited.

Paths: a queue or topic has its own (`orders`, `eu/orders`); a subscription is `<topic>/Subscriptions/<name>`, a rule
`<topic>/Subscriptions/<name>/Rules/<name>`. model/checks.py checks every value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from busbar.model.settings import FragmentSettings

MEGABYTE = 1024 * 1024
TRANSFER_LOCK_MS = 60_000
"""How long messages of a topic's transfer dead-letter queue are locked. A topic has no LockDuration."""


class EntityStatus(StrEnum):
    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"

    @property
    def can_send(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)

    @property
    def can_receive(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED)


class Right(StrEnum):
    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"  # includes the other two


@dataclass(frozen=True, slots=True)
class AuthorizationRule:
    """A shared access rule of an entity or of the namespace."""

    name: str
    rights: frozenset[Right]
    primary_key: str
    secondary_key: str
    created: int = 0
    modified: int = 0

    def __repr__(self) -> str:
        return f"AuthorizationRule({self.name!r}, {sorted(right.value for right in self.rights)})"  # no keys


@dataclass(frozen=True, slots=True)
class QueueDescription:
    lock_duration: int = 60_000
    max_size_in_megabytes: int = 1024  # of one fragment; a partitioned entity holds 16 times as much
    max_message_size: int = 0  # bytes; 0: the namespace's limit
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window: int = 600_000
    requires_session: bool = False
    default_message_time_to_live: int = 0
    dead_lettering_on_message_expiration: bool = False
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    enable_partitioning: bool = False
    enable_express: bool = False
    auto_delete_on_idle: int = 0
    status: EntityStatus = EntityStatus.ACTIVE
    forward_to: str = ""
    forward_dead_lettered_messages_to: str = ""
    user_metadata: str = ""
    authorization_rules: tuple[AuthorizationRule, ...] = ()

    def fragment_settings(self) -> FragmentSettings:
        return FragmentSettings(
            lock_ms=self.lock_duration,
            max_deliveries=self.max_delivery_count,
            ttl_ms=self.default_message_time_to_live,
            dead_letter_on_expiration=self.dead_lettering_on_message_expiration,
            quota_bytes=self.max_size_in_megabytes * MEGABYTE,
            can_send=self.status.can_send,
            can_receive=self.status.can_receive,
            duplicate_window_ms=(
                self.duplicate_detection_history_time_window if self.requires_duplicate_detection else 0
            ),
            requires_session=self.requires_session,
            shares_commits=self.enable_batched_operations,
        )


@dataclass(frozen=True, slots=True)
class TopicDescription:
    max_size_in_megabytes: int = 1024
    max_message_size: int = 0
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window: int = 600_000
    default_message_time_to_live: int = 0
    enable_batched_operations: bool = True
    enable_partitioning: bool = False
    enable_express: bool = False
    filtering_messages_before_publishing: bool = False
    support_ordering: bool = True
    auto_delete_on_idle: int = 0
    status: EntityStatus = EntityStatus.ACTIVE
    user_metadata: str = ""
    authorization_rules: tuple[AuthorizationRule, ...] = ()

    def fragment_settings(self) -> FragmentSettings:
        """The settings of its fragments, without its subscriptions."""
        return FragmentSettings(
            lock_ms=TRANSFER_LOCK_MS,  # messages are received only from its transfer dead-letter queue
            max_deliveries=0,
            ttl_ms=self.default_message_time_to_live,
            dead_letter_on_expiration=False,
            quota_bytes=self.max_size_in_megabytes * MEGABYTE,
            can_send=self.status.can_send,
            can_receive=self.status.can_receive,
            duplicate_window_ms=(
                self.duplicate_detection_history_time_window if self.requires_duplicate_detection else 0
            ),
            only_selected=self.filtering_messages_before_publishing,
            shares_commits=self.enable_batched_operations,
        )


@dataclass(frozen=True, slots=True)
class SubscriptionDescription:
    lock_duration: int = 60_000
    requires_session: bool = False
    default_message_time_to_live: int = 0
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    auto_delete_on_idle: int = 0
    status: EntityStatus = EntityStatus.ACTIVE
    forward_to: str = ""
    forward_dead_lettered_messages_to: str = ""
    user_metadata: str = ""

    def fragment_settings(self) -> FragmentSettings:
        return FragmentSettings(
            lock_ms=self.lock_duration,
            max_deliveries=self.max_delivery_count,
            ttl_ms=self.default_message_time_to_live,
            dead_letter_on_expiration=self.dead_lettering_on_message_expiration,
            quota_bytes=0,  # what it keeps counts towards the topic's
            can_send=False,  # it gets copies alone, also while it is disabled
            can_receive=self.status.can_receive,
            requires_session=self.requires_session,
            shares_commits=self.enable_batched_operations,
        )


PropertyValue = str | int | float | bool
"""A value in a filter or an action's parameters; dates and durations are kept as TypedText."""


@dataclass(frozen=True, slots=True)
class TypedText:
    """A value of an XML schema type that JSON does not have (dateTime, duration), as it was written."""

    type: str
    text: str


@dataclass(frozen=True, slots=True)
class SqlFilter:
    expression: str
    parameters: tuple[tuple[str, PropertyValue | TypedText], ...] = ()


@dataclass(frozen=True, slots=True)
class TrueFilter:
    pass


@dataclass(frozen=True, slots=True)
class FalseFilter:
    pass


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: tuple[tuple[str, PropertyValue | TypedText], ...] = ()


RuleFilter = SqlFilter | TrueFilter | FalseFilter | CorrelationFilter


@dataclass(frozen=True, slots=True)
class SqlAction:
    expression: str
    parameters: tuple[tuple[str, PropertyValue | TypedText], ...] = ()


@dataclass(frozen=True, slots=True)
class RuleDescription:
    filter: RuleFilter = TrueFilter()
    action: SqlAction | None = None


DEFAULT_RULE = "$Default"


@dataclass(frozen=True, slots=True)
class NamespaceDescription:
    """What the catalogue keeps of the namespace itself."""

    authorization_rules: tuple[AuthorizationRule, ...] = ()
    configured: tuple[tuple[str, str], ...] = ()
    """The rules of the last configuration: their names, and fingerprints of what it had for them."""


EntityDescription = QueueDescription | TopicDescription | SubscriptionDescription
"""Entities that messages are sent to or received from."""
Description = EntityDescription | RuleDescription | NamespaceDescription
"""Everything in the catalogue."""


class EntityKind(StrEnum):
    QUEUE = "Queue"
    TOPIC = "Topic"
    SUBSCRIPTION = "Subscription"
    RULE = "Rule"
    NAMESPACE = "Namespace"


def kind_of(description: Description) -> EntityKind:
    if isinstance(description, QueueDescription):
        return EntityKind.QUEUE
    if isinstance(description, TopicDescription):
        return EntityKind.TOPIC
    if isinstance(description, NamespaceDescription):
        return EntityKind.NAMESPACE
    return EntityKind.SUBSCRIPTION if isinstance(description, SubscriptionDescription) else EntityKind.RULE


def authorization_rules_of(description: Description) -> tuple[AuthorizationRule, ...]:
    """The authorization rules of a queue, a topic or the namespace. Others have none."""
    if isinstance(description, QueueDescription | TopicDescription | NamespaceDescription):
        return description.authorization_rules
    return ()


class Tier(StrEnum):
    """Basic has neither topics nor sessions; Premium has larger messages and no quota of entities."""

    BASIC = "Basic"
    STANDARD = "Standard"
    PREMIUM = "Premium"
