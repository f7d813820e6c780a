"""A rule as a command shows it: in a table, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from busbar.cli.entity_kinds import json_key
from busbar.cli.output import OutputFormat, print_details, print_json, print_table
from busbar.client.administration_rules import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleProperties,
    RuleValue,
    SqlRuleFilter,
    SubscriptionFilter,
    TrueRuleFilter,
    typed_text,
)
from busbar.model.config_document import EVERYTHING, NOTHING
from busbar.model.entities import TypedText
from busbar.model.properties import CORRELATION


def print_rule(rule: RuleProperties, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(_as_json(rule))
        return
    shown = {
        "Name": rule.name,
        "Filter": filter_text(rule.filter),
        "Action": rule.action.sql_expression if rule.action else "none",
    }
    created = _created(rule)
    if created:
        shown["Created at"] = created
    print_details([shown])


def print_rules(rules: Sequence[RuleProperties], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json([_as_json(rule) for rule in rules])
        return
    rows = [
        (rule.name, filter_text(rule.filter), rule.action.sql_expression if rule.action else "")
        for rule in rules
    ]
    print_table(("Name", "Filter", "Action"), rows, "There are no rules: the subscription takes no messages.")


def filter_type(chosen: SubscriptionFilter) -> str:
    """SqlFilter, TrueFilter, FalseFilter or CorrelationFilter: the types of the service."""
    return type(chosen).__name__.replace("Rule", "")


def filter_text(chosen: SubscriptionFilter) -> str:
    match chosen:
        case TrueRuleFilter():
            return "every message"
        case FalseRuleFilter():
            return "no message"
        case SqlRuleFilter():
            return chosen.sql_expression
    equal = [f"{json_key(name)}={text}" for name, text in system_properties(chosen).items()]
    equal += [f"{name}={value.text}" for name, value in typed_values(chosen.properties).items()]
    return ", ".join(equal)


def system_properties(chosen: CorrelationRuleFilter) -> dict[str, str]:
    """The system properties that must be equal, by their elements."""
    found = {element: getattr(chosen, attribute) for element, attribute in CORRELATION.items()}
    return {element: text for element, text in found.items() if text is not None}


def typed_values(values: Mapping[str, RuleValue]) -> dict[str, TypedText]:
    return {key: typed_text(key, value) for key, value in values.items()}


def _as_json(rule: RuleProperties) -> dict[str, object]:
    sql = _expression(rule.filter)
    return {
        "name": rule.name,
        "filterType": filter_type(rule.filter),
        "sqlFilter": None if sql is None else {"sqlExpression": sql},
        "correlationFilter": _correlation(rule.filter)
        if isinstance(rule.filter, CorrelationRuleFilter)
        else None,
        "action": {"sqlExpression": rule.action.sql_expression} if rule.action else None,
        "createdAt": _created(rule),
    }


def _expression(chosen: SubscriptionFilter) -> str | None:
    match chosen:
        case TrueRuleFilter():
            return EVERYTHING
        case FalseRuleFilter():
            return NOTHING
        case SqlRuleFilter():
            return chosen.sql_expression
    return None


def _correlation(chosen: CorrelationRuleFilter) -> dict[str, object]:
    system = system_properties(chosen)
    found: dict[str, object] = {json_key(element): system.get(element) for element in CORRELATION}
    found["properties"] = {
        key: {"type": value.type, "value": value.text}
        for key, value in typed_values(chosen.properties).items()
    }
    return found


def _created(rule: RuleProperties) -> str | None:
    """The time of the creation as the service writes it, in milliseconds."""
    moment = rule.created_at_utc
    return None if moment is None else f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
