"""The vendor emulator's Config.json: the entities of the namespace, and our own limits beside them.

Rules:
1. The format is the emulator's (UserConfig, Namespaces, Queues, Topics, Subscriptions, Rules); its limits are not ours.
   Names of keys are read in any case, as the emulator does.
2. `"Busbar": {"Limits": {...}}` overrides limits of the namespace by their names in model/limits.py.
3. An unknown key is a warning that names it and its place; a bad value is an error that names the file, its place, the
   value and the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from busbar.app.duration import parse_duration
from busbar.app.jsonc import JsonError, parse
from busbar.model.entities import (
    EntityDescription,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    check_path,
    check_queue,
)
from busbar.model.errors import BusbarError
from busbar.model.limits import Limits


class ConfigError(Exception):
    """The configuration cannot be used; the text is for the one who wrote it."""


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """What a Config.json asks for."""

    name: str
    entities: tuple[tuple[str, EntityDescription], ...]
    limits: Limits
    warnings: tuple[str, ...]


def read_config(path: Path) -> NamespaceConfig:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error}") from None
    return parse_config(text, str(path))


def parse_config(text: str, file: str) -> NamespaceConfig:
    """`file` is the name that errors and warnings give it."""
    try:
        value = parse(text)
    except JsonError as error:
        raise ConfigError(f"{file}: this is not JSON: {error}") from None
    return _Reader(file).namespace(value)


# How a property is read: the field it sets, and the value of it (ValueError says which rule was broken).
_Property = tuple[str, Callable[[object], object]]


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("it must be true or false")


def _whole(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53:
        return value
    raise ValueError("it must be a whole number, 0 or more")


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise ValueError("it must be a text")


def _duration(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError("it must be an ISO 8601 duration such as PT30S, PT1M, PT1H or P14D")
    return parse_duration(value)


def _status(value: object) -> EntityStatus:
    for status in EntityStatus:
        if isinstance(value, str) and value.lower() == status.lower():
            return status
    raise ValueError("it must be one of " + ", ".join(EntityStatus))


def _kilobytes(value: object) -> int:
    return _whole(value) * 1024


_QUEUE: dict[str, _Property] = {
    "LockDuration": ("lock_duration", _duration),
    "MaxSizeInMegabytes": ("max_size_in_megabytes", _whole),
    "MaxMessageSizeInKilobytes": ("max_message_size", _kilobytes),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _flag),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_history_time_window", _duration),
    "RequiresSession": ("requires_session", _flag),
    "DefaultMessageTimeToLive": ("default_message_time_to_live", _duration),
    "DeadLetteringOnMessageExpiration": ("dead_lettering_on_message_expiration", _flag),
    "MaxDeliveryCount": ("max_delivery_count", _whole),
    "EnableBatchedOperations": ("enable_batched_operations", _flag),
    "EnablePartitioning": ("enable_partitioning", _flag),
    "EnableExpress": ("enable_express", _flag),
    "AutoDeleteOnIdle": ("auto_delete_on_idle", _duration),
    "Status": ("status", _status),
    "ForwardTo": ("forward_to", _text),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_messages_to", _text),
    "UserMetadata": ("user_metadata", _text),
}
_SUBSCRIPTION = {
    name: _QUEUE[name]
    for name in (
        "LockDuration",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "MaxDeliveryCount",
        "ForwardTo",
        "ForwardDeadLetteredMessagesTo",
    )
}
_TOPIC = {
    name: _QUEUE[name]
    for name in (
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "DuplicateDetectionHistoryTimeWindow",
        "DefaultMessageTimeToLive",
        "EnablePartitioning",
        "Status",
    )
}
_CORRELATION = (
    "ContentType",
    "CorrelationId",
    "Label",
    "Subject",
    "MessageId",
    "ReplyTo",
    "ReplyToSessionId",
    "SessionId",
    "To",
    "Properties",
)
_LIMITS = {field.name for field in fields(Limits)}


class _Object:
    """A JSON object at its place in the file, whose keys are found in any case."""

    def __init__(self, reader: _Reader, place: str, value: object) -> None:
        if not isinstance(value, dict):
            reader.fail(place, value, "it must be an object {...}")
        self.place = place
        self._reader = reader
        self._by_key: dict[str, tuple[str, object]] = {
            key.lower(): (key, item) for key, item in value.items()
        }

    def take(self, key: str, default: object = None) -> object:
        """The value of a key, which is known from now on."""
        return self._by_key.pop(key.lower(), ("", default))[1]

    def inner(self, key: str) -> _Object:
        value = self.take(key)
        return _Object(self._reader, f"{self.place}{key}.", {} if value is None else value)

    def items(self, key: str) -> Iterator[tuple[str, object]]:
        """The elements of an array, each with its place."""
        value = self.take(key)
        if value is None:
            return
        if not isinstance(value, list):
            self._reader.fail(self.place + key, value, "it must be an array [...]")
        for index, item in enumerate(value):
            yield f"{self.place}{key}[{index}].", item

    def rest(self) -> list[tuple[str, object]]:
        """Keys that nobody has taken, as they are spelled."""
        rest = list(self._by_key.values())
        self._by_key.clear()
        return rest

    def end(self) -> None:
        for key, _ in self.rest():
            self._reader.unknown(self.place + key)


class _Reader:
    """Reads one file; gathers its warnings."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._warnings: list[str] = []
        self._limits = Limits()

    def fail(self, place: str, value: object, rule: str) -> NoReturn:
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        raise ConfigError(f"{self._file}: {place.rstrip('.') or 'the file'} is {shown}; {rule}.")

    def unknown(self, place: str) -> None:
        self._warnings.append(f"{self._file}: {place} is not known here and is ignored.")

    def namespace(self, value: object) -> NamespaceConfig:
        root = _Object(self, "", value)
        root.take("$schema")
        busbar = root.inner("Busbar")
        self._read_limits(busbar)
        busbar.end()
        user = root.inner("UserConfig")
        root.end()
        user.take("Logging")  # where we log is not the file's business
        namespaces = list(user.items("Namespaces"))
        user.end()
        if len(namespaces) > 1:
            raise ConfigError(
                f"{self._file}: UserConfig.Namespaces has {len(namespaces)} elements; a broker serves one namespace."
            )
        name = "busbar"
        entities: list[tuple[str, EntityDescription]] = []
        for place, item in namespaces:
            space = _Object(self, place, item)
            name = self._value(place + "Name", space.take("Name", name), _text)
            entities += [self._queue(*queue) for queue in space.items("Queues")]
            entities += [self._topic(*topic) for topic in space.items("Topics")]
            space.end()
        self._check_twice(entities)
        return NamespaceConfig(name, tuple(entities), self._limits, tuple(self._warnings))

    def _read_limits(self, busbar: _Object) -> None:
        limits = busbar.inner("Limits")
        for key, value in limits.rest():
            place = limits.place + key
            if key not in _LIMITS:
                self.fail(place, value, "there is no such limit; there are " + ", ".join(sorted(_LIMITS)))
            self._limits = replace(self._limits, **{key: self._value(place, value, _whole)})

    def _queue(self, place: str, value: object) -> tuple[str, QueueDescription]:
        item = _Object(self, place, value)
        name = self._name(item)
        queue = QueueDescription(**self._properties(item, _QUEUE))
        item.end()
        self._check(place, lambda: check_queue(name, queue, self._limits))
        return name, queue

    def _topic(self, place: str, value: object) -> tuple[str, TopicDescription]:
        item = _Object(self, place, value)
        name = self._name(item)
        properties = self._properties(item, _TOPIC)
        subscriptions = tuple(
            self._subscription(*subscription) for subscription in item.items("Subscriptions")
        )
        item.end()
        return name, TopicDescription(**properties, subscriptions=subscriptions)

    def _subscription(self, place: str, value: object) -> SubscriptionDescription:
        item = _Object(self, place, value)
        name = self._name(item)
        properties = self._properties(item, _SUBSCRIPTION)
        rules = tuple(self._rule(*rule) for rule in item.items("Rules"))
        item.end()
        return SubscriptionDescription(name, **properties, rules=rules)

    def _rule(self, place: str, value: object) -> RuleDescription:
        item = _Object(self, place, value)
        name = self._value(place + "Name", item.take("Name"), _text)
        if not name:
            self.fail(place + "Name", name, "a rule needs a name")
        properties = item.inner("Properties")
        item.end()
        kind = self._value(properties.place + "FilterType", properties.take("FilterType", "Sql"), _text)
        correlation = properties.inner("CorrelationFilter")
        sql = properties.inner("SqlFilter")
        action = properties.inner("Action")
        properties.end()
        action_text = self._value(action.place + "SqlExpression", action.take("SqlExpression"), _text)
        action.end()
        if kind.lower() == "correlation":
            given = {key: correlation.take(key) for key in _CORRELATION}
            correlation.end()
            filter_: dict[str, object] = {key: item for key, item in given.items() if item is not None}
            return RuleDescription(name, {"FilterType": "Correlation", **filter_}, action_text)
        if kind.lower() == "sql":
            expression = self._value(sql.place + "SqlExpression", sql.take("SqlExpression", "1=1"), _text)
            sql.end()
            return RuleDescription(name, {"FilterType": "Sql", "SqlExpression": expression}, action_text)
        self.fail(properties.place + "FilterType", kind, "it must be Correlation or Sql")

    def _name(self, item: _Object) -> str:
        place = item.place + "Name"
        name: str = self._value(place, item.take("Name"), _text)
        self._check(place, lambda: check_path(name, self._limits))
        return name

    def _properties(self, item: _Object, table: Mapping[str, _Property]) -> dict[str, Any]:
        properties = item.inner("Properties")
        read: dict[str, Any] = {}
        for key, (field, convert) in table.items():
            value = properties.take(key)
            if value is not None:
                read[field] = self._value(properties.place + key, value, convert)
        properties.end()
        return read

    def _value(self, place: str, value: object, convert: Callable[[object], Any]) -> Any:
        try:
            return convert(value)
        except ValueError as error:
            self.fail(place, value, str(error))

    def _check(self, place: str, check: Callable[[], object]) -> None:
        try:
            check()
        except BusbarError as error:
            raise ConfigError(f"{self._file}: {place.rstrip('.')}: {error}") from None

    def _check_twice(self, entities: list[tuple[str, EntityDescription]]) -> None:
        seen: dict[str, str] = {}
        for name, _ in entities:
            if name.lower() in seen:
                raise ConfigError(
                    f"{self._file}: '{seen[name.lower()]}' and '{name}' are the same name; letter case makes no "
                    "difference."
                )
            seen[name.lower()] = name
