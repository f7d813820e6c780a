"""Why a message did not arrive, for the web console."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.cli.console_client import failures, management
from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.entity_commands import checked
from busbar.cli.history import row, set_recording, steps_of
from busbar.cli.rule_test import described_message, found_messages, reports_of, tested_subscriptions
from busbar.console.namespace import DescribedMessage, StepSummary, SubscriptionVerdict

ALL = "*"


class RunningDiagnosis:
    def __init__(self, where: ConnectionOptions) -> None:
        self._where = where

    def test_rules(self, topic: str, message: DescribedMessage) -> Sequence[SubscriptionVerdict]:
        with failures():
            path = checked(topic, "topic")
            subscriptions = tested_subscriptions(self._where, path)
            if message.message_id:
                tested = found_messages(self._where, path, subscriptions, message.message_id, 1)[0]
            else:
                pairs = [line for line in message.properties.splitlines() if line.strip()]
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
            return [StepSummary(*row(step)) for step in steps_of(client, message_id, None)]

    def recorded(self) -> Sequence[str]:
        with management(self._where) as client:
            found = set_recording(client, None, False, False)
        return [ALL] if found["everything"] else found["entities"]

    def record(self, on: bool) -> None:
        with management(self._where) as client:
            set_recording(client, None, on, not on)
