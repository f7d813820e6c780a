"""Compiles actions to functions that return the changes of a message.

- Statements are performed in their order, and each works on the result of those before it.
- SET creates a user property or replaces it, in the kind of the old value if that is possible: `SET size = '7'` leaves a
  number where one was. An unknown value removes the property.
- SET of a system property gives it its own kind: a text, a time (ScheduledEnqueueTimeUtc), a boolean (ForcePersistence). An
  unknown value removes it, but a message always keeps its id.
- REMOVE removes a user property, if it exists.

The message itself is not changed: the caller makes the copy from the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from lark import Tree

from busbar.model.entities import SqlAction
from busbar.rules.evaluation import Compiler, Evaluator
from busbar.rules.filters import parameters_of
from busbar.rules.message import RuleMessage
from busbar.rules.syntax import parse_action, property_name
from busbar.rules.values import (
    EvaluationError,
    Ids,
    Instant,
    Value,
    converted,
    kind_of,
    read_instant,
    text_of,
)
from busbar.rules.work import UNCOUNTED


@dataclass(slots=True)
class PropertyChanges:
    """The changes, by names in lower case. A value of None: the property is removed."""

    user: dict[str, tuple[str, Value]] = field(default_factory=dict)
    """With the name as the action writes it."""
    system: dict[str, Value] = field(default_factory=dict)


Act: TypeAlias = Callable[[RuleMessage], PropertyChanges]


def compile_action(action: SqlAction, ids: Ids) -> Act:
    """Compile an action. Raises ArgumentError or EvaluationError for one that can change no message."""
    compiler = Compiler(parameters_of(action.parameters), ids)
    statements: list[tuple[bool, str, Evaluator | None]] = []
    for statement in parse_action(action.expression):
        target = statement.children[0]
        assert isinstance(target, Tree)
        scope, name = property_name(target)
        value = compiler.value(statement.children[1]) if statement.data == "set" else None
        statements.append((scope == "sys", name, value))

    def act(message: RuleMessage) -> PropertyChanges:
        """Return the changes of a message. Raises EvaluationError."""
        changed = _Changed(message, compiler)
        for system, name, value in statements:
            if value is None:
                changed.set_user(name, None)
            elif system:
                changed.set_system(name, value(changed))
            else:
                changed.set_user(name, value(changed))
        return changed.changes

    return act


class _Changed:
    """A message with the changes so far."""

    def __init__(self, message: RuleMessage, compiler: Compiler) -> None:
        self._message = message
        self._compiler = compiler
        self.work = message.work
        self.user: dict[str, Value] = dict(message.user)
        self.changes = PropertyChanges()

    @property
    def named(self) -> Mapping[str, Value]:
        return self._message.named

    def system(self, name: str) -> Value:
        name = _ALIASES.get(name, name)
        if name in self.changes.system:
            return self.changes.system[name]
        return self._message.system(name)

    def set_user(self, name: str, value: Value) -> None:
        self._count(value)
        folded = name.lower()
        if value is None:
            self.user.pop(folded, None)
        else:
            value = converted(value, self.user.get(folded))
            self.user[folded] = value
        self.changes.user[folded] = (name, value)

    def set_system(self, name: str, value: Value) -> None:
        self._count(value)
        folded = _ALIASES.get(name.lower(), name.lower())
        if folded == "messageid" and (value is None or value == ""):
            raise EvaluationError("sys.MessageId is set to nothing; a message needs an id")
        self.changes.system[folded] = value if value is None else _system_value(folded, name, value)

    def _count(self, value: Value) -> None:
        """Count the steps: a text is converted, encoded and copied."""
        if isinstance(value, str) and len(value) > UNCOUNTED:
            self.work.spend(self._compiler, len(value))


_ALIASES = {"subject": "label"}


def _system_value(folded: str, name: str, value: Value) -> Value:
    if folded == "forcepersistence":
        if isinstance(value, bool):
            return value
    elif folded == "scheduledenqueuetimeutc":
        if isinstance(value, Instant):
            return value
        try:
            if isinstance(value, str):
                return read_instant(value)
        except (ValueError, OverflowError):
            pass
    else:
        return text_of(value)
    raise EvaluationError(f"sys.{name} cannot be {kind_of(value)}")
