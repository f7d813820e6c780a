"""Selects messages of a tap page, and the parts of them that a reader needs.

Rules
- All conditions have to hold. A condition on a field or a property is a list of values, one of which has to be equal.
- Texts are equal byte by byte, as UTF-8; a symbol equals a string. Numbers are equal by value, whatever their AMQP type.
- A property that was changed after the send (the overlay) counts as changed. A property that is absent, or null, equals only
  None.
- A message without its body has an empty body of the same kind, so that a reader still sees which kind it was. Its footer
  and its delivery annotations are left out with the body.
- The messages keep their order and their heads.
- A page is read once, however many conditions and values there are.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_f32_be, read_f64_be, read_i64_be
from mypy_extensions import i64

from busbar.amqp.codec import DecodeError, read_u32, skip_value, write_u32
from busbar.message.parsing import DELIVERY
from busbar.message.sections import DATA, SEQUENCE, VALUE, Sections, find_sections, open_compound, value_of
from busbar.model.errors import InternalError
from busbar.model.message import Overlay
from busbar.model.tap_page import CONTENT_SIZE, HEAD
from busbar.pages.column_buffers import integer, is_integer, text_of

SUBJECT: Final = 3
SESSION: Final = 10
"""Numbers of fields in the properties section."""

MAX_PROPERTIES: Final = 32

_CONTENT_HEAD: Final = 8
_LANE: Final = 36  # its offset in a head
_ENQUEUED: Final = 16
_NULL: Final = 0x40
_EMPTY_DATA: Final = b"\x00\x53\x75\xa0\x00"
_EMPTY_SEQUENCE: Final = b"\x00\x53\x76\x45"
_VALUE: Final = b"\x00\x53\x77"


@final
class FieldCondition:
    """A field of the properties section, and the texts that it may have."""

    def __init__(self, field: i64, texts: set[bytes]) -> None:
        self.field = field
        self.texts = texts


@final
class PropertyCondition:
    """An application property, and the values that it may have. `booleans` has bit 0 for false, bit 1 for true."""

    def __init__(
        self,
        name: str,
        texts: set[bytes],
        integers: set[int],
        doubles: set[float],
        booleans: i64,
        absent: bool,
    ) -> None:
        self.name = name
        self.bit: i64 = 0  # identifies it among the conditions of a selector
        self.texts = texts
        self.integers = integers
        self.doubles = doubles
        self.booleans = booleans
        self.absent = absent

    def accepts(self, buf: bytes, pos: i64, end: i64) -> bool:
        """Whether the value at buf[pos:end] is one of the values."""
        code: i64 = buf[pos] if pos < end else _NULL
        if code == _NULL:
            return self.absent
        text = text_of(buf, pos, end)
        if text is not None:
            return text in self.texts
        if is_integer(code):
            return integer(buf, pos) in self.integers
        if code == 0x41 or (code == 0x56 and buf[pos + 1] == 1):
            return self.booleans & 2 != 0
        if code == 0x42 or code == 0x56:
            return self.booleans & 1 != 0
        if code == 0x82:
            return read_f64_be(buf, pos + 1) in self.doubles
        if code == 0x72:
            return read_f32_be(buf, pos + 1) in self.doubles
        return False


@final
class PageSelector:
    """Selects from one page. `lanes` has a bit for each lane, or is 0 for all. `since` and `until` are enqueued times, both
    included."""

    def __init__(
        self,
        bodies: bool,
        application: bool,
        lanes: i64,
        since: i64,
        until: i64,
        fields: list[FieldCondition],
        properties: list[PropertyCondition],
    ) -> None:
        self.count: i64 = 0  # the messages that were selected
        self._bodies = bodies
        self.application = application
        self._lanes = lanes
        self._since = since
        self._until = until
        self._fields = fields
        if len(properties) > MAX_PROPERTIES:
            raise InternalError(
                f"{len(properties)} properties are selected by; at most {MAX_PROPERTIES} can be"
            )
        self._by_name: dict[bytes, PropertyCondition] = {}
        self._present: i64 = 0  # the bits of conditions that an absent property does not meet
        bit: i64 = 1
        for condition in properties:
            condition.bit = bit
            self._by_name[condition.name.encode("utf-8", "replace")] = condition
            if not condition.absent:
                self._present |= bit
            bit <<= 1
        self._trims = not (bodies and application)
        self._heads = BytesWriter()
        self._contents = BytesWriter()

    def heads(self) -> bytes:
        return self._heads.getvalue()

    def contents(self) -> list[bytes]:
        """The contents of the selected messages, in one piece."""
        return [self._contents.getvalue()] if self.count > 0 else []

    def select(self, heads: bytes, contents: list[bytes], overlays: dict[int, Overlay]) -> None:
        """Add the messages of a page (model/tap_page.py) for which all conditions hold. Raises MalformedMessage for contents
        that the broker has not accepted."""
        piece = b""
        taken: i64 = 0
        at: i64 = 0
        pos: i64 = 0
        end: i64 = len(heads)
        while pos < end:
            size = read_u32(heads, pos + CONTENT_SIZE)
            if at == len(piece) and size > 0:
                piece = contents[taken]
                taken += 1
                at = 0
            if at + size > len(piece) or size < _CONTENT_HEAD:
                raise InternalError(f"a content of {size} bytes was read as {len(piece) - at}")
            lane: i64 = heads[pos + _LANE]
            enqueued = read_i64_be(heads, pos + _ENQUEUED)
            if (
                (self._lanes == 0 or self._lanes >> lane & 1 == 1)
                and enqueued >= self._since
                and enqueued <= self._until
            ):
                overlay = overlays.get(read_i64_be(heads, pos)) if overlays else None
                self._add(heads, pos, piece, at, at + size, overlay)
            at += size
            pos += HEAD

    def _add(self, heads: bytes, pos: i64, buf: bytes, start: i64, end: i64, overlay: Overlay | None) -> None:
        size = end - start
        if self._trims or self._fields or self._by_name:
            bare = start + _CONTENT_HEAD + read_u32(buf, start + 4)
            if bare > end:
                raise InternalError("a content that is shorter than its annotations")
            found = find_sections(buf, bare, end) if bare < end else _no_sections(end)
            try:
                if not self._holds(buf, found, overlay):
                    return
                if self._trims:
                    size = self._write_parts(buf, start, bare, found)
                else:
                    self._contents.write(buf[start:end])
            except DecodeError as error:
                raise InternalError(str(error)) from None
        else:
            self._contents.write(buf[start:end])
        self._heads.write(heads[pos : pos + CONTENT_SIZE])
        write_u32(self._heads, size)
        self.count += 1

    def _holds(self, buf: bytes, found: Sections, overlay: Overlay | None) -> bool:
        for field in self._fields:
            if not _field_holds(field, buf, found):
                return False
        return not self._by_name or self._properties_hold(buf, found, overlay)

    def _properties_hold(self, buf: bytes, found: Sections, overlay: Overlay | None) -> bool:
        met: i64 = 0
        if overlay is not None:
            for name, changed in overlay.items():
                condition = self._by_name.get(name.encode("utf-8", "replace"))
                if condition is not None:
                    if not condition.accepts(changed, 0, len(changed)):
                        return False
                    met |= condition.bit
        if found.application < found.body:
            stop = found.body
            count, pos = open_compound(buf, value_of(buf, found.application, stop), stop)
            while count > 1:
                value = skip_value(buf, pos, stop)
                after = skip_value(buf, value, stop)
                key = text_of(buf, pos, value)
                condition = None if key is None else self._by_name.get(key)
                if condition is not None and met & condition.bit == 0:
                    if not condition.accepts(buf, value, after):
                        return False
                    met |= condition.bit
                pos = after
                count -= 2
        return self._present & ~met == 0

    def _write_parts(self, buf: bytes, start: i64, bare: i64, found: Sections) -> i64:
        """Write the parts of a content that are needed. Returns their size."""
        w = self._contents
        w.append(buf[start] & ~DELIVERY)
        w.write(buf[start + 1 : found.application])
        size = found.application - start
        if self.application:
            w.write(buf[found.application : found.body])
            size += found.body - found.application
        body = _empty_body(buf, found)
        if self._bodies:
            body = buf[found.body : found.end]
        w.write(body)
        return size + len(body)


def _no_sections(end: i64) -> Sections:
    found = Sections()
    found.properties = end
    found.application = end
    found.body = end
    found.footer = end
    found.end = end
    return found


def _empty_body(buf: bytes, found: Sections) -> bytes:
    code = found.body_code
    if code == DATA:
        return _EMPTY_DATA
    if code == SEQUENCE:
        return _EMPTY_SEQUENCE
    if code == VALUE:
        value = value_of(buf, found.body, found.footer)
        kind: i64 = buf[value] if value < found.footer else _NULL
        if kind == 0xA1 or kind == 0xB1:
            return _VALUE + b"\xa1\x00"
        if kind == 0xA0 or kind == 0xB0:
            return _VALUE + b"\xa0\x00"
        return _VALUE + b"\x40"
    return b""


def _field_holds(condition: FieldCondition, buf: bytes, found: Sections) -> bool:
    stop = found.application
    if found.properties >= stop:
        return False
    count, pos = open_compound(buf, value_of(buf, found.properties, stop), stop)
    i: i64 = 0
    while i < count:
        after = skip_value(buf, pos, stop)
        if i == condition.field:
            text = text_of(buf, pos, after)
            return text is not None and text in condition.texts
        pos = after
        i += 1
    return False
