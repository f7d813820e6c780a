"""Why a message did not arrive, for the web console."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from busbar.cli.console_client import failures, management, readable_time
from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.entity_commands import checked
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.history import row, set_recording, steps_of
from busbar.cli.rule_test import (
    TestedSubscription,
    described_message,
    found_messages,
    reports_of,
    tested_subscriptions,
)
from busbar.console.namespace import DescribedMessage, StepSummary, SubscriptionVerdict
from busbar.operations.composing import value_of

if TYPE_CHECKING:
    from busbar.cli.tested_messages import TestedMessage

ALL = "*"


_TYPES = {bool: "boolean", int: "long", float: "double"}


class RunningDiagnosis:
    def __init__(self, where: ConnectionOptions) -> None:
        self._where = where

    def test_rules(self, topic: str, message: DescribedMessage) -> Sequence[SubscriptionVerdict]:
        with failures():
            path = checked(topic, "topic")
            subscriptions = tested_subscriptions(self._where, path)
            if message.message_id:
                tested = _found(self._where, path, subscriptions, message.message_id)
            else:
                pairs = [typed_pair(line) for line in message.properties.splitlines() if line.strip()]
                fields = {"Label": message.subject} if message.subject else {}
                tested = described_message(fields, pairs)
            return [
                SubscriptionVerdict(
                    name,
                    report.is_selected,
                    [(rule.name, rule.explanation.sentence) for rule in report.rules],
                )
                for name, report in reports_of(tested, subscriptions)
            ]

    def history(self, message_id: str) -> Sequence[StepSummary]:
        with management(self._where) as client:
            return [_step(row(step)) for step in steps_of(client, message_id, None)]

    def recorded(self) -> Sequence[str]:
        with management(self._where) as client:
            found = set_recording(client, None, False, False)
        return [ALL] if found["everything"] else found["entities"]

    def record(self, on: bool) -> None:
        with management(self._where) as client:
            set_recording(client, None, on, not on)


def _step(values: Sequence[str]) -> StepSummary:
    time, *rest = values
    return StepSummary(readable_time(time, exact=True), *rest)


def _found(
    where: ConnectionOptions, topic: str, subscriptions: Sequence[TestedSubscription], message_id: str
) -> TestedMessage:
    try:
        return found_messages(where, topic, subscriptions, message_id, 1)[0]
    except CommandFailure as failure:
        if failure.code is not ExitCode.NOT_FOUND:
            raise
        text = (
            f"no subscription of '{topic}' has the message '{message_id}' any more, and no tap keeps it. Leave the id "
            "empty, and describe the message by its subject and properties."
        )
        raise CommandFailure(text, ExitCode.NOT_FOUND) from None


def typed_pair(line: str) -> str:
    """KEY:TYPE=VALUE of a line. A value without a type is what it looks like, as in the form that sends a message."""
    key, equals, text = line.partition("=")
    if not equals or ":" in key:
        return line
    value = value_of(text.strip())
    if type(value) not in _TYPES:
        return f"{key}={value}"
    return f"{key}:{_TYPES[type(value)]}={text.strip()}"
