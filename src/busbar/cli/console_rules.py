"""The rules of subscriptions, for the web console."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from busbar.cli.console_client import management
from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.rule import action_of, filter_of, locate_rule, locate_rules
from busbar.cli.rule_view import filter_text
from busbar.cli.rule_xml import EVERYTHING, Correlation, RuleXml, SqlExpression, read_rule, write_rule
from busbar.console.namespace import Address, RuleValues

NOTHING = "1=0"


class RunningRules:
    def __init__(self, where: ConnectionOptions) -> None:
        self._where = where

    def list(self, subscription: Address) -> Sequence[RuleValues]:
        with management(self._where) as client:
            found = client.list(*locate_rules(subscription.topic, subscription.name))
            return [_shown(read_rule(entry)) for entry in found]

    def get(self, subscription: Address, name: str) -> RuleValues:
        with management(self._where) as client:
            return _shown(read_rule(client.get(*_locate(subscription, name))))

    def create(self, subscription: Address, rule: RuleValues) -> None:
        with management(self._where) as client:
            path, what = _locate(subscription, rule.name)
            client.create(path, write_rule(_written(rule)), what)

    def update(self, subscription: Address, rule: RuleValues) -> None:
        with management(self._where) as client:
            path, what = _locate(subscription, rule.name)
            kept = read_rule(client.get(path, what))
            client.update(path, write_rule(_with_parameters(_written(rule), kept)), what)

    def delete(self, subscription: Address, name: str) -> None:
        with management(self._where) as client:
            client.delete(*_locate(subscription, name))


def _locate(subscription: Address, name: str) -> tuple[str, str]:
    return locate_rule(subscription.topic, subscription.name, name)


def _shown(rule: RuleXml) -> RuleValues:
    action = rule.action.text if rule.action else ""
    if isinstance(rule.filter, SqlExpression):
        sql = rule.filter.text if rule.filter.kind == "SqlFilter" else ""
        return RuleValues(rule.name, rule.filter.kind, sql, action=action, text=filter_text(rule))
    pairs = [
        f"{key}={value.text}" if value.type == "string" else f"{key}:{value.type}={value.text}"
        for key, value in rule.filter.properties.items()
    ]
    return RuleValues(
        rule.name,
        "CorrelationFilter",
        system=rule.filter.system,
        properties="\n".join(pairs),
        action=action,
        text=filter_text(rule),
    )


def _written(rule: RuleValues) -> RuleXml:
    """The rule to send. Raises CommandFailure."""
    return RuleXml(rule.name, _filter(rule), action_of(rule.action))


def _filter(rule: RuleValues) -> SqlExpression | Correlation:
    if rule.kind in ("TrueFilter", "FalseFilter"):
        return SqlExpression(EVERYTHING if rule.kind == "TrueFilter" else NOTHING, kind=rule.kind)
    pairs = [line for line in rule.properties.splitlines() if line.strip()]
    is_correlation = rule.kind == "CorrelationFilter"
    found = filter_of(None, pairs, dict(rule.system)) if is_correlation else filter_of(rule.sql, [], {})
    if found is None:
        raise CommandFailure("name at least one property that must be equal.", ExitCode.USAGE)
    return found


def _with_parameters(rule: RuleXml, kept: RuleXml) -> RuleXml:
    """The rule with the parameters of its expressions, which the form does not show."""
    if isinstance(rule.filter, SqlExpression) and isinstance(kept.filter, SqlExpression):
        parameters = kept.filter.parameters
        rule = dataclasses.replace(rule, filter=dataclasses.replace(rule.filter, parameters=parameters))
    if rule.action is not None and kept.action is not None:
        parameters = kept.action.parameters
        rule = dataclasses.replace(rule, action=dataclasses.replace(rule.action, parameters=parameters))
    return rule
