"""Queues, topics and subscriptions for commands: their properties, and the flag of each.

They are made from model/properties.py. The elements stand in the order of the service. Flags are those of `az servicebus`,
with the aliases its versions have had; the keys of JSON are the elements with a small first letter, as there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from busbar.cli import values
from busbar.model.entities import (
    EntityDescription,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.properties import ELEMENTS, PROPERTIES, PropertyType, properties_of


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
"""Elements that the service alone sets; never sent."""

_INTEGER_TYPES = (PropertyType.INTEGER, PropertyType.KILOBYTES)
INTEGERS = frozenset(
    (
        *(row.element for row in PROPERTIES if row.type in _INTEGER_TYPES),
        *("SizeInBytes", "MessageCount", "SubscriptionCount", "SqlFilterCount", "CorrelationFilterCount"),
        *COUNTS,
    )
)
BOOLEANS = frozenset(
    (
        *(row.element for row in PROPERTIES if row.type is PropertyType.BOOLEAN),
        *("IsAnonymousAccessible", "EnableSubscriptionPartitioning"),
    )
)

_FLAGS = {
    "MaxSizeInMegabytes": ("--max-size", "--max-size-in-megabytes"),
    "RequiresDuplicateDetection": ("--enable-duplicate-detection", "--duplicate-detection"),
    "RequiresSession": ("--enable-session", "--requires-session"),
    "DeadLetteringOnMessageExpiration": (
        "--enable-dead-lettering-on-message-expiration",
        "--dead-lettering-on-message-expiration",
    ),
    "DeadLetteringOnFilterEvaluationExceptions": ("--dead-letter-on-filter-exceptions",),
    "MaxDeliveryCount": ("--max-delivery-count", "--max-delivery"),
    "MaxMessageSizeInKilobytes": ("--max-message-size", "--max-message-size-in-kilobytes"),
    "SupportOrdering": ("--enable-ordering",),
}
"""Where they are not simply the words of the element."""
_PARSERS: dict[PropertyType, tuple[Callable[[str], str], str]] = {
    PropertyType.BOOLEAN: (values.boolean, "true|false"),
    PropertyType.INTEGER: (values.integer, "N"),
    PropertyType.KILOBYTES: (values.integer, "N"),
    PropertyType.DURATION: (values.duration, "DURATION"),
    PropertyType.STATUS: (values.status, "STATUS"),
    PropertyType.PATH: (values.plain, "NAME"),
    PropertyType.TEXT: (values.plain, "TEXT"),
}
"""How a value is read, and what the help calls it."""


def _flags(element: str) -> tuple[str, ...]:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", element).lower()
    return _FLAGS.get(element, (f"--{words}",))


def _properties(kind: type[EntityDescription]) -> tuple[CommandProperty, ...]:
    return tuple(
        CommandProperty(
            row.element, _flags(row.element), *_PARSERS[row.type], row.help, row.fixed, row.without_effect
        )
        for row in properties_of(kind)
        if not row.only_atom
    )


def _kind(noun: str, kind: type[EntityDescription], parent: str = "") -> EntityCommandKind:
    plural = f"{noun.capitalize()}s"
    return EntityCommandKind(noun, plural, kind.__name__, ELEMENTS[kind], _properties(kind), parent)


QUEUE = _kind("queue", QueueDescription)
TOPIC = _kind("topic", TopicDescription)
SUBSCRIPTION = _kind("subscription", SubscriptionDescription, parent="topic")
KINDS = {kind.description: kind for kind in (QUEUE, TOPIC, SUBSCRIPTION)}


def json_key(element: str) -> str:
    return element[0].lower() + element[1:]
