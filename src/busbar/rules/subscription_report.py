"""Reports what a subscription gets of a message by its rules, and the verdict of each rule.

What it gets is decided by selection.py, as for a message that is sent. The explanations are beside it, one for each rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from busbar.model.entities import RuleDescription
from busbar.model.message import SubscriptionCopy
from busbar.rules.explanation import Explanation, explain_filter
from busbar.rules.selection import SubscriptionRules
from busbar.rules.topic_message import TopicMessage
from busbar.rules.values import Ids
from busbar.rules.work import Work


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """A message as its topic published it: its content, the number that the topic gave it, when, and its time to live in ms
    (0: for ever)."""

    content: bytes
    number: int
    enqueued: int
    ttl: int

    def for_rules(self) -> TopicMessage:
        return TopicMessage(self.content, self.number, self.enqueued, self.ttl, Work())


@dataclass(frozen=True, slots=True)
class RuleReport:
    name: str
    has_action: bool
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class SubscriptionReport:
    copies: int
    """That it gets, without dead letters."""
    dead_letters: tuple[str, ...]
    """The descriptions of the dead letters that it gets for rules without a result."""
    rules: tuple[RuleReport, ...]

    @property
    def is_selected(self) -> bool:
        return self.copies > 0


def report_subscription(
    rules: Sequence[tuple[str, RuleDescription]],
    dead_letters_errors: bool,
    message: PublishedMessage,
    ids: Ids,
) -> SubscriptionReport:
    """Report what a subscription with these rules gets of a message. Never raises for a rule or a message."""
    subscriber = SubscriptionRules(rules, dead_letters_errors, ids)
    copies: list[SubscriptionCopy] = []
    subscriber.select(subscriber.rules, 0, message.for_rules(), copies)
    reports = [
        RuleReport(name, rule.action is not None, explain_filter(rule.filter, message.for_rules(), ids))
        for name, rule in rules
    ]
    failed = tuple(copy.description for copy in copies if copy.reason)
    return SubscriptionReport(len(copies) - len(failed), failed, tuple(reports))
