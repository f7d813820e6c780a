"""RuleDescription: a filter and an action, each of a type, with parameters that have types of their own.

1. A filter's type is in its `xsi:type`. A missing filter matches every message.
2. TrueFilter and FalseFilter are written with an expression: its presence distinguishes SQL from correlation for the
   JavaScript SDK.
3. An action is always written, an empty one if there is none, because the JavaScript SDK reads it without a check.
4. In answers, the attribute is spelt `i:type` and a schema type has a prefix of four characters. The JavaScript SDK reads
   the first literally and cuts five characters off the second.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element

from busbar.gateway.http.atom_values import read_any, write_any, write_time
from busbar.gateway.http.atom_xml import XmlWriter, child, children, exact_text_of, text_of, type_of
from busbar.model.atom import SCHEMA
from busbar.model.entities import (
    DEFAULT_RULE,
    CorrelationFilter,
    FalseFilter,
    PropertyValue,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    TypedText,
)
from busbar.model.errors import ArgumentError
from busbar.model.properties import CORRELATION

Parameters = tuple[tuple[str, PropertyValue | TypedText], ...]

_COMPATIBILITY_LEVEL = "20"


def read_rule(element: Element) -> RuleDescription:
    """Read a rule. Raises ArgumentError."""
    return RuleDescription(_read_filter(child(element, "Filter")), _read_action(child(element, "Action")))


def read_default_rule(subscription: Element) -> tuple[str, RuleDescription] | None:
    """The rule that a new subscription gets instead of `$Default`, with its name."""
    element = child(subscription, "DefaultRuleDescription")
    return None if element is None else (text_of(element, "Name") or DEFAULT_RULE, read_rule(element))


def _read_filter(element: Element | None) -> RuleFilter:
    if element is None:
        return TrueFilter()
    match type_of(element):
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilter(_expression(element, "SqlFilter"), _read_parameters(element, "Parameters"))
        case "CorrelationFilter":
            values = {
                attribute: text
                for name, attribute in CORRELATION.items()
                if (text := exact_text_of(element, name)) is not None
            }
            return CorrelationFilter(**values, properties=_read_parameters(element, "Properties"))
        case other:
            raise ArgumentError(
                f"The Filter has the type '{other[:60]}'; "
                "there are SqlFilter, TrueFilter, FalseFilter and CorrelationFilter."
            )


def _read_action(element: Element | None) -> SqlAction | None:
    if element is None:
        return None
    match type_of(element):
        case "SqlRuleAction":
            return SqlAction(_expression(element, "SqlRuleAction"), _read_parameters(element, "Parameters"))
        case "EmptyRuleAction" | "":
            return None
        case other:
            raise ArgumentError(
                f"The Action has the type '{other[:60]}'; there are SqlRuleAction and EmptyRuleAction."
            )


def _expression(element: Element, kind: str) -> str:
    text = text_of(element, "SqlExpression")
    if text is None:
        raise ArgumentError(f"The {kind} has no SqlExpression.")
    return text


def _read_parameters(element: Element, name: str) -> Parameters:
    listed = child(element, name)
    found: dict[str, PropertyValue | TypedText] = {}
    for pair in children(listed, "KeyValueOfstringanyType") if listed is not None else ():
        key = exact_text_of(pair, "Key")
        value = child(pair, "Value")
        if not key or value is None:
            raise ArgumentError(f"A pair in the {name} has no Key or no Value.")
        if key in found:
            raise ArgumentError(f"The {name} have the key '{key[:60]}' twice.")
        try:
            found[key] = read_any(type_of(value) or "string", value.text or "")
        except ValueError as error:
            raise ArgumentError(
                f"The value '{(value.text or '')[:60]}' of '{key[:60]}' in the {name} cannot be read: {error}."
            ) from None
    return tuple(found.items())


def write_rule(xml: XmlWriter, name: str, rule: RuleDescription, created: int) -> None:
    """Write the children of a RuleDescription."""
    _write_filter(xml, rule.filter)
    if rule.action is None:
        xml.element("Action", attributes={"i:type": "EmptyRuleAction"})
    else:
        with xml.inside("Action", {"i:type": "SqlRuleAction"}):
            _write_sql(xml, rule.action.expression, rule.action.parameters)
    xml.element("CreatedAt", write_time(created))
    xml.element("Name", name)


def _write_filter(xml: XmlWriter, rule_filter: RuleFilter) -> None:
    with xml.inside("Filter", {"i:type": type(rule_filter).__name__}):
        match rule_filter:
            case TrueFilter():
                _write_sql(xml, "1=1", ())
            case FalseFilter():
                _write_sql(xml, "1=0", ())
            case SqlFilter():
                _write_sql(xml, rule_filter.expression, rule_filter.parameters)
            case CorrelationFilter():
                for name, attribute in CORRELATION.items():
                    text: str | None = getattr(rule_filter, attribute)
                    if text is not None:
                        xml.element(name, text)
                _write_parameters(xml, "Properties", rule_filter.properties)


def _write_sql(xml: XmlWriter, expression: str, parameters: Parameters) -> None:
    xml.element("SqlExpression", expression)
    xml.element("CompatibilityLevel", _COMPATIBILITY_LEVEL)
    _write_parameters(xml, "Parameters", parameters)


def _write_parameters(
    xml: XmlWriter, name: str, parameters: Iterable[tuple[str, PropertyValue | TypedText]]
) -> None:
    if not parameters:
        xml.element(name)
        return
    with xml.inside(name):
        for key, value in parameters:
            kind, text = write_any(value)
            with xml.inside("KeyValueOfstringanyType"):
                xml.element("Key", key)
                xml.element("Value", text, {"i:type": f"d6p1:{kind}", "xmlns:d6p1": SCHEMA})
