"""Compiles expressions to functions of a message: once from the tree of syntax.py, called for every message.

There are three truth values: True, False and None, which is unknown.

    NOT     unknown stays unknown
    AND     false wins; otherwise unknown wins
    OR      true wins; otherwise unknown wins
    = < LIKE + ...      unknown if an operand is
    x IN (a, b)         unknown if x is; true if one equals x; otherwise unknown if one is unknown
    x IS NULL           true for null and for a missing property; EXISTS(x) distinguishes these two

AND, OR and IN are evaluated from left to right and stop when the result is certain: later operands cannot fail any more.
Operands of AND, OR and NOT, and a whole filter, are truth values. A value of another kind there is an EvaluationError.

Every node of the tree becomes one function that calls those of its operands, so a message costs no dispatch by names. Common
forms (a user property and a constant) have a function of their own without such calls.

An operation that reads every character of a long value counts its steps (work.py), and fails if there are not enough left.
The compiler object represents its expression there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from lark import Token, Tree

from busbar.rules.like import READING, Pattern, compile_pattern
from busbar.rules.message import RuleMessage
from busbar.rules.syntax import plain_name, property_name
from busbar.rules.values import (
    EQUALITIES,
    ORDERED_ALIKE,
    EvaluationError,
    Ids,
    Value,
    calculate,
    comparable,
    comparison,
    equal,
    kind_of,
    negative,
    positive,
)
from busbar.rules.work import AT_ONCE, FOLDED, UNCOUNTED

Node: TypeAlias = Tree[Token] | Token
Evaluator: TypeAlias = Callable[[RuleMessage], Value]
Truth: TypeAlias = Callable[[RuleMessage], bool | None]


class Constant:
    """A value that is the same for every message."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __call__(self, message: RuleMessage) -> Value:
        return self.value


class UserProperty:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name.lower()

    def __call__(self, message: RuleMessage) -> Value:
        return message.user.get(self.name)


class Compiler:
    """Compiles the expressions of one rule. `parameters` are by their names in lower case; `ids` provides the guids of
    newid()."""

    def __init__(self, parameters: Mapping[str, Value], ids: Ids) -> None:
        self._parameters = parameters
        self._ids = ids

    def truth(self, node: Node) -> Truth:
        """Compile a predicate. Raises EvaluationError if it cannot be one for any message."""
        if isinstance(node, Tree):
            make = _TRUTHS.get(node.data)
            if make is not None:
                return make(self, node.children)
        inner = self.value(node)

        def truth(message: RuleMessage) -> bool | None:
            value = inner(message)
            if value is None or value is True or value is False:
                return value
            raise EvaluationError(f"{kind_of(value)} is neither true nor false")

        return truth

    def value(self, node: Node) -> Evaluator:
        """Compile any expression. Raises EvaluationError."""
        if isinstance(node, Token):
            return Constant(_number(node) if node.type == "NUMBER" else node[1:-1].replace("''", "'"))
        make = _VALUES.get(node.data)
        if make is not None:
            return make(self, node)
        return _TRUTHS[node.data](self, node.children)

    # ---- truths ----

    def conjunction(self, nodes: list[Node]) -> Truth:
        parts = [self.truth(node) for node in nodes]
        if len(parts) == 2:
            first, second = parts

            def both(message: RuleMessage) -> bool | None:
                left = first(message)
                if left is False:
                    return False
                right = second(message)
                return right if left or right is False else None

            return both

        def every(message: RuleMessage) -> bool | None:
            answer: bool | None = True
            for part in parts:
                found = part(message)
                if found is False:
                    return False
                if found is None:
                    answer = None
            return answer

        return every

    def disjunction(self, nodes: list[Node]) -> Truth:
        parts = [self.truth(node) for node in nodes]

        def some(message: RuleMessage) -> bool | None:
            answer: bool | None = False
            for part in parts:
                found = part(message)
                if found:
                    return True
                if found is None:
                    answer = None
            return answer

        return some

    def denial(self, nodes: list[Node]) -> Truth:
        return _negate(self.truth(nodes[0]))

    def compare(self, nodes: list[Node]) -> Truth:
        left, right = self.value(nodes[0]), self.value(nodes[2])
        sign = str(nodes[1])
        if isinstance(left, UserProperty) and isinstance(right, Constant):
            return _compare_property(left.name, sign, right.value)
        test = comparison(sign)
        ordered = sign not in EQUALITIES
        may_be_long = not isinstance(left, Constant) and not isinstance(right, Constant)

        def compare(message: RuleMessage) -> bool | None:
            a = left(message)
            if a is None:
                return None
            b = right(message)
            if b is None:
                return None
            kind = type(a)
            if kind is not type(b) or kind not in ORDERED_ALIKE:
                a, b = comparable(a, b, ordered)
            elif kind is str and may_be_long and len(a) > UNCOUNTED:  # type: ignore[arg-type]  # `kind` says it is a text
                message.work.spend(self, len(a) // AT_ONCE)  # type: ignore[arg-type]  # as above
            return test(a, b)

        return compare

    def is_null(self, nodes: list[Node]) -> Truth:
        inner = self.value(nodes[0])
        return lambda message: inner(message) is None

    def is_not_null(self, nodes: list[Node]) -> Truth:
        inner = self.value(nodes[0])
        return lambda message: inner(message) is not None

    def is_in(self, nodes: list[Node]) -> Truth:
        subject, *choices = [self.value(node) for node in nodes]
        constants = [choice.value for choice in choices if isinstance(choice, Constant)]
        texts = [constant for constant in constants if isinstance(constant, str)]
        only_texts = frozenset(texts) if len(texts) == len(choices) else None

        def is_in(message: RuleMessage) -> bool | None:
            value = subject(message)
            if value is None:
                return None
            if only_texts is not None and type(value) is str:
                return value in only_texts
            answer: bool | None = False
            for choice in choices:
                other = choice(message)
                if other is None:
                    answer = None
                elif equal(value, other):
                    return True
            return answer

        return is_in

    def is_not_in(self, nodes: list[Node]) -> Truth:
        return _negate(self.is_in(nodes))

    def like(self, nodes: list[Node]) -> Truth:
        subject, pattern, *escape = [self.value(node) for node in nodes]
        constants = [part for part in (pattern, *escape) if isinstance(part, Constant)]
        if len(constants) == 1 + len(escape):
            return self._like_constant(subject, *[part.value for part in constants])

        def like(message: RuleMessage) -> bool | None:
            value = subject(message)
            parts = [part(message) for part in (pattern, *escape)]
            if value is None or None in parts:
                return None
            text, written = _text(value), _text(parts[0])
            message.work.spend(self, len(written) * READING)
            matches, weight = _pattern(written, *parts[1:], once=True)
            if len(text) > UNCOUNTED:
                message.work.spend(self, len(text) * weight)
            return matches(text)

        return like

    def _like_constant(self, subject: Evaluator, *pattern: Value) -> Truth:
        if None in pattern:
            return lambda message: None
        matches, weight = _pattern(*pattern)

        def like(message: RuleMessage) -> bool | None:
            value = subject(message)
            if value is None:
                return None
            text = value if type(value) is str else _text(value)
            if len(text) > UNCOUNTED:
                message.work.spend(self, len(text) * weight)
            return matches(text)

        return like

    def not_like(self, nodes: list[Node]) -> Truth:
        return _negate(self.like(nodes))

    def exists(self, nodes: list[Node]) -> Truth:
        node = nodes[0]
        assert isinstance(node, Tree)
        scope, name = property_name(node)
        name = name.lower()
        if scope == "sys":
            return lambda message: message.system(name) is not None
        return lambda message: name in message.user

    # ---- values ----

    def property(self, node: Tree[Token]) -> Evaluator:
        scope, name = property_name(node)
        if scope != "sys":
            return UserProperty(name)
        name = name.lower()
        return lambda message: message.system(name)

    def parameter(self, node: Tree[Token]) -> Evaluator:
        name = plain_name(node.children[0])
        if name.lower() not in self._parameters:
            raise EvaluationError(f"the rule has no parameter '@{name}'")
        return Constant(self._parameters[name.lower()])

    def call(self, node: Tree[Token]) -> Evaluator:
        function, *arguments = node.children
        if str(function).lower() == "newid":
            ids = self._ids
            return lambda message: ids()
        argument = self.value(arguments[0])

        def named(message: RuleMessage) -> Value:
            name = argument(message)
            if name is None:
                return None
            text = _text(name)
            if len(text) > UNCOUNTED:
                message.work.spend(self, len(text) * FOLDED)
            return message.user.get(text.lower())

        return named

    def chain(self, node: Tree[Token]) -> Evaluator:
        """Compile a sum or a product: operands with operators between them, from left to right."""
        first = self.value(node.children[0])
        signs = [str(sign) for sign in node.children[1::2]]
        operands = [self.value(operand) for operand in node.children[2::2]]
        rest = list(zip(signs, operands, strict=True))

        def chain(message: RuleMessage) -> Value:
            result = first(message)
            for sign, operand in rest:
                if result is None:
                    return None
                value = operand(message)
                if value is None:
                    return None
                result = calculate(sign, result, value)
                if type(result) is str and len(result) > UNCOUNTED:
                    message.work.spend(self, len(result) // AT_ONCE)
            return result

        return chain

    def signed(self, node: Tree[Token]) -> Evaluator:
        inner = self.value(node.children[-1])
        change = negative if node.data == "minus" else positive
        if isinstance(inner, Constant) and inner.value is not None:
            return Constant(change(inner.value))

        def signed(message: RuleMessage) -> Value:
            value = inner(message)
            return None if value is None else change(value)

        return signed

    def constant(self, node: Tree[Token]) -> Evaluator:
        return Constant({"true": True, "false": False, "null": None}[node.data])


_TRUTHS: Final[dict[str, Callable[[Compiler, list[Node]], Truth]]] = {
    "conjunction": Compiler.conjunction,
    "disjunction": Compiler.disjunction,
    "denial": Compiler.denial,
    "compare": Compiler.compare,
    "is_null": Compiler.is_null,
    "is_not_null": Compiler.is_not_null,
    "is_in": Compiler.is_in,
    "is_not_in": Compiler.is_not_in,
    "like": Compiler.like,
    "not_like": Compiler.not_like,
    "exists": Compiler.exists,
}
_VALUES: Final[dict[str, Callable[[Compiler, Tree[Token]], Evaluator]]] = {
    "property": Compiler.property,
    "parameter": Compiler.parameter,
    "call": Compiler.call,
    "sum": Compiler.chain,
    "product": Compiler.chain,
    "plus": Compiler.signed,
    "minus": Compiler.signed,
    "true": Compiler.constant,
    "false": Compiler.constant,
    "null": Compiler.constant,
}


def _negate(inner: Truth) -> Truth:
    def denied(message: RuleMessage) -> bool | None:
        found = inner(message)
        return None if found is None else not found

    return denied


def _compare_property(name: str, sign: str, constant: Value) -> Truth:
    """Compare a user property with a constant, the most common form of all."""
    test = comparison(sign)
    ordered = sign not in EQUALITIES
    kind = type(constant) if type(constant) in ORDERED_ALIKE else None

    def compare(message: RuleMessage) -> bool | None:
        value = message.user.get(name)
        if type(value) is kind:
            return test(value, constant)
        if value is None or constant is None:
            return None
        return test(*comparable(value, constant, ordered))

    return compare


def _pattern(pattern: Value, escape: Value = None, *, once: bool = False) -> Pattern:
    return compile_pattern(_text(pattern), None if escape is None else _text(escape), once=once)


def _text(value: Value) -> str:
    if isinstance(value, str):
        return value
    raise EvaluationError(f"{kind_of(value)} stands where a text has to be")


def _number(token: Token) -> int | float:
    return int(token) if token.isdecimal() else float(token)
