"""JSON bodies: which fit a type, what becomes of them, and the type of a sample."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from busbar.spark.ddl import parse_type
from busbar.spark.errors import OptionError
from busbar.spark.json_bodies import JsonBodies, infer_type
from busbar.spark.json_schema import type_of_schema

ORDER = JsonBodies(
    parse_type(
        "bodySchema",
        "item STRING NOT NULL, count INT, price DECIMAL(9, 2), at TIMESTAMP, day DATE, raw BINARY, ok BOOLEAN, "
        "lines ARRAY<STRUCT<id BIGINT, weight DOUBLE>>, sizes MAP<STRING, SMALLINT>",
    )
)


def test_a_body_that_fits() -> None:
    body = b"""{"item": "pen", "count": 2, "price": 1.5, "at": "2026-01-31T12:00:00Z", "day": "2026-01-31", "raw": "AAE=",
        "ok": true, "lines": [{"id": 1, "weight": 2}, null, {}], "sizes": {"a": 3, "b": null}, "unknown": [1]}"""
    for decoder in (ORDER, pickle.loads(pickle.dumps(ORDER))):
        assert decoder.decode(body) == {
            "item": "pen",
            "count": 2,
            "price": Decimal("1.5"),
            "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
            "day": date(2026, 1, 31),
            "raw": b"\x00\x01",
            "ok": True,
            "lines": [{"id": 1, "weight": 2.0}, None, {}],
            "sizes": {"a": 3, "b": None},
        }
    assert ORDER.decode(b'{"item": "ink"}') == {"item": "ink"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"no json", "malformed"),
        (b"", "truncated"),
        (b"[1]", "Expected `object`, got `array`"),
        (b"null", "Expected `object`, got `null`"),
        (b'{"count": 1}', "missing required field `item`"),
        (b'{"item": null}', "got `null` - at `$.item`"),
        (b'{"item": "a", "count": "many"}', "got `str` - at `$.count`"),
        (b'{"item": "a", "count": 1.5}', "got `float` - at `$.count`"),
        (b'{"item": "a", "count": 2147483648}', "<= 2147483647"),
        (b'{"item": "a", "sizes": {"b": 40000}}', "<= 32767"),
        (b'{"item": "a", "at": "yesterday"}', "at `$.at`"),
        (b'{"item": "a", "raw": "?"}', "at `$.raw`"),
        (b'{"item": "\xff"}', "utf-8"),
        (b'{"item": "a"} {"item": "b"}', "trailing"),
    ],
)
def test_a_body_that_does_not_fit(body: bytes, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        ORDER.decode(body)
    assert said in str(caught.value)


def test_text_takes_every_value() -> None:
    decoder = JsonBodies(
        parse_type("bodySchema", "a STRING, b ARRAY<STRING>, c STRUCT<d STRING>, m MAP<STRING, STRING>")
    )
    body = b'{"a": {"x": [1, 2.5]}, "b": ["t", 3, true, null], "c": {"d": 5}, "m": {"k": []}}'
    assert decoder.decode(body) == {
        "a": '{"x":[1,2.5]}',
        "b": ["t", "3", "true", None],
        "c": {"d": "5"},
        "m": {"k": "[]"},
    }


def test_types_that_json_does_not_have() -> None:
    with pytest.raises(OptionError, match=r"map<int,string>, which JSON does not have"):
        JsonBodies(parse_type("bodySchema", "a MAP<INT, STRING>"))


@pytest.mark.parametrize(
    ("bodies", "ddl"),
    [
        ([b'{"b": 1, "a": "x"}', b'{"c": null, "b": 2}'], "a STRING, b BIGINT, c STRING"),
        ([b'{"n": 1}', b'{"n": 2.5}', b'{"n": null}'], "n DOUBLE"),
        ([b'{"n": 1}', b'{"n": "x"}', b'{"n": 2}'], "n STRING"),
        ([b'{"n": 9223372036854775808}'], "n STRING"),
        ([b'{"l": []}', b'{"l": [{"a": 1}, {"b": true}]}'], "l ARRAY<STRUCT<a BIGINT, b BOOLEAN>>"),
        ([b'{"o": {}}', b'{"l": [[]]}'], "l ARRAY<ARRAY<STRING>>, o STRING"),
        ([b"no json", b"\xff", b'{"a": 1}'], "a BIGINT"),
        ([b"[1, 2]"], "ARRAY<BIGINT>"),
    ],
)
def test_the_type_of_a_sample(bodies: list[bytes], ddl: str) -> None:
    assert infer_type(bodies) == parse_type("bodySchema", ddl)


def test_a_sample_without_json_has_no_type() -> None:
    assert infer_type([]) is None
    assert infer_type([b"", b"no json"]) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(
    st.dictionaries(st.sampled_from("abc"), VALUES, min_size=1, max_size=3), min_size=1, max_size=4
)


@given(OBJECTS)
def test_every_body_of_a_sample_fits_its_type(values: list[dict[str, object]]) -> None:
    bodies = [json.dumps(value).encode("utf-8", "surrogatepass") for value in values]
    kind = infer_type(bodies)
    assert isinstance(kind, DataType)
    decoder = JsonBodies(kind)
    for body, value in zip(bodies, values, strict=True):
        found = decoder.decode(body)
        assert isinstance(found, dict)
        assert set(found) == set(value), "no field is lost"


def test_an_empty_name_is_not_another_field() -> None:
    """Also in the first body of a process, when no name of the type was encoded so far."""
    names = ["".join(map(chr, (0x67, first, 0x6E))) for first in (0xE4, 0xF6)]  # new texts, as from a schema
    kind = StructType([StructField(name, LongType()) for name in names] + [StructField("", StringType())])
    for body, expected in ((b'{"": "a"}', {"": "a"}), (b'{"g\\u00f6n": 5, "": "b"}', {names[1]: 5, "": "b"})):
        assert JsonBodies(kind).decode(body) == expected
    without = StructType([StructField("".join(("g", chr(0xFC), "n")), LongType())])
    assert JsonBodies(without).decode(b'{"": "a"}') == {}


def test_the_type_of_a_json_schema() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "required": ["item", "line", "note"],
        "properties": {
            "item": {"type": "string"},
            "count": {"type": "integer"},
            "note": {"type": ["null", "string"]},
            "price": {"oneOf": [{"type": "null"}, {"type": "number"}]},
            "either": {"anyOf": [{"type": "string"}, {"type": "number"}]},
            "at": {"type": "string", "format": "date-time"},
            "line": {"$ref": "#/definitions/line"},
            "sizes": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "definitions": {
            "line": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
        },
    }
    found = type_of_schema(json.dumps(schema))
    assert found.simpleString() == (
        "struct<item:string,count:bigint,note:string,price:double,either:string,at:timestamp,line:struct<id:bigint>,"
        "sizes:map<string,boolean>,tags:array<string>>"
    )
    nullable = {field.name for field in found.fields if field.nullable}  # type: ignore[attr-defined]
    assert nullable == {"count", "note", "price", "either", "at", "sizes", "tags"}
    loop = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    with pytest.raises(OptionError, match="contains itself"):
        type_of_schema(json.dumps(loop))
    with pytest.raises(OptionError, match="without properties"):
        type_of_schema('{"type": "string"}')
