"""Checks names and descriptions. Every error names the value and the rule it breaks.

1. A queue or topic path has 1 to 260 characters: ASCII letters and digits, '-', '.', '_', '~', and '/' between segments. It
   starts and ends with a letter or digit; segments inside may begin and end with any of these marks. No segment is empty,
   '.' or '..', which have another meaning in a URL. Nothing is decoded or normalised: a text that must be decoded is not a
   name.
2. A path cannot be that of a subscription or an operation: no segment but the first is 'Subscriptions' or 'messages'. Its
   first segment is not a host: `localhost`, an IP address or the name of a namespace in the cloud. A token for such a path
   would be one for the whole namespace.
3. Subscriptions and rules have names of 1 to 50 of these characters without '/'; a rule may be called `$Default`.

The catalogue checks what depends on other entities (quotas, forwarding targets).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from busbar.model.entities import (
    DEFAULT_RULE,
    AuthorizationRule,
    CorrelationFilter,
    PropertyValue,
    QueueDescription,
    Right,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    Tier,
    TopicDescription,
    TypedText,
)
from busbar.model.errors import ArgumentError, ArgumentOutOfRange, InvalidOperation
from busbar.model.limits import Limits
from busbar.model.names import is_host

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_EDGE = _LETTERS | frozenset("0123456789")
_INSIDE = _EDGE | frozenset("-._~")
_RESERVED = ("subscriptions", "messages")
_KEY_NAME = re.compile(r"[^\x00-\x20\x7f&=]{1,256}")
_MOST_DELIVERIES = 2**31 - 1

Parameters = tuple[tuple[str, PropertyValue | TypedText], ...]


def check_path(path: str, limits: Limits) -> str:
    """Check the path of a queue or topic. An error names the rule it breaks."""
    _check_text("entity name", path, limits.max_path_length, _INSIDE | {"/"}, "'-', '.', '_', '~' and '/'")
    segments = path.split("/")
    if "" in segments:
        raise ArgumentError(f"The entity name '{path}' has an empty segment between slashes.")
    if is_host(segments[0]):
        raise ArgumentError(
            f"The entity name '{path}' begins with '{segments[0]}', which a token means as the host of the namespace."
        )
    for index, segment in enumerate(segments):
        if segment in (".", ".."):
            raise ArgumentError(
                f"The entity name '{path}' has the segment '{segment}', which means another place in a URL."
            )
        if index and segment.lower() in _RESERVED:
            raise ArgumentError(
                f"The entity name '{path}' has the segment '{segment}', which would make it the path of something else."
            )
    return path


def check_name(name: str, kind: str, limits: Limits) -> str:
    """Check the name of a subscription or of a rule (`kind`, for the error)."""
    if kind == "rule" and name.lower() == DEFAULT_RULE.lower():
        return name
    _check_text(f"{kind} name", name, limits.max_name_length, _INSIDE, "'-', '.', '_' and '~'")
    return name


def _check_text(what: str, text: str, longest: int, allowed: frozenset[str], marks: str) -> None:
    if not text or len(text) > longest:
        raise ArgumentOutOfRange(
            f"The {what} '{_format(text)}' has {len(text)} characters; 1 to {longest} are allowed."
        )
    bad = next((char for char in text if char not in allowed), None)
    if bad is not None:
        raise ArgumentError(
            f"The {what} '{_format(text)}' has the character {bad!r}; letters, digits, {marks} are allowed."
        )
    if text[0] not in _EDGE or text[-1] not in _EDGE:
        raise ArgumentError(
            f"The {what} '{text}' is not allowed: it must start and end with a letter or a digit."
        )


def _format(text: str) -> str:
    """A part of a text that identifies it, without characters that could break a line or a page."""
    return "".join(char if " " <= char < "\x7f" and char not in "<>&" else "?" for char in text[:60])


def check_queue(
    path: str, queue: QueueDescription, limits: Limits, tier: Tier = Tier.STANDARD
) -> QueueDescription:
    """Check the description of a queue."""
    what = f"Queue '{path}'"
    _check_receiving(what, queue, limits, tier)
    _check_sending(what, queue, limits, tier)
    return queue


def check_topic(
    path: str, topic: TopicDescription, limits: Limits, tier: Tier = Tier.STANDARD
) -> TopicDescription:
    what = f"Topic '{path}'"
    if tier is Tier.BASIC:
        raise InvalidOperation(f"{what}: a namespace of the Basic tier has no topics.")
    if topic.status not in ("Active", "Disabled", "SendDisabled"):
        raise ArgumentError(f"{what}: Status is {topic.status}; a topic is Active, Disabled or SendDisabled.")
    _check_time_to_live(what, topic.default_message_time_to_live, limits)
    _check_common(what, topic.auto_delete_on_idle, topic.user_metadata, limits)
    _check_sending(what, topic, limits, tier)
    return topic


def check_subscription(
    path: str, subscription: SubscriptionDescription, limits: Limits, tier: Tier = Tier.STANDARD
) -> SubscriptionDescription:
    what = f"Subscription '{path}'"
    if subscription.status not in ("Active", "Disabled", "ReceiveDisabled"):
        raise ArgumentError(
            f"{what}: Status is {subscription.status}; a subscription is Active, Disabled or ReceiveDisabled."
        )
    _check_receiving(what, subscription, limits, tier)
    return subscription


def check_rule(path: str, rule: RuleDescription, limits: Limits) -> RuleDescription:
    """Check lengths and values of a rule; rules/syntax.py checks expressions."""
    what = f"Rule '{path}'"
    if isinstance(rule.filter, SqlFilter):
        _check_expression(f"{what}: the filter's SqlExpression", rule.filter, limits)
    elif isinstance(rule.filter, CorrelationFilter):
        _check_values(f"{what}: the filter's Properties", rule.filter.properties)
    if rule.action is not None:
        _check_expression(f"{what}: the action's SqlExpression", rule.action, limits)
    return rule


def check_authorization_rules(what: str, rules: Iterable[AuthorizationRule], limits: Limits) -> None:
    names: set[str] = set()
    for rule in rules:
        if not _KEY_NAME.fullmatch(rule.name):
            raise ArgumentError(
                f"{what}: the authorization rule's KeyName '{_format(rule.name)}' has to have 1 to 256 characters, "
                "without spaces, '&' and '='."
            )
        if rule.name in names:
            raise ArgumentError(f"{what}: two authorization rules are called '{_format(rule.name)}'.")
        names.add(rule.name)
        if not rule.rights:
            raise ArgumentError(f"{what}: the authorization rule '{rule.name}' has no rights.")
        if Right.MANAGE in rule.rights and len(rule.rights) < len(Right):
            raise ArgumentError(
                f"{what}: the authorization rule '{rule.name}' has Manage without Send and Listen; Manage needs both."
            )
        for key in (rule.primary_key, rule.secondary_key):
            if len(key) > 256:
                raise ArgumentOutOfRange(
                    f"{what}: a key of the authorization rule '{rule.name}' has {len(key)} characters; at most 256 "
                    "are allowed."
                )
    if len(names) > limits.max_authorization_rules:
        raise ArgumentOutOfRange(
            f"{what} has {len(names)} authorization rules; at most {limits.max_authorization_rules} are allowed."
        )


# ---- what several kinds have in common ----


def _check_receiving(
    what: str, entity: QueueDescription | SubscriptionDescription, limits: Limits, tier: Tier
) -> None:
    _check_range(
        what, "LockDuration", entity.lock_duration, limits.min_lock_duration, limits.max_lock_duration
    )
    if entity.max_delivery_count < 1:
        raise ArgumentOutOfRange(
            f"{what}: MaxDeliveryCount is {entity.max_delivery_count}; at least 1 is needed."
        )
    if entity.max_delivery_count > _MOST_DELIVERIES:
        raise ArgumentOutOfRange(
            f"{what}: MaxDeliveryCount is {entity.max_delivery_count}; at most {_MOST_DELIVERIES} is allowed."
        )
    if tier is Tier.BASIC and entity.requires_session:
        raise InvalidOperation(f"{what}: RequiresSession is true; the Basic tier has no message sessions.")
    forwards = entity.forward_to or entity.forward_dead_lettered_messages_to
    if tier is Tier.BASIC and forwards:
        raise InvalidOperation(f"{what} forwards to '{forwards}'; the Basic tier has no forwarding.")
    _check_time_to_live(what, entity.default_message_time_to_live, limits)
    _check_common(what, entity.auto_delete_on_idle, entity.user_metadata, limits)


def _check_sending(
    what: str, entity: QueueDescription | TopicDescription, limits: Limits, tier: Tier
) -> None:
    size, step = entity.max_size_in_megabytes, max(1, limits.size_increment)
    if not limits.min_size_in_megabytes <= size <= limits.max_size_in_megabytes or size % step:
        steps = f" in steps of {step}" if step > 1 else ""
        raise ArgumentOutOfRange(
            f"{what}: MaxSizeInMegabytes is {size}; {limits.min_size_in_megabytes} to "
            f"{limits.max_size_in_megabytes}{steps} are allowed."
        )
    if not 0 <= entity.max_message_size <= limits.max_message_size:
        raise ArgumentOutOfRange(
            f"{what}: MaxMessageSizeInKilobytes is {entity.max_message_size / 1024:g}; at most "
            f"{limits.max_message_size // 1024} are allowed."
        )
    _check_range(
        what,
        "DuplicateDetectionHistoryTimeWindow",
        entity.duplicate_detection_history_time_window,
        limits.min_duplicate_window,
        limits.max_duplicate_window,
    )
    if entity.enable_express and entity.requires_duplicate_detection:
        raise ArgumentError(
            f"{what}: EnableExpress and RequiresDuplicateDetection are true; an express entity cannot detect duplicates."
        )
    if tier is Tier.PREMIUM and entity.enable_express:
        raise InvalidOperation(f"{what}: EnableExpress is true; the Premium tier has no express entities.")
    check_authorization_rules(what, entity.authorization_rules, limits)


def _check_range(what: str, name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ArgumentOutOfRange(
            f"{what}: {name} is {value / 1000:g} s; {least / 1000:g} s to {most / 1000:g} s are allowed."
        )


def _check_time_to_live(what: str, value: int, limits: Limits) -> None:
    if value and value < limits.min_time_to_live:
        raise ArgumentOutOfRange(
            f"{what}: DefaultMessageTimeToLive is {value / 1000:g} s; at least {limits.min_time_to_live / 1000:g} s "
            "is needed."
        )


def _check_common(what: str, idle: int, metadata: str, limits: Limits) -> None:
    if idle and idle < limits.min_auto_delete_on_idle:
        raise ArgumentOutOfRange(
            f"{what}: AutoDeleteOnIdle is {idle / 1000:g} s; at least {limits.min_auto_delete_on_idle / 1000:g} s is "
            "needed."
        )
    if len(metadata) > limits.max_user_metadata:
        raise ArgumentOutOfRange(
            f"{what}: UserMetadata has {len(metadata)} characters; at most {limits.max_user_metadata} are allowed."
        )


def _check_expression(what: str, part: SqlFilter | SqlAction, limits: Limits) -> None:
    if not part.expression.strip():
        raise ArgumentError(f"{what} is empty.")
    if len(part.expression) > limits.max_expression_length:
        raise ArgumentOutOfRange(
            f"{what} has {len(part.expression)} characters; at most {limits.max_expression_length} are allowed."
        )
    _check_values(f"{what}'s Parameters", part.parameters)


def _check_values(what: str, values: Parameters) -> None:
    names = [name for name, _ in values]
    if "" in names or len(set(names)) != len(names):
        raise ArgumentError(f"{what} have an empty name, or the same name twice.")
    for name, value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise ArgumentError(
                f"{what}: '{_format(name)}' is {value}, which is not a number that can be compared."
            )
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ArgumentOutOfRange(f"{what}: '{_format(name)}' is {value}; whole numbers have 64 bits.")
