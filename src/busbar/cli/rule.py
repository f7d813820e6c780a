"""`busbar rule create|show|list|update|delete`: which messages a subscription takes, and what it changes in them.

A rule has one filter. Without any flag for it, a new rule takes every message; an update keeps the filter it finds.
`busbar rule test` is in rule_test.py.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli import values
from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.entity_commands import Name, NameOption, Values, checked, confirm, single
from busbar.cli.entity_kinds import CommandProperty
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.groups import GROUPS
from busbar.cli.options import Output, Skip, Subscription, Top, Topic, Yes, command, group, named
from busbar.cli.output import OutputFormat
from busbar.model.properties import CORRELATION

if TYPE_CHECKING:
    from busbar.cli.management_client import ManagementClient
    from busbar.client.administration_rules import SqlRuleAction, SubscriptionFilter
    from busbar.model.entities import TypedText

rule_commands = group("rule", GROUPS["rule"])

FilterSql = Annotated[
    str | None,
    typer.Option(
        "--filter-sql-expression",
        metavar="SQL",
        help="Messages for which this is true.",
    ),
]
CorrelationFilter = Annotated[
    list[str] | None,
    typer.Option(
        "--correlation-filter",
        "--correlation-filter-property",
        metavar="KEY[:TYPE]=VALUE",
        help="An application property; may be given again. TYPE: int, double, boolean, ...",
    ),
]
ActionSql = Annotated[
    str | None,
    typer.Option("--action-sql-expression", metavar="SQL", help="What to change in them ('': nothing)."),
]


def _equal(element: str, *flags: str) -> CommandProperty:
    return CommandProperty(element, flags, values.plain, "TEXT", f"A {element} that must be equal.")


EQUAL = (
    _equal("CorrelationId", "--correlation-id"),
    _equal("MessageId", "--message-id"),
    _equal("To", "--to"),
    _equal("ReplyTo", "--reply-to"),
    _equal("Label", "--label", "--subject"),
    _equal("SessionId", "--session-id"),
    _equal("ReplyToSessionId", "--reply-to-session-id"),
    _equal("ContentType", "--content-type"),
)
VALUE_TYPES = ("string", "int", "long", "double", "boolean", "dateTime", "duration")
_AT = "--topic orders --subscription audit"


@command(
    rule_commands,
    properties=EQUAL,
    examples=(
        f"busbar rule create {_AT} large \\\n      --filter-sql-expression 'amount > 100'",
        f"busbar rule create {_AT} eu \\\n      --correlation-filter region=eu --label order",
        f"busbar rule create {_AT} all \\\n      --action-sql-expression \"SET seen = 'yes'\"",
    ),
)
def create(
    *,
    name: Name = None,
    name_option: NameOption = None,
    topic: Topic,
    subscription: Subscription,
    filter_sql_expression: FilterSql = None,
    correlation_filter: CorrelationFilter = None,
    properties: Values,
    action_sql_expression: ActionSql = None,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Create a rule. Without a filter it takes every message."""
    from busbar.cli.rule_view import print_rule
    from busbar.client.administration_rules import RuleProperties, TrueRuleFilter

    found = filter_of(filter_sql_expression, correlation_filter, properties)
    wanted = named(name, name_option, "rule")
    path, what = locate_rule(topic, subscription, wanted)
    rule = RuleProperties(wanted, found or TrueRuleFilter(), action_of(action_sql_expression))
    with _client(where) as client:
        print_rule(client.create_rule(path, rule, what), output)


@command(rule_commands, examples=(f"busbar rule show {_AT} large",))
def show(
    *,
    name: Name = None,
    name_option: NameOption = None,
    topic: Topic,
    subscription: Subscription,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Show a rule: its filter and its action."""
    from busbar.cli.rule_view import print_rule

    path, what = locate_rule(topic, subscription, named(name, name_option, "rule"))
    with _client(where) as client:
        print_rule(client.get_rule(path, what), output)


@command(rule_commands, name="list", examples=(f"busbar rule list {_AT}",))
def _list(
    *,
    topic: Topic,
    subscription: Subscription,
    skip: Skip = 0,
    top: Top = None,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """List the rules of a subscription."""
    from busbar.cli.rule_view import print_rules

    path, what = locate_rules(topic, subscription)
    with _client(where) as client:
        rules = [*client.list_rules(path, what, skip, top)]
    print_rules(rules, output)


@command(
    rule_commands,
    properties=EQUAL,
    examples=(
        f"busbar rule update {_AT} large \\\n      --filter-sql-expression 'amount > 200'",
        f"busbar rule update {_AT} large \\\n      --action-sql-expression ''",
    ),
)
def update(
    *,
    name: Name = None,
    name_option: NameOption = None,
    topic: Topic,
    subscription: Subscription,
    filter_sql_expression: FilterSql = None,
    correlation_filter: CorrelationFilter = None,
    properties: Values,
    action_sql_expression: ActionSql = None,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Change a rule: its filter as a whole, its action, or both."""
    from busbar.cli.rule_view import print_rule

    wanted = named(name, name_option, "rule")
    found = filter_of(filter_sql_expression, correlation_filter, properties)
    if found is None and action_sql_expression is None:
        raise CommandFailure("nothing to change; give a filter or an action.", ExitCode.USAGE)
    path, what = locate_rule(topic, subscription, wanted)
    with _client(where) as client:
        rule = client.get_rule(path, what)
        if found is not None:
            rule = dataclasses.replace(rule, filter=found)
        if action_sql_expression is not None:
            rule = dataclasses.replace(rule, action=action_of(action_sql_expression))
        print_rule(client.update_rule(path, rule, what), output)


@command(rule_commands, examples=(f"busbar rule delete {_AT} '$Default' --yes",))
def delete(
    *,
    name: Name = None,
    name_option: NameOption = None,
    topic: Topic,
    subscription: Subscription,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Delete a rule. Asks first; in a script it needs --yes."""
    path, what = locate_rule(topic, subscription, named(name, name_option, "rule"))
    with _client(where) as client:
        client.get(path, what)
        client.say_target()
        confirm(f"Delete {what}?", yes)
        client.delete(path, what)
    if output is OutputFormat.TABLE:
        print(f"{what} deleted", file=sys.stderr)


def locate_rules(topic: str, subscription: str) -> tuple[str, str]:
    """The path of the rules of a subscription, and how errors name it. Raises CommandFailure."""
    path = f"{checked(topic, 'topic')}/Subscriptions/{single(subscription, 'subscription')}/Rules"
    return path, f"subscription '{subscription}' of topic '{topic}'"


def locate_rule(topic: str, subscription: str, name: str) -> tuple[str, str]:
    """The path of a rule, and how errors name it. Raises CommandFailure."""
    path = f"{locate_rules(topic, subscription)[0]}/{single(name, 'rule')}"
    return path, f"rule '{name}' of subscription '{subscription}' of topic '{topic}'"


def _client(where: ConnectionOptions) -> ManagementClient:
    from busbar.cli.management_client import ManagementClient

    return ManagementClient(find_target(where))


def filter_of(sql: str | None, pairs: list[str] | None, system: Values) -> SubscriptionFilter | None:
    """The filter that the flags describe; None if they describe none."""
    from busbar.client.administration_rules import CorrelationRuleFilter, SqlRuleFilter

    if sql is not None:
        if system or pairs:
            raise CommandFailure(
                "a rule has one filter: --filter-sql-expression, or properties that must be equal.",
                ExitCode.USAGE,
            )
        if not sql.strip():
            raise CommandFailure(
                "--filter-sql-expression is empty; '1=1' takes every message.", ExitCode.USAGE
            )
        return SqlRuleFilter(_text(sql))
    if not system and not pairs:
        return None
    properties = dict(property_pair(text, "--correlation-filter") for text in pairs or ())
    return CorrelationRuleFilter(
        **{CORRELATION[element]: text for element, text in system.items()}, properties=properties
    )


def property_pair(text: str, option: str) -> tuple[str, TypedText]:
    """A property that an option gives as KEY[:TYPE]=VALUE. Raises CommandFailure."""
    from busbar.model.entities import TypedText

    key, equals, value = text.partition("=")
    name, colon, kind = key.rpartition(":")
    known = {known.lower(): known for known in VALUE_TYPES}
    if colon and kind.lower() in known:
        key, kind = name, known[kind.lower()]
    else:
        kind = "string"
    if not equals or not key:
        raise CommandFailure(f"{option} '{text}' is not KEY=VALUE.", ExitCode.USAGE)
    return _text(key), TypedText(kind, _text(value))


def action_of(sql: str | None) -> SqlRuleAction | None:
    from busbar.client.administration_rules import SqlRuleAction

    return SqlRuleAction(_text(sql)) if sql else None


def _text(text: str) -> str:
    try:
        return values.plain(text)
    except ValueError as error:
        raise CommandFailure(f"{error}.", ExitCode.USAGE) from None
