"""The values that rules compute with, and the operations on two of them.

    kind        Python      comes from
    boolean     bool        boolean; TRUE, FALSE
    number      int         all integers (64 bits; a ulong beyond them is a double); 42
                float       float, double; 4.2, 1e9
    text        str         string, symbol, char; 'blue'
    time        Instant     timestamp; compares with a text in ISO 8601
    duration    Span        as .NET describes it, TimeToLive; compares with a text such as PT1M
    guid        UUID        uuid, newid(); compares with a text
    binary      bytes       binary: equal or not
    opaque      Opaque      lists, maps, arrays, decimals: they exist, but cannot be compared

None is *unknown*: a property that is null or missing. Every result computed with it is unknown. Callers handle it before
they call these functions.

Conversions follow C#: an integer and a double compute as doubles; integers have 64 bits, division truncates towards zero,
and the remainder has the sign of the dividend. Where C# would throw or wrap around, there is an EvaluationError: a division
by zero, a result that no long can hold. The same holds for every pair of kinds that is not listed above. Text and text can
be added.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, final
from uuid import UUID

from busbar.model.duration import read_duration, write_duration
from busbar.model.entities import PropertyValue, TypedText

MAX_TEXT: Final = 65_536
"""Maximum number of characters of a text that an expression builds."""
MAX_WRITTEN: Final = 256
"""Maximum number of characters of a text that is read as a time, a duration or a guid: a longer one is invalid."""

_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class EvaluationError(Exception):
    """A rule has no result for a message; the text states why."""


class Instant(int):
    """A time, in ms since 1970 UTC."""

    __slots__ = ()


class Span(int):
    """A duration in ms."""

    __slots__ = ()


UNLIMITED: Final = Span(922_337_203_685_477)
"""The longest duration that .NET has; it means "for ever"."""


@final
class Opaque:
    """A value that is only passed on."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


Value: TypeAlias = bool | int | float | str | bytes | UUID | Opaque | None  # Instant and Span are ints

Ids: TypeAlias = Callable[[], UUID]
"""The source of the guids of newid(): this room has no source of randomness."""

_KINDS: Final[dict[type, str]] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a text",
    Instant: "a time",
    Span: "a duration",
    UUID: "a guid",
    bytes: "a binary",
    Opaque: "a value of another kind",
}
_UNORDERED: Final = (bool, bytes, UUID, Opaque)
ORDERED_ALIKE: Final = frozenset((int, float, str))
"""Two values of the same of these types compare directly, with any operator."""

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EQUALITIES: Final = frozenset(("=", "<>", "!="))


def kind_of(value: Value) -> str:
    return _KINDS.get(type(value), "a value of another kind")


def comparison(sign: str) -> Callable[[Any, Any], bool]:
    """The function of an operator for two values that `comparable` has accepted."""
    return _COMPARISONS[sign]


def comparable(left: Value, right: Value, ordered: bool) -> tuple[Value, Value]:
    """The two as values of one kind, which can be equal or, if `ordered`, smaller. Raises EvaluationError."""
    a, b = type(left), type(right)
    if a is b:
        if a is Opaque or (ordered and a in _UNORDERED):
            raise EvaluationError(f"{kind_of(left)} cannot be compared with another like that")
        return left, right
    if a is int and b is float:
        return float(left), right  # type: ignore[arg-type]
    if a is float and b is int:
        return left, float(right)  # type: ignore[arg-type]
    if isinstance(right, str) and a in _READERS:
        return comparable(left, _read(right, a), ordered)
    if isinstance(left, str) and b in _READERS:
        return comparable(_read(left, b), right, ordered)
    raise EvaluationError(f"{kind_of(left)} cannot be compared with {kind_of(right)}")


def equal(left: Value, right: Value) -> bool:
    """Whether the two are equal. Raises EvaluationError."""
    left, right = comparable(left, right, False)
    return left == right


def alike(left: Value, right: Value) -> bool:
    """The equality of correlation filters: of one kind and equal. Nothing is converted, and nothing is an error."""
    a, b = type(left), type(right)
    return left == right and (a is b or (a in (int, float) and b in (int, float)))


def calculate(sign: str, left: Value, right: Value) -> Value:
    """One of + - * / % for two values that are known. Raises EvaluationError."""
    a, b = type(left), type(right)
    if a is str and b is str and sign == "+":
        assert isinstance(left, str) and isinstance(right, str)
        if len(left) + len(right) > MAX_TEXT:
            raise EvaluationError(f"a text would have more than {MAX_TEXT} characters")
        return left + right
    if a is int and b is int:
        assert isinstance(left, int) and isinstance(right, int)
        return _check_range(_integers(sign, left, right))
    if a in (int, float) and b in (int, float):
        return _doubles(sign, float(left), float(right))  # type: ignore[arg-type]
    raise EvaluationError(f"'{sign}' is not for {kind_of(left)} and {kind_of(right)}")


def negative(value: Value) -> Value:
    return -positive(value) if type(value) is float else _check_range(-positive(value))  # type: ignore[arg-type]


def positive(value: Value) -> int | float:
    if type(value) is int or type(value) is float:
        return value
    raise EvaluationError(f"{kind_of(value)} has no sign")


def _integers(sign: str, left: int, right: int) -> int:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    if right == 0:
        raise EvaluationError("a division by zero")
    quotient = abs(left) // abs(right)
    if (left < 0) != (right < 0):
        quotient = -quotient
    return quotient if sign == "/" else left - quotient * right


def _doubles(sign: str, left: float, right: float) -> float:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    if right == 0:
        raise EvaluationError("a division by zero")
    if sign == "/":
        return left / right
    return math.fmod(left, right) if math.isfinite(left) else math.nan


def _check_range(number: int) -> int:
    if _LEAST <= number <= _MOST:
        return number
    raise EvaluationError("a number is beyond 64 bits")


# ---- texts and other kinds ----


def read_instant(text: str) -> Instant:
    """Parse a time. Raises ValueError."""
    if len(text) > MAX_WRITTEN:
        raise ValueError("too long for a time")
    at = datetime.fromisoformat(text.strip())
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return Instant((at - _EPOCH) // _MILLISECOND)


def _read_span(text: str) -> Span:
    return Span(read_duration(text.strip())) or UNLIMITED


_READERS: Final[dict[type, Callable[[str], Value]]] = {Instant: read_instant, Span: _read_span, UUID: UUID}


def _read(text: str, kind: type) -> Value:
    try:
        if len(text) <= MAX_WRITTEN:
            return _READERS[kind](text)
    except (ValueError, OverflowError):
        pass
    raise EvaluationError(f"'{text[:60]}' is not {_KINDS[kind]}")


def given(value: PropertyValue | TypedText) -> Value:
    """A parameter or a condition as its rule defines it. Raises EvaluationError."""
    if isinstance(value, TypedText):
        kind = {"dateTime": Instant, "duration": Span, "guid": UUID}.get(value.type)
        return value.text if kind is None else _read(value.text, kind)
    if type(value) is int and not _LEAST <= value <= _MOST:
        if abs(value) >= 2**64:
            raise EvaluationError("a number of the rule is beyond 64 bits")
        return float(value)
    return value


def text_of(value: Value) -> str:
    """The text of a value, for a property that is text. Raises EvaluationError if it has none."""
    if isinstance(value, str):
        return value
    if isinstance(value, Instant):
        try:
            at = _EPOCH + value * _MILLISECOND
        except OverflowError:
            raise EvaluationError(f"no calendar has the time {int(value)}") from None
        return at.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3].rjust(23, "0") + "Z"
    if isinstance(value, Span):
        return write_duration(0 if value >= UNLIMITED else value) if value > 0 else "PT0S"
    if isinstance(value, (bool, int, float, UUID)):
        return str(value)
    raise EvaluationError(f"{kind_of(value)} cannot be written as text")


def converted(value: Value, old: Value) -> Value:
    """The value in the kind of the one that it replaces; unchanged if that is impossible."""
    kind = type(old)
    if type(value) is kind or value is None or old is None:
        return value
    try:
        if kind is str:
            return text_of(value)
        if kind is float and type(value) is int:
            return float(value)
        if kind is int and isinstance(value, float):
            return _check_range(int(value)) if value.is_integer() else value
        if isinstance(value, str):
            return _from_text(value, kind)
    except (EvaluationError, ValueError):
        pass
    return value


def _from_text(text: str, kind: type) -> Value:
    if kind in _READERS:
        return _read(text, kind)
    if kind is int and len(text) <= 20:
        return _check_range(int(text))
    if kind is float:
        return float(text)
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    return text
