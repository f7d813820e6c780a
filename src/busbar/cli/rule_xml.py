"""Rules of a subscription: what they are to commands, and their XML.

The type of a value is written as a qualified name in an attribute (`d6p1:int`), and a parsed tree does not have its prefix.
So rules, unlike other descriptions, are read into values and written again from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from busbar.client.administration_xml import (
    SCHEMA,
    TYPE,
    AtomContent,
    add,
    child,
    children,
    local_name,
    new_description,
    text_of,
)

SYSTEM_PROPERTIES = (
    "CorrelationId",
    "MessageId",
    "To",
    "ReplyTo",
    "Label",
    "SessionId",
    "ReplyToSessionId",
    "ContentType",
)
VALUE_TYPES = ("string", "int", "long", "double", "boolean", "dateTime", "duration")
EVERYTHING = "1=1"


@dataclass(frozen=True, slots=True)
class Value:
    """A value of an application property, or of a parameter."""

    type: str
    text: str


@dataclass(frozen=True, slots=True)
class SqlExpression:
    text: str
    parameters: dict[str, Value] = field(default_factory=dict)
    kind: str = "SqlFilter"
    """SqlFilter, TrueFilter or FalseFilter; SqlRuleAction."""


@dataclass(frozen=True, slots=True)
class Correlation:
    system: dict[str, str] = field(default_factory=dict)
    """By the names of SYSTEM_PROPERTIES."""
    properties: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuleXml:
    name: str
    filter: SqlExpression | Correlation
    action: SqlExpression | None = None
    created: str | None = None


def read_rule(entry: AtomContent) -> RuleXml:
    described = entry.description
    action = child(described, "Action")
    acts = action is not None and _type(action) == "SqlRuleAction"
    return RuleXml(
        entry.name or text_of(described, "Name") or "",
        _read_filter(child(described, "Filter")),
        _read_sql(action, "SqlRuleAction") if action is not None and acts else None,
        text_of(described, "CreatedAt"),
    )


def write_rule(rule: RuleXml) -> Element:
    description = new_description("RuleDescription")
    if isinstance(rule.filter, SqlExpression):
        _write_sql(add(description, "Filter"), rule.filter)
    else:
        element = add(description, "Filter")
        element.set(TYPE, "CorrelationFilter")
        for name in SYSTEM_PROPERTIES:
            if name in rule.filter.system:
                add(element, name, rule.filter.system[name])
        _write_values(element, "Properties", rule.filter.properties)
    action = add(description, "Action")
    if rule.action is None:
        action.set(TYPE, "EmptyRuleAction")
    else:
        _write_sql(action, rule.action)
    add(description, "Name", rule.name)
    return description


def _read_filter(element: Element | None) -> SqlExpression | Correlation:
    if element is None:
        return SqlExpression(EVERYTHING, kind="TrueFilter")
    if _type(element) != "CorrelationFilter":
        return _read_sql(element, _type(element) or "SqlFilter")
    system = {name: text_of(element, name) for name in SYSTEM_PROPERTIES}
    return Correlation(
        {name: text for name, text in system.items() if text is not None}, _read_values(element, "Properties")
    )


def _read_sql(element: Element, kind: str) -> SqlExpression:
    return SqlExpression(text_of(element, "SqlExpression") or "", _read_values(element, "Parameters"), kind)


def _write_sql(element: Element, expression: SqlExpression) -> None:
    element.set(TYPE, expression.kind)
    add(element, "SqlExpression", expression.text)
    add(element, "CompatibilityLevel", "20")
    _write_values(element, "Parameters", expression.parameters)


def _read_values(element: Element, name: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for pair in children(element, name):
        key, value = text_of(pair, "Key"), child(pair, "Value")
        if local_name(pair) == "KeyValueOfstringanyType" and key and value is not None:
            found[key] = Value(_type(value) or "string", value.text or "")
    return found


def _write_values(element: Element, name: str, values: dict[str, Value]) -> None:
    if not values:
        return
    holder = add(element, name)
    for key, value in values.items():
        pair = add(holder, "KeyValueOfstringanyType")
        add(pair, "Key", key)
        written = add(pair, "Value", value.text)
        written.set("xmlns:d6p1", SCHEMA)
        written.set(TYPE, f"d6p1:{value.type}")


def _type(element: Element) -> str:
    return element.get(TYPE, "").rpartition(":")[2]
