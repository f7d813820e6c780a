"""Expressions of ARM templates: "[concat(parameters('name'), '/orders')]".

1. A text that begins with `[` and ends with `]` is an expression; `[[` stands for a plain `[`.
2. An expression is a text in single quotes (two of them are one), a number, true, false or null, or a call of a function. A
   dot and a name, or an index in brackets, take a part of what stands before.
3. The functions are those of FUNCTIONS, `parameters`, `variables` and `if`. Any other one is an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+)|(?P<name>[A-Za-z_$][\w$]*)|(?P<sign>[()\[\].,]))"
)
_WORDS = {"true": True, "false": False, "null": None}
MAX_DEPTH = 50


class ExpressionError(Exception):
    """An expression cannot be evaluated; the text states why."""


def _concat(*parts: Any) -> Any:
    if parts and all(isinstance(part, list) for part in parts):
        return [item for part in parts for item in part]
    return "".join(_string(part) for part in parts)


def _format(pattern: str, *parts: Any) -> str:
    def part(match: re.Match[str]) -> str:
        number = int(match[1])
        if number >= len(parts):
            raise ExpressionError(f"format has {len(parts)} values, and its text asks for number {number}")
        return _string(parts[number])

    return re.sub(r"\{(\d+)\}", part, pattern)


def _string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    raise ExpressionError(f"{type(value).__name__} is not a text")


def _equals(left: Any, right: Any) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left.lower() == right.lower()
    return bool(left == right)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "concat": _concat,
    "format": _format,
    "string": _string,
    "tolower": lambda text: _string(text).lower(),
    "toupper": lambda text: _string(text).upper(),
    "trim": lambda text: _string(text).strip(),
    "replace": lambda text, old, new: _string(text).replace(old, new),
    "int": int,
    "bool": lambda value: _string(value).lower() in ("true", "1"),
    "equals": _equals,
    "not": lambda value: not value,
    "and": lambda *values: all(values),
    "or": lambda *values: any(values),
    "empty": lambda value: not value,
    "length": len,
    "createarray": lambda *values: [*values],
    "resourcegroup": lambda: {"name": "busbar", "location": "local", "id": "/resourceGroups/busbar"},
    "subscription": lambda: {"subscriptionId": "", "id": "/subscriptions/"},
}


class TemplateValues:
    """The parameters and variables of a template. Variables are evaluated when they are used."""

    def __init__(self, parameters: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
        self._parameters = {name.lower(): value for name, value in parameters.items()}
        self._variables = {name.lower(): value for name, value in variables.items()}
        self._depth = 0

    def evaluate(self, value: Any) -> Any:
        """A value with all expressions in it evaluated. Raises ExpressionError."""
        if isinstance(value, dict):
            return {key: self.evaluate(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.evaluate(item) for item in value]
        if not isinstance(value, str) or not (value.startswith("[") and value.endswith("]")):
            return value
        if value.startswith("[["):
            return value[1:]
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH:
                raise ExpressionError("variables use each other without an end")
            return _ExpressionReader(value[1:-1], self).whole()
        finally:
            self._depth -= 1

    def call(self, name: str, arguments: list[Any]) -> Any:
        lowered = name.lower()
        if lowered in ("parameters", "variables"):
            known = self._parameters if lowered == "parameters" else self._variables
            if len(arguments) != 1 or str(arguments[0]).lower() not in known:
                raise ExpressionError(f"there is no {lowered[:-1]} {arguments[0] if arguments else ''!r}")
            return self.evaluate(known[str(arguments[0]).lower()])
        if lowered == "if" and len(arguments) == 3:
            return arguments[1] if arguments[0] else arguments[2]
        function = FUNCTIONS.get(lowered)
        if function is None:
            known_names = ", ".join(sorted((*FUNCTIONS, "if", "parameters", "variables")))
            raise ExpressionError(f"the function {name} is not supported; there are {known_names}")
        try:
            return function(*arguments)
        except (TypeError, ValueError):
            raise ExpressionError(f"{name} cannot be called with {len(arguments)} such values") from None


class _ExpressionReader:
    """Reads one expression, and evaluates it on the way."""

    def __init__(self, text: str, values: TemplateValues) -> None:
        self._text = text
        self._values = values
        self._at = 0
        self._depth = 0

    def whole(self) -> Any:
        value = self._value()
        if self._peek() is not None:
            raise self._wrong()
        return value

    def _value(self) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError("the expression is nested too deeply")
        token = self._next()
        if token["text"] is not None:
            value: Any = token["text"][1:-1].replace("''", "'")
        elif token["number"] is not None:
            value = int(token["number"])
        elif token["name"] is not None:
            value = self._named(token["name"])
        else:
            raise self._wrong()
        while True:
            after = self._peek()
            if after is not None and after["sign"] == ".":
                self._next()
                value = _part(value, self._next()["name"])
            elif after is not None and after["sign"] == "[":
                self._next()
                value = _part(value, self._value())
                self._expect("]")
            else:
                self._depth -= 1
                return value

    def _named(self, name: str) -> Any:
        after = self._peek()
        if after is None or after["sign"] != "(":
            if name.lower() in _WORDS:
                return _WORDS[name.lower()]
            raise self._wrong()
        self._next()
        arguments: list[Any] = []
        if (first := self._peek()) is not None and first["sign"] == ")":
            self._next()
            return self._values.call(name, arguments)
        while True:
            arguments.append(self._value())
            sign = self._next()["sign"]
            if sign == ")":
                return self._values.call(name, arguments)
            if sign != ",":
                raise self._wrong()

    def _peek(self) -> re.Match[str] | None:
        if not self._text[self._at :].strip():
            return None
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self._wrong()
        return found

    def _next(self) -> re.Match[str]:
        found = self._peek()
        if found is None:
            raise self._wrong()
        self._at = found.end()
        return found

    def _expect(self, sign: str) -> None:
        if self._next()["sign"] != sign:
            raise self._wrong()

    def _wrong(self) -> ExpressionError:
        return ExpressionError(f"'[{self._text}]' cannot be read at character {self._at + 2}")


def _part(value: Any, key: Any) -> Any:
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(key, str) and name.lower() == key.lower():
                return item
    elif isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value):
        return value[key]
    raise ExpressionError(f"there is no part {key!r} in what stands before it")
