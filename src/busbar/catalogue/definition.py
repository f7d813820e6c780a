"""An entity as it is written down: in the catalogue of a store, and on its way to a gateway of another process.

JSON, so that anyone can read a catalogue. Unknown fields are ignored and missing ones take their defaults. Definitions of
version 1, which was not released, are refused: they had subscriptions inside their topics.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from busbar.model.api import EntityView
from busbar.model.entities import (
    CorrelationFilter,
    Description,
    FalseFilter,
    NamespaceDescription,
    QueueDescription,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from busbar.model.taps import TapDescription

VERSION = 2

Kind = Literal["queue", "topic", "subscription", "rule", "namespace"]
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
_namespaces = msgspec.json.Decoder(NamespaceDescription)
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
    """Decode a definition. Raises msgspec.ValidationError or msgspec.DecodeError if it is none."""
    definition = _definitions.decode(encoded)
    if definition.version < VERSION:
        raise msgspec.ValidationError(f"it is of version {definition.version}; {VERSION} and later are read")
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
    if isinstance(description, NamespaceDescription):
        return "namespace", _raw(description)
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
    if definition.kind == "namespace":
        return _namespaces.decode(encoded)
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
