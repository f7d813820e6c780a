"""Reads the vendor emulator's Config.json: the entities of the namespace, and Busbar's own limits beside them.

1. The format is the emulator's (UserConfig, Namespaces, Queues, Topics, Subscriptions, Rules); its limits do not apply.
   Names of keys are read in any case, as in the emulator.
2. `"Busbar": {"Tier": ..., "Limits": {...}, "AuthorizationRules": [...]}` is Busbar's own part. It has the tier, limits that
   differ from the tier's by their names in model/limits.py, and rules of the namespace beside the server's own. A rule
   without a key is for `busbar apply` alone. Other additions are those of model/config_document.py.
3. An unknown key is a warning that names it and its place. A bad value is an error that names the file, its place, the value
   and the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from busbar.app.jsonc import JsonError, parse
from busbar.model.checks import (
    check_authorization_rules,
    check_name,
    check_path,
    check_queue,
    check_rule,
    check_subscription,
    check_topic,
)
from busbar.model.duration import read_duration
from busbar.model.entities import (
    AuthorizationRule,
    CorrelationFilter,
    Description,
    EntityDescription,
    EntityStatus,
    PropertyValue,
    QueueDescription,
    Right,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    Tier,
    TopicDescription,
    TypedText,
)
from busbar.model.errors import BusbarError
from busbar.model.limits import Limits, limits_of
from busbar.model.names import rule_path, subscription_path
from busbar.model.properties import CORRELATION, PropertyType, properties_of
from busbar.model.taps import TapDescription


class ConfigError(Exception):
    """The configuration cannot be used; the text is for its author."""


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """The content of a Config.json."""

    name: str
    entities: tuple[tuple[str, Description], ...]
    """Each after the one it belongs to: a topic, its subscriptions, each followed by its rules."""
    limits: Limits
    warnings: tuple[str, ...]
    tier: Tier = Tier.STANDARD
    rules: tuple[AuthorizationRule, ...] = ()
    keyless_rules: tuple[AuthorizationRule, ...] = ()
    """Rules of the namespace whose keys are not in the file."""
    taps: tuple[tuple[str, TapDescription], ...] = ()
    """By the paths of their entities."""


def read_config(path: Path) -> NamespaceConfig:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error}") from None
    return parse_config(text, str(path))


def parse_config(text: str, file: str) -> NamespaceConfig:
    """Parse a configuration; `file` is its name in errors and warnings."""
    try:
        value = parse(text)
    except JsonError as error:
        raise ConfigError(f"{file}: this is not JSON: {error}") from None
    return _ConfigReader(file).namespace(value)


# How a property is read: the field it sets, and its value (a ValueError names the broken rule).
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
    return read_duration(value)


W = TypeVar("W", bound=StrEnum)


def _word(words: type[W]) -> Callable[[object], W]:
    def read(value: object) -> W:
        for word in words:
            if isinstance(value, str) and value.lower() == word.lower():
                return word
        raise ValueError("it must be one of " + ", ".join(words))

    return read


_status = _word(EntityStatus)


def _kilobytes(value: object) -> int:
    return _whole(value) * 1024


_READERS: dict[PropertyType, Callable[[object], object]] = {
    PropertyType.BOOLEAN: _flag,
    PropertyType.INTEGER: _whole,
    PropertyType.KILOBYTES: _kilobytes,
    PropertyType.DURATION: _duration,
    PropertyType.STATUS: _status,
    PropertyType.PATH: _text,
    PropertyType.TEXT: _text,
}
_PROPERTIES: dict[type[EntityDescription], dict[str, _Property]] = {
    kind: {row.element: (row.attribute, _READERS[row.type]) for row in properties_of(kind)}
    for kind in (QueueDescription, TopicDescription, SubscriptionDescription)
}
_CORRELATION = {**CORRELATION, "Subject": "label"}
_TAP: dict[str, _Property] = {
    "DeadLetterQueue": ("dead_letter", _flag),
    "Events": ("events", _flag),
    "Consumes": ("consumes", _flag),
    "FromEarliest": ("from_earliest", _flag),
    "Owner": ("owner", _text),
    "MaxAge": ("max_age", _duration),
    "MaxSizeInBytes": ("max_size", _whole),
    "Lease": ("lease", _duration),
}
_LIMITS = {field.name for field in fields(Limits)}


class _Object:
    """A JSON object at its place in the file, with keys that are found in any case."""

    def __init__(self, reader: _ConfigReader, place: str, value: object) -> None:
        if not isinstance(value, dict):
            reader.fail(place, value, "it must be an object {...}")
        self.place = place
        self._reader = reader
        self._by_key: dict[str, tuple[str, object]] = {
            key.lower(): (key, item) for key, item in value.items()
        }

    def take(self, key: str, default: object = None) -> object:
        """The value of a key, which counts as known from now on."""
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
        """Keys that were not taken, as they are spelled."""
        rest = list(self._by_key.values())
        self._by_key.clear()
        return rest

    def end(self) -> None:
        for key, _ in self.rest():
            self._reader.unknown(self.place + key)


class _ConfigReader:
    """Reads one file, and collects its warnings."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._warnings: list[str] = []
        self._limits = Limits()
        self._tier = Tier.STANDARD
        self._taps: list[tuple[str, TapDescription]] = []

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
        self._tier = self._value(busbar.place + "Tier", busbar.take("Tier", self._tier), _word(Tier))
        self._limits = limits_of(self._tier)
        self._read_limits(busbar)
        rules = self._access(busbar)
        busbar.end()
        user = root.inner("UserConfig")
        root.end()
        user.take("Logging")  # the file does not decide where Busbar logs
        namespaces = list(user.items("Namespaces"))
        user.end()
        if len(namespaces) > 1:
            raise ConfigError(
                f"{self._file}: UserConfig.Namespaces has {len(namespaces)} elements; a broker serves one namespace."
            )
        name = "busbar"
        entities: list[tuple[str, Description]] = []
        for place, item in namespaces:
            space = _Object(self, place, item)
            name = self._value(place + "Name", space.take("Name", name), _text)
            entities += [self._queue(*queue) for queue in space.items("Queues")]
            for topic in space.items("Topics"):
                entities += self._topic(*topic)
            space.end()
        self._check_twice(entities)
        self._check("Busbar.", lambda: check_authorization_rules("The namespace", rules, self._limits))
        keyless = tuple(rule for rule in rules if not rule.primary_key)
        keyed = tuple(rule for rule in rules if rule.primary_key)
        warnings, taps = tuple(self._warnings), tuple(self._taps)
        return NamespaceConfig(
            name, tuple(entities), self._limits, warnings, self._tier, keyed, keyless, taps
        )

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
        queue = QueueDescription(
            **self._properties(item, QueueDescription), authorization_rules=self._access(item)
        )
        self._read_taps(name, item)
        item.end()
        self._check(place, lambda: check_queue(name, queue, self._limits, self._tier))
        return name, queue

    def _topic(self, place: str, value: object) -> Iterator[tuple[str, Description]]:
        item = _Object(self, place, value)
        name = self._name(item)
        topic = TopicDescription(
            **self._properties(item, TopicDescription), authorization_rules=self._access(item)
        )
        subscriptions = list(item.items("Subscriptions"))
        item.end()
        self._check(place, lambda: check_topic(name, topic, self._limits, self._tier))
        yield name, topic
        for subscription in subscriptions:
            yield from self._subscription(name, *subscription)

    def _subscription(self, topic: str, place: str, value: object) -> Iterator[tuple[str, Description]]:
        item = _Object(self, place, value)
        path = subscription_path(topic, self._own_name(item, "subscription"))
        subscription = SubscriptionDescription(**self._properties(item, SubscriptionDescription))
        rules = list(item.items("Rules"))
        self._read_taps(path, item)
        item.end()
        self._check(place, lambda: check_subscription(path, subscription, self._limits, self._tier))
        yield path, subscription
        for rule in rules:
            yield self._rule(path, *rule)

    def _rule(self, subscription: str, place: str, value: object) -> tuple[str, RuleDescription]:
        item = _Object(self, place, value)
        path = rule_path(subscription, self._own_name(item, "rule"))
        properties = item.inner("Properties")
        item.end()
        kind = self._value(properties.place + "FilterType", properties.take("FilterType", "Sql"), _text)
        correlation = properties.inner("CorrelationFilter")
        sql = properties.inner("SqlFilter")
        action = properties.inner("Action")
        properties.end()
        words = self._value(action.place + "SqlExpression", action.take("SqlExpression"), _text)
        action_parameters = self._values(action.inner("Parameters"))
        action.end()
        filter_: RuleFilter
        if kind.lower() == "correlation":
            filter_ = self._correlation(correlation)
        elif kind.lower() == "sql":
            place_of = sql.place + "SqlExpression"
            text = self._value(place_of, sql.take("SqlExpression", "1=1"), _text)
            filter_ = SqlFilter(text, self._values(sql.inner("Parameters")))
            sql.end()
        else:
            self.fail(properties.place + "FilterType", kind, "it must be Correlation or Sql")
        rule = RuleDescription(filter_, SqlAction(words, action_parameters) if words else None)
        self._check(place, lambda: check_rule(path, rule, self._limits))
        return path, rule

    def _correlation(self, item: _Object) -> CorrelationFilter:
        given: dict[str, str] = {}
        for key, field in _CORRELATION.items():
            value = item.take(key)
            if value is not None:
                given[field] = self._value(item.place + key, value, _text)
        properties = item.inner("Properties")
        item.end()
        return CorrelationFilter(**given, properties=self._values(properties))

    def _values(self, item: _Object) -> tuple[tuple[str, PropertyValue | TypedText], ...]:
        """Values by their names, of a correlation filter or of the parameters of an expression."""
        pairs: list[tuple[str, PropertyValue | TypedText]] = []
        for key, value in item.rest():
            if isinstance(value, dict):
                typed = _Object(self, f"{item.place}{key}.", value)
                kind, text = (
                    self._value(typed.place + name, typed.take(name), _text) for name in ("Type", "Value")
                )
                typed.end()
                pairs.append((key, TypedText(kind, text)))
            elif isinstance(value, str | int | float | bool):
                pairs.append((key, value))
            else:
                self.fail(item.place + key, value, "it must be a text, a number, true or false")
        return tuple(pairs)

    def _access(self, owner: _Object) -> tuple[AuthorizationRule, ...]:
        """Authorization rules. Their keys need not be in the file."""
        rules = []
        for place, value in owner.items("AuthorizationRules"):
            item = _Object(self, place, value)
            name, primary, secondary = (
                self._value(place + key, item.take(key), _text)
                for key in ("Name", "PrimaryKey", "SecondaryKey")
            )
            rules.append(AuthorizationRule(name, self._rights(item), primary, secondary))
            item.end()
        return tuple(rules)

    def _read_taps(self, path: str, owner: _Object) -> None:
        for place, value in owner.items("Taps"):
            item = _Object(self, place, value)
            name = self._own_name(item, "tap")
            given: dict[str, Any] = {}
            for key, (field, convert) in _TAP.items():
                found = item.take(key)
                if found is not None:
                    given[field] = self._value(place + key, found, convert)
            item.end()
            self._taps.append((path, TapDescription(name, **given)))

    def _rights(self, item: _Object) -> frozenset[Right]:
        return frozenset(
            self._value(at.rstrip("."), right, _word(Right)) for at, right in item.items("Rights")
        )

    def _own_name(self, item: _Object, kind: str) -> str:
        """The name of an entity with a path below another's."""
        place = item.place + "Name"
        name: str = self._value(place, item.take("Name"), _text)
        self._check(place, lambda: check_name(name, kind, self._limits))
        return name

    def _name(self, item: _Object) -> str:
        place = item.place + "Name"
        name: str = self._value(place, item.take("Name"), _text)
        self._check(place, lambda: check_path(name, self._limits))
        return name

    def _properties(self, item: _Object, kind: type[EntityDescription]) -> dict[str, Any]:
        properties = item.inner("Properties")
        read: dict[str, Any] = {}
        for key, (field, convert) in _PROPERTIES[kind].items():
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

    def _check_twice(self, entities: list[tuple[str, Description]]) -> None:
        seen: dict[str, str] = {}
        for name, _ in entities:
            if name.lower() in seen:
                raise ConfigError(
                    f"{self._file}: '{seen[name.lower()]}' and '{name}' are the same name; letter case makes no "
                    "difference."
                )
            seen[name.lower()] = name
