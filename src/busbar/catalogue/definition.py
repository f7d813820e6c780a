"""An entity as it is written down: in the catalogue of a store, and on its way to a gateway of another process.

JSON, so that anyone can read a catalogue. Unknown fields are ignored and missing ones take their defaults: definitions of
an older or a newer version can be read. Version 1 had a topic's subscriptions, with their rules, inside the topic's
definition; `decode_nested` makes entries of their own of them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from busbar.model.api import EntityView
from busbar.model.entities import (
    CorrelationFilter,
    Description,
    FalseFilter,
    PropertyValue,
    QueueDescription,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from busbar.model.names import rule_path, subscription_path
from busbar.model.taps import TapDescription

VERSION = 2

Kind = Literal["queue", "topic", "subscription", "rule"]
FilterKind = Literal["sql", "true", "false", "correlation"]


class _Definition(msgspec.Struct):
    kind: Kind
    path: str
    fragments: tuple[int, ...]
    description: msgspec.Raw
    created: int = 0
    updated: int = 0
    version: int = 1
    stores: tuple[str, ...] = ()
    taps: tuple[TapDescription, ...] = ()


class _Rule(msgspec.Struct):
    kind: FilterKind
    filter: msgspec.Raw
    action: SqlAction | None = None


_definitions = msgspec.json.Decoder(_Definition)
_queues = msgspec.json.Decoder(QueueDescription)
_topics = msgspec.json.Decoder(TopicDescription)
_subscriptions = msgspec.json.Decoder(SubscriptionDescription)
_rules = msgspec.json.Decoder(_Rule)
_sql_filters = msgspec.json.Decoder(SqlFilter)
_correlation_filters = msgspec.json.Decoder(CorrelationFilter)


def encode_definition(view: EntityView) -> bytes:
    kind, description = _encoded(view.description)
    return msgspec.json.encode(
        _Definition(
            kind,
            view.path,
            view.fragments,
            description,
            view.created,
            view.updated,
            VERSION,
            view.stores,
            view.taps,
        )
    )


def decode_definition(encoded: bytes) -> EntityView:
    """Raises msgspec.ValidationError or msgspec.DecodeError if it is not a definition."""
    return _view(_definitions.decode(encoded))


def _view(definition: _Definition) -> EntityView:
    return EntityView(
        definition.path,
        _description(definition),
        definition.fragments,
        definition.created,
        definition.updated,
        definition.stores,
        definition.taps,
    )


def _encoded(description: Description) -> tuple[Kind, msgspec.Raw]:
    if isinstance(description, QueueDescription):
        return "queue", _raw(description)
    if isinstance(description, TopicDescription):
        return "topic", _raw(description)
    if isinstance(description, SubscriptionDescription):
        return "subscription", _raw(description)
    return "rule", _raw(_Rule(_filter_kind(description.filter), _raw(description.filter), description.action))


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _description(definition: _Definition) -> Description:
    encoded = definition.description
    if definition.kind == "queue":
        return _queues.decode(encoded)
    if definition.kind == "topic":
        return _topics.decode(encoded)
    if definition.kind == "subscription":
        return _subscriptions.decode(encoded)
    rule = _rules.decode(encoded)
    return RuleDescription(_filter(rule), rule.action)


def _filter_kind(filter_: RuleFilter) -> FilterKind:
    if isinstance(filter_, SqlFilter):
        return "sql"
    if isinstance(filter_, CorrelationFilter):
        return "correlation"
    return "true" if isinstance(filter_, TrueFilter) else "false"


def _filter(rule: _Rule) -> RuleFilter:
    if rule.kind == "sql":
        return _sql_filters.decode(rule.filter)
    if rule.kind == "correlation":
        return _correlation_filters.decode(rule.filter)
    return TrueFilter() if rule.kind == "true" else FalseFilter()


# ---- version 1 ----


class _OldRule(msgspec.Struct):
    name: str
    filter: dict[str, object] = {}
    action: str = ""


class _OldSubscription(msgspec.Struct):
    name: str
    rules: tuple[_OldRule, ...] = ()


class _OldTopic(msgspec.Struct):
    subscriptions: tuple[msgspec.Raw, ...] = ()


_old_topics = msgspec.json.Decoder(_OldTopic)
_old_subscriptions = msgspec.json.Decoder(_OldSubscription)

_OLD_FIELDS = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "Subject": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}


def decode_nested(encoded: bytes) -> list[EntityView]:
    """The subscriptions and rules inside a topic's definition of version 1, as entries of their own."""
    definition = _definitions.decode(encoded)
    if definition.version > 1 or definition.kind != "topic":
        return []
    views = []
    for inner in _old_topics.decode(definition.description).subscriptions:
        old = _old_subscriptions.decode(inner)
        path = subscription_path(definition.path, old.name)
        views.append(EntityView(path, _subscriptions.decode(inner), ()))
        views += [EntityView(rule_path(path, rule.name), _old_rule(rule), ()) for rule in old.rules]
    return views


def _old_rule(rule: _OldRule) -> RuleDescription:
    action = SqlAction(rule.action) if rule.action else None
    if rule.filter.get("FilterType") != "Correlation":
        return RuleDescription(SqlFilter(str(rule.filter.get("SqlExpression", "1=1"))), action)
    given = {
        field: str(rule.filter[key]) for key, field in _OLD_FIELDS.items() if rule.filter.get(key) is not None
    }
    properties = rule.filter.get("Properties")
    pairs: list[tuple[str, PropertyValue]] = []
    for name, value in (properties if isinstance(properties, dict) else {}).items():
        pairs.append((str(name), value if isinstance(value, str | int | float | bool) else str(value)))
    return RuleDescription(CorrelationFilter(**given, properties=tuple(pairs)), action)
