"""Contents (__init__.py has the format) that a topic passes on, or that move to another entity: what is read of them, and
how they are changed.

- Every copy has the number that the topic assigned, as the first of its kept annotations: `with_enqueued_number`.
- Contents are decoded value by value. If a value cannot be decoded (text that is not UTF-8, a malformed compound), it counts
  as missing. A sender chose the content, so reading never fails for that.
- `rewritten` encodes what changes. All other fields, pairs and sections keep their bytes, and the result has the form that
  parsing.py creates: plain descriptors, annotations that are counted.

Changes ignore the case of application property names; a changed property keeps its spelling and its place.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, write_i64_be
from mypy_extensions import i64

from busbar.amqp.codec import (
    DecodeError,
    EncodeError,
    decode_value,
    encode_value,
    read_u32,
    skip_value,
    write_u32,
)
from busbar.message.compose import write_compound
from busbar.message.delivery import merged_properties
from busbar.message.parsing import DURABLE, ENQUEUED, read_draft, write_u16
from busbar.message.sections import find_sections, open_compound
from busbar.model.errors import InternalError
from busbar.model.message import DEAD_FORWARD, Draft, Record

REMOVED: Final = b""
"""In place of an encoded value: the value is removed."""

_HEAD: Final = 8
_MAX_VALUES: Final = 0xFFFF  # in the kept annotations: their count has two bytes
_FIELDS: Final = 13
_NUMBER: Final = b"\xa3\x1dx-opt-enqueue-sequence-number\x81"
_NUMBER_SIZE: Final = 32 + 8
_DEAD_LETTER_SOURCE: Final = "x-opt-deadletter-source"
_BROKER_ANNOTATIONS: Final = frozenset({"x-opt-enqueue-sequence-number", _DEAD_LETTER_SOURCE})
_DEAD_LETTER_PROPERTIES: Final = frozenset({"DeadLetterReason", "DeadLetterErrorDescription"})
_ENCODINGS: Final = 32
"""By which sections can grow when the broker writes them: a new section of properties, lists and maps with longer counts."""


def with_enqueued_number(content: bytes, number: i64) -> bytes:
    """The content with the sequence number that its topic assigned, in place of one from an earlier topic. If its
    annotations cannot be counted with one more, it stays unchanged."""
    count: i64 = i64(read_i16_be(content, 2)) & 0xFFFF
    kept = read_u32(content, 4)
    first: i64 = _HEAD
    if content[0] & ENQUEUED:
        first += _NUMBER_SIZE
    else:
        if count + 2 > _MAX_VALUES:
            return content
        count += 2
        kept += _NUMBER_SIZE
    w = BytesWriter()
    w.append(content[0] | ENQUEUED)
    w.append(content[1])
    write_u16(w, count)
    write_u32(w, kept)
    w.write(_NUMBER)
    write_i64_be(w, number)
    return w.getvalue() + content[first:]


def draft_of(record: Record, source: str) -> Draft:
    """What a record of an outbox is for its target: a message that is sent there.

    Properties that were set after the send become the message's own. The message keeps the first sequence number that it
    ever had. If it comes from a dead-letter queue, it names the entity of that queue, `source`.
    """
    content = record.content
    if content is None:
        raise InternalError(f"message {record.n} is to be moved without its content")
    if record.overlay:
        found = find_sections(content, _HEAD + read_u32(content, 4), len(content))
        properties = merged_properties(content, found.application, found.body, record.overlay)
        content = content[: found.application] + properties + content[found.body :]
    if record.kind == DEAD_FORWARD:
        content = rewritten(content, is_durable(content), {_DEAD_LETTER_SOURCE: encode_value(source)}, {}, {})
    if record.due > 0 and content[0] & ENQUEUED == 0:
        content = with_enqueued_number(content, record.due)
    return read_draft(content, record.ttl, record.hops)


def is_durable(content: bytes) -> bool:
    return content[0] & DURABLE != 0


def size_around_body(content: bytes) -> int:
    """Bytes of annotations, properties and footer, which the limit of a header covers."""
    found = find_sections(content, _HEAD + read_u32(content, 4), len(content))
    return int(len(content) - (found.footer - found.body) - _HEAD)


def sizes_as_sent(content: bytes) -> tuple[int, int]:
    """The size of a message about as its sender wrote it, and that of all around its body.

    What the broker writes does not count: the first sequence number, the source and the reason of a dead letter, a missing
    message id, longer encodings. So neither size is larger than at the send. Properties that a rule or a receiver has set do
    count.
    """
    bare: i64 = _HEAD + read_u32(content, 4)
    found = find_sections(content, bare, len(content))
    written: i64 = _HEAD + _ENCODINGS
    written += _size_of_pairs(content, _HEAD, bare, _BROKER_ANNOTATIONS)
    if found.properties < found.application:
        count, pos = open_compound(content, found.properties + 3, found.application)
        if count > 0:
            written += skip_value(content, pos, found.application) - pos
    if found.application < found.body:
        _, pos = open_compound(content, found.application + 3, found.body)
        written += _size_of_pairs(content, pos, found.body, _DEAD_LETTER_PROPERTIES)
    size: i64 = len(content) - written
    return int(size), int(size - (found.footer - found.body))


def _size_of_pairs(content: bytes, pos: i64, end: i64, names: frozenset[str]) -> i64:
    """The bytes of the pairs with these names."""
    size: i64 = 0
    while pos < end:
        value = skip_value(content, pos, end)
        after = skip_value(content, value, end)
        if _text(content, pos, value) in names:
            size += after - pos
        pos = after
    return size


def kept_annotations(content: bytes) -> dict[str, object]:
    """The annotations that have a text for a key."""
    return _pairs(content, _HEAD, _HEAD + read_u32(content, 4))


def property_fields(content: bytes) -> list[object]:
    """The 13 fields of the properties section, in its order."""
    fields: list[object] = []
    found = find_sections(content, _HEAD + read_u32(content, 4), len(content))
    stop = found.application
    if found.properties < stop:
        count, pos = open_compound(content, found.properties + 3, stop)
        while count > 0:
            after = skip_value(content, pos, stop)
            fields.append(_decoded(content, pos, after))
            pos = after
            count -= 1
    while len(fields) < _FIELDS:
        fields.append(None)
    return fields


def application_properties(content: bytes) -> dict[str, object]:
    """The properties by their names as they were sent; of two with one name the first."""
    found = find_sections(content, _HEAD + read_u32(content, 4), len(content))
    if found.application == found.body:
        return {}
    _, first = open_compound(content, found.application + 3, found.body)
    return _pairs(content, first, found.body)


def rewritten(
    content: bytes,
    durable: bool,
    annotations: dict[str, bytes],
    fields: dict[int, bytes],
    properties: dict[str, tuple[str, bytes]],
) -> bytes:
    """The content with other annotations, fields of the properties section (by their index) and application properties (by
    their names in lower case; with the spelling for a new one). Values come encoded, or as REMOVED."""
    bare: i64 = _HEAD + read_u32(content, 4)
    found = find_sections(content, bare, len(content))
    count: i64 = i64(read_i16_be(content, 2)) & 0xFFFF
    kept = content[_HEAD:bare]
    if annotations:
        count, kept = _changed_annotations(content, bare, annotations)
    flags: i64 = content[0] | DURABLE
    w = BytesWriter()
    w.append(flags if durable else flags - DURABLE)
    w.append(content[1])
    write_u16(w, count)
    write_u32(w, len(kept))
    w.write(kept)
    if fields:
        _write_fields(w, content, found.properties, found.application, fields)
    else:
        w.write(content[found.properties : found.application])
    if properties:
        _write_properties(w, content, found.application, found.body, properties)
    else:
        w.write(content[found.application : found.body])
    return w.getvalue() + content[found.body :]


def _pairs(content: bytes, pos: i64, end: i64) -> dict[str, object]:
    pairs: dict[str, object] = {}
    while pos < end:
        value = skip_value(content, pos, end)
        after = skip_value(content, value, end)
        name = _text(content, pos, value)
        if name is not None and name not in pairs:
            decoded = _decoded(content, value, after)
            if decoded is not None or content[value] == 0x40:
                pairs[name] = decoded
        pos = after
    return pairs


def _decoded(content: bytes, pos: i64, end: i64) -> object:
    try:
        return decode_value(content, pos, end)[0]
    except DecodeError:
        return None


def _text(content: bytes, pos: i64, end: i64) -> str | None:
    """The key at `pos`; None if it is not text."""
    kind: i64 = content[pos]
    if kind == 0xA1 or kind == 0xA3:
        return content[pos + 2 : end].decode("utf-8", "replace")
    if kind == 0xB1 or kind == 0xB3:
        return content[pos + 5 : end].decode("utf-8", "replace")
    return None


def _changed_annotations(content: bytes, end: i64, changes: dict[str, bytes]) -> tuple[i64, bytes]:
    w = BytesWriter()
    count: i64 = 0
    pos: i64 = _HEAD
    while pos < end:
        value = skip_value(content, pos, end)
        after = skip_value(content, value, end)
        if _text(content, pos, value) not in changes:
            w.write(content[pos:after])
            count += 2
        pos = after
    for name, encoded in changes.items():
        if encoded:
            key = name.encode("ascii")
            w.append(0xA3)
            w.append(len(key))
            w.write(key)
            w.write(encoded)
            count += 2
    if count > _MAX_VALUES:
        raise EncodeError(f"{count} values in the message annotations are more than {_MAX_VALUES}")
    return count, w.getvalue()


def _write_fields(w: BytesWriter, content: bytes, section: i64, end: i64, changes: dict[int, bytes]) -> None:
    parts: list[bytes] = []
    if section < end:
        count, pos = open_compound(content, section + 3, end)
        while count > 0:
            after = skip_value(content, pos, end)
            parts.append(content[pos:after])
            pos = after
            count -= 1
    for index, encoded in changes.items():
        while len(parts) <= index:
            parts.append(b"\x40")
        parts[index] = encoded if encoded else b"\x40"
    w.write(b"\x00\x53\x73")
    write_compound(w, 0xC0, len(parts), b"".join(parts))


def _write_properties(
    w: BytesWriter, content: bytes, section: i64, end: i64, changes: dict[str, tuple[str, bytes]]
) -> None:
    pairs = BytesWriter()
    count: i64 = 0
    done: set[str] = set()
    if section < end:
        left, pos = open_compound(content, section + 3, end)
        while left > 0:
            value = skip_value(content, pos, end)
            after = skip_value(content, value, end)
            name = _text(content, pos, value)
            folded = "" if name is None else name.lower()
            change = None if name is None else changes.get(folded)
            if change is None:
                pairs.write(content[pos:after])
                count += 2
            elif change[1] and folded not in done:
                pairs.write(content[pos:value])
                pairs.write(change[1])
                count += 2
                done.add(folded)
            pos = after
            left -= 2
    for folded, added in changes.items():
        if added[1] and folded not in done:
            pairs.write(encode_value(added[0]))
            pairs.write(added[1])
            count += 2
    if count > 0:
        w.write(b"\x00\x53\x74")
        write_compound(w, 0xC1, count, pairs.getvalue())
