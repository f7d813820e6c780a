"""Delivery states: the outcome of a delivery, in values and in bytes.

An outcome inside a transactional-state is shown as the inner outcome with `txn` set. A state without content is four bytes
(descriptor and list0). Errors always have three fields, because clients hang on two (condition, text, null).
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.amqp.codec import decode_value, encode_value, skip_value
from busbar.amqp.errors import INVALID_FIELD, AmqpError, ProtocolError
from busbar.amqp.types import Described, Symbol

RECEIVED: Final = 0x23
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
DECLARED: Final = 0x33
TRANSACTIONAL: Final = 0x34
MAX_STATE_ELEMENTS: Final = 4_096  # of all compounds of a delivery state

# The standard gives an accepted state no fields. This state is accepted with annotations, for peers that asked for it.
ANNOTATED_NAME: Final = "busbar:accepted:list"
_ANNOTATED: Final = 0x1_0000  # no numeric descriptor has this value

_ERROR: Final = 0x1D
_ERROR_NAME: Final = "amqp:error:list"
_NAMES: Final[dict[str, int]] = {
    "amqp:received:list": RECEIVED,
    "amqp:accepted:list": ACCEPTED,
    "amqp:rejected:list": REJECTED,
    "amqp:released:list": RELEASED,
    "amqp:modified:list": MODIFIED,
    "amqp:declared:list": DECLARED,
    "amqp:transactional-state:list": TRANSACTIONAL,
    ANNOTATED_NAME: _ANNOTATED,
}


@final
class Outcome:
    """A delivery state. `code` is the descriptor; within a transaction, that of the inner outcome.

    A transactional-state that carries no outcome yet has code 0x34. `state` of a declared outcome is its txn.
    """

    def __init__(
        self,
        code: i64,
        error: AmqpError | None = None,
        failed: bool = False,
        undeliverable: bool = False,
        annotations: dict[object, object] | None = None,
        txn: bytes | None = None,
    ) -> None:
        self.code = code
        self.error = error
        self.failed = failed
        self.undeliverable = undeliverable
        self.annotations = annotations
        self.txn = txn

    def __repr__(self) -> str:
        return f"Outcome(0x{self.code:02x}, {self.error!r}, txn={self.txn!r})"


# Shared: nothing changes an Outcome, and merging of dispositions relies on their identity.
_ACCEPTED: Final = Outcome(ACCEPTED)
_RELEASED: Final = Outcome(RELEASED)


def list_bytes(count: i64, content: bytes) -> bytes:
    """A list of `count` encoded values."""
    if count == 0:
        return b"\x45"
    size = len(content)
    if size <= 254 and count <= 255:
        return bytes((0xC0, size + 1, count)) + content
    return b"\xd0" + (size + 4).to_bytes(4, "big") + int(count).to_bytes(4, "big") + content


def empty_state(code: i64) -> bytes:
    return bytes((0x00, 0x53, code, 0x45))


def symbol_keys(entries: dict[object, object]) -> dict[object, object]:
    """The map with its text keys as symbols, which link properties, filters and error infos need."""
    return {Symbol(key) if isinstance(key, str) else key: value for key, value in entries.items()}


def error_bytes(error: AmqpError, limit: i64) -> bytes:
    """The error composite, its text cut to `limit` bytes so that it fits into the peer's frames."""
    text = error.description.encode("utf-8", "replace")
    description = error.description
    if len(text) > limit:
        description = text[:limit].decode("utf-8", "ignore")
    info = b"\x40" if error.info is None else encode_value(symbol_keys(error.info))
    content = encode_value(Symbol(error.condition)) + encode_value(description) + info
    return b"\x00\x53\x1d" + list_bytes(3, content)


def rejected_state(error: AmqpError, limit: i64) -> bytes:
    return b"\x00\x53\x25" + list_bytes(1, error_bytes(error, limit))


def annotated_state(annotations: dict[object, object]) -> bytes:
    """An accepted state with annotations."""
    return (
        b"\x00" + encode_value(Symbol(ANNOTATED_NAME)) + list_bytes(1, encode_value(symbol_keys(annotations)))
    )


_ACCEPTED_BYTES: Final = b"\x00\x53\x24\x45"


def binary_bytes(value: bytes) -> bytes:
    """A binary as encode_value has it."""
    size = len(value)
    return bytes((0xA0, size)) + value if size <= 255 else encode_value(value)


def declared_state(txn: bytes) -> bytes:
    return b"\x00\x53\x33" + list_bytes(1, binary_bytes(txn))


def transactional_state(txn: bytes, outcome: bytes) -> bytes:
    """A transactional-state; `outcome` is the encoded inner state, empty for none."""
    if not outcome:
        return b"\x00\x53\x34" + list_bytes(1, binary_bytes(txn))
    return b"\x00\x53\x34" + list_bytes(2, binary_bytes(txn) + outcome)


def state_at(buf: bytes, pos: i64, end: i64) -> Outcome | None:
    """The delivery state at `pos`; None for null. The caller has made sure that pos < end."""
    first: i64 = buf[pos]
    if first == 0x40:
        return None
    if first == 0 and pos + 4 <= end and buf[pos + 1] == 0x53 and buf[pos + 3] == 0x45:
        code: i64 = buf[pos + 2]
        if code == ACCEPTED:
            return _ACCEPTED
        if code == RELEASED:
            return _RELEASED
    if first == 0 and pos + 4 <= end and buf[pos + 1] == 0x53 and buf[pos + 2] == TRANSACTIONAL:
        usual = _usual_transactional(buf, pos + 3, end)
        if usual is not None:
            return usual
        content, _ = decode_value(buf, pos + 3, end, MAX_STATE_ELEMENTS)
        return _transactional(described_fields(content, "a delivery state"))
    value, _ = decode_value(buf, pos, end, MAX_STATE_ELEMENTS)
    return outcome_of(value)


def _usual_transactional(buf: bytes, pos: i64, end: i64) -> Outcome | None:
    """The transactional-state whose list is at `pos`, if it is of the usual form: a short id, alone or with accepted."""
    if pos + 5 > end or buf[pos] != 0xC0 or buf[pos + 3] != 0xA0:
        return None
    count: i64 = buf[pos + 2]
    stop: i64 = pos + 2 + buf[pos + 1]
    after: i64 = pos + 5 + buf[pos + 4]
    if stop > end or after > stop:
        return None
    if count == 1 and after == stop:
        return Outcome(TRANSACTIONAL, txn=buf[pos + 5 : after])
    if count == 2 and after + 4 == stop and buf[after:stop] == _ACCEPTED_BYTES:
        return Outcome(ACCEPTED, txn=buf[pos + 5 : after])
    return None


@final
class StateReader:
    """Reads the delivery states of one AMQP session. Those of a transaction repeat, so the last one is decoded once.

    Equal states in a row are the same Outcome. So dispositions of one transaction merge as others do."""

    def __init__(self) -> None:
        self._bytes = b""  # of the last transactional-state: a whole value, so what begins with it is equal
        self._outcome: Outcome | None = None

    def state_at(self, buf: bytes, pos: i64, end: i64) -> Outcome | None:
        """The delivery state at `pos`; None for null. The caller has made sure that pos < end."""
        if pos + 3 > end or buf[pos] != 0 or buf[pos + 1] != 0x53 or buf[pos + 2] != TRANSACTIONAL:
            return state_at(buf, pos, end)
        known: i64 = pos + len(self._bytes)
        if self._outcome is not None and known <= end and buf[pos:known] == self._bytes:
            return self._outcome
        outcome = state_at(buf, pos, end)
        self._bytes = buf[pos : skip_value(buf, pos, end)]
        self._outcome = outcome
        return outcome


def descriptor_code(descriptor: object, names: dict[str, int]) -> i64:
    """The code of a descriptor, numeric or symbolic; -1 if it is unknown."""
    if isinstance(descriptor, str):
        return names.get(descriptor, -1)
    if isinstance(descriptor, int) and 0 <= descriptor <= 0xFFFF:
        return descriptor
    return -1


def described_fields(value: object, what: str) -> list[object]:
    if isinstance(value, list):
        return value
    raise ProtocolError(INVALID_FIELD, f"{what} should be a described list, not {type(value).__name__}")


def outcome_of(value: object) -> Outcome:
    """A decoded delivery state as an Outcome."""
    if not isinstance(value, Described):
        raise ProtocolError(
            INVALID_FIELD, f"a delivery state should be a described list, not {type(value).__name__}"
        )
    code = descriptor_code(value.descriptor, _NAMES)
    fields = described_fields(value.value, "a delivery state")
    if code == ACCEPTED:
        return _ACCEPTED
    if code == RELEASED:
        return _RELEASED
    if code == _ANNOTATED:
        noted = _field(fields, 0)
        return Outcome(ACCEPTED, annotations=noted if isinstance(noted, dict) else None)
    if code == REJECTED:
        return Outcome(code, error_of(_field(fields, 0)))
    if code == MODIFIED:
        annotations = _field(fields, 2)
        return Outcome(
            code,
            failed=_field(fields, 0) is True,
            undeliverable=_field(fields, 1) is True,
            annotations=annotations if isinstance(annotations, dict) else None,
        )
    if code == TRANSACTIONAL:
        return _transactional(fields)
    if code == DECLARED:
        txn = _field(fields, 0)
        return Outcome(code, txn=txn if isinstance(txn, bytes) else b"")
    if code == RECEIVED:
        return Outcome(code)
    raise ProtocolError(INVALID_FIELD, f"{value.descriptor!r} is not the descriptor of a delivery state")


def _transactional(fields: list[object]) -> Outcome:
    txn = _field(fields, 0)
    if not isinstance(txn, bytes):
        raise ProtocolError(INVALID_FIELD, f"a transactional-state needs a binary txn-id, not {txn!r:.80}")
    inner = _field(fields, 1)
    if inner is None:
        return Outcome(TRANSACTIONAL, txn=txn)
    outcome = outcome_of(inner)
    if outcome.txn is not None:
        raise ProtocolError(INVALID_FIELD, "a transactional-state holds another one as its outcome")
    return Outcome(
        outcome.code, outcome.error, outcome.failed, outcome.undeliverable, outcome.annotations, txn
    )


def _field(fields: list[object], index: i64) -> object:
    return fields[index] if index < len(fields) else None


def error_of(value: object) -> AmqpError | None:
    """A decoded error composite; None for null. Text is accepted as symbol and the reverse."""
    if value is None:
        return None
    if not isinstance(value, Described) or (value.descriptor != _ERROR and value.descriptor != _ERROR_NAME):
        raise ProtocolError(INVALID_FIELD, "an error should be a list with the descriptor amqp:error:list")
    fields = described_fields(value.value, "an error")
    condition = _field(fields, 0)
    description = _field(fields, 1)
    info = _field(fields, 2)
    if not isinstance(condition, str):
        raise ProtocolError(INVALID_FIELD, f"an error needs a condition symbol, not {condition!r:.80}")
    return AmqpError(
        str(condition),
        str(description) if isinstance(description, str) else "",
        info if isinstance(info, dict) else None,
    )
