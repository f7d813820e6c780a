"""Where the sections of a message are, and what is not a message."""

from __future__ import annotations

from itertools import pairwise

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Symbol, ULong
from busbar.message.sections import (
    DATA,
    SEQUENCE,
    VALUE,
    data_sections,
    find_sections,
    with_plain_descriptors,
)
from busbar.model.errors import MalformedMessage

HEADER = encode_value(Described(0x70, [True]))
DELIVERY = encode_value(Described(0x71, {Symbol("d"): 1}))
ANNOTATIONS = encode_value(Described(0x72, {Symbol("a"): 1}))
PROPERTIES = encode_value(Described(0x73, ["id"]))
APPLICATION = encode_value(Described(0x74, {"p": 1}))
BODY = encode_value(Described(0x75, b"hi"))
ROW = encode_value(Described(0x76, [1, 2]))
FOOTER = encode_value(Described(0x78, {Symbol("f"): 1}))


def extents(raw: bytes, start: int = 0, end: int = -1) -> list[bytes]:
    found = find_sections(raw, start, len(raw) if end < 0 else end)
    places = [
        found.header,
        found.delivery_annotations,
        found.annotations,
        found.properties,
        found.application,
        found.body,
        found.footer,
        found.end,
    ]
    return [raw[a:b] for a, b in pairwise(places)]


def test_every_section_is_found_in_its_place() -> None:
    parts = [HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, BODY, FOOTER]
    assert extents(b"".join(parts)) == parts
    # Any of them may be absent, and then has no extent.
    for missing in range(len(parts)):
        some = [b"" if i == missing else part for i, part in enumerate(parts)]
        assert extents(b"".join(some)) == some
    # Inside a larger buffer.
    raw = b"".join(parts)
    assert extents(b"???" + raw + b"???", 3, 3 + len(raw)) == parts


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 0),
        (BODY, DATA),
        (BODY * 3, DATA),
        (ROW, SEQUENCE),
        (ROW * 2, SEQUENCE),
        (bytes.fromhex("00537740"), VALUE),
    ],
)
def test_bodies(body: bytes, code: int) -> None:
    raw = PROPERTIES + body
    assert find_sections(raw, 0, len(raw)).body_code == code
    assert extents(raw)[5] == body


def test_contents_of_data_sections() -> None:
    raw = HEADER + BODY + encode_value(Described(0x75, b"x" * 300)) + FOOTER
    found = find_sections(raw, 0, len(raw))
    assert [raw[a:b] for a, b in data_sections(raw, found)] == [b"hi", b"x" * 300]
    raw = HEADER + ROW
    assert data_sections(raw, find_sections(raw, 0, len(raw))) == []


@pytest.mark.parametrize("form", ["ulong", "symbol"])
def test_other_descriptors_are_understood_and_made_plain(form: str) -> None:
    names = {
        0x70: "amqp:header:list",
        0x71: "amqp:delivery-annotations:map",
        0x72: "amqp:message-annotations:map",
        0x73: "amqp:properties:list",
        0x74: "amqp:application-properties:map",
        0x75: "amqp:data:binary",
        0x78: "amqp:footer:map",
    }
    parts = [HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, BODY, FOOTER]
    other = b""
    for (code, name), part in zip(names.items(), parts, strict=True):
        descriptor = b"\x80" + code.to_bytes(8, "big") if form == "ulong" else encode_value(Symbol(name))
        other += b"\x00" + descriptor + part[3:]
    found = find_sections(other, 0, len(other))
    assert not found.plain
    assert find_sections(b"".join(parts), 0, len(b"".join(parts))).plain
    assert with_plain_descriptors(other, 0, len(other)) == b"".join(parts)


def test_delivery_annotations_at_the_end_as_the_python_sdk_writes_them() -> None:
    assert extents(HEADER + PROPERTIES + BODY + DELIVERY) == [HEADER, b"", b"", PROPERTIES, b"", BODY, b""]
    with pytest.raises(MalformedMessage):
        extents(HEADER + PROPERTIES + DELIVERY + BODY)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "no sections"),
        (PROPERTIES + HEADER, "header at byte .* stands after properties"),
        (PROPERTIES + PROPERTIES, "properties at byte .* stands after properties"),
        (FOOTER + BODY, "data at byte .* stands after footer"),
        (BODY + ROW, "a body of data and amqp-sequence"),
        (ROW + BODY, "stands after amqp-sequence"),
        (bytes.fromhex("00537740") * 2, "stands after amqp-value"),
        (bytes.fromhex("00537940"), "0x79 .* is not a message section"),
        (bytes.fromhex("00532445"), "0x24 .* is not a message section"),
        (bytes.fromhex("00800000000100000070c00100"), "not a message section"),
        (bytes.fromhex("00a30161") + b"\x40", "not a message section"),
        (bytes.fromhex("004440"), "not a message section"),
        (b"hello", "should start"),
        (BODY[:-1], "cut off"),
        (BODY[:4], "cut off"),
        (BODY[:3], "missing|cut off"),
        (BODY[:2], "cut off"),
        (b"\x00", "neither a ulong"),
        (HEADER + b"\x00\x53\x75\xb0\xff\xff\xff\xff", "cut off"),
        (bytes.fromhex("005370c10100"), "header cannot hold"),
        (bytes.fromhex("00537245"), "message-annotations cannot hold"),
        (bytes.fromhex("005375a10161"), "data cannot hold"),
        (bytes.fromhex("005376a00161"), "amqp-sequence cannot hold"),
        (encode_value(Described(ULong(0x74), [])), "application-properties cannot hold"),
    ],
)
def test_what_is_not_a_message_is_refused_by_name(raw: bytes, text: str) -> None:
    with pytest.raises(MalformedMessage, match=text):
        find_sections(raw, 0, len(raw))
