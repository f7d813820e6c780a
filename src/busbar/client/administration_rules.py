"""The rules of a subscription: filters and actions, and their XML.

A value in a filter or an action is a text, a number, a boolean, a datetime with a time zone, or a timedelta. A TypedText is
a value as XML has it, with the name of its type. Commands read all values so: they show what is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from xml.etree.ElementTree import Element

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
    type_of,
    write_span,
)
from busbar.model.atom import SCHEMA
from busbar.model.duration import read_duration
from busbar.model.entities import TypedText
from busbar.model.properties import CORRELATION

RuleValue = str | int | float | bool | datetime | timedelta | TypedText

_NUMBERS = (
    "int",
    "long",
    "short",
    "byte",
    "integer",
    "unsignedInt",
    "unsignedLong",
    "unsignedShort",
    "unsignedByte",
)
_ValueReader = Callable[[str, str, str], RuleValue]
"""Reads a value by its key, its type and its text."""
_MILLISECONDS = re.compile(r"(\.\d{6})\d+")


@dataclass(frozen=True, slots=True)
class SqlRuleFilter:
    """Selects messages by a condition, in the language of docs/rules.md."""

    sql_expression: str
    parameters: Mapping[str, RuleValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrueRuleFilter:
    """Selects every message."""


@dataclass(frozen=True, slots=True)
class FalseRuleFilter:
    """Selects no message."""


@dataclass(frozen=True, slots=True)
class CorrelationRuleFilter:
    """Selects messages that have all these values."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, RuleValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SqlRuleAction:
    """Changes the properties of a selected message."""

    sql_expression: str
    parameters: Mapping[str, RuleValue] = field(default_factory=dict)


SubscriptionFilter = SqlRuleFilter | TrueRuleFilter | FalseRuleFilter | CorrelationRuleFilter


@dataclass(slots=True)
class RuleProperties:
    """A rule of a subscription: it selects messages, and may change them."""

    name: str
    filter: SubscriptionFilter = field(default_factory=TrueRuleFilter)
    action: SqlRuleAction | None = None
    created_at_utc: datetime | None = None


def write_rule(rule: RuleProperties, element: str = "RuleDescription") -> Element:
    """The description of a rule. Raises TypeError or ValueError for a value that it cannot have."""
    description = new_description(element)
    _write_filter(add(description, "Filter"), rule.filter)
    action = add(description, "Action")
    if rule.action is None:
        action.set(TYPE, "EmptyRuleAction")
    else:
        _write_sql(action, "SqlRuleAction", rule.action.sql_expression, rule.action.parameters)
    add(description, "Name", rule.name)
    return description


def read_rule(content: AtomContent, *, typed: bool = False) -> RuleProperties:
    """Read a rule; if `typed`, with all values as TypedText. Raises NotAtomReply."""
    read = _as_written if typed else _read_value
    description = content.description
    action = child(description, "Action")
    return RuleProperties(
        content.name or text_of(description, "Name") or "",
        _read_filter(child(description, "Filter"), read),
        SqlRuleAction(_expression(action), _read_values(action, "Parameters", read))
        if action is not None and type_of(action) == "SqlRuleAction"
        else None,
        read_time(text_of(description, "CreatedAt")),
    )


def _write_filter(element: Element, chosen: SubscriptionFilter) -> None:
    match chosen:
        case TrueRuleFilter():
            _write_sql(element, "TrueFilter", "1=1", {})
        case FalseRuleFilter():
            _write_sql(element, "FalseFilter", "1=0", {})
        case SqlRuleFilter():
            _write_sql(element, "SqlFilter", chosen.sql_expression, chosen.parameters)
        case CorrelationRuleFilter():
            element.set(TYPE, "CorrelationFilter")
            for name, attribute in CORRELATION.items():
                value = getattr(chosen, attribute)
                if value is not None:
                    add(element, name, value)
            _write_values(element, "Properties", chosen.properties)
        case other:
            raise TypeError(
                f"the filter of a rule is {other!r}; it must be a SqlRuleFilter, CorrelationRuleFilter, TrueRuleFilter or "
                "FalseRuleFilter"
            )


def _read_filter(element: Element | None, read: _ValueReader) -> SubscriptionFilter:
    kind = "TrueFilter" if element is None else type_of(element)
    if element is None or kind == "TrueFilter":
        return TrueRuleFilter()
    if kind == "FalseFilter":
        return FalseRuleFilter()
    if kind == "CorrelationFilter":
        system = {attribute: _exact(child(element, name)) for name, attribute in CORRELATION.items()}
        return CorrelationRuleFilter(**system, properties=_read_values(element, "Properties", read))
    return SqlRuleFilter(_expression(element), _read_values(element, "Parameters", read))


def _exact(element: Element | None) -> str | None:
    """A text that may be empty; None if it is absent."""
    return None if element is None else element.text or ""


def _expression(element: Element) -> str:
    return text_of(element, "SqlExpression") or ""


def _write_sql(element: Element, kind: str, expression: str, parameters: Mapping[str, RuleValue]) -> None:
    element.set(TYPE, kind)
    add(element, "SqlExpression", expression)
    add(element, "CompatibilityLevel", "20")
    _write_values(element, "Parameters", parameters)


def _read_values(element: Element, name: str, read: _ValueReader) -> dict[str, RuleValue]:
    found: dict[str, RuleValue] = {}
    for pair in children(element, name):
        key, value = text_of(pair, "Key"), child(pair, "Value")
        if key and value is not None:
            found[key] = read(key, type_of(value), value.text or "")
    return found


def _write_values(element: Element, name: str, values: Mapping[str, RuleValue]) -> None:
    if not values:
        return
    holder = add(element, name)
    for key, value in values.items():
        typed = typed_text(key, value)
        pair = add(holder, "KeyValueOfstringanyType")
        add(pair, "Key", key)
        written = add(pair, "Value", typed.text)
        written.set("xmlns:d6p1", SCHEMA)
        written.set(TYPE, f"d6p1:{typed.type}")


def _read_value(key: str, kind: str, text: str) -> RuleValue:
    try:
        if kind in _NUMBERS:
            return int(text)
        if kind in ("double", "float", "decimal"):
            return float(text)
        if kind == "boolean":
            return text.lower() in ("true", "1")
        if kind == "dateTime":
            return datetime.fromisoformat(_MILLISECONDS.sub(r"\1", text.replace("Z", "+00:00")))
        if kind == "duration":
            return timedelta(milliseconds=read_duration(text))
    except ValueError as error:
        raise NotAtomReply(f"The value of '{key}' in a rule cannot be read: {error}.") from None
    return text


def _as_written(_key: str, kind: str, text: str) -> RuleValue:
    return TypedText(kind or "string", text)


def typed_text(key: str, value: RuleValue) -> TypedText:
    """A value as XML has it. Raises TypeError or ValueError, which name the key."""
    match value:
        case TypedText():
            return value
        case bool():
            return TypedText("boolean", "true" if value else "false")
        case int():
            return TypedText("int" if -(2**31) <= value < 2**31 else "long", str(value))
        case float():
            return TypedText("double", repr(value).replace("inf", "INF").replace("nan", "NaN"))
        case datetime():
            if value.tzinfo is None:
                raise ValueError(f"the value of '{key}' in a rule is {value}, which has no time zone")
            return TypedText("dateTime", value.astimezone(UTC).isoformat().replace("+00:00", "Z"))
        case timedelta():
            return TypedText("duration", write_span(value))
        case str():
            return TypedText("string", value)
        case other:
            raise TypeError(
                f"the value of '{key}' in a rule is {other!r}; it must be a str, int, float, bool, datetime, timedelta "
                "or TypedText"
            )
