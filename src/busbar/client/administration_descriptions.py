"""The XML of queues, topics and subscriptions.

model/properties.py has the elements and their types. They are written in the order of the service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit
from xml.etree.ElementTree import Element

from busbar.client.administration_properties import (
    UNLIMITED,
    NamespaceInfo,
    QueueProperties,
    QueueRuntimeProperties,
    SharedAccessAuthorizationRule,
    SubscriptionProperties,
    SubscriptionRuntimeProperties,
    TopicProperties,
    TopicRuntimeProperties,
)
from busbar.client.administration_xml import (
    TYPE,
    AtomContent,
    NotAtomReply,
    add,
    child,
    children,
    new_description,
    read_time,
    text_of,
    write_span,
)
from busbar.model.duration import read_duration
from busbar.model.entities import (
    EntityDescription,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.properties import ELEMENTS, PropertyType, properties_of

_OTHER_NAMES = {"max_message_size": "max_message_size_in_kilobytes"}
"""Attributes that are not called as in the description of model/entities.py."""

E = TypeVar("E", QueueProperties, TopicProperties, SubscriptionProperties)
R = TypeVar("R", QueueRuntimeProperties, TopicRuntimeProperties, SubscriptionRuntimeProperties)

# Values


def _read_span(text: str) -> timedelta:
    milliseconds = read_duration(text)
    return timedelta(milliseconds=milliseconds) if milliseconds else UNLIMITED


def _write_duration(value: object) -> str:
    if isinstance(value, timedelta):
        return write_span(value)
    if isinstance(value, str):
        return value
    raise TypeError("it must be a timedelta, or a duration in ISO 8601 such as 'PT30S'")


def _write_boolean(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    raise TypeError("it must be True or False")


def _write_integer(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise TypeError("it must be an int")


def _write_text(value: object) -> str:
    if isinstance(value, str):
        return str(value)
    raise TypeError("it must be a str")


def _read_boolean(text: str) -> bool:
    return text.strip().lower() in ("true", "1")


def _read_status(text: str) -> EntityStatus | str:
    try:
        return EntityStatus(text)
    except ValueError:
        return text  # a state of the cloud, such as Creating


def _read_path(text: str) -> str:
    """The path of an entity, from its address or its path."""
    return unquote(urlsplit(text).path).strip("/") if "://" in text else text


_WRITERS: dict[PropertyType, Callable[[object], str]] = {
    PropertyType.BOOLEAN: _write_boolean,
    PropertyType.INTEGER: _write_integer,
    PropertyType.KILOBYTES: _write_integer,
    PropertyType.DURATION: _write_duration,
    PropertyType.STATUS: _write_text,
    PropertyType.PATH: _write_text,
    PropertyType.TEXT: _write_text,
}
_READERS: dict[PropertyType, Callable[[str], Any]] = {
    PropertyType.BOOLEAN: _read_boolean,
    PropertyType.INTEGER: int,
    PropertyType.KILOBYTES: int,
    PropertyType.DURATION: _read_span,
    PropertyType.STATUS: _read_status,
    PropertyType.PATH: _read_path,
    PropertyType.TEXT: str,
}


# Entities


@dataclass(frozen=True, slots=True)
class _PropertyElement:
    """An element that clients set."""

    element: str
    attribute: str
    write: Callable[[object], str]
    read: Callable[[str], Any]


def _table(kind: type[EntityDescription]) -> tuple[_PropertyElement, ...]:
    rows = {
        row.element: _PropertyElement(
            row.element,
            _OTHER_NAMES.get(row.attribute, row.attribute),
            _WRITERS[row.type],
            _READERS[row.type],
        )
        for row in properties_of(kind)
    }
    return tuple(rows[element] for element in ELEMENTS[kind] if element in rows)


_TABLES: dict[type[object], tuple[str, tuple[_PropertyElement, ...]]] = {
    QueueProperties: ("QueueDescription", _table(QueueDescription)),
    TopicProperties: ("TopicDescription", _table(TopicDescription)),
    SubscriptionProperties: ("SubscriptionDescription", _table(SubscriptionDescription)),
}


def settable(kind: type[object]) -> tuple[str, ...]:
    """The properties of a kind of entity that clients set."""
    rules = () if kind is SubscriptionProperties else ("authorization_rules",)
    return (*(row.attribute for row in _TABLES[kind][1]), *rules)


def description_name(kind: type[object]) -> str:
    """The element that describes such an entity."""
    return _TABLES[kind][0]


def write_properties(kind: type[object], values: Mapping[str, Any]) -> Element:
    """A description with these properties; None leaves a property at its default.

    Raises TypeError for a property that the entity does not have, or a value of a wrong type. The error names the property.
    """
    name, table = _TABLES[kind]
    unknown = set(values).difference(settable(kind))
    if unknown:
        raise TypeError(f"{kind.__name__} has no property {sorted(unknown)[0]!r}")
    description = new_description(name)
    for row in table:
        value = values.get(row.attribute)
        if value is None:
            continue
        try:
            add(description, row.element, row.write(value))
        except TypeError as error:
            raise TypeError(f"{row.attribute} is {value!r}; {error}") from None
    if values.get("authorization_rules"):
        _write_rules(add(description, "AuthorizationRules"), values["authorization_rules"])
    return description


def read_properties(kind: type[E], content: AtomContent) -> E:
    """The properties in a response. Raises NotAtomReply."""
    values: dict[str, Any] = {}
    for row in _TABLES[kind][1]:
        text = text_of(content.description, row.element)
        if text is not None:
            try:
                values[row.attribute] = row.read(text)
            except ValueError:
                raise NotAtomReply(f"{row.element} of '{content.name}' is {text[:60]!r}.") from None
    if kind is not SubscriptionProperties:
        values["authorization_rules"] = _read_rules(children(content.description, "AuthorizationRules"))
    status = text_of(content.description, "EntityAvailabilityStatus")
    return kind(name=content.name, availability_status=status, **values)


def _write_rules(parent: Element, rules: Iterable[SharedAccessAuthorizationRule]) -> None:
    for rule in rules:
        element = add(parent, "AuthorizationRule")
        element.set(TYPE, "SharedAccessAuthorizationRule")
        add(element, "ClaimType", "SharedAccessKey")
        add(element, "ClaimValue", "None")
        rights = add(element, "Rights")
        for right in rule.rights:
            add(rights, "AccessRights", right)
        add(element, "KeyName", rule.key_name)
        if rule.primary_key:
            add(element, "PrimaryKey", rule.primary_key)
        if rule.secondary_key:
            add(element, "SecondaryKey", rule.secondary_key)


def _read_rules(elements: list[Element]) -> list[SharedAccessAuthorizationRule]:
    return [
        SharedAccessAuthorizationRule(
            text_of(element, "KeyName") or "",
            [right.text or "" for right in children(element, "Rights")],
            text_of(element, "PrimaryKey") or "",
            text_of(element, "SecondaryKey") or "",
            read_time(text_of(element, "CreatedTime")),
            read_time(text_of(element, "ModifiedTime")),
        )
        for element in elements
    ]


# What only the broker sets


def _number(parent: Element | None, name: str) -> int:
    text = None if parent is None else text_of(parent, name)
    try:
        return int(text or 0)
    except ValueError:
        raise NotAtomReply(f"{name} of the response is {text!r}; it must be a number.") from None


_TIMES = {"created_at_utc": "CreatedAt", "updated_at_utc": "UpdatedAt", "accessed_at_utc": "AccessedAt"}
_NUMBERS = {
    "size_in_bytes": "SizeInBytes",
    "total_message_count": "MessageCount",
    "subscription_count": "SubscriptionCount",
}
_COUNTS = {
    "active_message_count": "ActiveMessageCount",
    "dead_letter_message_count": "DeadLetterMessageCount",
    "scheduled_message_count": "ScheduledMessageCount",
    "transfer_message_count": "TransferMessageCount",
    "transfer_dead_letter_message_count": "TransferDeadLetterMessageCount",
}
"""The elements of CountDetails."""


def read_runtime(kind: type[R], content: AtomContent) -> R:
    """What an entity has now: the fields of its kind. Raises NotAtomReply."""
    description = content.description
    counts = child(description, "CountDetails")
    values: dict[str, Any] = {}
    for name in (field.name for field in fields(kind)):
        if name in _TIMES:
            values[name] = read_time(text_of(description, _TIMES[name]))
        elif name in _NUMBERS:
            values[name] = _number(description, _NUMBERS[name])
        elif name in _COUNTS:
            values[name] = _number(counts, _COUNTS[name])
    return kind(name=content.name, **values)


def read_namespace(content: AtomContent) -> NamespaceInfo:
    """Read the properties of the namespace. Raises NotAtomReply."""
    info = content.description
    return NamespaceInfo(
        text_of(info, "Name") or content.name,
        text_of(info, "Alias"),
        read_time(text_of(info, "CreatedTime")),
        read_time(text_of(info, "ModifiedTime")),
        text_of(info, "MessagingSKU") or "",
        _number(info, "MessagingUnits") if text_of(info, "MessagingUnits") else None,
        text_of(info, "NamespaceType") or "",
    )
