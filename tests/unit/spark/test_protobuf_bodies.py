"""Protobuf bodies by a descriptor set: types, values, and what does not fit."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from pyspark.sql.pandas.types import to_arrow_type

from busbar.spark.errors import OptionError
from busbar.spark.protobuf_bodies import ProtobufBodies, ProtobufSchema
from tests.unit.spark.protobuf_files import LINE, ORDER, classes_of, field, file_of, message, set_of

FILES = set_of(LINE, ORDER)
CLASSES = classes_of(LINE, ORDER)


def full_order() -> bytes:
    made = CLASSES["shop.Order"](
        item="pen",
        count=0,
        large=4_000_000_000,
        state=1,
        lines=[{"id": 2**64 - 1, "note": "first"}, {}],
        sizes={"wide": 3, "high": -4},
        picture=b"\0\1",
    )
    made.at.FromDatetime(datetime(2026, 1, 31, 12, 0, 0, 250))
    made.took.FromTimedelta(timedelta(seconds=-1.5))
    made.weight.value = 0.0
    encoded: bytes = made.SerializeToString()
    return encoded


def test_types_and_values() -> None:
    schema = ProtobufSchema(FILES, "shop.Order")
    assert schema.type.simpleString() == (
        "struct<item:string,count:int,large:bigint,state:string,lines:array<struct<id:decimal(20,0),note:string>>,"
        "sizes:map<string,bigint>,at:timestamp,took:interval day to second,weight:double,picture:binary>"
    )
    for bodies in (ProtobufBodies(schema), pickle.loads(pickle.dumps(ProtobufBodies(schema)))):
        found = bodies.decode(full_order())
        assert isinstance(found, dict)
        assert dict(found.pop("sizes")) == {"wide": 3, "high": -4}
        assert found == {
            "item": "pen",
            "count": 0,
            "large": 4_000_000_000,
            "state": "PAID",
            "lines": [{"id": Decimal(2**64 - 1), "note": "first"}, {"id": Decimal(0), "note": ""}],
            "at": datetime(2026, 1, 31, 12, 0, 0, 250, tzinfo=UTC),
            "took": timedelta(seconds=-1.5),
            "weight": 0.0,
            "picture": b"\0\1",
        }


def test_absent_fields_are_null_if_that_can_be_told() -> None:
    schema = ProtobufSchema(FILES, "shop.Order")
    empty = schema.decode(b"")
    assert empty == {
        "item": "",
        "count": None,
        "large": 0,
        "state": "NEW",
        "lines": [],
        "sizes": [],
        "at": None,
        "took": None,
        "weight": None,
        "picture": b"",
    }
    array = pa.array([empty, None, schema.decode(full_order())], to_arrow_type(schema.type, timezone="UTC"))
    array.validate(full=True)
    assert [each is None for each in array.to_pylist()] == [False, True, False]


def test_fields_that_were_added_or_removed() -> None:
    """The writer has a field more and one less than the reader, and a value of the enum that the reader lacks."""
    newer = file_of(
        "newer.proto",
        message(
            "Order",
            field("item", 1, Field.TYPE_STRING),
            field("state", 4, Field.TYPE_INT32),
            field("colour", 20, Field.TYPE_STRING),
        ),
    )
    body = classes_of(newer)["shop.Order"](item="pen", state=7, colour="red").SerializeToString()
    found = ProtobufSchema(FILES, "shop.Order").decode(body)
    assert isinstance(found, dict)
    assert (found["item"], found["state"], found["large"], "colour" in found) == ("pen", "7", 0, False)


@pytest.mark.parametrize("body", [b"\xff\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xff"])
def test_bodies_that_do_not_fit(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"is no shop\.Order"):
        ProtobufSchema(FILES, "shop.Order").decode(body)


def test_required_fields() -> None:
    old = file_of("old.proto", message("Old", field("id", 1, Field.TYPE_INT32, label=Field.LABEL_REQUIRED)))
    old.syntax = "proto2"
    with pytest.raises(ValueError, match="without its required id"):
        ProtobufSchema(set_of(old), "shop.Old").decode(b"")


LOOP = file_of("loop.proto", message("Loop", field("next", 1, Field.TYPE_MESSAGE, type_name=".shop.Loop")))


@pytest.mark.parametrize(
    ("files", "name", "said"),
    [
        (b"no descriptor", "shop.Order", "no descriptor set"),
        (b"", "shop.Order", "no descriptor set"),
        (FILES, "shop.Ordr", "'shop.Ordr', which the descriptor set does not have"),
        (set_of(ORDER), "shop.Order", "'order.proto' needs 'line.proto'"),
        (set_of(LOOP), "shop.Loop", "contains itself"),
        (set_of(file_of("empty.proto", message("Empty"))), "shop.Empty", "has no fields"),
    ],
)
def test_descriptor_sets_that_are_refused(files: bytes, name: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        ProtobufSchema(files, name)
