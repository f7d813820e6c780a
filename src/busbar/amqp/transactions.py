"""What a client asks of a transaction coordinator: `declare` and `discharge`, in values and in bytes.

The client sends them as messages on a link whose target is a coordinator (AMQP 1.0, part 4). The message has one
amqp-value section that holds the described list; other sections may stand around it. Rules:
1. The receiver of bytes that are neither gets a ProtocolError, and no other exception.
2. A declare may name a global transaction. The caller refuses it; the engine passes it on.
3. A discharge needs a binary txn-id. `fail` is false if it is missing.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.amqp.codec import DecodeError, decode_value
from busbar.amqp.errors import DECODE_ERROR, INVALID_FIELD, NOT_IMPLEMENTED, ProtocolError
from busbar.amqp.outcomes import binary_bytes, described_fields, descriptor_code, list_bytes
from busbar.amqp.types import Described

DECLARE: Final = 0x31
DISCHARGE: Final = 0x32
LOCAL_TRANSACTIONS: Final = "amqp:local-transactions"
MULTIPLE_TRANSACTIONS: Final = "amqp:multi-txns-per-ssn"
MULTIPLE_SESSIONS: Final = "amqp:multi-ssns-per-txn"
"""Capabilities of a coordinator: its transactions, many at a time, with links on any AMQP session of the connection."""
MAX_REQUEST_ELEMENTS: Final = 256  # of all compounds of a request to a coordinator

_VALUE: Final = 0x77
_LAST_SECTION: Final = 0x78
_NAMES: Final[dict[str, int]] = {
    "amqp:declare:list": DECLARE,
    "amqp:discharge:list": DISCHARGE,
    "amqp:header:list": 0x70,
    "amqp:delivery-annotations:map": 0x71,
    "amqp:message-annotations:map": 0x72,
    "amqp:properties:list": 0x73,
    "amqp:application-properties:map": 0x74,
    "amqp:amqp-value:*": _VALUE,
    "amqp:footer:map": _LAST_SECTION,
}


@final
class CoordinatorRequest:
    """A declare (`code` 0x31) or a discharge (0x32) of the transaction `txn`; with `fail` it is to be rolled back."""

    def __init__(self, code: i64, txn: bytes, fail: bool, has_global_id: bool) -> None:
        self.code = code
        self.txn = txn
        self.fail = fail
        self.has_global_id = has_global_id


_DECLARE_MESSAGE: Final = b"\x00\x53\x77\x00\x53\x31\x45"
_DISCHARGE_PREFIX: Final = b"\x00\x53\x77\x00\x53\x32"


def declare_message() -> bytes:
    """The message that asks for a new transaction."""
    return _DECLARE_MESSAGE


def discharge_message(txn: bytes, fail: bool) -> bytes:
    """The message that ends a transaction: commits it, or rolls it back if `fail`."""
    fields = binary_bytes(txn) + (b"\x41" if fail else b"\x42")
    return _DISCHARGE_PREFIX + list_bytes(2, fields)


def coordinator_request(payload: bytes) -> CoordinatorRequest:
    """The request in a message to a coordinator. Raises ProtocolError."""
    if payload == _DECLARE_MESSAGE:
        return CoordinatorRequest(DECLARE, b"", False, False)
    try:
        if payload.startswith(_DISCHARGE_PREFIX):  # the section and the list have the short descriptors
            usual = _usual_discharge(payload)
            if usual is not None:
                return usual
            value, _ = decode_value(payload, len(_DISCHARGE_PREFIX), len(payload), MAX_REQUEST_ELEMENTS)
            return _request_of(DISCHARGE, value)
        section = _value_section(payload)
    except DecodeError as undecodable:
        raise ProtocolError(DECODE_ERROR, str(undecodable)) from None
    if not isinstance(section, Described):
        raise ProtocolError(
            NOT_IMPLEMENTED, f"a coordinator takes declare and discharge, not a {type(section).__name__}"
        )
    code = descriptor_code(section.descriptor, _NAMES)
    if code != DECLARE and code != DISCHARGE:
        raise ProtocolError(
            NOT_IMPLEMENTED, f"a coordinator takes declare and discharge, not {section.descriptor!r:.80}"
        )
    return _request_of(code, section.value)


def _usual_discharge(payload: bytes) -> CoordinatorRequest | None:
    """A discharge whose list has the usual form: a short id, and a boolean of one byte."""
    at: i64 = len(_DISCHARGE_PREFIX)
    end: i64 = len(payload)
    if end < at + 6 or payload[at] != 0xC0 or payload[at + 2] != 2 or payload[at + 3] != 0xA0:
        return None
    stop: i64 = at + 5 + payload[at + 4]
    if at + 2 + payload[at + 1] != end or stop + 1 != end:
        return None
    flag = payload[stop]
    if flag != 0x41 and flag != 0x42:
        return None
    return CoordinatorRequest(DISCHARGE, payload[at + 5 : stop], flag == 0x41, False)


def _request_of(code: i64, value: object) -> CoordinatorRequest:
    """The request with this descriptor and these fields."""
    fields = described_fields(value, "a request to a coordinator")
    first = fields[0] if len(fields) > 0 else None
    if code == DECLARE:
        return CoordinatorRequest(code, b"", False, first is not None)
    if not isinstance(first, bytes):
        raise ProtocolError(INVALID_FIELD, f"a discharge needs a binary txn-id, not {first!r:.80}")
    fail = fields[1] if len(fields) > 1 else None
    if fail is not None and not isinstance(fail, bool):
        raise ProtocolError(INVALID_FIELD, f"discharge.fail is {fail!r:.80}; it should be a boolean")
    return CoordinatorRequest(code, first, fail is True, False)


def _value_section(payload: bytes) -> object:
    """What the amqp-value section of a message holds."""
    pos: i64 = 0
    end: i64 = len(payload)
    while pos < end:
        section, pos = decode_value(payload, pos, end, MAX_REQUEST_ELEMENTS)
        if not isinstance(section, Described):
            raise ProtocolError(DECODE_ERROR, "a request to a coordinator is not made of sections")
        code = descriptor_code(section.descriptor, _NAMES)
        if code == _VALUE:
            return section.value
        if code < 0x70 or code > _LAST_SECTION:
            raise ProtocolError(
                DECODE_ERROR, f"{section.descriptor!r:.80} is not the descriptor of a section"
            )
    raise ProtocolError(DECODE_ERROR, "a request to a coordinator has no amqp-value section")
