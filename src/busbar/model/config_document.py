"""Entities in the form of the emulator's Config.json, as values of JSON.

1. A document that is written here and read by app/config.py describes the same entities.
2. Busbar's own additions: AuthorizationRules of queues and topics (names and rights, no keys), Parameters of expressions,
   and values of types that JSON does not have, as {"Type", "Value"}.
"""

from __future__ import annotations

from collections.abc import Sequence

from busbar.model.duration import write_duration
from busbar.model.entities import (
    AuthorizationRule,
    CorrelationFilter,
    EntityDescription,
    FalseFilter,
    PropertyValue,
    Right,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
    TypedText,
    authorization_rules_of,
)
from busbar.model.properties import CORRELATION, EntityProperty, PropertyType, properties_of

Json = dict[str, object]
NamedRules = Sequence[tuple[str, RuleDescription]]

EVERYTHING = "1=1"
NOTHING = "1=0"


def entity_document(name: str, description: EntityDescription) -> Json:
    """A queue, a topic without its subscriptions, or a subscription without its rules."""
    document: Json = {"Name": name, "Properties": properties_document(description)}
    rules = authorization_rules_of(description)
    if rules:
        document["AuthorizationRules"] = [_access(rule) for rule in rules]
    return document


def properties_document(description: EntityDescription) -> Json:
    """The properties of an entity, without those that have no value."""
    found = {row.element: json_value(row, description) for row in properties_of(type(description))}
    return {element: value for element, value in found.items() if value is not None}


def json_value(row: EntityProperty, description: EntityDescription) -> object:
    """The value of a property; None if the entity has none."""
    value = getattr(description, row.attribute)
    if row.type is PropertyType.DURATION:
        return write_duration(value)
    if row.type is PropertyType.KILOBYTES:
        return value // 1024 or None
    if row.type is PropertyType.STATUS:
        return str(value.value)
    if row.type in (PropertyType.PATH, PropertyType.TEXT):
        return value or None
    return value


def rules_document(rules: NamedRules) -> list[Json]:
    """The rules of a subscription."""
    return [{"Name": name, "Properties": _rule(rule)} for name, rule in rules]


def _rule(rule: RuleDescription) -> Json:
    found: Json
    if isinstance(rule.filter, CorrelationFilter):
        found = {"FilterType": "Correlation", "CorrelationFilter": _correlation(rule.filter)}
    else:
        found = {"FilterType": "Sql", "SqlFilter": _expression(plain_filter(rule.filter))}
    if rule.action is not None:
        found["Action"] = _expression(rule.action)
    return found


def plain_filter(filter: SqlFilter | TrueFilter | FalseFilter) -> SqlFilter:
    """The filter as an expression, which a file has for all of these."""
    if isinstance(filter, SqlFilter):
        return filter
    return SqlFilter(EVERYTHING if isinstance(filter, TrueFilter) else NOTHING)


def _expression(sql: SqlFilter | SqlAction) -> Json:
    found: Json = {"SqlExpression": sql.expression}
    if sql.parameters:
        found["Parameters"] = {key: _value(value) for key, value in sql.parameters}
    return found


def _correlation(filter: CorrelationFilter) -> Json:
    system = {key: getattr(filter, field) for key, field in sorted(CORRELATION.items())}
    found: Json = {key: value for key, value in system.items() if value is not None}
    if filter.properties:
        found["Properties"] = {key: _value(value) for key, value in filter.properties}
    return found


def _value(value: PropertyValue | TypedText) -> object:
    return {"Type": value.type, "Value": value.text} if isinstance(value, TypedText) else value


def _access(rule: AuthorizationRule) -> Json:
    return {"Name": rule.name, "Rights": [right.value for right in Right if right in rule.rights]}
