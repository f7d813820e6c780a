"""The properties of queues, topics and subscriptions, as the administration client reads and sets them.

The names are those of the Azure SDK. `UNLIMITED` is the value of a duration without a limit. An object that the client has
read can be changed and passed to `update_queue`, `update_topic` or `update_subscription`. Runtime properties are read-only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypedDict

from busbar.model.entities import EntityStatus

UNLIMITED = timedelta(days=10_675_199, hours=2, minutes=48, seconds=5, microseconds=477_581)
"""The longest duration of the service, which means no limit."""

Duration = timedelta | str
"""A text is a duration in ISO 8601: PT30S, P14D."""


@dataclass(slots=True)
class SharedAccessAuthorizationRule:
    """A key of an entity, and its rights: Send, Listen and Manage. If a key is empty, the broker generates it."""

    key_name: str
    rights: list[str]
    primary_key: str = field(default="", repr=False)
    secondary_key: str = field(default="", repr=False)
    created_at_utc: datetime | None = None
    modified_at_utc: datetime | None = None


@dataclass(slots=True)
class QueueProperties:
    """The settings of a queue."""

    name: str
    lock_duration: Duration = timedelta(minutes=1)
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live: Duration = UNLIMITED
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window: Duration = timedelta(minutes=10)
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    authorization_rules: list[SharedAccessAuthorizationRule] = field(default_factory=list)
    status: EntityStatus | str = EntityStatus.ACTIVE
    forward_to: str | None = None
    """The path of a queue or topic."""
    user_metadata: str | None = None
    auto_delete_on_idle: Duration = UNLIMITED
    enable_partitioning: bool = False
    enable_express: bool = False
    forward_dead_lettered_messages_to: str | None = None
    max_message_size_in_kilobytes: int | None = None
    """None: the limit of the namespace."""
    availability_status: str | None = None
    """Available, or Limited if a fragment is out of service. The broker alone sets it."""


@dataclass(slots=True)
class TopicProperties:
    """The settings of a topic."""

    name: str
    default_message_time_to_live: Duration = UNLIMITED
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window: Duration = timedelta(minutes=10)
    enable_batched_operations: bool = True
    filtering_messages_before_publishing: bool = False
    authorization_rules: list[SharedAccessAuthorizationRule] = field(default_factory=list)
    status: EntityStatus | str = EntityStatus.ACTIVE
    user_metadata: str | None = None
    support_ordering: bool = True
    auto_delete_on_idle: Duration = UNLIMITED
    enable_partitioning: bool = False
    enable_express: bool = False
    max_message_size_in_kilobytes: int | None = None
    """None: the limit of the namespace."""
    availability_status: str | None = None
    """Available, or Limited if a fragment is out of service. The broker alone sets it."""


@dataclass(slots=True)
class SubscriptionProperties:
    """The settings of a subscription."""

    name: str
    lock_duration: Duration = timedelta(minutes=1)
    requires_session: bool = False
    default_message_time_to_live: Duration = UNLIMITED
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: EntityStatus | str = EntityStatus.ACTIVE
    forward_to: str | None = None
    """The path of a queue or topic."""
    user_metadata: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle: Duration = UNLIMITED
    availability_status: str | None = None
    """Available, or Limited if a fragment is out of service. The broker alone sets it."""


class QueueOptions(TypedDict, total=False):
    """The properties that `create_queue` and `update_queue` take as arguments."""

    lock_duration: Duration
    max_size_in_megabytes: int
    requires_duplicate_detection: bool
    requires_session: bool
    default_message_time_to_live: Duration
    dead_lettering_on_message_expiration: bool
    duplicate_detection_history_time_window: Duration
    max_delivery_count: int
    enable_batched_operations: bool
    authorization_rules: list[SharedAccessAuthorizationRule]
    status: EntityStatus | str
    forward_to: str | None
    user_metadata: str | None
    auto_delete_on_idle: Duration
    enable_partitioning: bool
    enable_express: bool
    forward_dead_lettered_messages_to: str | None
    max_message_size_in_kilobytes: int | None


class TopicOptions(TypedDict, total=False):
    """The properties that `create_topic` and `update_topic` take as arguments."""

    default_message_time_to_live: Duration
    max_size_in_megabytes: int
    requires_duplicate_detection: bool
    duplicate_detection_history_time_window: Duration
    enable_batched_operations: bool
    filtering_messages_before_publishing: bool
    authorization_rules: list[SharedAccessAuthorizationRule]
    status: EntityStatus | str
    user_metadata: str | None
    support_ordering: bool
    auto_delete_on_idle: Duration
    enable_partitioning: bool
    enable_express: bool
    max_message_size_in_kilobytes: int | None


class SubscriptionOptions(TypedDict, total=False):
    """The properties that `create_subscription` and `update_subscription` take as arguments."""

    lock_duration: Duration
    requires_session: bool
    default_message_time_to_live: Duration
    dead_lettering_on_message_expiration: bool
    dead_lettering_on_filter_evaluation_exceptions: bool
    max_delivery_count: int
    enable_batched_operations: bool
    status: EntityStatus | str
    forward_to: str | None
    user_metadata: str | None
    forward_dead_lettered_messages_to: str | None
    auto_delete_on_idle: Duration


@dataclass(frozen=True, slots=True)
class QueueRuntimeProperties:
    """What a queue has now. A time is None if the event has not happened."""

    name: str
    created_at_utc: datetime | None
    updated_at_utc: datetime | None
    accessed_at_utc: datetime | None
    size_in_bytes: int
    total_message_count: int
    active_message_count: int
    dead_letter_message_count: int
    scheduled_message_count: int
    transfer_message_count: int
    transfer_dead_letter_message_count: int


@dataclass(frozen=True, slots=True)
class TopicRuntimeProperties:
    """What a topic has now. A time is None if the event has not happened."""

    name: str
    created_at_utc: datetime | None
    updated_at_utc: datetime | None
    accessed_at_utc: datetime | None
    size_in_bytes: int
    subscription_count: int
    scheduled_message_count: int


@dataclass(frozen=True, slots=True)
class SubscriptionRuntimeProperties:
    """What a subscription has now. A time is None if the event has not happened."""

    name: str
    created_at_utc: datetime | None
    updated_at_utc: datetime | None
    accessed_at_utc: datetime | None
    total_message_count: int
    active_message_count: int
    dead_letter_message_count: int
    transfer_message_count: int
    transfer_dead_letter_message_count: int


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """The namespace itself."""

    name: str
    alias: str | None
    created_at_utc: datetime | None
    modified_at_utc: datetime | None
    messaging_sku: str
    """Basic, Standard or Premium."""
    messaging_units: int | None
    """With Premium only."""
    namespace_type: str
