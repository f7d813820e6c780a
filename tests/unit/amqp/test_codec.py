"""The value codec: golden encodings, every alternative on input, bounds and round trips."""

from __future__ import annotations

import math
import os
import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar.amqp.codec import DecodeError, EncodeError, decode_value, encode_value, skip_value
from busbar.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal,
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

DEEP = os.environ.get("BUSBAR_DEEP") == "1"
EXAMPLES = settings(
    max_examples=20_000 if DEEP else 250, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def decode(raw: bytes) -> object:
    value, pos = decode_value(raw, 0, len(raw))
    assert pos == len(raw) == skip_value(raw, 0, len(raw))
    return value


def same(a: Any, b: Any) -> bool:
    """Equal in value and in AMQP type, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(same, a.items(), b.items()))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Array):
        return a.code == b.code and same(a.items, b.items) and same(a.descriptors, b.descriptors)
    if isinstance(a, Described):
        return same(a.descriptor, b.descriptor) and same(a.value, b.value)
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


U = UUID("12345678-1234-1234-1234-123456789abc")

GOLDEN = [
    (None, "40"),
    (True, "41"),
    (False, "42"),
    (UByte(200), "50c8"),
    (UShort(4999), "601387"),
    (UInt(0), "43"),
    (UInt(255), "52ff"),
    (UInt(256), "7000000100"),
    (UInt(0xFFFFFFFF), "70ffffffff"),
    (ULong(0), "44"),
    (ULong(0x70), "5370"),
    (ULong(256), "800000000000000100"),
    (ULong(2**64 - 1), "80ffffffffffffffff"),
    (Byte(-1), "51ff"),
    (Short(-2), "61fffe"),
    (Int(200), "71000000c8"),
    (Int(-1), "71ffffffff"),
    (1, "810000000000000001"),
    (-1, "81ffffffffffffffff"),
    (Timestamp(1767225660000), "830000019b76db9260"),
    (Timestamp(-62135596800000), "83ffffc77cedd32800"),
    (Float32(1.5), "723fc00000"),
    (1.5, "823ff8000000000000"),
    (Decimal(0x74, b"abcd"), "7461626364"),
    (Decimal(0x84, b"abcdefgh"), "846162636465666768"),
    (Decimal(0x94, b"a" * 16), "94" + "61" * 16),
    (Char("é"), "73000000e9"),
    (U, "98123456781234123412341234567" + "89abc"),
    (b"hi", "a0026869"),
    (b"", "a000"),
    ("é", "a102c3a9"),
    (Symbol("no"), "a3026e6f"),
    ([], "45"),
    ([None, True], "c003024041"),
    ({}, "c10100"),
    ({"a": UInt(1)}, "c10602a101615201"),
    (Array(0x81, [1]), "e00a01810000000000000001"),
    (Array(0x83, [Timestamp(1767225660000)]), "e00a01830000019b76db9260"),
    (Array(0xA3, [Symbol("a"), Symbol("bc")]), "e00702a30161026263"),
    (Array(0x98, []), "e0020098"),
    (Array(0x81, [7], (ULong(0x1370000),)), "e01401" + "00800000000001370000" + "81" + "0000000000000007"),
    (Described(ULong(0x24), []), "00532445"),
    (Described(ULong(0), None), "00530040"),
    (Described(ULong(0x137000000C), "s"), "0080000000137000000ca10173"),
    (
        Described(Symbol("com.microsoft:timespan"), 5),
        "00a316636f6d2e6d6963726f736f66743a74696d657370616e810000000000000005",
    ),
]


@pytest.mark.parametrize(("value", "hexed"), GOLDEN, ids=lambda v: repr(v)[:40])
def test_golden_bytes_both_ways(value: object, hexed: str) -> None:
    raw = bytes.fromhex(hexed)
    assert encode_value(value) == raw
    assert same(decode(raw), value)


def test_long_forms_when_short_ones_do_not_fit() -> None:
    assert encode_value("x" * 255)[:2] == b"\xa1\xff"
    assert encode_value("x" * 256)[:5] == b"\xb1\x00\x00\x01\x00"
    assert encode_value(Symbol("x" * 256))[:5] == b"\xb3\x00\x00\x01\x00"
    assert encode_value(b"x" * 256)[:5] == b"\xb0\x00\x00\x01\x00"
    assert encode_value([None] * 254)[:3] == b"\xc0\xff\xfe"
    assert encode_value([None] * 255)[:9] == b"\xd0\x00\x00\x01\x03\x00\x00\x00\xff"
    assert encode_value({str(i): None for i in range(100)})[0] == 0xD1
    assert encode_value(Array(0x81, [1] * 32))[:10] == b"\xf0\x00\x00\x01\x05\x00\x00\x00\x20\x81"
    assert encode_value(Array(0xA3, ["a", "b" * 256]))[9:15] == b"\xb3\x00\x00\x00\x01a"
    assert encode_value(Array(0x40, [None] * 256))[0] == 0xF0


@pytest.mark.parametrize(
    ("hexed", "value"),
    [
        ("5600", False),
        ("5601", True),
        ("5200", UInt(0)),
        ("7000000001", UInt(1)),
        ("800000000000000001", ULong(1)),
        ("54ff", Int(-1)),
        ("55ff", -1),
        ("b00000000161", b"a"),
        ("b10000000161", "a"),
        ("b30000000161", Symbol("a")),
        ("c00100", []),
        ("d00000000400000000", []),
        ("d00000000500000001" + "40", [None]),
        ("d10000000400000000", {}),
        ("e00a0270" + "00000001" + "00000002", Array(0x70, [UInt(1), UInt(2)])),
        ("e0040252" + "0102", Array(0x70, [UInt(1), UInt(2)])),
        ("e0020343", Array(0x70, [UInt(0)] * 3)),
        ("e0020241", Array(0x56, [True] * 2)),
        ("e0020345", Array(0xC0, [[], [], []])),
        ("e00100", Array(0x40, [])),
        ("f0000000060000000152" + "07", Array(0x70, [UInt(7)])),
        (
            "e00b02e0" + "03015407" + "04025408ff",
            Array(0xE0, [Array(0x71, [Int(7)]), Array(0x71, [Int(8), Int(-1)])]),
        ),
        ("e00401c1" + "0100", Array(0xC1, [{}])),
        ("00800000000000000024" + "45", Described(ULong(0x24), [])),
        ("00a308616d71703a666f6f40", Described(Symbol("amqp:foo"), None)),
        ("0053" + "01" + "0053" + "02" + "40", Described(ULong(1), Described(ULong(2), None))),
    ],
)
def test_alternative_encodings(hexed: str, value: object) -> None:
    assert same(decode(bytes.fromhex(hexed)), value)


@pytest.mark.parametrize(
    "hexed",
    [
        "",
        "4f",  # unknown constructors
        "99" + "00" * 16,
        "50",  # cut off
        "7000",
        "a1",
        "a10561",
        "b1ffffffff",
        "b0000000",
        "a1ff" + "80" * 255,  # not UTF-8
        "a301ff",
        "5602",  # a boolean of 2
        "7300110000",  # beyond Unicode
        "730000d800",
        "c000",  # a list without a count
        "c00105",  # more values than bytes
        "d0fffffffffffffffe",
        "d000000004ffffffff",
        "c003014040",  # longer than its values
        "c1020140",  # half a pair
        "c103024540",  # a list as key
        "c10502" + "c00100" + "40",
        "c10602" + "00530141" + "40",
        "c10904" + "a10161" + "40" + "a10161" + "40",  # the same key twice
        "e00101",  # no element constructor
        "e002014f",
        "e0060181" + "00" * 4,
        "f000000005ffffffff40",  # four thousand million nulls
        "f000000005ffffffff43",
        "f000000005ffffffff45",
        "f000000009ffffffff" + "70" + "00" * 4,
        "f000000005ffffffffa1",
        "0040" + "40",  # a descriptor that is neither a ulong nor a symbol
        "00a10161" + "40",
        "00",
        "0053",
        "005324",
        "0000532445",
    ],
)
def test_refused_with_a_decode_error(hexed: str) -> None:
    raw = bytes.fromhex(hexed)
    with pytest.raises(DecodeError):
        pos = decode_value(raw, 0, len(raw))[1]
        if pos != len(raw):
            raise DecodeError("trailing bytes")


def test_elements_without_bytes_are_limited_over_the_whole_value() -> None:
    one = bytes.fromhex("f00000000500008000" + "40")  # 32,768 nulls in 10 bytes
    assert same(decode(encode_list_of(one, 2)), [Array(0x40, [None] * 32_768)] * 2)
    with pytest.raises(DecodeError, match="without bytes"):
        raw = encode_list_of(one, 3)
        decode_value(raw, 0, len(raw))


def encode_list_of(element: bytes, count: int) -> bytes:
    data = element * count
    return b"\xd0" + struct.pack(">II", len(data) + 4, count) + data


def test_nesting_is_limited() -> None:
    value: object = None
    for _ in range(32):
        value = [value]
    raw = encode_value(value)
    assert same(decode(raw), value)
    with pytest.raises(EncodeError, match="nest"):
        encode_value([value])
    deep = raw
    for _ in range(2000):
        deep = encode_list_of(deep, 1)
    with pytest.raises(DecodeError, match="nest"):
        decode_value(deep, 0, len(deep))
    described = b"\x00\x53\x01" * 100_000 + b"\x40"
    with pytest.raises(DecodeError, match="nest"):
        decode_value(described, 0, len(described))
    assert skip_value(described, 0, len(described)) == len(described)
    itself: list[object] = []
    itself.append(itself)
    with pytest.raises(EncodeError):
        encode_value(itself)


def test_a_value_may_not_reach_beyond_the_end_given() -> None:
    raw = encode_value("hello")
    for end in range(len(raw)):
        with pytest.raises(DecodeError):
            decode_value(raw, 0, end)
        with pytest.raises(DecodeError):
            skip_value(raw, 0, end)
    with pytest.raises(DecodeError):
        decode_value(raw, 0, len(raw) + 1)
    with pytest.raises(DecodeError):
        skip_value(raw, -1, len(raw))
    assert decode_value(b"\x40" + raw + b"\x41", 1, 8) == ("hello", 8)


@pytest.mark.parametrize(
    "value",
    [
        UByte(256),
        UInt(-1),
        Int(1 << 31),
        1 << 63,
        ULong(1 << 64),
        Char("ab"),
        "\ud800",
        object(),
        Described(1.5, None),
        Array(0x81, ["a"]),
        Array(0xA1, [b"a"]),
        Array(0xC0, [{}]),
        Array(0x70, [UInt(-1)]),
        Array(0x00, []),
        Decimal(0x74, b"abc"),
        Float32(1e300),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_carried_is_an_encode_error(value: object) -> None:
    with pytest.raises(EncodeError):
        encode_value(value)


def test_types_read_well() -> None:
    assert repr(UInt(5)) == "UInt(5)" and str(UInt(5)) == "5" and f"{UInt(5)}" == "5"
    assert repr(Symbol("a")) == "Symbol('a')" and f"{Symbol('a')}" == "a"
    assert {Symbol("a"): 1}["a"] == 1  # type: ignore[index]
    assert Array(0xB3, [], ()) == Array(0xA3, [])


def integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


SCALARS: dict[int, st.SearchStrategy[object]] = {
    0x40: st.none(),
    0x56: st.booleans(),
    0x50: integers(0, 255).map(UByte),
    0x60: integers(0, 65535).map(UShort),
    0x70: integers(0, 2**32 - 1).map(UInt),
    0x80: integers(0, 2**64 - 1).map(ULong),
    0x51: integers(-128, 127).map(Byte),
    0x61: integers(-32768, 32767).map(Short),
    0x71: integers(-(2**31), 2**31 - 1).map(Int),
    0x81: integers(-(2**63), 2**63 - 1),
    0x83: integers(-(2**63), 2**63 - 1).map(Timestamp),
    0x72: st.floats(width=32, allow_nan=False).map(Float32),
    0x82: st.floats(allow_nan=False),
    0x74: st.binary(min_size=4, max_size=4).map(lambda b: Decimal(0x74, b)),
    0x84: st.binary(min_size=8, max_size=8).map(lambda b: Decimal(0x84, b)),
    0x94: st.binary(min_size=16, max_size=16).map(lambda b: Decimal(0x94, b)),
    0x73: st.characters(exclude_categories=["Cs"]).map(Char),
    0x98: st.uuids(),
    0xA0: st.binary(max_size=300),
    0xA1: st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    0xA3: st.text(st.characters(codec="ascii"), max_size=300).map(Symbol),
}
SCALAR = st.one_of(*SCALARS.values())
DESCRIPTOR = st.one_of(SCALARS[0x80], SCALARS[0xA3])


def scalar_arrays() -> st.SearchStrategy[object]:
    return st.sampled_from(sorted(SCALARS)).flatmap(
        lambda code: st.builds(
            Array,
            st.just(code),
            st.lists(SCALARS[code], max_size=5),
            st.lists(DESCRIPTOR, max_size=2).map(tuple),
        )
    )


def compounds(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    lists = st.lists(inner, max_size=4)
    maps = st.dictionaries(SCALAR, inner, max_size=4)
    return st.one_of(
        lists,
        maps,
        st.builds(Described, DESCRIPTOR, inner),
        st.builds(Array, st.just(0xC0), st.lists(lists, max_size=3)),
        st.builds(Array, st.just(0xC1), st.lists(maps, max_size=3)),
        st.builds(Array, st.just(0xE0), st.lists(scalar_arrays(), max_size=3)),
    )


VALUES = st.recursive(SCALAR | scalar_arrays(), compounds, max_leaves=12)


@EXAMPLES
@given(VALUES)
def test_values_and_their_types_survive_a_round_trip(value: object) -> None:
    assert same(decode(encode_value(value)), value)


# Bytes that look like AMQP find more than plain noise does.
CONSTRUCTORS = bytes(
    c
    for c in range(256)
    if c in b"\x00"
    or (0x40 <= c <= 0x45)
    or c
    in b"\x50\x52\x53\x54\x56\x60\x70\x71\x72"
    b"\x73\x80\x81\x83\x94\x98\xa0\xa1\xa3\xb0\xb1\xb3\xc0\xc1\xd0\xd1\xe0\xf0"
)
SOUP = st.lists(st.sampled_from(CONSTRUCTORS) | st.integers(0, 9) | st.integers(0, 255), max_size=60).map(
    bytes
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    raw = bytearray(encode_value(draw(VALUES)))
    for _ in range(draw(st.integers(1, 3))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw[: draw(st.integers(0, len(raw)))]) if draw(st.booleans()) else bytes(raw)


@EXAMPLES
@given(st.binary(max_size=100) | SOUP | damaged())
def test_any_bytes_are_a_value_or_a_decode_error(raw: bytes) -> None:
    try:
        skipped = skip_value(raw, 0, len(raw))
    except DecodeError:
        skipped = -1
    try:
        value, pos = decode_value(raw, 0, len(raw))
    except DecodeError:
        return
    assert pos == skipped
    assert same(decode(encode_value(value)), value)
