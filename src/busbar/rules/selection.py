"""Who gets which copy of a message that was sent to a topic, by the rules of its subscriptions.

What one subscription gets:

- One copy, as the message was sent, if a rule without an action matches, however many do.
- One copy more for each matching rule with an action: changed by it, and with the rule's name as property RuleName.
- A rule that has no answer (its filter fails for this message, or could not be compiled at all) does not match. If the
  subscription dead-letters such errors it gets one dead letter for them, with the reason FilterException; but none for
  rules without an action when another of them matches: together they are one filter, joined by OR.
- A rule whose action fails leaves a dead letter in place of its copy (RuleActionException), or nothing.

Every copy carries the number that the topic gave. Those that are not changed share one content.

A correlation filter is found by one of its conditions, the one that the fewest others have: a message costs a look-up for
each field that is asked for, not one for each filter. All other filters are asked one by one. Rules are compiled when the
first message comes: topics that are not in use cost nothing.

What rules spend on long values of one message is bounded (rules/work.py). That, and what it takes to ask every rule, is
told, so that a turn can end in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NoReturn
from weakref import WeakKeyDictionary

from busbar.amqp.codec import DecodeError, EncodeError
from busbar.message.content import with_enqueued_number
from busbar.model.entities import CorrelationFilter, RuleDescription, RuleFilter, SqlAction, SqlFilter
from busbar.model.errors import ArgumentError, MalformedMessage
from busbar.model.message import SubscriptionCopy
from busbar.model.partitioning import wire_number
from busbar.model.topic_settings import RuleSet, TopicRules, TopicSettings
from busbar.rules.filters import Condition, Match, all_of, always, compile_filter, conditions_of, never
from busbar.rules.message import RuleMessage
from busbar.rules.topic_message import TopicMessage
from busbar.rules.values import EvaluationError, Ids, Value
from busbar.rules.work import Work

if TYPE_CHECKING:
    from busbar.rules.actions import Act

FILTER_FAILED: Final = "FilterException"
ACTION_FAILED: Final = "RuleActionException"

_CONDITION: Final = 32
"""Characters of a condition in a SQL filter."""
_STEPS_OF_A_CONDITION: Final = 64

_FAILURES: Final = (EvaluationError, MalformedMessage, DecodeError, EncodeError)
"""What a rule, or a content of an unknown make, can lead to."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledRule:
    """A rule that has been compiled. `conditions` are those of a correlation filter; `steps` is what asking it takes."""

    name: str
    matches: Match
    act: Act | None
    conditions: tuple[Condition, ...]
    steps: int


class SubscriptionRules:
    """The rules of a subscription, and what it does with their errors. What it was `before` a change has the rules that did
    not change; they are not compiled again."""

    def __init__(
        self,
        rules: Sequence[tuple[str, RuleDescription]],
        dead_letters_errors: bool,
        ids: Ids,
        before: SubscriptionRules | None = None,
    ) -> None:
        self.descriptions = tuple(rules)
        self.dead_letters_errors = dead_letters_errors
        self._ids = ids
        self._known: dict[str, tuple[RuleDescription, CompiledRule]] = {} if before is None else before._known

    @cached_property
    def rules(self) -> list[CompiledRule]:
        """Those that can match."""
        self._known = {name: (said, self._rule(name, said)) for name, said in self.descriptions}
        return [rule for _, rule in self._known.values() if rule.matches is not never]

    def _rule(self, name: str, description: RuleDescription) -> CompiledRule:
        known = self._known.get(name)
        if known is not None and known[0] is description:  # equal ones can differ: 1 equals TRUE
            return known[1]
        return self._compiled(name, description)

    @cached_property
    def matches_all(self) -> bool:
        """One copy of whatever comes, and nothing else."""
        has_actions = any(rule.act is not None for rule in self.rules)
        return not has_actions and any(rule.matches is always for rule in self.rules)

    def select(
        self,
        rules: Sequence[CompiledRule],
        fragment: int,
        message: TopicMessage,
        copies: list[SubscriptionCopy],
    ) -> None:
        """Adds what the subscription gets by these of its rules."""
        taken = False
        failure: str | None = None  # of a rule that has none beside it
        joined: str | None = None  # of those that are one filter together
        for rule in rules:
            if rule.act is None and taken:
                continue
            try:
                matched = rule.matches(message)
            except _FAILURES as error:
                if rule.act is None:
                    joined = joined or _said(rule, error)
                else:
                    failure = failure or _said(rule, error)
                continue
            if not matched:
                continue
            if rule.act is None:
                taken = True
                copies.append(SubscriptionCopy(fragment, message.content))
            else:
                self._act(rule, rule.act, fragment, message, copies)
        failure = failure if taken else joined or failure
        if failure is not None and self.dead_letters_errors:
            copies.append(SubscriptionCopy(fragment, message.content, FILTER_FAILED, failure))

    def _act(
        self,
        rule: CompiledRule,
        act: Act,
        fragment: int,
        message: TopicMessage,
        copies: list[SubscriptionCopy],
    ) -> None:
        try:
            copies.append(SubscriptionCopy(fragment, message.changed(act(message), rule.name)))
        except _FAILURES as error:
            if self.dead_letters_errors:
                copies.append(SubscriptionCopy(fragment, message.content, ACTION_FAILED, _said(rule, error)))

    def _compiled(self, name: str, rule: RuleDescription) -> CompiledRule:
        act = None if rule.action is None else _action(rule.action, self._ids)
        conditions: tuple[Condition, ...] = ()
        try:
            if isinstance(rule.filter, CorrelationFilter):
                conditions = tuple(conditions_of(rule.filter))
            match = _match(rule.filter, conditions, self._ids)
            return CompiledRule(name, match, act, conditions, _steps(rule.filter))
        except (ArgumentError, EvaluationError) as error:  # of a catalogue that was written by other rules
            return CompiledRule(name, _failing(str(error)), act, (), _STEPS_OF_A_CONDITION)


class TopicSelector:
    """The subscriptions of a topic, for its fragment `index`; each with the fragment of its own that gets copies. Fragments
    of one topic have the same subscribers in the same order, and share a plan."""

    def __init__(
        self, index: int, subscribers: Sequence[tuple[int, SubscriptionRules]], plan: RuleIndex | None = None
    ) -> None:
        self.fragments = [fragment for fragment, _ in subscribers]
        """Of the subscriptions, one of each."""
        self.index = index
        self.subscribers = tuple(subscribers)
        self._plan = plan or RuleIndex([subscriber for _, subscriber in self.subscribers])
        self._work = Work()  # of the last message, or a new one
        self._spent = 0  # on those before, and for asking

    def spent(self) -> int:
        """Steps that rules have taken for all messages so far: about as many characters could have been compared."""
        return self._spent + self._work.spent

    def select_copies(self, content: bytes, n: int, now: int, ttl: int) -> list[SubscriptionCopy]:
        """The copies of a message that the topic's fragment gives the number `n` now; `ttl` is what it may live in the topic
        (0: for ever). Never raises for what a message or a rule can contain."""
        number = wire_number(self.index, n)
        index = self._plan.index
        if index.all_take:
            shared = with_enqueued_number(content, number)
            return [SubscriptionCopy(fragment, shared) for fragment in self.fragments]
        if self._work.spent:
            self._spent += self._work.spent
            self._work = Work()
        self._spent += index.steps
        message = TopicMessage(content, number, now, ttl, self._work)
        found: list[SubscriptionCopy] = []
        for position, rules in index.candidates_for(message):
            fragment, subscriber = self.subscribers[position]
            if rules is None:
                found.append(SubscriptionCopy(fragment, message.content))
            else:
                subscriber.select(rules, fragment, message, found)
        return found


class RuleIndex:
    """The subscribers of a topic in their order, with an index of their rules that is made for the first message."""

    def __init__(self, subscribers: Sequence[SubscriptionRules]) -> None:
        self.subscribers = tuple(subscribers)

    @cached_property
    def index(self) -> _PropertyIndex:
        return _PropertyIndex(self.subscribers)


class RuleCompiler:
    """Makes selectors of the settings of topics. All fragments of a topic share what is compiled, also in several stores. A
    change of settings compiles only the rules that changed. `ids` is where rules get new ids from."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._rules: WeakKeyDictionary[RuleSet, SubscriptionRules] = WeakKeyDictionary()
        self._indexes: WeakKeyDictionary[TopicRules, RuleIndex] = WeakKeyDictionary()

    def selector(self, topic: TopicSettings, before: TopicSelector | None = None) -> TopicSelector:
        """`before` is what the fragment had until now."""
        index = self._indexes.get(topic.rules)
        if index is None:
            known = dict(before.subscribers) if before is not None else {}
            pairs = zip(topic.fragments, topic.rules.subscriptions, strict=True)
            index = RuleIndex([self._subscriber(rules, known.get(fragment)) for fragment, rules in pairs])
            self._indexes[topic.rules] = index
        return TopicSelector(topic.index, list(zip(topic.fragments, index.subscribers, strict=True)), index)

    def _subscriber(self, rules: RuleSet, before: SubscriptionRules | None) -> SubscriptionRules:
        found = self._rules.get(rules)
        if found is None:
            found = SubscriptionRules(rules.rules, rules.dead_letters_errors, self._ids, before)
            self._rules[rules] = found
        return found


class _PropertyIndex:
    """Which rules of which subscriptions a message has to be held against. Subscriptions go by their position."""

    def __init__(self, subscribers: Sequence[SubscriptionRules]) -> None:
        self.all_take = all(subscriber.matches_all for subscriber in subscribers)
        self._always: dict[int, list[CompiledRule] | None] = {}  # None: takes all
        self._found: dict[tuple[bool, str], dict[Value, list[tuple[int, CompiledRule]]]] = {}
        choosy = [(at, one) for at, one in enumerate(subscribers) if not one.matches_all]
        common = Counter(
            condition
            for _, subscriber in choosy
            for rule in subscriber.rules
            for condition in rule.conditions
        )
        for at, subscriber in enumerate(subscribers):
            if subscriber.matches_all:
                self._always[at] = None
                continue
            for rule in subscriber.rules:
                if rule.conditions:
                    system, name, value = min(rule.conditions, key=lambda condition: common[condition])
                    self._found.setdefault((system, name), {}).setdefault(value, []).append((at, rule))
                else:
                    asked = self._always.setdefault(at, [])
                    if asked is not None:
                        asked.append(rule)
        asked_always = [rule for rules in self._always.values() if rules is not None for rule in rules]
        self.steps = sum(rule.steps for rule in asked_always)  # for a message with short values

    def candidates_for(self, message: RuleMessage) -> Iterator[tuple[int, Sequence[CompiledRule] | None]]:
        """In the order of the subscriptions: each with the rules that may match, None if it takes all."""
        candidates: dict[int, list[CompiledRule]] = {}
        for (system, name), by_value in self._found.items():
            value = message.system(name) if system else message.named.get(name)
            if value is not None:
                for at, rule in by_value.get(value, ()):
                    candidates.setdefault(at, []).append(rule)
        if not candidates:
            yield from self._always.items()
            return
        for at in sorted(self._always.keys() | candidates.keys()):
            asked = self._always.get(at, ())
            yield at, None if asked is None else [*asked, *candidates.get(at, ())]


def _match(rule_filter: RuleFilter, conditions: tuple[Condition, ...], ids: Ids) -> Match:
    return all_of(list(conditions)) if conditions else compile_filter(rule_filter, ids)


def _steps(rule_filter: RuleFilter) -> int:
    """For a message with short values: by how many conditions the filter has room for."""
    size = len(rule_filter.expression) if isinstance(rule_filter, SqlFilter) else 0
    return _STEPS_OF_A_CONDITION * (1 + size // _CONDITION)


def _action(action: SqlAction, ids: Ids) -> Act:
    from busbar.rules.actions import compile_action  # parsers are built for those who need them

    try:
        return compile_action(action, ids)
    except (ArgumentError, EvaluationError) as error:
        return _failing(str(error))


def _failing(text: str) -> Callable[[RuleMessage], NoReturn]:
    def fail(message: RuleMessage) -> NoReturn:
        raise EvaluationError(text)

    return fail


def _said(rule: CompiledRule, error: Exception) -> str:
    return f"Rule '{rule.name}': {error}"
