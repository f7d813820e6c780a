"""Custom properties as headers: types both ways, and names that are nobody's."""

from __future__ import annotations

import math
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Float32, Int, Symbol, Timestamp, UByte
from busbar.gateway.http.runtime_headers import headers_of, properties_of, property_text, read_property


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"High"', "High"),
        ('"12345,ABC"', "12345,ABC"),
        ("High", "High"),
        ('"5"', "5"),
        ("5", Int(5)),
        ("-2147483648", Int(-(2**31))),
        ("2147483648", 2**31),
        ("9223372036854775808", float(2**63)),
        ("007", "007"),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("1e999", "1e999"),
        ("9" * 5_000, "9" * 5_000),
        ("NaN", "NaN"),
        ("true", True),
        ("False", False),
        ('"true"', "true"),
        ('"Sun, 06 Nov 1994 08:49:37 GMT"', Timestamp(784_111_777_000)),
        ("", ""),
        ('"', '"'),
        ('""', ""),
        (r'"a\"b\u00e9\n"', 'a"bé\n'),
        (r'"C:\data"', r"C:\data"),
        ("gr\udcfcn", "grün"),
        (r'"\ud800"', "?"),
    ],
)
def test_reading(text: str, expected: object) -> None:
    found = read_property(text)
    assert found == expected
    assert type(found) is type(expected)
    encode_value(found)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("High", '"High"'),
        (Symbol("s"), '"s"'),
        ("é\r\nSet-Cookie: x", '"\\u00e9\\r\\nSet-Cookie: x"'),
        (True, "true"),
        (UByte(7), "7"),
        (2**62, str(2**62)),
        (0.5, "0.5"),
        (Float32(0.5), "0.5"),
        (math.inf, '"inf"'),
        (Timestamp(784_111_777_000), '"Sun, 06 Nov 1994 08:49:37 GMT"'),
        (Timestamp(2**62), str(2**62)),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (b"\x00\xff", '"AP8="'),
        (None, None),
        ({"a": 1}, None),
        ([1], None),
    ],
)
def test_writing(value: object, expected: str | None) -> None:
    assert property_text(value) == expected


@given(st.one_of(st.text(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)))
def test_a_value_comes_back(value: object) -> None:
    text = property_text(value)
    assert text is not None
    assert text.isascii()
    assert text.isprintable()
    if isinstance(value, float) and math.isinf(value):
        assert read_property(text) == str(value)
    elif not (isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value)):
        assert read_property(text) == value


@given(st.text())
def test_any_header_is_a_value_that_can_be_stored(text: str) -> None:
    encode_value(read_property(text))


def test_headers_of_http_are_no_properties_in_either_direction() -> None:
    standard = [
        "Host",
        "authorization",
        "Content-Type",
        "CONTENT-LENGTH",
        "Transfer-Encoding",
        "Connection",
        "BrokerProperties",
        "User-Agent",
        "X-Forwarded-For",
        "If-Match",
        "Location",
        "Set-Cookie",
        "Server",
        "x-ms-retrypolicy",
        "ServiceBusSupplementaryAuthorization",
    ]
    assert properties_of((name, "1") for name in standard) == {}
    assert headers_of(dict.fromkeys(standard, "1")) == {}


def test_names_keep_their_case_and_the_last_of_a_repeated_one_counts() -> None:
    assert properties_of([("Priority", '"High"'), ("priority", '"Low"'), ("Kunde", "1")]) == {
        "Priority": "Low",
        "Kunde": Int(1),
    }


@pytest.mark.parametrize("name", ["", "two words", "a:b", "naïve", "a\r\nSet-Cookie: x", "\x00"])
def test_a_name_that_is_no_token_is_left_out(name: str) -> None:
    assert headers_of({name: "x", "fine": "y"}) == {"fine": '"y"'}
