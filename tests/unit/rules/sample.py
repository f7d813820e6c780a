"""A message for rules to look at: plain values, no bytes."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from busbar.model.entities import PropertyValue, SqlAction, SqlFilter, TypedText
from busbar.rules.actions import PropertyChanges, compile_action
from busbar.rules.evaluation import Compiler
from busbar.rules.filters import parameters_of
from busbar.rules.syntax import parse_filter
from busbar.rules.values import Value
from busbar.rules.work import Work

GUID = UUID("12345678-1234-5678-1234-567812345678")


class Sample:
    def __init__(self, user: Mapping[str, Value], system: Mapping[str, Value] | None = None) -> None:
        self.named = dict(user)
        self.user = {name.lower(): value for name, value in user.items()}
        self._system = system or {}
        self.work = Work()

    def system(self, name: str) -> Value:
        return self._system.get(name)


def evaluate(
    expression: str, message: Sample | None = None, **parameters: PropertyValue | TypedText
) -> bool | None:
    """What a filter says: True, False or None."""
    compiler = Compiler(parameters_of(tuple(parameters.items())), lambda: GUID)
    return compiler.truth(parse_filter(expression))(message or Sample({}))


def value(expression: str, message: Sample | None = None) -> Value:
    """What an expression is worth."""
    return Compiler({}, lambda: GUID).value(parse_filter(expression))(message or Sample({}))


def matches(expression: str, message: Sample) -> bool:
    from busbar.rules.filters import compile_filter

    return compile_filter(SqlFilter(expression), lambda: GUID)(message) is True


def act(expression: str, message: Sample, **parameters: PropertyValue | TypedText) -> PropertyChanges:
    return compile_action(SqlAction(expression, tuple(parameters.items())), lambda: GUID)(message)
