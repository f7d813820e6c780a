"""Entities as their creators describe them. Names follow the Azure SDK's; times are ms, 0 = unlimited."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from busbar.model.errors import ArgumentError, ArgumentOutOfRange
from busbar.model.limits import Limits
from busbar.model.settings import FragmentSettings

MEGABYTE = 1024 * 1024


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


@dataclass(frozen=True, slots=True)
class QueueDescription:
    lock_duration: int = 60_000
    max_size_in_megabytes: int = 1024
    max_message_size: int = 0  # 0: the namespace's limit
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

    def fragment_settings(self) -> FragmentSettings:
        return FragmentSettings(
            lock_ms=self.lock_duration,
            max_deliveries=self.max_delivery_count,
            ttl_ms=self.default_message_time_to_live,
            dead_letter_on_expiration=self.dead_lettering_on_message_expiration,
            quota_bytes=self.max_size_in_megabytes * MEGABYTE,
            can_send=self.status.can_send,
            can_receive=self.status.can_receive,
        )


@dataclass(frozen=True, slots=True)
class RuleDescription:
    name: str
    filter: dict[str, object] = field(default_factory=dict)
    action: str = ""


@dataclass(frozen=True, slots=True)
class SubscriptionDescription:
    name: str
    lock_duration: int = 60_000
    requires_session: bool = False
    default_message_time_to_live: int = 0
    dead_lettering_on_message_expiration: bool = False
    max_delivery_count: int = 10
    forward_to: str = ""
    forward_dead_lettered_messages_to: str = ""
    rules: tuple[RuleDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDescription:
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window: int = 600_000
    default_message_time_to_live: int = 0
    enable_partitioning: bool = False
    status: EntityStatus = EntityStatus.ACTIVE
    subscriptions: tuple[SubscriptionDescription, ...] = ()


EntityDescription = QueueDescription | TopicDescription


def check_path(path: str, limits: Limits) -> str:
    """The path of a queue or topic, or an error that names the rule it breaks."""
    if not path or len(path) > limits.max_path_length:
        raise ArgumentOutOfRange(
            f"The entity name '{path[:60]}' has {len(path)} characters; 1 to {limits.max_path_length} are allowed."
        )
    if path.startswith("/") or path.endswith("/") or "//" in path:
        raise ArgumentError(f"The entity name '{path}' has an empty segment between slashes.")
    for segment in path.split("/"):
        if not segment[0].isalnum() or not segment[-1].isalnum():
            raise ArgumentError(
                f"The entity name '{path}' is not allowed: each segment starts and ends with a letter or a digit."
            )
        bad = next((c for c in segment if not (c.isalnum() or c in "-._~")), None)
        if bad is not None:
            raise ArgumentError(
                f"The entity name '{path}' has the character {bad!r}; letters, digits, '-', '.', '_', '~' and '/' "
                "are allowed."
            )
    return path


def check_queue(path: str, queue: QueueDescription, limits: Limits) -> QueueDescription:
    """The queue's description if every value keeps its rule."""
    if not limits.min_lock_duration <= queue.lock_duration <= limits.max_lock_duration:
        raise ArgumentOutOfRange(
            f"Queue '{path}': LockDuration is {queue.lock_duration / 1000:g} s; "
            f"{limits.min_lock_duration / 1000:g} s to {limits.max_lock_duration / 1000:g} s are allowed."
        )
    if queue.max_delivery_count < 1:
        raise ArgumentOutOfRange(
            f"Queue '{path}': MaxDeliveryCount is {queue.max_delivery_count}; at least 1 is needed."
        )
    if queue.default_message_time_to_live < 0:
        raise ArgumentOutOfRange(
            f"Queue '{path}': DefaultMessageTimeToLive is negative; use a positive duration."
        )
    if not 1 <= queue.max_size_in_megabytes <= 81_920:
        raise ArgumentOutOfRange(
            f"Queue '{path}': MaxSizeInMegabytes is {queue.max_size_in_megabytes}; 1 to 81920 are allowed."
        )
    if len(queue.user_metadata) > 1024:
        raise ArgumentOutOfRange(
            f"Queue '{path}': UserMetadata has {len(queue.user_metadata)} characters; at most 1024 are allowed."
        )
    return queue
