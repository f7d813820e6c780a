"""The performatives that come once per connection, session or link, through the generic codec.

Descriptors are read numeric and symbolic. Fields are read by rule. A mandatory field that is null, or one of another type or
outside its range, is amqp:invalid-field. The text names field, value and rule. Trailing fields may be missing. Text
is accepted as symbol and the reverse, and integers of any width.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.amqp.codec import decode_value, encode_value, skip_value
from busbar.amqp.errors import DECODE_ERROR, INVALID_FIELD, ProtocolError
from busbar.amqp.frames import list_at
from busbar.amqp.outcomes import descriptor_code, list_bytes, symbol_keys
from busbar.amqp.types import Array, Described, Symbol, UInt, ULong, UShort

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18
SASL_MECHANISMS: Final = 0x40
SASL_INIT: Final = 0x41
SASL_CHALLENGE: Final = 0x42
SASL_RESPONSE: Final = 0x43
SASL_OUTCOME: Final = 0x44

SOURCE: Final = 0x28
TARGET: Final = 0x29
COORDINATOR: Final = 0x30

_NAMES: Final[dict[str, int]] = {
    "amqp:open:list": OPEN,
    "amqp:begin:list": BEGIN,
    "amqp:attach:list": ATTACH,
    "amqp:flow:list": FLOW,
    "amqp:transfer:list": TRANSFER,
    "amqp:disposition:list": DISPOSITION,
    "amqp:detach:list": DETACH,
    "amqp:end:list": END,
    "amqp:close:list": CLOSE,
    "amqp:sasl-mechanisms:list": SASL_MECHANISMS,
    "amqp:sasl-init:list": SASL_INIT,
    "amqp:sasl-challenge:list": SASL_CHALLENGE,
    "amqp:sasl-response:list": SASL_RESPONSE,
    "amqp:sasl-outcome:list": SASL_OUTCOME,
}
_TERMINUS_NAMES: Final[dict[str, int]] = {
    "amqp:source:list": SOURCE,
    "amqp:target:list": TARGET,
    "amqp:coordinator:list": COORDINATOR,
}
_MAX_UINT: Final = 0xFFFFFFFF
MAX_FIELD_ELEMENTS: Final = 4_096  # of all compounds of a performative


def performative_at(buf: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """The descriptor code of the performative at `pos` and where its list starts."""
    if pos + 3 < end and buf[pos] == 0 and buf[pos + 1] == 0x53:
        code: i64 = buf[pos + 2]
        return code, pos + 3
    if pos >= end or buf[pos] != 0:
        raise ProtocolError(DECODE_ERROR, f"the frame body at byte {pos} is not a described list")
    descriptor, after = decode_value(buf, pos + 1, end, MAX_FIELD_ELEMENTS)
    return descriptor_code(descriptor, _NAMES), after


@final
class Fields:
    """The fields of one performative, read by index and name."""

    def __init__(self, what: str, buf: bytes, pos: i64, end: i64) -> None:
        value, after = decode_value(buf, pos, end, MAX_FIELD_ELEMENTS)
        if not isinstance(value, list):
            raise ProtocolError(DECODE_ERROR, f"{what} should be a list, not {type(value).__name__}")
        if after != end:
            raise ProtocolError(DECODE_ERROR, f"{end - after} bytes follow {what} in its frame")
        self.what = what
        self.values: list[object] = value

    def any(self, index: i64) -> object:
        return self.values[index] if index < len(self.values) else None

    def refuse(self, name: str, value: object, rule: str) -> ProtocolError:
        if value is None:
            return ProtocolError(INVALID_FIELD, f"{self.what}.{name} is missing; it should be {rule}")
        return ProtocolError(INVALID_FIELD, f"{self.what}.{name} is {value!r:.80}; it should be {rule}")

    def uint(self, index: i64, name: str, most: i64) -> i64:
        value = self.any(index)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
            return value
        raise self.refuse(name, value, f"an integer from 0 to {most}")

    def uint_or(self, index: i64, name: str, most: i64, default: i64) -> i64:
        return default if self.any(index) is None else self.uint(index, name, most)

    def text(self, index: i64, name: str) -> str:
        value = self.any(index)
        if isinstance(value, str):
            return str(value)
        raise self.refuse(name, value, "a string")

    def text_or_none(self, index: i64, name: str) -> str | None:
        return None if self.any(index) is None else self.text(index, name)

    def flag(self, index: i64, name: str) -> bool:
        value = self.any(index)
        if isinstance(value, bool):
            return value
        raise self.refuse(name, value, "a boolean")

    def flag_or(self, index: i64, name: str, default: bool) -> bool:
        return default if self.any(index) is None else self.flag(index, name)

    def map_or_none(self, index: i64, name: str) -> dict[object, object] | None:
        value = self.any(index)
        if value is None or isinstance(value, dict):
            return value
        raise self.refuse(name, value, "a map")

    def symbols(self, index: i64, name: str) -> list[str]:
        """A `multiple` field: null, one symbol or an array of them."""
        value = self.any(index)
        if value is None:
            return []
        if isinstance(value, str):
            return [str(value)]
        items = value.items if isinstance(value, Array) else value
        if isinstance(items, list) and all(isinstance(item, str) for item in items):
            return [str(item) for item in items]
        raise self.refuse(name, value, "a symbol or an array of symbols")


@final
class Terminus:
    """A source or target. `raw` is its encoding as received, which an accepting attach echoes."""

    def __init__(
        self,
        address: str | None,
        filter: dict[object, object] | None = None,
        dynamic: bool = False,
        durable: i64 = 0,
        capabilities: list[str] | None = None,
        coordinator: bool = False,
        raw: bytes = b"",
    ) -> None:
        self.address = address
        self.filter = filter
        self.dynamic = dynamic
        self.durable = durable
        self.capabilities = capabilities
        self.coordinator = coordinator
        self.raw = raw

    def shed(self, answered: bool) -> None:
        self.filter = None
        self.capabilities = None
        if answered:
            self.raw = b""

    def encoded(self, code: i64) -> bytes:
        """The terminus in bytes: as received, or made for the descriptor `code` (source or target)."""
        if self.raw:
            return self.raw
        capabilities: object = None
        if self.capabilities:
            capabilities = Array(0xA3, [Symbol(name) for name in self.capabilities])
        if self.coordinator:
            return b"\x00\x53\x30" + encode_value([capabilities])
        fields: list[object] = [self.address, UInt(self.durable) if self.durable else None]
        fields += [None, None, True if self.dynamic else None, None]
        if code == SOURCE:
            described = None if self.filter is None else symbol_keys(self.filter)
            fields += [None, described, None, None, capabilities]
        else:
            fields.append(capabilities)
        while len(fields) > 1 and fields[-1] is None:
            fields.pop()
        return bytes((0x00, 0x53, code)) + encode_value(fields)


def terminus_of(value: object, raw: bytes) -> Terminus | None:
    """A decoded source, target or coordinator."""
    if value is None:
        return None
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise ProtocolError(INVALID_FIELD, f"a terminus should be a described list, not {value!r:.80}")
    code = descriptor_code(value.descriptor, _TERMINUS_NAMES)
    fields: list[object] = value.value
    if code == COORDINATOR:
        return Terminus(None, None, False, 0, _capabilities(fields, 0), True, raw)
    if code != SOURCE and code != TARGET:
        raise ProtocolError(INVALID_FIELD, f"{value.descriptor!r:.80} is not the descriptor of a terminus")
    address = fields[0] if fields else None
    if address is not None and not isinstance(address, str):
        raise ProtocolError(INVALID_FIELD, f"the address {address!r:.80} of a terminus should be a string")
    durable = fields[1] if len(fields) > 1 else None
    filter = fields[7] if code == SOURCE and len(fields) > 7 else None
    return Terminus(
        None if address is None else str(address),
        filter if isinstance(filter, dict) else None,
        len(fields) > 4 and fields[4] is True,
        durable if isinstance(durable, int) and 0 <= durable <= 2 else 0,
        _capabilities(fields, 10 if code == SOURCE else 6),
        False,
        raw,
    )


def _capabilities(fields: list[object], index: i64) -> list[str] | None:
    value = fields[index] if index < len(fields) else None
    items = value.items if isinstance(value, Array) else [value]
    return [str(item) for item in items if isinstance(item, str)] or None


def raw_field(buf: bytes, pos: i64, end: i64, index: i64) -> bytes:
    """The encoding of one field of the list at `pos`; empty when it is not there or null."""
    count, at, stop = list_at(buf, pos, end)
    i: i64 = 0
    while i < count:
        after = skip_value(buf, at, stop)
        if i == index:
            return b"" if buf[at] == 0x40 else buf[at:after]
        at = after
        i += 1
    return b""


def with_filter(source: bytes, filter: dict[object, object]) -> bytes:
    """The encoded source with its filter (field 7) replaced and all other fields literally kept."""
    size: i64 = len(source)
    after = skip_value(source, 1, size)
    count, at, stop = list_at(source, after, size)
    parts: list[bytes] = []
    i: i64 = 0
    while i < count or i < 8:
        if i < count:
            nxt = skip_value(source, at, stop)
            parts.append(source[at:nxt])
            at = nxt
        else:
            parts.append(b"\x40")
        i += 1
    parts[7] = encode_value(symbol_keys(filter))
    return source[:after] + list_bytes(len(parts), b"".join(parts))


def _performative(code: i64, fields: list[object]) -> bytes:
    while fields and fields[-1] is None:
        fields.pop()
    return bytes((0x00, 0x53, code)) + encode_value(fields)


def open_body(
    container_id: str,
    hostname: str | None,
    max_frame_size: i64,
    channel_max: i64,
    idle_timeout: i64,
    properties: dict[object, object] | None,
) -> bytes:
    fields: list[object] = [container_id, hostname, UInt(max_frame_size), UShort(channel_max)]
    fields += [UInt(idle_timeout) if idle_timeout else None, None, None, None, None]
    fields.append(symbol_keys(properties) if properties else None)
    return _performative(OPEN, fields)


def begin_body(
    remote_channel: i64, next_outgoing: i64, incoming_window: i64, outgoing_window: i64, handle_max: i64
) -> bytes:
    answered = None if remote_channel < 0 else UShort(remote_channel)
    fields: list[object] = [answered, UInt(next_outgoing), UInt(incoming_window), UInt(outgoing_window)]
    fields.append(UInt(handle_max))
    return _performative(BEGIN, fields)


def attach_body(
    name: str,
    handle: i64,
    receiver: bool,
    snd_settle_mode: i64,
    rcv_settle_mode: i64,
    source: bytes,
    target: bytes,
    max_message_size: i64,
    properties: dict[object, object] | None,
    offered_capabilities: list[str] | None = None,
    desired_capabilities: list[str] | None = None,
) -> bytes:
    """An attach. Empty source and target are null: a refusal. As the sender it starts to count at 0."""
    parts = [encode_value(name), encode_value(UInt(handle)), b"\x41" if receiver else b"\x42"]
    parts.append(bytes((0x50, snd_settle_mode)))
    parts.append(bytes((0x50, rcv_settle_mode)))
    parts.append(source or b"\x40")
    parts.append(target or b"\x40")
    parts += [b"\x40", b"\x40", b"\x40" if receiver else b"\x43"]
    if source or target:
        parts.append(encode_value(ULong(max_message_size)) if max_message_size else b"\x40")
        parts += [_symbols(offered_capabilities), _symbols(desired_capabilities)]
        parts.append(b"\x40" if properties is None else encode_value(symbol_keys(properties)))
    return b"\x00\x53\x12" + list_bytes(len(parts), b"".join(parts))


def _symbols(names: list[str] | None) -> bytes:
    """A `multiple` field."""
    return encode_value(Array(0xA3, [Symbol(name) for name in names])) if names else b"\x40"


def detach_body(handle: i64, closed: bool, error: bytes) -> bytes:
    flag = b"\x41" if closed else b"\x42"
    return b"\x00\x53\x16" + list_bytes(3 if error else 2, encode_value(UInt(handle)) + flag + error)


def end_body(error: bytes) -> bytes:
    return b"\x00\x53\x17" + list_bytes(1 if error else 0, error)


def close_body(error: bytes) -> bytes:
    return b"\x00\x53\x18" + list_bytes(1 if error else 0, error)
