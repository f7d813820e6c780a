"""Entities in the form of the emulator's Config.json, as values of JSON.

1. A document that is written here and read by app/config.py describes the same entities.
2. Busbar's own additions: AuthorizationRules of queues and topics (names and rights), Parameters of expressions, and values
   of types that JSON does not have, as {"Type", "Value"}. Queues and subscriptions can have Taps.
3. Keys are in it only on demand. Taps that capture jobs and other programs of Busbar create for themselves are not in it.
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
from busbar.model.properties import EntityProperty, PropertyType, properties_of
from busbar.model.taps import TapDescription, reader_of

Json = dict[str, object]
NamedRules = Sequence[tuple[str, RuleDescription]]

EVERYTHING = "1=1"
NOTHING = "1=0"
CORRELATION = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "label",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
}
"""The system properties of a correlation filter, and its fields."""


def entity_document(
    name: str, description: EntityDescription, taps: Sequence[TapDescription] = (), *, keys: bool = False
) -> Json:
    """A queue, a topic without its subscriptions, or a subscription without its rules."""
    document: Json = {"Name": name, "Properties": properties_document(description)}
    rules = authorization_rules_of(description)
    if rules:
        document["AuthorizationRules"] = [access_document(rule, keys=keys) for rule in rules]
    lasting = [tap_document(tap) for tap in taps if not reader_of(tap.owner)]
    if lasting:
        document["Taps"] = lasting
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
    system = {key: getattr(filter, field) for key, field in CORRELATION.items()}
    found: Json = {key: value for key, value in system.items() if value is not None}
    if filter.properties:
        found["Properties"] = {key: _value(value) for key, value in filter.properties}
    return found


def _value(value: PropertyValue | TypedText) -> object:
    return {"Type": value.type, "Value": value.text} if isinstance(value, TypedText) else value


def access_document(rule: AuthorizationRule, *, keys: bool = False) -> Json:
    """An authorization rule of an entity or of the namespace."""
    found: Json = {"Name": rule.name, "Rights": [right.value for right in Right if right in rule.rights]}
    return found | ({"PrimaryKey": rule.primary_key, "SecondaryKey": rule.secondary_key} if keys else {})


def tap_document(tap: TapDescription) -> Json:
    """A tap, without the fields that have their defaults. Its position is not part of it."""
    found: Json = {"Name": tap.name}
    flags = {
        "DeadLetterQueue": tap.dead_letter,
        "Events": tap.events,
        "Consumes": tap.consumes,
        "FromEarliest": tap.from_earliest and not tap.consumes,
    }
    found |= {name: True for name, is_set in flags.items() if is_set}
    usual = TapDescription("")
    if tap.owner:
        found["Owner"] = tap.owner
    if tap.max_age != usual.max_age:
        found["MaxAge"] = write_duration(tap.max_age)
    if tap.max_size != usual.max_size:
        found["MaxSizeInBytes"] = tap.max_size
    if tap.lease != usual.lease:
        found["Lease"] = write_duration(tap.lease)
    return found
