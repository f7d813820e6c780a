"""A message of a topic as rules read it, and the copy that an action makes of it.

The message is decoded at most once for all subscriptions, when the first rule needs it: properties, application properties
and annotations, each separately, and never the body. For rules, integers have 64 bits, all AMQP text types are text, and
values that .NET describes (timespan, datetime-offset, uri) have their .NET meaning.

The message is in the topic and in no subscription yet. So its sequence number is the one that the topic assigned, its
delivery count is 0, it has no lock, and its time to live counts from now.

A changed copy is the content with the changed parts encoded again, and with the name of the rule as application property
RuleName. A new value has the width of the old one if it fits. The copy must be something that a sender could have sent: ids
within their length, everything but the body within the limit of a header. Otherwise the action has failed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from uuid import UUID

from busbar.amqp.codec import DecodeError, encode_value
from busbar.amqp.types import (
    Byte,
    Char,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from busbar.message.content import (
    REMOVED,
    application_properties,
    is_durable,
    kept_annotations,
    property_fields,
    rewritten,
    size_around_body,
    with_enqueued_number,
)
from busbar.message.parsing import binary_id
from busbar.model.errors import MalformedMessage
from busbar.model.limits import Limits
from busbar.rules.values import UNLIMITED, EvaluationError, Instant, Opaque, Span, Value
from busbar.rules.work import Work

if TYPE_CHECKING:
    from busbar.rules.actions import PropertyChanges  # imports the parser: only if there are actions

RULE_NAME: Final = "RuleName"
MAX_ID_LENGTH: Final = Limits().max_id_length
MAX_HEADER_SIZE: Final = Limits().max_header_size

_LAST_DATE: Final = Instant(253_402_300_799_999)  # that a .NET DateTime can hold: never
_TICKS: Final = 10_000  # in a millisecond
_EPOCH_TICKS: Final = 621_355_968_000_000_000  # of .NET, at the beginning of 1970

_MESSAGE_ID: Final = 0
_CORRELATION_ID: Final = 5
_CONTENT_TYPE: Final = 6
_FIELDS: Final = {
    "messageid": _MESSAGE_ID,
    "to": 2,
    "label": 3,
    "subject": 3,
    "replyto": 4,
    "correlationid": _CORRELATION_ID,
    "contenttype": _CONTENT_TYPE,
    "sessionid": 10,
    "replytosessionid": 12,
}
"""System properties that are fields of the properties section."""
_SCHEDULED: Final = "scheduledenqueuetimeutc"
_ANNOTATIONS: Final = {
    "partitionkey": "x-opt-partition-key",
    "viapartitionkey": "x-opt-via-partition-key",
    _SCHEDULED: "x-opt-scheduled-enqueue-time",
}
_IDS: Final = ("messageid", "sessionid", "partitionkey", "viapartitionkey", "replytosessionid")


_T = TypeVar("_T")


class _Once(Generic[_T]):
    """An attribute that is computed when it is first read. functools.cached_property takes a lock for each."""

    def __init__(self, find: Callable[[TopicMessage], _T]) -> None:
        self._find = find
        self._name = find.__name__

    def __get__(self, message: TopicMessage, owner: type[TopicMessage]) -> _T:
        found = message.__dict__[self._name] = self._find(message)
        return found


class TopicMessage:
    """A message to which a topic's fragment has assigned the number `number`, as clients see it, at the time `now`."""

    def __init__(self, content: bytes, number: int, now: int, ttl: int, work: Work) -> None:
        self._content = content
        self._number = number
        self._now = now
        self._ttl = ttl
        self.work = work

    @_Once
    def content(self) -> bytes:
        """The content of unchanged copies, which all share."""
        return with_enqueued_number(self._content, self._number)

    @_Once
    def raw(self) -> dict[str, object]:
        return _read(application_properties, self._content, {})

    @_Once
    def named(self) -> dict[str, Value]:
        return {name: value_of(value) for name, value in self.raw.items()}

    @_Once
    def user(self) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name, value in self.named.items():
            found.setdefault(name.lower(), value)
        return found

    @_Once
    def _fields(self) -> list[object]:
        return _read(property_fields, self._content, [None] * 13)

    @_Once
    def _annotations(self) -> dict[str, object]:
        return _read(kept_annotations, self._content, {})

    def system(self, name: str) -> Value:
        field = _FIELDS.get(name)
        if field is not None:
            found = self._fields[field]
            if type(found) is str or found is None:
                return found
            text = self._fields[field] = _id_text(found)  # once, however often rules read it: it can be long
            return text
        annotation = _ANNOTATIONS.get(name)
        if annotation is not None:
            value = value_of(self._annotations.get(annotation))
            return Instant(value) if name == _SCHEDULED and isinstance(value, int) else value
        read = _READ.get(name)
        return None if read is None else read(self)

    # For a message that is in no subscription yet, LockedUntilUtc and DeadLetterSource are null.

    def enqueued(self) -> Value:
        return Instant(self._now)

    def number(self) -> Value:
        return self._number

    def time_to_live(self) -> Value:
        return Span(self._ttl) if self._ttl > 0 else UNLIMITED

    def expires(self) -> Value:
        return Instant(min(self._now + self._ttl, _LAST_DATE)) if self._ttl > 0 else _LAST_DATE

    def durable(self) -> Value:
        return is_durable(self._content)

    def size(self) -> Value:
        return len(self._content)

    def zero(self) -> Value:
        return 0

    def changed(self, changes: PropertyChanges, rule: str) -> bytes:
        """The copy that a rule has changed. Raises EvaluationError, EncodeError."""
        fields: dict[int, bytes] = {}
        annotations: dict[str, bytes] = {}
        durable = is_durable(self._content)
        for name, value in changes.system.items():
            if name in _IDS and isinstance(value, str) and len(value) > MAX_ID_LENGTH:
                raise EvaluationError(
                    f"the action sets sys.{name} to {len(value)} characters; the limit is {MAX_ID_LENGTH}"
                )
            if name in _FIELDS:
                kind = Symbol if name == "contenttype" and isinstance(value, str) and value.isascii() else str
                fields[_FIELDS[name]] = REMOVED if value is None else encode_value(kind(value))
            elif name in _ANNOTATIONS:
                annotations[_ANNOTATIONS[name]] = REMOVED if value is None else encoded(value, None)
            else:
                durable = value is True
        old: dict[str, object] = {}
        for spelled, given in self.raw.items():
            old.setdefault(spelled.lower(), given)
        properties: dict[str, tuple[str, bytes]] = {}
        for folded, (spelled, value) in changes.user.items():
            properties[folded] = (spelled, REMOVED if value is None else encoded(value, old.get(folded)))
        properties[RULE_NAME.lower()] = (RULE_NAME, encode_value(rule))
        content = rewritten(self.content, durable, annotations, fields, properties)
        if len(content) > len(self.content) and size_around_body(content) > MAX_HEADER_SIZE:
            raise EvaluationError(
                f"the action leaves more than {MAX_HEADER_SIZE} bytes of properties and annotations"
            )
        return content


_READ: Final[dict[str, Callable[[TopicMessage], Value]]] = {
    "enqueuedtimeutc": TopicMessage.enqueued,
    "enqueuedsequencenumber": TopicMessage.number,
    "sequencenumber": TopicMessage.number,
    "timetolive": TopicMessage.time_to_live,
    "expiresatutc": TopicMessage.expires,
    "forcepersistence": TopicMessage.durable,
    "size": TopicMessage.size,
    "deliverycount": TopicMessage.zero,
    "state": TopicMessage.zero,  # active
}


def _read(read: Callable[[bytes], _T], content: bytes, nothing: _T) -> _T:
    """The result of `read`; nothing for a content that message/parsing.py did not create, because one message must not stop
    a topic."""
    try:
        return read(content)
    except (MalformedMessage, DecodeError):
        return nothing


# ---- values: AMQP's and those of rules ----


def _integer(value: object) -> Value:
    assert isinstance(value, int)
    return int(value) if value < 2**63 else float(value)


_AS_RULES_SEE: Final[dict[type, Callable[..., Value]]] = {
    Symbol: str,
    Char: str,
    UByte: int,
    UShort: int,
    UInt: int,
    ULong: _integer,
    Byte: int,
    Short: int,
    Int: int,
    Float32: float,
    Timestamp: Instant,
}
_AS_THEY_ARE: Final = frozenset((type(None), bool, int, float, str, bytes, UUID))


def value_of(value: object) -> Value:
    """A decoded AMQP value as rules use it."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value  # type: ignore[return-value]
    convert = _AS_RULES_SEE.get(kind)
    if convert is not None:
        return convert(value)
    if isinstance(value, Described):
        return _described(value)
    return Opaque(value)


def _described(value: Described) -> Value:
    inner = value.value
    if isinstance(inner, int):
        if value.descriptor == "com.microsoft:timespan":
            return Span(inner // _TICKS)
        if value.descriptor == "com.microsoft:datetime-offset":
            return Instant((inner - _EPOCH_TICKS) // _TICKS)
    if isinstance(inner, str) and value.descriptor == "com.microsoft:uri":
        return str(inner)
    return Opaque(value)


def encoded(value: Value, old: object) -> bytes:
    """Encode a value for AMQP: in the type of the old one, if it fits. Raises EncodeError."""
    kind = type(old)
    if isinstance(value, Instant):
        return encode_value(Timestamp(value))
    if isinstance(value, Span):
        return encode_value(Described(Symbol("com.microsoft:timespan"), value * _TICKS))
    if isinstance(value, Opaque):
        return encode_value(value.value)
    try:
        if type(value) is int and kind in _AS_RULES_SEE and issubclass(kind, int) and kind is not Timestamp:
            return encode_value(kind(value))
        if (
            type(value) is float
            and kind is Float32
            and struct.unpack(">f", struct.pack(">f", value))[0] == value
        ):
            return encode_value(Float32(value))
        if type(value) is str and kind is Symbol and value.isascii():
            return encode_value(Symbol(value))
    except (ValueError, OverflowError):
        pass  # an EncodeError is a ValueError: it does not fit
    return encode_value(value)


def _id_text(value: object) -> str | None:
    """A field of the properties: text, or an id of another type as the broker compares it."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return binary_id(value)
    if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    return None
