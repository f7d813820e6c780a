"""Finds the sections of an encoded message: one pass over constructors and lengths, nothing is decoded.

Rules (AMQP 1.0, part 3, section 3.2): header, delivery-annotations, message-annotations, properties,
application-properties, body, footer, each at most once and in this order. The body is one amqp-value, or any number
of data sections, or any number of amqp-sequence sections; a message without a body is accepted, one without any
section is not. Each section holds the kind of value that its name requires, and ends where its length ends.
One exception: the Python SDK writes delivery-annotations behind everything else. They are accepted there, and `end` is
where they begin.

A section is named by a smallulong descriptor on the fast path; ulong and symbolic descriptors are read too.
Clients read section codes at a fixed offset, so what is passed on must have smallulong descriptors
(`with_plain_descriptors`).
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64

from busbar.amqp.codec import DecodeError, read_u32, skip_descriptor, skip_value
from busbar.model.errors import MalformedMessage

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

_NAMES: Final = (
    "header",
    "delivery-annotations",
    "message-annotations",
    "properties",
    "application-properties",
    "data",
    "amqp-sequence",
    "amqp-value",
    "footer",
)
_SYMBOLS: Final[dict[bytes, int]] = {
    b"amqp:header:list": HEADER,
    b"amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    b"amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    b"amqp:properties:list": PROPERTIES,
    b"amqp:application-properties:map": APPLICATION_PROPERTIES,
    b"amqp:data:binary": DATA,
    b"amqp:amqp-sequence:list": SEQUENCE,
    b"amqp:amqp-value:*": VALUE,
    b"amqp:footer:map": FOOTER,
}


@final
class Sections:
    """Where each section starts. They lie side by side: each ends where the next one starts, and one that is
    absent has no extent. `body_code` is 0 without a body. If `plain`, all descriptors are smallulongs. From `end` to `whole`
    are delivery-annotations that stand behind everything else."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was found, before another message is looked through."""
        self.header: i64 = -1
        self.delivery_annotations: i64 = -1
        self.annotations: i64 = -1
        self.properties: i64 = -1
        self.application: i64 = -1
        self.body: i64 = -1
        self.footer: i64 = -1
        self.end: i64 = -1
        self.whole: i64 = -1
        self.body_code: i64 = 0
        self.plain: bool = True


def find_sections(buf: bytes, start: i64, end: i64) -> Sections:
    """The sections of the message in buf[start:end]. Raises MalformedMessage."""
    found = Sections()
    find_sections_again(found, buf, start, end)
    return found


def find_sections_again(found: Sections, buf: bytes, start: i64, end: i64) -> None:
    """Fill in the sections of the message in buf[start:end], so that one object serves many. Raises MalformedMessage."""
    if start < 0 or end > len(buf):
        raise MalformedMessage(f"a message at bytes {start} to {end} of {len(buf)}")
    if start >= end:
        raise MalformedMessage("the message is empty: it has no sections")
    try:
        _find(found, buf, start, end)
    except DecodeError as error:
        raise MalformedMessage(str(error)) from None


def _find(found: Sections, buf: bytes, start: i64, end: i64) -> None:
    found.reset()
    found.whole = end
    pos = start
    last: i64 = 0
    while pos < end:
        if pos + 3 < end and buf[pos] == 0 and buf[pos + 1] == 0x53:
            code: i64 = buf[pos + 2]
        else:
            code = _rare_code(buf, pos, end)
            found.plain = False
        value = pos + 3 if found.plain else value_of(buf, pos, end)
        if code < HEADER or code > FOOTER:
            raise MalformedMessage(f"0x{code:02x} at byte {pos} is not a message section")
        if code == DELIVERY_ANNOTATIONS and last > MESSAGE_ANNOTATIONS:
            _check_kind(buf, value, end, code)
            after = skip_value(buf, value, end)
            if after == end:
                end = pos
                break
        if code <= last and not (code == last and code in (DATA, SEQUENCE)):
            raise MalformedMessage(
                f"section {_NAMES[code - HEADER]} at byte {pos} stands after {_NAMES[last - HEADER]}"
            )
        _check_kind(buf, value, end, code)
        if code == HEADER:
            found.header = pos
        elif code == DELIVERY_ANNOTATIONS:
            found.delivery_annotations = pos
        elif code == MESSAGE_ANNOTATIONS:
            found.annotations = pos
        elif code == PROPERTIES:
            found.properties = pos
        elif code == APPLICATION_PROPERTIES:
            found.application = pos
        elif code == FOOTER:
            found.footer = pos
        elif found.body < 0:
            found.body = pos
            found.body_code = code
        elif found.body_code != code:
            raise MalformedMessage(
                f"a body of {_NAMES[last - HEADER]} and {_NAMES[code - HEADER]} at byte {pos}"
            )
        last = code
        pos = skip_value(buf, value, end)
    found.end = end
    _close_gaps(found)


def _close_gaps(found: Sections) -> None:
    """An absent section starts where the next one does."""
    if found.footer < 0:
        found.footer = found.end
    if found.body < 0:
        found.body = found.footer
    if found.application < 0:
        found.application = found.body
    if found.properties < 0:
        found.properties = found.application
    if found.annotations < 0:
        found.annotations = found.properties
    if found.delivery_annotations < 0:
        found.delivery_annotations = found.annotations
    if found.header < 0:
        found.header = found.delivery_annotations


def _check_kind(buf: bytes, value: i64, end: i64, code: i64) -> None:
    """Raise MalformedMessage if the section does not hold the list, map or binary of its kind."""
    if code == VALUE:
        return
    if value >= end:
        raise MalformedMessage(f"section {_NAMES[code - HEADER]} is cut off at byte {value}")
    kind: i64 = buf[value]
    if code == DATA:
        fits = kind == 0xA0 or kind == 0xB0
    elif code in (HEADER, PROPERTIES, SEQUENCE):
        fits = kind == 0xC0 or kind == 0xD0 or kind == 0x45
    else:
        fits = kind == 0xC1 or kind == 0xD1
    if not fits:
        raise MalformedMessage(f"section {_NAMES[code - HEADER]} cannot hold a value of type 0x{kind:02x}")


def _rare_code(buf: bytes, pos: i64, end: i64) -> i64:
    """The section code when the descriptor is not a smallulong."""
    if buf[pos] != 0:
        raise MalformedMessage(f"a section should start at byte {pos}, not 0x{buf[pos]:02x}")
    after = skip_descriptor(buf, pos + 1, end)
    kind: i64 = buf[pos + 1]
    if kind == 0x53:
        return buf[pos + 2]
    if kind == 0x80:
        number = read_i64_be(buf, pos + 2)
        if HEADER <= number <= FOOTER:
            return number
        raise MalformedMessage(f"0x{buf[pos + 2 : after].hex()} at byte {pos} is not a message section")
    # A ulong of zero (0x44) has no name; compiled slices must not have their start behind their end.
    name = buf[pos + 3 : after] if kind == 0xA3 else buf[pos + 6 : after] if kind == 0xB3 else b""
    code = _SYMBOLS.get(name)
    if code is None:
        raise MalformedMessage(f"{name!r} at byte {pos} is not a message section")
    return code


def value_of(buf: bytes, pos: i64, end: i64) -> i64:
    """Where the value of the section at `pos` is: behind its descriptor."""
    if pos + 3 < end and buf[pos + 1] == 0x53:
        return pos + 3
    return skip_descriptor(buf, pos + 1, end)


def open_compound(buf: bytes, value: i64, end: i64) -> tuple[i64, i64]:
    """The number of values in the list or map at `value`, which ends at `end`, and where the first of them is."""
    kind: i64 = buf[value]
    count: i64 = 0
    first: i64 = end
    if kind == 0xC0 or kind == 0xC1:
        if value + 3 > end:
            raise MalformedMessage(f"the list or map at byte {value} has no count")
        count = buf[value + 2]
        first = value + 3
    elif kind == 0xD0 or kind == 0xD1:
        if value + 9 > end:
            raise MalformedMessage(f"the list or map at byte {value} has no count")
        count = read_u32(buf, value + 5)
        first = value + 9
    if count > end - first:
        raise MalformedMessage(
            f"the list or map at byte {value} announces {count} values in {end - first} bytes"
        )
    return count, first


def check_pairs(buf: bytes, section: i64, end: i64) -> None:
    """Raise MalformedMessage if the map section at `section` does not consist of the pairs that it announces."""
    count, pos = open_compound(buf, value_of(buf, section, end), end)
    if count & 1:
        raise MalformedMessage(f"the map at byte {section} has {count} values, which are not pairs")
    while count > 0:
        pos = skip_value(buf, pos, end)
        count -= 1
    if pos != end:
        raise MalformedMessage(f"the map at byte {section} is {end - pos} bytes longer than its values")


def next_data(buf: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """Where the content of the data section at `pos` starts and ends. There the next section begins."""
    value = value_of(buf, pos, end)
    return value + (2 if buf[value] == 0xA0 else 5), skip_value(buf, value, end)


def data_sections(buf: bytes, sections: Sections) -> list[tuple[int, int]]:
    """Where the content of each data section starts and ends."""
    found: list[tuple[int, int]] = []
    if sections.body_code != DATA:
        return found
    pos = sections.body
    end = sections.footer
    while pos < end:
        start, pos = next_data(buf, pos, end)
        found.append((int(start), int(pos)))
    return found


def with_plain_descriptors(buf: bytes, start: i64, end: i64) -> bytes:
    """The message with smallulong descriptors; its values stay as they are."""
    w = BytesWriter()
    pos = start
    while pos < end:
        value = value_of(buf, pos, end)
        w.append(0)
        w.append(0x53)
        w.append(_rare_code(buf, pos, end))
        pos = skip_value(buf, value, end)
        w.write(buf[value:pos])
    return w.getvalue()
