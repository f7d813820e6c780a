"""A rule as a command shows it: in a table, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.cli.entity_kinds import json_key
from busbar.cli.output import OutputFormat, print_details, print_json, print_table
from busbar.cli.rule_xml import SYSTEM_PROPERTIES, RuleXml, SqlExpression


def print_rule(rule: RuleXml, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(_as_json(rule))
        return
    shown = {
        "Name": rule.name,
        "Filter": filter_text(rule),
        "Action": rule.action.text if rule.action else "none",
    }
    if rule.created:
        shown["Created at"] = rule.created
    print_details([shown])


def print_rules(rules: Sequence[RuleXml], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json([_as_json(rule) for rule in rules])
        return
    rows = [(rule.name, filter_text(rule), rule.action.text if rule.action else "") for rule in rules]
    print_table(("Name", "Filter", "Action"), rows, "There are no rules: the subscription takes no messages.")


def filter_text(rule: RuleXml) -> str:
    if isinstance(rule.filter, SqlExpression):
        return {"TrueFilter": "every message", "FalseFilter": "no message"}.get(
            rule.filter.kind, rule.filter.text
        )
    equal = [f"{json_key(name)}={text}" for name, text in rule.filter.system.items()]
    equal += [f"{name}={value.text}" for name, value in rule.filter.properties.items()]
    return ", ".join(equal)


def _as_json(rule: RuleXml) -> dict[str, object]:
    sql = correlation = None
    if isinstance(rule.filter, SqlExpression):
        sql = rule.filter
    else:
        correlation = {json_key(name): rule.filter.system.get(name) for name in SYSTEM_PROPERTIES} | {
            "properties": {
                key: {"type": value.type, "value": value.text}
                for key, value in rule.filter.properties.items()
            }
        }
    return {
        "name": rule.name,
        "filterType": sql.kind if sql else "CorrelationFilter",
        "sqlFilter": {"sqlExpression": sql.text} if sql else None,
        "correlationFilter": correlation,
        "action": {"sqlExpression": rule.action.text} if rule.action else None,
        "createdAt": rule.created,
    }
