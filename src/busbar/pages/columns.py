"""Rows of a tap page (rows.py has the format) as columns: the buffers of Arrow arrays.

For readers that need whole columns and not messages. Nothing is decoded into Python values; bytes go from the page to the
columns. Bodies and whole messages stay in the page, and their columns have the positions. Integers are little-endian, as in
Arrow; a bitmap has the first row in its lowest bit.

The rules, for contents that a broker has accepted:

- Text that is not UTF-8 has its bad bytes replaced. A field of another type than its own is null.
- An id (message-id, correlation-id) is text: a uuid and a ulong in their usual notation, a binary as its UTF-8 text or, if
  that is not printable, in hexadecimal.
- A property is its AMQP type by name and a value in the field that holds its kind. The fields are `text` (string, symbol,
  char, uuid), `long` (all integers), `double` (float, double), `boolean`, `time` (timestamp, in µs), and `binary`. The last
  one holds binary and decimals, and lists, maps, arrays and described values as they are encoded. If a value does not fit,
  it goes to another field: a ulong above the largest long is text, a timestamp that µs cannot hold is a long of ms.
- Properties that were changed after the send (the overlay) replace those of the same name.
- The body is one of these: data sections joined ("data"), or a text or binary amqp-value without its constructor ("string",
  "binary"). Any other amqp-value is as it is encoded ("value"), and so are sequence sections ("sequence"). Without a body it
  is null.
"""

from __future__ import annotations

from typing import Final, final
from uuid import UUID

from librt.strings import BytesWriter, read_i16_be, read_i32_be, read_i64_be, write_i32_le
from mypy_extensions import i32, i64

from busbar.amqp.codec import DecodeError, read_u32, skip_value, write_u32
from busbar.message.parsing import DURABLE, ENQUEUED, PRIORITY, VERSION, binary_id
from busbar.message.sections import DATA, SEQUENCE, VALUE, Sections, find_sections, open_compound, value_of
from busbar.model.errors import MalformedMessage
from busbar.model.tap_page import CONTENT_SIZE, HEAD, OVERLAY_SIZE
from busbar.pages.column_buffers import (
    MAX_MICROSECONDS,
    Cuts,
    Longs,
    Properties,
    Texts,
    integer,
    is_integer,
    text_of,
    utf8,
)
from busbar.pages.rows import run_heads_end

EVENT_HEAD: Final = 37
_CONTENT_HEAD: Final = 8
_ENQUEUED_SIZE: Final = 40
_HEADER: Final = b"\x00\x53\x70\xc0"
_ANNOTATIONS: Final = b"\x00\x53\x72\xd1"

# What is read of each message besides its head: bits of `needs`.
FIELDS: Final = 1  # the properties section
APPLICATION: Final = 2  # application properties
REASONS: Final = 4  # why it was dead-lettered
KEYS: Final = 8  # partition key and scheduled time
ANNOTATIONS: Final = 16
BODY_TYPE: Final = 32
BODY: Final = 64
RAW: Final = 128
ALL: Final = 255
_OF_SECTIONS: Final = FIELDS | APPLICATION | REASONS | BODY_TYPE | BODY | RAW

_NUMBER_BITS: Final = 48
_NULL: Final = 0x40

_PARTITION_KEY: Final = b"x-opt-partition-key"
_SCHEDULED: Final = b"x-opt-scheduled-enqueue-time"
_REASON: Final = b"DeadLetterReason"
_DESCRIPTION: Final = b"DeadLetterErrorDescription"


@final
class MessageColumns:
    """The messages of a page of one fragment as columns. Without bodies, neither `body` nor `raw` has values.

    `needs` has the parts of messages that are read; columns of other parts stay empty. A raw message is its part in
    `raw_heads` followed by its part in `raw`.
    """

    def __init__(self, index: i64, bodies: bool, needs: i64 = ALL) -> None:
        self.base: i64 = index << _NUMBER_BITS
        self.needs: i64 = needs if bodies else needs & ~(BODY | RAW)
        self.count: i64 = 0
        self.size: i64 = 0  # of the rows that were added, in bytes
        self.last: i64 = 0  # the number of the last message, without the index of its fragment
        self.numbers = Longs()
        self.dead_numbers = Longs()
        self.enqueued = Longs()
        self.expires = Longs()
        self.scheduled = Longs()
        self.deliveries = BytesWriter()
        self.lanes = BytesWriter()
        self.message_ids = Texts()
        self.session_ids = Texts()
        self.partition_keys = Texts()
        self.correlation_ids = Texts()
        self.subjects = Texts()
        self.content_types = Texts()
        self.to = Texts()
        self.reply_to = Texts()
        self.reply_to_session_ids = Texts()
        self.reasons = Texts()
        self.descriptions = Texts()
        self.properties = Properties()
        self.annotations = Properties()
        self.body = Cuts()
        self.body_types = Texts()
        self.raw_heads = Texts()
        self.raw = Cuts()
        self._head_of: i64 = 0  # the fields of the current head
        self._head_size: i64 = 0
        self._head = b""

    def add_rows(self, rows: bytes) -> None:
        """Add all rows of the page. Raises MalformedMessage if they are not in the format of rows.py."""
        self.body.page = rows
        self.raw.page = rows
        start: i64 = 0
        size: i64 = len(rows)
        try:
            while start < size:
                pos = start + 4
                heads_end = run_heads_end(rows, start)
                at = heads_end
                while pos < heads_end:
                    overlay_end = at + read_u32(rows, pos + OVERLAY_SIZE)
                    end = overlay_end + read_u32(rows, pos + CONTENT_SIZE)
                    if end > size or overlay_end + _CONTENT_HEAD > end:
                        raise MalformedMessage(f"the message at byte {pos} has lengths that cannot be")
                    self._row(rows, pos, at, overlay_end, end)
                    pos += HEAD
                    at = end
                start = at
        except DecodeError as error:
            raise MalformedMessage(str(error)) from None
        self.size += size

    def _row(self, buf: bytes, pos: i64, overlay: i64, overlay_end: i64, end: i64) -> None:
        """Add the message with the head at `pos`; its content begins where its overlay ends."""
        n = read_i64_be(buf, pos)
        dead = read_i64_be(buf, pos + 8)
        enqueued = read_i64_be(buf, pos + 16)
        ttl = read_i64_be(buf, pos + 24)
        row = self.count
        self.count += 1
        self.last = n
        self.numbers.add(row, self.base | n)
        if dead > 0:
            self.dead_numbers.add(row, dead)
        self.enqueued.add(row, enqueued * 1000)
        # An unlimited ttl would not fit; Service Bus's largest one does not either.
        if ttl > 0 and ttl < MAX_MICROSECONDS - enqueued:
            self.expires.add(row, (enqueued + ttl) * 1000)
        write_i32_le(self.deliveries, i32(read_i32_be(buf, pos + 32)))
        self.lanes.append(buf[pos + 36])
        if buf[overlay_end] & 0xF0 != VERSION:
            raise MalformedMessage(f"the content of message {n} has version {buf[overlay_end] >> 4}")
        kept = overlay_end + _CONTENT_HEAD
        kept_count: i64 = i64(read_i16_be(buf, overlay_end + 2)) & 0xFFFF
        bare = kept + read_u32(buf, overlay_end + 4)
        if bare > end:
            raise MalformedMessage(f"the annotations of message {n} are cut off")
        needs = self.needs
        if needs & (KEYS | ANNOTATIONS):
            self._annotations(row, buf, kept, bare, kept_count)
        if not needs & _OF_SECTIONS:
            return
        # A message without a section is a row all the same, though brokers give each message an id.
        found = find_sections(buf, bare, end) if bare < end else Sections()
        if needs & FIELDS:
            self._fields(row, buf, found)
        if needs & (APPLICATION | REASONS):
            self._application(row, buf, found, overlay, overlay_end)
        if needs & (BODY_TYPE | BODY):
            self._body(row, buf, found)
        if needs & RAW:
            flags: i64 = buf[overlay_end] & (DURABLE | PRIORITY)
            if buf[overlay_end] & ENQUEUED and kept_count >= 2 and bare >= kept + _ENQUEUED_SIZE:
                kept += _ENQUEUED_SIZE  # a topic's number is not part of what a client would send
                kept_count -= 2
            if flags != 0 or bare > kept:
                self.raw_heads.add(row, self._raw_head(flags, buf[overlay_end + 1], kept_count, bare - kept))
            self.raw.add(row, kept, end if found.end < 0 else found.end)  # without delivery annotations

    def _raw_head(self, flags: i64, priority: i64, count: i64, size: i64) -> bytes:
        """`raw_head`, re-created only if it differs from the last message's."""
        made_of = flags << 24 | priority << 16 | count
        if made_of != self._head_of or size != self._head_size:
            self._head = raw_head(flags, priority, count, size)
            self._head_of = made_of
            self._head_size = size
        return self._head

    def _annotations(self, row: i64, buf: bytes, pos: i64, end: i64, count: i64) -> None:
        scheduled: i64 = 0
        keyed = False
        needed = self.needs & ANNOTATIONS != 0
        while count > 1 and pos < end:
            value = skip_value(buf, pos, end)
            after = skip_value(buf, value, end)
            name = text_of(buf, pos, value)
            if name is not None:
                if name == _PARTITION_KEY and not keyed:
                    key = text_of(buf, value, after)
                    if key is not None:
                        self.partition_keys.add(row, key)
                        keyed = True
                elif name == _SCHEDULED and after - value == 9 and buf[value] in (0x83, 0x81):
                    scheduled = read_i64_be(buf, value + 1)
                if needed:
                    self.annotations.add(name, buf, value, after)
            elif needed and is_integer(buf[pos]):
                self.annotations.add(str(int(integer(buf, pos))).encode(), buf, value, after)
            pos = after
            count -= 2
        if needed:
            self.annotations.close()
        self.scheduled.time(row, scheduled)

    def _fields(self, row: i64, buf: bytes, found: Sections) -> None:
        """Add the fields of the properties section, in its order; missing ones are null."""
        stop = found.application
        if found.properties >= stop:
            return
        count, pos = open_compound(buf, value_of(buf, found.properties, stop), stop)
        i: i64 = 0
        while i < count and i < 13:
            after = skip_value(buf, pos, stop)
            if buf[pos] == _NULL:
                pass
            elif i == 0:
                _add_id(self.message_ids, row, buf, pos, after)
            elif i == 2:
                _add_text(self.to, row, buf, pos, after)
            elif i == 3:
                _add_text(self.subjects, row, buf, pos, after)
            elif i == 4:
                _add_text(self.reply_to, row, buf, pos, after)
            elif i == 5:
                _add_id(self.correlation_ids, row, buf, pos, after)
            elif i == 6:
                _add_text(self.content_types, row, buf, pos, after)
            elif i == 10:
                _add_text(self.session_ids, row, buf, pos, after)
            elif i == 12:
                _add_text(self.reply_to_session_ids, row, buf, pos, after)
            pos = after
            i += 1

    def _application(self, row: i64, buf: bytes, found: Sections, overlay: i64, overlay_end: i64) -> None:
        reason = b""
        description = b""
        changed: dict[bytes, bool] | None = None
        needed = self.needs & APPLICATION != 0
        count: i64 = 0
        pos: i64 = 0
        if overlay < overlay_end:
            changed = {}
            count, pos = open_compound(buf, overlay, overlay_end)
            while count > 1:
                value = skip_value(buf, pos, overlay_end)
                after = skip_value(buf, value, overlay_end)
                name = text_of(buf, pos, value)
                if name is not None:
                    changed[name] = True
                    if needed:
                        self.properties.add(name, buf, value, after)
                    if name == _REASON:
                        reason = _text_or_nothing(buf, value, after)
                    elif name == _DESCRIPTION:
                        description = _text_or_nothing(buf, value, after)
                pos = after
                count -= 2
        if found.application < found.body:
            stop = found.body
            count, pos = open_compound(buf, value_of(buf, found.application, stop), stop)
            while count > 1:
                value = skip_value(buf, pos, stop)
                after = skip_value(buf, value, stop)
                name = text_of(buf, pos, value)
                if name is not None and (changed is None or name not in changed):
                    if needed:
                        self.properties.add(name, buf, value, after)
                    if name == _REASON:
                        reason = _text_or_nothing(buf, value, after)
                    elif name == _DESCRIPTION:
                        description = _text_or_nothing(buf, value, after)
                pos = after
                count -= 2
        if needed:
            self.properties.close()
        if reason:
            self.reasons.add(row, reason)
        if description:
            self.descriptions.add(row, description)

    def _body(self, row: i64, buf: bytes, found: Sections) -> None:
        bodies = self.needs & BODY != 0
        code = found.body_code
        pos = found.body
        end = found.footer
        if code == DATA:
            self.body_types.add(row, b"data")
            if bodies:
                self.body.open(row)
                while pos < end:
                    value = value_of(buf, pos, end)
                    pos = skip_value(buf, value, end)
                    self.body.piece(value + (2 if buf[value] == 0xA0 else 5), pos)
                self.body.close()
        elif code == VALUE:
            value = value_of(buf, pos, end)
            kind: i64 = buf[value] if value < end else _NULL
            head: i64 = 0
            if kind == 0xA1 or kind == 0xB1:
                self.body_types.add(row, b"string")
                head = 2 if kind == 0xA1 else 5
            elif kind == 0xA0 or kind == 0xB0:
                self.body_types.add(row, b"binary")
                head = 2 if kind == 0xA0 else 5
            else:
                self.body_types.add(row, b"value")
            if bodies:
                self.body.add(row, value + head, end)
        elif code == SEQUENCE:
            self.body_types.add(row, b"sequence")
            if bodies:
                self.body.add(row, pos, end)


@final
class EventColumns:
    """The events of one fragment as columns."""

    def __init__(self, index: i64) -> None:
        self.base: i64 = index << _NUMBER_BITS
        self.count: i64 = 0
        self.last: i64 = 0
        self.positions = Longs()
        self.numbers = Longs()
        self.outcomes = BytesWriter()
        self.times = Longs()
        self.enqueued = Longs()
        self.deliveries = BytesWriter()
        self.reasons = Texts()

    def add_rows(self, rows: bytes) -> None:
        """Add all rows of the page. Raises MalformedMessage if they are not in the format of rows.py."""
        pos: i64 = 0
        size: i64 = len(rows)
        while pos < size:
            if pos + 4 > size:
                raise MalformedMessage(f"a row is cut off at byte {pos}")
            end = pos + 4 + read_u32(rows, pos)
            pos += 4
            if end > size or pos + EVENT_HEAD > end:
                raise MalformedMessage(f"the row at byte {pos - 4} has a length that cannot be")
            row = self.count
            self.last = read_i64_be(rows, pos)
            self.positions.add(row, self.last)
            n = read_i64_be(rows, pos + 8)
            if n > 0:
                self.numbers.add(row, self.base | n)
            self.outcomes.append(rows[pos + 16])
            self.times.time(row, read_i64_be(rows, pos + 17))
            self.enqueued.time(row, read_i64_be(rows, pos + 25))
            write_i32_le(self.deliveries, i32(read_i32_be(rows, pos + 33)))
            if pos + EVENT_HEAD < end:
                self.reasons.add(row, utf8(rows, pos + EVENT_HEAD, end))
            self.count += 1
            pos = end


def raw_head(flags: i64, priority: i64, count: i64, size: i64) -> bytes:
    """The bytes before a content's bytes in a raw message (rows.raw_message): the header, and the constructor of the
    annotations."""
    w = BytesWriter()
    if flags & PRIORITY:
        w.write(_HEADER)
        w.append(4)
        w.append(2)
        w.append(0x41 if flags & DURABLE else 0x42)
        w.append(0x50)
        w.append(priority)
    elif flags & DURABLE:
        w.write(_HEADER)
        w.append(2)
        w.append(1)
        w.append(0x41)
    if size > 0:
        w.write(_ANNOTATIONS)
        write_u32(w, size + 4)
        write_u32(w, count)
    return w.getvalue()


def _text_or_nothing(buf: bytes, pos: i64, end: i64) -> bytes:
    text = text_of(buf, pos, end)
    return b"" if text is None else text


def _add_text(column: Texts, row: i64, buf: bytes, pos: i64, end: i64) -> None:
    text = text_of(buf, pos, end)
    if text is not None:
        column.add(row, text)


def _add_id(column: Texts, row: i64, buf: bytes, pos: i64, end: i64) -> None:
    text = text_of(buf, pos, end)
    if text is not None:
        column.add(row, text)
        return
    code: i64 = buf[pos]
    if code == 0x98:
        column.add(row, str(UUID(bytes=buf[pos + 1 : end])).encode())
    elif code == 0x44 or code == 0x53 or code == 0x80:
        column.add(row, str(int.from_bytes(buf[pos + 1 : end], "big")).encode())
    elif code == 0xA0 or code == 0xB0:
        column.add(row, binary_id(buf[pos + (2 if code == 0xA0 else 5) : end]).encode())
