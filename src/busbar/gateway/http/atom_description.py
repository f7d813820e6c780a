"""QueueDescription, TopicDescription and SubscriptionDescription: every element, in the order in which the service writes
them.

model/properties.py describes what clients can set.

1. A missing or empty element means the default, at creation and at an update. Only properties that are fixed at creation
   (partitioning, sessions, duplicate detection) keep their value, because no other is possible.
2. Values that only the broker has (counts, times, availability) are written and never read, because SDKs send them back.
3. MaxSizeInMegabytes of a partitioned entity is shown 16-fold. If an entity has no message size of its own, that of the
   namespace is shown. SDKs may send both back. The catalogue recognizes the first, this file the second.
4. ForwardTo is read in every spelling and with any host, since a namespace has many names. It is shown as an absolute URI.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element

from busbar.gateway.address import plain_path
from busbar.gateway.http.atom_access import read_access, write_access
from busbar.gateway.http.atom_values import (
    MESSAGE_SIZE,
    read_boolean,
    read_integer,
    write_boolean,
    write_time,
)
from busbar.gateway.http.atom_xml import XmlWriter, exact_text_of, text_of
from busbar.model.api import EntityView, RuntimeProperties
from busbar.model.atom import COUNTS
from busbar.model.duration import read_duration, write_duration
from busbar.model.entities import (
    Description,
    EntityDescription,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.errors import ArgumentError
from busbar.model.partitioning import FRAGMENTS
from busbar.model.properties import (
    ELEMENTS,
    FIXED,
    PROPERTIES,
    EntityProperty,
    PropertyType,
    properties_of,
)

KILOBYTE = 1024

_STATUS = {status.value.lower(): status for status in EntityStatus}


def _quoted(path: str) -> str:
    return quote(path, safe="/$~", errors="replace")


@dataclass(frozen=True, slots=True)
class Site:
    """How a client reaches the namespace, as its request shows it, and what holds for all entities."""

    scheme: str
    host: str
    """With the port, as the client wrote it."""
    version: str
    message_size: int
    """Of an entity without a size of its own."""
    now: int

    def url(self, path: str, query: str = "") -> str:
        """The URL of a path. Fixed words are spelt as the JavaScript SDK needs them: /Subscriptions/, /Rules/."""
        return f"{self.scheme}://{self.host}/{_quoted(path)}?{query}api-version={self.version}"

    def forward_uri(self, path: str) -> str:
        return f"sb://{self.host}/{_quoted(path)}"


@dataclass(frozen=True, slots=True)
class EntityAnswer:
    """An entity to be written into an answer."""

    view: EntityView
    runtime: RuntimeProperties
    site: Site


@dataclass(frozen=True, slots=True)
class SettableElement:
    """An element that clients set: its attribute in the description, and how it is read and written (None: not at all)."""

    element: str
    attribute: str
    read: Callable[[str], Any]
    show: Callable[[Any, EntityAnswer], str | None]


@dataclass(frozen=True, slots=True)
class ReadOnlyElement:
    """An element that only the broker sets, and how it is written."""

    element: str
    write: Callable[[XmlWriter, EntityAnswer], None]


def _status(text: str) -> EntityStatus:
    status = _STATUS.get(text.lower())
    if status is None:
        raise ValueError("it must be Active, Disabled, SendDisabled or ReceiveDisabled")
    return status


def _observed(element: str, text: Callable[[EntityAnswer], str]) -> ReadOnlyElement:
    return ReadOnlyElement(element, lambda xml, shown: xml.element(element, text(shown)))


def partitioned(description: object) -> bool:
    return isinstance(description, QueueDescription | TopicDescription) and description.enable_partitioning


def _show_size(value: int, shown: EntityAnswer) -> str:
    return str(value * FRAGMENTS if partitioned(shown.view.description) else value)


def _show_message_size(value: int, shown: EntityAnswer) -> str | None:
    if shown.site.version < MESSAGE_SIZE:
        return None
    return str((value or shown.site.message_size) // KILOBYTE)


def _counts(xml: XmlWriter, shown: EntityAnswer) -> None:
    runtime = shown.runtime
    # The JavaScript SDK needs the declaration here, and nothing else beside it.
    with xml.inside("CountDetails", {"xmlns:d2p1": COUNTS}):
        xml.element("d2p1:ActiveMessageCount", str(runtime.active))
        xml.element("d2p1:DeadLetterMessageCount", str(runtime.dead_letter))
        xml.element("d2p1:ScheduledMessageCount", str(runtime.scheduled))
        xml.element("d2p1:TransferMessageCount", str(runtime.transfer))
        xml.element("d2p1:TransferDeadLetterMessageCount", str(runtime.transfer_dead_letter))


def _message_count(shown: EntityAnswer) -> str:
    runtime = shown.runtime
    waiting = runtime.active + runtime.scheduled + runtime.deferred + runtime.transfer
    return str(waiting + runtime.dead_letter + runtime.transfer_dead_letter)


def _access(xml: XmlWriter, shown: EntityAnswer) -> None:
    description = shown.view.description
    assert isinstance(description, QueueDescription | TopicDescription)
    write_access(xml, description.authorization_rules)


def _ordered(shown: EntityAnswer) -> str:
    description = shown.view.description
    wanted = description.support_ordering if isinstance(description, TopicDescription) else True
    return write_boolean(wanted and not partitioned(description))


_READERS: dict[PropertyType, Callable[[str], Any]] = {
    PropertyType.BOOLEAN: read_boolean,
    PropertyType.INTEGER: read_integer,
    PropertyType.KILOBYTES: read_integer,
    PropertyType.DURATION: read_duration,
    PropertyType.STATUS: _status,
    PropertyType.PATH: plain_path,
    PropertyType.TEXT: str,
}
_WRITERS: dict[PropertyType, Callable[[Any, EntityAnswer], str | None]] = {
    PropertyType.BOOLEAN: lambda value, _: write_boolean(value),
    PropertyType.INTEGER: lambda value, _: str(value),
    PropertyType.KILOBYTES: _show_message_size,
    PropertyType.DURATION: lambda value, _: write_duration(value),
    PropertyType.STATUS: lambda value, _: value.value,
    PropertyType.PATH: lambda value, shown: shown.site.forward_uri(value) if value else None,
    PropertyType.TEXT: lambda value, _: value or None,
}
_SHOWN_OTHERWISE: dict[str, Callable[[Any, EntityAnswer], str | None]] = {
    "MaxSizeInMegabytes": _show_size,
    "SupportOrdering": lambda _, shown: _ordered(shown),
}


def _settable(row: EntityProperty) -> SettableElement:
    show = _SHOWN_OTHERWISE.get(row.element, _WRITERS[row.type])
    return SettableElement(row.element, row.attribute, _READERS[row.type], show)


_OBSERVED = {
    item.element: item
    for item in (
        _observed("SizeInBytes", lambda shown: str(shown.runtime.size)),
        _observed("MessageCount", _message_count),
        _observed("IsAnonymousAccessible", lambda _: "false"),
        ReadOnlyElement("AuthorizationRules", _access),
        _observed("CreatedAt", lambda shown: write_time(shown.view.created)),
        _observed("UpdatedAt", lambda shown: write_time(shown.view.updated)),
        _observed("AccessedAt", lambda shown: write_time(shown.runtime.accessed)),
        _observed("SupportOrdering", _ordered),
        ReadOnlyElement("CountDetails", _counts),
        _observed(
            "EntityAvailabilityStatus", lambda shown: "Available" if shown.runtime.available else "Limited"
        ),
        _observed("SubscriptionCount", lambda shown: str(shown.runtime.subscriptions)),
        _observed("SqlFilterCount", lambda shown: str(shown.runtime.sql_filters)),
        _observed("CorrelationFilterCount", lambda shown: str(shown.runtime.correlation_filters)),
        _observed("EnableSubscriptionPartitioning", lambda _: "false"),
    )
}


def _table(kind: type[EntityDescription]) -> tuple[SettableElement | ReadOnlyElement, ...]:
    """The elements of a kind: those that clients set, and the read-only ones."""
    settable = {row.element: _settable(row) for row in properties_of(kind)}
    known: dict[str, SettableElement | ReadOnlyElement] = {**_OBSERVED, **settable}
    return tuple(known[element] for element in ELEMENTS[kind] if element in known)


_TABLES = {kind: _table(kind) for kind in ELEMENTS}
_EXACT = frozenset(row.element for row in PROPERTIES if row.type is PropertyType.TEXT)
"""A text of the user's own keeps its spaces."""
_FIXED = frozenset(row.attribute for row in FIXED)


def read_description(
    kind: type[EntityDescription], element: Element, current: Description | None, site: Site
) -> EntityDescription:
    """Read the description in a request; `current` is the existing one, if there is one. Raises ArgumentError."""
    assert current is None or type(current) is kind
    values: dict[str, Any] = {}
    for item in _TABLES[kind]:
        if not isinstance(item, SettableElement):
            continue
        read_text = exact_text_of if item.element in _EXACT else text_of
        text = read_text(element, item.element)
        if text:
            values[item.attribute] = _read(item, text)
        elif current is not None and item.attribute in _FIXED:
            values[item.attribute] = getattr(current, item.attribute)
    if kind is not SubscriptionDescription:
        values["authorization_rules"] = read_access(element)
        values["max_message_size"] = _message_size(values.get("max_message_size"), current, site)
    return kind(**values)


def _read(item: SettableElement, text: str) -> Any:
    try:
        return item.read(text)
    except ValueError as error:
        raise ArgumentError(f"{item.element} is '{text[:60]}'; {error}.") from None


def _message_size(kilobytes: int | None, current: Description | None, site: Site) -> int:
    """The message size of the entity itself; 0 if it is that of the namespace."""
    own = current.max_message_size if isinstance(current, QueueDescription | TopicDescription) else 0
    if kilobytes is None:
        return 0
    return own if kilobytes == (own or site.message_size) // KILOBYTE else kilobytes * KILOBYTE


def write_description(xml: XmlWriter, shown: EntityAnswer) -> None:
    """Write the children of the description's element."""
    description = shown.view.description
    for item in _TABLES[type(description)]:  # type: ignore[index]  # a rule has its own writer
        if isinstance(item, ReadOnlyElement):
            item.write(xml, shown)
            continue
        text = item.show(getattr(description, item.attribute), shown)
        if text is not None:
            xml.element(item.element, text)
