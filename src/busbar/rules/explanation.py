"""Explains why a filter matches a message, or why it does not: which clause decided, and with which values.

Rules
- The verdict is that of the evaluator (evaluation.py, filters.py). Single clauses are evaluated by it, in its order and with
  its limits. Here are only AND, OR and NOT over the verdicts of clauses, since these decide which clause counts.
- What decides:

      AND     false: the first clause that is false. Unknown: all that are unknown. True: all clauses
      OR      true: the first clause that is true. Unknown: all that are unknown. False: all clauses
      NOT     what decides its operand

- A clause is unknown because of what is null or missing in it. If a part of it is known, that part is no reason.
- If a clause fails, the whole filter fails, unless its result was certain before.
- Values are shown as the language of rules writes them, and are cut if they are long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lark import Token, Tree

from busbar.model.entities import CorrelationFilter, FalseFilter, RuleFilter, SqlFilter, TrueFilter
from busbar.model.errors import ArgumentError
from busbar.rules.evaluation import Compiler, Node
from busbar.rules.filters import FIELDS, compile_filter, conditions_of, parameters_of
from busbar.rules.message import RuleMessage
from busbar.rules.syntax import parse_filter, plain_name, property_name
from busbar.rules.values import (
    UNLIMITED,
    EvaluationError,
    Ids,
    Instant,
    Opaque,
    Span,
    Value,
    alike,
    kind_of,
    text_of,
)
from busbar.rules.work import Work

MAX_SHOWN: Final = 80
"""Characters of a value that are shown."""
MAX_CLAUSES: Final = 4
"""Clauses that are named one by one."""


class Verdict(StrEnum):
    """The verdict of a filter on a message. Only `TRUE` selects it."""

    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Explanation:
    verdict: Verdict
    reasons: tuple[str, ...]
    """One for each clause that decided."""

    @property
    def matches(self) -> bool:
        return self.verdict is Verdict.TRUE

    @property
    def sentence(self) -> str:
        shown = [*self.reasons[:MAX_CLAUSES]]
        more = len(self.reasons) - len(shown)
        if more:
            shown.append(f"and {more} more like these")
        return "; ".join(shown)


def explain_filter(rule_filter: RuleFilter, message: RuleMessage, ids: Ids) -> Explanation:
    """Explain the verdict of a filter on a message. Never raises for a filter or a message."""
    if isinstance(rule_filter, TrueFilter):
        return Explanation(Verdict.TRUE, ("the filter is true for every message",))
    if isinstance(rule_filter, FalseFilter):
        return Explanation(Verdict.FALSE, ("the filter is false for every message",))
    try:
        if isinstance(rule_filter, CorrelationFilter):
            return _correlation(rule_filter, message)
        compile_filter(
            rule_filter, ids
        )  # finds what is wrong for every message, also where it decides nothing
        return _Sql(rule_filter, message, ids).explained()
    except (ArgumentError, EvaluationError) as error:
        return Explanation(Verdict.FAILED, (f"the filter has no result for any message: {error}",))


# ---- correlation filters ----


def _correlation(rule_filter: CorrelationFilter, message: RuleMessage) -> Explanation:
    equal: list[str] = []
    different: list[str] = []
    for is_system, name, wanted in conditions_of(rule_filter):
        found = message.system(name) if is_system else message.named.get(name)
        shown = f"sys.{_SPELT[name]}" if is_system else f"property '{name}'"
        if alike(found, wanted):
            equal.append(f"{shown} is {shown_value(found)}")
        elif not is_system and name not in message.named:
            different.append(f"{shown} is missing{_other_case(name, message.named)}")
        elif found is None:
            different.append(f"{shown} is {'not set' if is_system else 'null'}, not {shown_value(wanted)}")
        else:
            different.append(
                f"{shown} is {shown_value(found)}, not {shown_value(wanted)}{_hint(found, wanted)}"
            )
    if different:
        return Explanation(Verdict.FALSE, tuple(different))
    return Explanation(Verdict.TRUE, tuple(equal))


_SPELT: Final = {
    name: "".join(word.capitalize() for word in field.split("_")) for field, name in FIELDS.items()
}


def _other_case(name: str, named: Mapping[str, Value]) -> str:
    for other in named:
        if other.lower() == name.lower():
            return f" (the message has '{other}'; names in a correlation filter count with their case)"
    return ""


def _hint(found: Value, wanted: Value) -> str:
    """Why two values are different that look the same."""
    if kind_of(found) != kind_of(wanted):
        return f" ({kind_of(found)} is never equal to {kind_of(wanted)} here)"
    if isinstance(found, str) and isinstance(wanted, str) and found.lower() == wanted.lower():
        return " (upper and lower case count)"
    return ""


# ---- SQL filters ----


@dataclass(frozen=True, slots=True)
class _Read:
    """The message for evaluating parts once more: the steps of that are not those of the rule."""

    message: RuleMessage

    @property
    def work(self) -> Work:
        return Work()

    @property
    def user(self) -> Mapping[str, Value]:
        return self.message.user

    @property
    def named(self) -> Mapping[str, Value]:
        return self.message.named

    def system(self, name: str) -> Value:
        return self.message.system(name)


class _Sql:
    """Explains one SQL filter for one message."""

    def __init__(self, rule_filter: SqlFilter, message: RuleMessage, ids: Ids) -> None:
        self._expression = rule_filter.expression
        self._parameters = parameters_of(rule_filter.parameters)
        self._compiler = Compiler(self._parameters, ids)
        self._message = message
        self._again = _Read(message)

    def explained(self) -> Explanation:
        return self._explain(parse_filter(self._expression))

    def _explain(self, node: Node) -> Explanation:
        if isinstance(node, Tree):
            if node.data == "conjunction":
                return self._joined(node.children, Verdict.FALSE, Verdict.TRUE)
            if node.data == "disjunction":
                return self._joined(node.children, Verdict.TRUE, Verdict.FALSE)
            if node.data == "denial":
                return self._denied(node)
        return self._clause(node)

    def _denied(self, node: Tree[Token]) -> Explanation:
        inner = self._explain(node.children[0])
        verdict = _NEGATED[inner.verdict]
        if verdict is inner.verdict or len(inner.reasons) > 1:
            return Explanation(verdict, inner.reasons)
        return Explanation(verdict, (f"`{self._written(node)}` is {verdict} because {inner.reasons[0]}",))

    def _joined(self, nodes: Sequence[Node], wins: Verdict, otherwise: Verdict) -> Explanation:
        """AND or OR: the first clause with the verdict `wins` decides."""
        rest: list[str] = []
        unknown: list[str] = []
        for node in nodes:
            found = self._explain(node)
            if found.verdict is wins or found.verdict is Verdict.FAILED:
                return found
            (unknown if found.verdict is Verdict.UNKNOWN else rest).extend(found.reasons)
        if unknown:
            return Explanation(Verdict.UNKNOWN, tuple(unknown))
        return Explanation(otherwise, tuple(rest))

    def _clause(self, node: Node) -> Explanation:
        written = self._written(node)
        try:
            truth = self._compiler.truth(node)(self._message)
        except EvaluationError as error:
            values = _listed(self._values(node))
            return Explanation(Verdict.FAILED, (f"`{written}` has no result: {error}{_where(values)}",))
        if truth is None:
            because = _listed(self._unknown(node)) or "NULL is unknown"
            return Explanation(Verdict.UNKNOWN, (f"`{written}` is UNKNOWN because {because}",))
        verdict = Verdict.TRUE if truth else Verdict.FALSE
        return Explanation(verdict, (f"`{written}` is {verdict}{_where(_listed(self._values(node)))}",))

    def _written(self, node: Node) -> str:
        """The part of the expression that a node was made of."""
        at = node if isinstance(node, Token) else node.meta
        start, end = getattr(at, "start_pos", None), getattr(at, "end_pos", None)
        if start is None or end is None:
            return self._expression.strip()
        return " ".join(self._expression[start:end].split())

    # What stands in a clause

    def _values(self, node: Node) -> list[str]:
        """The values of all properties and parameters in a clause, and of what is computed with them."""
        if isinstance(node, Token):
            return []
        named = self._named(node)
        if named is not None:
            return [named]
        found: list[str] = []
        for child in node.children:
            found += self._values(child)
        if node.data in _COMPUTED and found:
            value = self._value(node)
            if value is not _NO_VALUE:
                found.append(f"`{self._written(node)}` is {shown_value(value)}")
        return found

    def _unknown(self, node: Node) -> list[str]:
        """What is null or missing in a part that is unknown, and makes it so."""
        if isinstance(node, Token):
            return []
        if node.data in _JOINING:
            return self._unknown_in_truths(node)
        named = self._named(node)
        if named is not None:
            return [named]
        found: list[str] = []
        for child in node.children:
            if not _is_sign(child) and self._value(child) is None:
                found += self._unknown(child)
        return found

    def _unknown_in_truths(self, node: Tree[Token]) -> list[str]:
        found: list[str] = []
        for child in node.children:
            if self._value(child) is None:
                found += self._unknown(child)
        return found

    def _named(self, node: Tree[Token]) -> str | None:
        """A property or a parameter with its value; None if the node is neither."""
        if node.data == "parameter":
            name = plain_name(node.children[0])
            return f"parameter '@{name}' is {shown_value(self._parameters.get(name.lower()))}"
        if node.data == "property":
            scope, name = property_name(node)
            return self._system(name) if scope == "sys" else self._user(name)
        if node.data == "call" and str(node.children[0]).lower() in ("p", "property"):
            name_of = self._value(node.children[1])
            return self._user(name_of) if isinstance(name_of, str) else None
        return None

    def _user(self, name: str) -> str:
        user = self._message.user
        if name.lower() not in user:
            return f"property '{_cut(name)}' is missing"
        return f"property '{_cut(name)}' is {shown_value(user[name.lower()])}"

    def _system(self, name: str) -> str:
        value = self._message.system(name.lower())
        return f"sys.{name} is {'not set' if value is None else shown_value(value)}"

    def _value(self, node: Node) -> object:
        try:
            return self._compiler.value(node)(self._again)
        except EvaluationError:
            return _NO_VALUE


_NO_VALUE: Final = object()
"""In place of a value that cannot be computed."""
_NEGATED: Final = {
    Verdict.TRUE: Verdict.FALSE,
    Verdict.FALSE: Verdict.TRUE,
    Verdict.UNKNOWN: Verdict.UNKNOWN,
    Verdict.FAILED: Verdict.FAILED,
}
_COMPUTED: Final = frozenset(("sum", "product", "minus", "plus"))
_JOINING: Final = frozenset(("conjunction", "disjunction", "denial"))
_SIGNS: Final = frozenset(("PLUS", "MINUS", "FACTOR", "EQUALS", "COMPARE", "NAME"))


def _is_sign(node: Node) -> bool:
    return isinstance(node, Token) and node.type in _SIGNS


def _where(values: str) -> str:
    return f", where {values}" if values else ""


def _listed(parts: Sequence[str]) -> str:
    """Several parts as one text, each once."""
    once = [*dict.fromkeys(parts)]
    return once[0] if len(once) == 1 else f"{', '.join(once[:-1])} and {once[-1]}" if once else ""


# ---- values ----


def shown_value(value: object) -> str:
    """A value as the language of rules writes it."""
    show = _SHOWN.get(type(value))
    if show is not None:
        return show(value)
    return _cut(str(value))


def _shown_span(value: Span) -> str:
    return "for ever" if value >= UNLIMITED else _shown_text(text_of(value))


def _shown_time(value: Instant) -> str:
    try:
        return _shown_text(text_of(value))
    except EvaluationError:
        return str(int(value))


def _shown_text(value: str) -> str:
    return "'" + _cut(value).replace("'", "''") + "'"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


_SHOWN: Final[dict[type, Callable[..., str]]] = {
    type(None): lambda value: "null",
    bool: lambda value: "TRUE" if value else "FALSE",
    str: _shown_text,
    bytes: lambda value: f"a binary of {len(value)} bytes",
    Opaque: lambda value: "a list, a map or a value of another kind",
    Instant: _shown_time,
    Span: _shown_span,
}
