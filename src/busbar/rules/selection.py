"""Selects which subscriptions get which copies of a message that was sent to a topic, by their rules.

What one subscription gets:

- One copy of the unchanged message if at least one rule without an action matches.
- One more copy for each matching rule with an action: changed by it, and with the rule's name as property RuleName.
- If a rule has no result (its filter fails for this message, or could not be compiled at all), it does not match. If the
  subscription dead-letters such errors, it gets one dead letter for them, with the reason FilterException. Rules without an
  action are one filter, joined by OR: if one of them matches, errors of the others count for nothing.
- If the action of a rule fails, the subscription gets a dead letter in place of the copy (RuleActionException), or nothing.

Every copy has the number that the topic assigned. Unchanged copies share one content. If all subscriptions take all
messages, they share one copy.

A correlation filter is found by one of its conditions, the one that the fewest others have. So a message costs a look-up for
each field that filters use, not one for each filter. All other filters are evaluated one by one. Rules are compiled when the
first message comes, so unused topics cost nothing.

The steps that rules spend on long values of one message are bounded (rules/work.py). `spent` reports them, and the cost of
evaluating every rule, so that a turn can end in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias
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
"""Typical number of characters of a condition in a SQL filter."""
_STEPS_OF_A_CONDITION: Final = 64

_FAILURES: Final = (EvaluationError, MalformedMessage, DecodeError, EncodeError)
"""The errors that a rule, or a content of unknown origin, can cause."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledRule:
    """A compiled rule. `conditions` are those of a correlation filter; `steps` is the cost of evaluating it."""

    name: str
    matches: Match
    act: Act | None
    conditions: tuple[Condition, ...]
    steps: int


Candidate: TypeAlias = tuple[int, Sequence[CompiledRule] | None]
"""The position of a subscription, and the rules that may match. None: it matches all."""


class SubscriptionRules:
    """The rules of a subscription, and what it does with their errors. `before` is the state before a change: its unchanged
    rules are not compiled again."""

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
        """The rules that can match."""
        self._known = {name: (said, self._rule(name, said)) for name, said in self.descriptions}
        return [rule for _, rule in self._known.values() if rule.matches is not never]

    def _rule(self, name: str, description: RuleDescription) -> CompiledRule:
        known = self._known.get(name)
        if known is not None and known[0] is description:  # equal ones can differ: 1 equals TRUE
            return known[1]
        return self._compiled(name, description)

    @cached_property
    def matches_all(self) -> bool:
        """Whether the subscription gets exactly one copy of every message."""
        has_actions = any(rule.act is not None for rule in self.rules)
        return not has_actions and any(rule.matches is always for rule in self.rules)

    def select(
        self,
        rules: Sequence[CompiledRule],
        fragment: int,
        message: TopicMessage,
        copies: list[SubscriptionCopy],
    ) -> None:
        """Add the copies that the subscription gets by these of its rules."""
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
                    joined = joined or _describe(rule, error)
                else:
                    failure = failure or _describe(rule, error)
                continue
            if matched is not True:
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
                copies.append(
                    SubscriptionCopy(fragment, message.content, ACTION_FAILED, _describe(rule, error))
                )

    def _compiled(self, name: str, rule: RuleDescription) -> CompiledRule:
        act = None if rule.action is None else _action(rule.action, self._ids)
        conditions: tuple[Condition, ...] = ()
        try:
            if isinstance(rule.filter, CorrelationFilter):
                conditions = tuple(conditions_of(rule.filter))
            match = _match(rule.filter, conditions, self._ids)
            return CompiledRule(name, match, act, conditions, _steps(rule.filter))
        except (ArgumentError, EvaluationError) as error:  # of a catalogue that was written with other rules
            return CompiledRule(name, _failing(str(error)), act, (), _STEPS_OF_A_CONDITION)


class TopicSelector:
    """The subscriptions of a topic, for its fragment `index`; each with its fragment that gets copies. Fragments of one
    topic have the same subscriptions in the same order, and share an index."""

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
        """Steps that rules have taken for all messages so far; one step is about the time of comparing one character."""
        return self._spent + self._work.spent

    def select_copies(self, content: bytes, n: int, now: int, ttl: int) -> list[SubscriptionCopy]:
        """Return the copies of a message to which the topic's fragment assigns the number `n` now; `ttl` is its time to live
        in the topic (0: for ever). Never raises for any content of a message or a rule."""
        number = wire_number(self.index, n)
        index = self._plan.index
        if index.all_take:
            return self._copies_of_all(with_enqueued_number(content, number))
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

    def _copies_of_all(self, content: bytes) -> list[SubscriptionCopy]:
        if not self.fragments:
            return []
        copy = SubscriptionCopy(self.fragments[0], content)
        if len(self.fragments) > 1:
            copy.everyone = self.fragments
        return [copy]


class RuleIndex:
    """The subscriptions of a topic in their order, with an index of their rules that is created for the first message."""

    def __init__(self, subscribers: Sequence[SubscriptionRules]) -> None:
        self.subscribers = tuple(subscribers)

    @cached_property
    def index(self) -> _PropertyIndex:
        return _PropertyIndex(self.subscribers)


class RuleCompiler:
    """Creates selectors from the settings of topics. All fragments of a topic share compiled rules, also in several stores.
    A change of settings compiles only the rules that changed. `ids` provides new ids for rules."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._rules: WeakKeyDictionary[RuleSet, SubscriptionRules] = WeakKeyDictionary()
        self._indexes: WeakKeyDictionary[TopicRules, RuleIndex] = WeakKeyDictionary()

    def selector(self, topic: TopicSettings, before: TopicSelector | None = None) -> TopicSelector:
        """Create a selector; `before` is the one that the fragment had until now."""
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
    """Finds the rules of which subscriptions a message may match. Subscriptions are named by their position."""

    def __init__(self, subscribers: Sequence[SubscriptionRules]) -> None:
        self.all_take = all(subscriber.matches_all for subscriber in subscribers)
        self._always: dict[int, list[CompiledRule] | None] = {}  # None: matches all
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
        self._without_candidates: list[Candidate] = list(self._always.items())

    def candidates_for(self, message: RuleMessage) -> list[Candidate]:
        """Each subscription, in their order, with the rules that may match, None if it matches all."""
        candidates: dict[int, list[CompiledRule]] = {}
        for (system, name), by_value in self._found.items():
            value = message.system(name) if system else message.named.get(name)
            if value is not None:
                for at, rule in by_value.get(value, ()):
                    candidates.setdefault(at, []).append(rule)
        if not candidates:
            return self._without_candidates
        found: list[Candidate] = []
        for at in sorted(self._always.keys() | candidates.keys()):
            asked = self._always.get(at, ())
            found.append((at, None if asked is None else [*asked, *candidates.get(at, ())]))
        return found


def _match(rule_filter: RuleFilter, conditions: tuple[Condition, ...], ids: Ids) -> Match:
    return all_of(list(conditions)) if conditions else compile_filter(rule_filter, ids)


def _steps(rule_filter: RuleFilter) -> int:
    """The cost for a message with short values, by the number of conditions that the filter has room for."""
    size = len(rule_filter.expression) if isinstance(rule_filter, SqlFilter) else 0
    return _STEPS_OF_A_CONDITION * (1 + size // _CONDITION)


def _action(action: SqlAction, ids: Ids) -> Act:
    from busbar.rules.actions import compile_action  # the parser is imported only if it is needed

    try:
        return compile_action(action, ids)
    except (ArgumentError, EvaluationError) as error:
        return _failing(str(error))


def _failing(text: str) -> Callable[[RuleMessage], NoReturn]:
    def fail(message: RuleMessage) -> NoReturn:
        raise EvaluationError(text)

    return fail


def _describe(rule: CompiledRule, error: Exception) -> str:
    return f"Rule '{rule.name}': {error}"
