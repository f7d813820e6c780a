"""Compiles filters to functions that decide whether a message matches.

Only a certain true matches; unknown does not. An EvaluationError means that there is no result.

A correlation filter compares all fields that it has, exactly: texts and names of user properties with case, numbers
independently of their width. It has a result for every message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from busbar.model.entities import (
    CorrelationFilter,
    FalseFilter,
    PropertyValue,
    RuleFilter,
    TrueFilter,
    TypedText,
)
from busbar.rules.message import RuleMessage
from busbar.rules.values import EvaluationError, Ids, Value, alike, given

Match: TypeAlias = Callable[[RuleMessage], bool | None]
"""Whether a message matches. None is unknown, as SQL has it: then the message does not match."""
Condition: TypeAlias = tuple[bool, str, Value]
"""Of a correlation filter: whether it is a system property, its name, and the value it must equal."""

FIELDS: Final = {
    "correlation_id": "correlationid",
    "message_id": "messageid",
    "to": "to",
    "reply_to": "replyto",
    "label": "label",
    "session_id": "sessionid",
    "reply_to_session_id": "replytosessionid",
    "content_type": "contenttype",
}
"""The fields of a correlation filter and their system properties."""


def always(message: RuleMessage) -> bool:
    return True


def never(message: RuleMessage) -> bool:
    return False


_CONSTANTS: Final = {"1=1": always, "1=0": never}
"""How configurations and clients write the filters that match everything or nothing."""


def compile_filter(rule_filter: RuleFilter, ids: Ids) -> Match:
    """Compile a filter. Raises ArgumentError or EvaluationError for one that has no result for any message."""
    if isinstance(rule_filter, TrueFilter):
        return always
    if isinstance(rule_filter, FalseFilter):
        return never
    if isinstance(rule_filter, CorrelationFilter):
        return all_of(conditions_of(rule_filter))
    constant = _CONSTANTS.get("".join(rule_filter.expression.split()))
    if constant is not None:
        return constant
    from busbar.rules.evaluation import Compiler  # the parser is imported only if it is needed
    from busbar.rules.syntax import parse_filter

    return Compiler(parameters_of(rule_filter.parameters), ids).truth(parse_filter(rule_filter.expression))


def conditions_of(correlation: CorrelationFilter) -> list[Condition]:
    """The conditions of a filter. Raises EvaluationError if there is none, or for an invalid time, duration or guid."""
    conditions: list[Condition] = []
    for field, name in FIELDS.items():
        value = getattr(correlation, field)
        if value is not None:
            conditions.append((True, name, value))
    conditions += [(False, name, given(value)) for name, value in correlation.properties]
    if not conditions:
        raise EvaluationError("a correlation filter has no condition")
    return conditions


def all_of(conditions: list[Condition]) -> Match:
    def match(message: RuleMessage) -> bool:
        for system, name, value in conditions:
            if not alike(message.system(name) if system else message.named.get(name), value):
                return False
        return True

    return match


def parameters_of(parameters: tuple[tuple[str, PropertyValue | TypedText], ...]) -> dict[str, Value]:
    """The parameters by their names in lower case; a rule may have them with the @ or without it."""
    return {name.removeprefix("@").lower(): given(value) for name, value in parameters}
