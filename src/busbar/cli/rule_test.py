"""`busbar rule test`: which subscriptions of a topic get a message, by which rules, and why the others do not.

Rules are read over the management API and evaluated here, as the broker evaluates them. Nothing is sent or received.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli import values
from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.entity_commands import Values, checked
from busbar.cli.entity_kinds import CommandProperty
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.messaging import messaging
from busbar.cli.options import Output, command
from busbar.cli.output import OutputFormat, print_details, print_json
from busbar.cli.rule import property_pair, rule_commands
from busbar.model.entities import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from busbar.model.properties import CORRELATION

if TYPE_CHECKING:
    from busbar.cli.tested_messages import TestedMessage
    from busbar.client.administration_rules import RuleProperties, RuleValue, SubscriptionFilter
    from busbar.model.entities import PropertyValue, RuleFilter, TypedText
    from busbar.rules.subscription_report import SubscriptionReport

Parameters = tuple[tuple[str, "PropertyValue | TypedText"], ...]


def _field(element: str, *flags: str) -> CommandProperty:
    return CommandProperty(element, flags, values.plain, "TEXT", f"The {element} of the message.")


FIELDS = (
    _field("Label", "--label", "--subject"),
    _field("CorrelationId", "--correlation-id"),
    _field("To", "--to"),
    _field("ReplyTo", "--reply-to"),
    _field("SessionId", "--session-id"),
    _field("ReplyToSessionId", "--reply-to-session-id"),
    _field("ContentType", "--content-type"),
)


@dataclass(frozen=True, slots=True)
class TestedSubscription:
    """A subscription with its rules, in their order."""

    name: str
    rules: tuple[tuple[str, RuleDescription], ...]
    dead_letters_errors: bool


@command(
    rule_commands,
    name="test",
    properties=FIELDS,
    examples=(
        "busbar rule test orders --message-id 4711",
        "busbar rule test orders --last 20 -o json",
        "busbar rule test orders --label order --property region=eu --property amount:int=5",
        "busbar peek orders/subscriptions/all -o json | busbar rule test orders --file -",
    ),
)
def rule_test(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    message_id: Annotated[
        str | None,
        typer.Option(
            "--message-id", metavar="ID", help="The message of that id, if a subscription still has it."
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--last", min=1, metavar="N", help="The last N messages that are still there."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="The messages of a JSON file; - is standard input."),
    ] = None,
    item: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="KEY[:TYPE]=VALUE",
            help="A message with this property; may be given again. TYPE: int, double, boolean, ...",
        ),
    ] = None,
    properties: Values,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Show which subscriptions of TOPIC get a message, by which rules, and why others do not.

    A topic keeps no messages: --message-id and --last look at those that subscriptions still have, or that a tap keeps. A
    message that no subscription has can be described with --property, --label and the like, or with --file.
    """
    from busbar.cli.tested_messages import from_file

    describes = bool(item or properties)
    if sum((message_id is not None, last is not None, file is not None, describes)) != 1:
        raise CommandFailure(
            "give one of --message-id, --last, --file, or a message by --property, --label and the like.",
            ExitCode.USAGE,
        )
    name = checked(topic, "topic")
    subscriptions = tested_subscriptions(where, name)
    if file is not None:
        messages = from_file(file)
    elif describes:
        messages = [described_message(properties, item or ())]
    else:
        messages = found_messages(where, name, subscriptions, message_id, last or 0)
    tested = [(message, reports_of(message, subscriptions)) for message in messages]
    if output is OutputFormat.JSON:
        print_json([as_json(message, reports) for message, reports in tested])
        return
    if not subscriptions:
        raise CommandFailure(
            f"topic '{topic}' has no subscriptions; every message is dropped.", ExitCode.NOT_FOUND
        )
    print_details([_section(message, reports) for message, reports in tested])


# ---- messages ----


def described_message(fields: Mapping[str, str], pairs: Sequence[str]) -> TestedMessage:
    """A message of flags. Raises CommandFailure."""
    from busbar.cli.tested_messages import described, typed

    properties: dict[str, object] = {}
    for text in pairs:
        key, value = property_pair(text, "--property")
        try:
            properties[key] = typed(value)
        except ValueError as error:
            raise CommandFailure(f"--property '{text}': {error}.", ExitCode.USAGE) from None
    return described(fields, properties)


def found_messages(
    where: ConnectionOptions,
    topic: str,
    subscriptions: Sequence[TestedSubscription],
    message_id: str | None,
    last: int,
) -> list[TestedMessage]:
    """Messages that subscriptions of a topic still have, or that taps keep. Raises CommandFailure if there are none."""
    from busbar.cli.tested_messages import found_behind

    paths = {one.name: f"{topic}/Subscriptions/{one.name}" for one in subscriptions}
    with messaging(where) as factory:
        found = found_behind(factory, paths, message_id, last)
    if not found:
        which = "a message" if message_id is None else f"the message '{message_id}'"
        raise CommandFailure(
            f"no subscription of topic '{topic}' has {which} any more, and no tap keeps it; describe the message with "
            "--property, --label and the like, or with --file.",
            ExitCode.NOT_FOUND,
        )
    return found


# ---- rules ----


def tested_subscriptions(where: ConnectionOptions, topic: str) -> list[TestedSubscription]:
    """The subscriptions of a topic with their rules."""
    from busbar.cli.management_client import ManagementClient
    from busbar.client.administration_xml import text_of

    found: list[TestedSubscription] = []
    with ManagementClient(find_target(where)) as client:
        client.get(topic, f"topic '{topic}'")
        for entry in client.list(f"{topic}/Subscriptions", f"topic '{topic}'"):
            path = f"{topic}/Subscriptions/{entry.name}/Rules"
            rules = client.list_rules(path, f"subscription '{entry.name}'")
            flag = text_of(entry.description, "DeadLetteringOnFilterEvaluationExceptions")
            found.append(
                TestedSubscription(
                    entry.name, tuple((rule.name, _description(rule)) for rule in rules), flag == "true"
                )
            )
    return found


def _description(rule: RuleProperties) -> RuleDescription:
    action = None
    if rule.action is not None:
        action = SqlAction(rule.action.sql_expression, _parameters(rule.action.parameters))
    return RuleDescription(_filter(rule.filter), action)


def _filter(found: SubscriptionFilter) -> RuleFilter:
    from busbar.client.administration_rules import FalseRuleFilter, SqlRuleFilter, TrueRuleFilter

    match found:
        case TrueRuleFilter():
            return TrueFilter()
        case FalseRuleFilter():
            return FalseFilter()
        case SqlRuleFilter():
            return SqlFilter(found.sql_expression, _parameters(found.parameters))
    system = {field: getattr(found, field) for field in CORRELATION.values()}
    return CorrelationFilter(**system, properties=_parameters(found.properties))


def _parameters(given: Mapping[str, RuleValue]) -> Parameters:
    from busbar.cli.rule_view import typed_values
    from busbar.gateway.http.atom_values import read_any

    return tuple((key, read_any(value.type, value.text)) for key, value in typed_values(given).items())


# ---- the result ----


def reports_of(
    message: TestedMessage, subscriptions: Sequence[TestedSubscription]
) -> list[tuple[str, SubscriptionReport]]:
    from busbar.rules.subscription_report import report_subscription

    return [
        (one.name, report_subscription(one.rules, one.dead_letters_errors, message.message, uuid.uuid4))
        for one in subscriptions
    ]


def _section(message: TestedMessage, reports: Sequence[tuple[str, SubscriptionReport]]) -> dict[str, str]:
    about = [f"'{message.message_id}'"]
    if message.found_in:
        about.append(f"as subscription '{message.found_in}' has it, sent {_time(message.message.enqueued)}")
    if message.changed_by:
        about.append(f"changed by the action of rule '{message.changed_by}': it is not quite what was sent")
    section = {"Message": ", ".join(about)}
    for name, report in reports:
        section[name] = _report_text(report)
    return section


def _report_text(report: SubscriptionReport) -> str:
    if not report.rules:
        return "no: it has no rules"
    lines: list[str] = []
    if report.is_selected:
        lines.append("yes" if report.copies == 1 else f"yes, {report.copies} copies")
    else:
        lines.append("no")
    matching = [rule for rule in report.rules if rule.explanation.matches]
    for rule in matching if report.is_selected else report.rules:
        lines.append(f"{rule.name}: {rule.explanation.sentence}")
    lines += [f"it gets a dead letter: {text}" for text in report.dead_letters]
    return "\n".join(lines)


def as_json(message: TestedMessage, reports: Sequence[tuple[str, SubscriptionReport]]) -> dict[str, object]:
    return {
        "messageId": message.message_id,
        "foundIn": message.found_in or None,
        "changedBy": message.changed_by or None,
        "enqueuedTimeUtc": _time(message.message.enqueued) if message.found_in else None,
        "enqueuedSequenceNumber": message.message.number if message.found_in else None,
        "subscriptions": [
            {
                "name": name,
                "selected": report.is_selected,
                "copies": report.copies,
                "deadLetters": [*report.dead_letters],
                "rules": [
                    {
                        "name": rule.name,
                        "verdict": rule.explanation.verdict.value,
                        "reason": rule.explanation.sentence,
                        "action": rule.has_action,
                    }
                    for rule in report.rules
                ],
            }
            for name, report in reports
        ],
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
