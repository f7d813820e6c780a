"""The rules of subscriptions, for the web console."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from busbar.cli.console_client import management
from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.rule import action_of, filter_of, locate_rule, locate_rules
from busbar.cli.rule_view import filter_text, filter_type, system_properties, typed_values
from busbar.client.administration_rules import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleProperties,
    SqlRuleFilter,
    SubscriptionFilter,
    TrueRuleFilter,
)
from busbar.console.namespace import Address, RuleValues


class RunningRules:
    def __init__(self, where: ConnectionOptions) -> None:
        self._where = where

    def list(self, subscription: Address) -> Sequence[RuleValues]:
        with management(self._where) as client:
            return [*map(_shown, client.list_rules(*locate_rules(subscription.topic, subscription.name)))]

    def get(self, subscription: Address, name: str) -> RuleValues:
        with management(self._where) as client:
            return _shown(client.get_rule(*_locate(subscription, name)))

    def create(self, subscription: Address, rule: RuleValues) -> None:
        with management(self._where) as client:
            path, what = _locate(subscription, rule.name)
            client.create_rule(path, _written(rule), what)

    def update(self, subscription: Address, rule: RuleValues) -> None:
        with management(self._where) as client:
            path, what = _locate(subscription, rule.name)
            kept = client.get_rule(path, what)
            client.update_rule(path, _with_parameters(_written(rule), kept), what)

    def delete(self, subscription: Address, name: str) -> None:
        with management(self._where) as client:
            client.delete(*_locate(subscription, name))


def _locate(subscription: Address, name: str) -> tuple[str, str]:
    return locate_rule(subscription.topic, subscription.name, name)


def _shown(rule: RuleProperties) -> RuleValues:
    found = RuleValues(
        rule.name,
        filter_type(rule.filter),
        action=rule.action.sql_expression if rule.action else "",
        text=filter_text(rule.filter),
    )
    if isinstance(rule.filter, SqlRuleFilter):
        return dataclasses.replace(found, sql=rule.filter.sql_expression)
    if not isinstance(rule.filter, CorrelationRuleFilter):
        return found
    pairs = [
        f"{key}={value.text}" if value.type == "string" else f"{key}:{value.type}={value.text}"
        for key, value in typed_values(rule.filter.properties).items()
    ]
    return dataclasses.replace(found, system=system_properties(rule.filter), properties="\n".join(pairs))


def _written(rule: RuleValues) -> RuleProperties:
    """The rule to send. Raises CommandFailure."""
    return RuleProperties(rule.name, _filter(rule), action_of(rule.action))


def _filter(rule: RuleValues) -> SubscriptionFilter:
    if rule.kind in ("TrueFilter", "FalseFilter"):
        return TrueRuleFilter() if rule.kind == "TrueFilter" else FalseRuleFilter()
    pairs = [line for line in rule.properties.splitlines() if line.strip()]
    is_correlation = rule.kind == "CorrelationFilter"
    found = filter_of(None, pairs, dict(rule.system)) if is_correlation else filter_of(rule.sql, [], {})
    if found is None:
        raise CommandFailure("name at least one property that must be equal.", ExitCode.USAGE)
    return found


def _with_parameters(rule: RuleProperties, kept: RuleProperties) -> RuleProperties:
    """The rule with the parameters of its expressions, which the form does not show."""
    if isinstance(rule.filter, SqlRuleFilter) and isinstance(kept.filter, SqlRuleFilter):
        parameters = kept.filter.parameters
        rule = dataclasses.replace(rule, filter=dataclasses.replace(rule.filter, parameters=parameters))
    if rule.action is not None and kept.action is not None:
        parameters = kept.action.parameters
        rule = dataclasses.replace(rule, action=dataclasses.replace(rule.action, parameters=parameters))
    return rule
