"""Options that decode bodies, the columns that they add, and bodies that do not fit."""

from __future__ import annotations

import logging
import pickle
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, ULong
from busbar.message.decoded import DecodedMessage, encode_message
from busbar.message.parsing import parse_message
from busbar.spark.decode import PageDecoder
from busbar.spark.errors import OptionError, SourceError
from busbar.spark.options import SourceOptions
from busbar.spark.read_schema import decoder_of, schema_of_read
from busbar.spark.schema import MESSAGES

GIVEN = {"entity": "orders", "connectionStringEnv": "PLACE"}
DDL = "item STRING, price DECIMAL(5, 2)"


def page(*bodies: bytes | None) -> bytes:
    """A page of messages; None is a body that is an AMQP value."""
    contents = []
    for body in bodies:
        payload = encode_message(DecodedMessage(data=body or b""))
        if body is None:
            payload = payload.replace(encode_value(Described(ULong(0x75), b"")), b"")
            payload += encode_value(Described(ULong(0x77), {"a": 1}))
        contents.append(parse_message(payload, 0, len(payload), "fresh", 128).content)
    heads = [
        struct.pack(">qqqqIBII", n, 0, 1_000 * n, 0, 0, 0, 0, len(kept)) for n, kept in enumerate(contents, 1)
    ]
    return struct.pack(">I", len(contents)) + b"".join(heads) + b"".join(contents)


def decode(
    rows: bytes, schema: StructType | None = None, *, streaming: bool = False, **more: str
) -> pa.RecordBatch:
    """A page as the source decodes it, in a task."""
    given = GIVEN | more
    wanted = schema_of_read(given) if schema is None else schema
    decoder = decoder_of(SourceOptions.parse(given, streaming=streaming), wanted, streaming=streaming)
    batch = pickle.loads(pickle.dumps(decoder)).batch("orders", "", 0, rows)
    batch.validate(full=True)
    assert batch.schema.names == wanted.fieldNames()
    return batch


ROWS = page(b'{"item": "pen", "price": 1.5}', b"no json", b'{"price": 1234.5}', None, b'{"item": "ink"}')
GOOD = [{"item": "pen", "price": pytest.approx(1.5)}, {"item": "ink", "price": None}]


def plain(batch: pa.RecordBatch) -> list[object]:
    return [
        None
        if value is None
        else {**value, "price": None if value["price"] is None else float(value["price"])}
        for value in batch.column("value").to_pylist()
    ]


def test_bad_bodies_get_a_reason() -> None:
    batch = decode(ROWS, bodyFormat="json", bodySchema=DDL, badBodies="column")
    assert batch.schema.names == [*MESSAGES.fieldNames(), "value", "body_error"]
    assert plain(batch) == [GOOD[0], None, None, None, GOOD[1]]
    reasons = batch.column("body_error").to_pylist()
    assert reasons[0] is None and reasons[4] is None
    assert "malformed" in reasons[1]
    assert "recision" in reasons[2], "what Arrow cannot hold concerns its own row alone"
    assert reasons[3] == "the body is an AMQP value, not bytes or text"
    assert batch.column("body").to_pylist()[1] == b"no json", "as it came"


def test_bad_bodies_are_null() -> None:
    batch = decode(ROWS, bodyFormat="json", bodySchema=DDL, badBodies="null")
    assert "body_error" not in batch.schema.names
    assert plain(batch) == [GOOD[0], None, None, None, GOOD[1]]


def test_bad_bodies_are_dropped_whatever_columns_are_read(caplog: pytest.LogCaptureFixture) -> None:
    for columns in ("sequence_number,value", "sequence_number"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "busbar.spark"):
            batch = decode(ROWS, bodyFormat="json", bodySchema=DDL, badBodies="drop", columns=columns)
        assert batch.column("sequence_number").to_pylist() == [1, 5]
        assert "Left out 3 messages of 'orders'" in caplog.text


def test_a_bad_body_fails_the_read_and_is_named() -> None:
    with pytest.raises(
        SourceError, match=r"BUSBAR_BAD_BODY\] The body of message 2 of 'orders' does not fit"
    ):
        decode(ROWS, bodyFormat="json", bodySchema=DDL)
    assert decode(ROWS, bodyFormat="json", bodySchema=DDL, columns="subject").num_rows == 5, "not decoded"


def test_columns_and_fields_are_selected() -> None:
    batch = decode(ROWS, bodyFormat="json", bodySchema=DDL, badBodies="column", columns="body_error,fragment")
    assert [reason is None for reason in batch.column("body_error").to_pylist()] == [
        True,
        False,
        False,
        False,
        True,
    ]
    given = GIVEN | {"bodyFormat": "json", "bodySchema": DDL, "badBodies": "null"}
    full = schema_of_read(given)
    narrow = schema_of_read(given | {"bodySchema": "item STRING"})
    batch = decode(
        ROWS, StructType([narrow["value"], full["sequence_number"]]), bodyFormat="json", badBodies="null"
    )
    assert batch.column("value").to_pylist() == [{"item": "pen"}, None, {"item": None}, None, {"item": "ink"}]
    with pytest.raises(OptionError, match="a column 'body_error'"):
        decode(ROWS, StructType([full["value"], *_errors()]), bodyFormat="json")
    options = SourceOptions.parse(given | {"columns": "subject"}, streaming=False)
    decoder = decoder_of(options, schema_of_read(given | {"columns": "subject"}))
    assert type(decoder) is PageDecoder and not decoder.needs_bodies


def _errors() -> StructType:
    full = schema_of_read(GIVEN | {"bodyFormat": "text", "badBodies": "column"})
    return StructType([full["body_error"]])


def test_text() -> None:
    batch = decode(page("straße".encode(), b"\xff", b""), bodyFormat="text", badBodies="column")
    assert batch.column("value").to_pylist() == ["straße", None, ""]


def test_fields_that_must_be_there_are_null_with_their_body() -> None:
    batch = decode(ROWS, bodyFormat="json", bodySchema="item STRING NOT NULL", badBodies="null")
    assert batch.column("value").to_pylist() == [{"item": "pen"}, None, None, None, {"item": "ink"}]


def test_a_schema_in_a_file(tmp_path: Path) -> None:
    place = tmp_path / "order.ddl"
    place.write_text(DDL + "\n")
    batch = decode(ROWS, bodyFormat="json", bodySchemaFile=str(place), badBodies="null")
    assert plain(batch)[0] == GOOD[0]
    with pytest.raises(OptionError, match="the driver cannot read"):
        schema_of_read(GIVEN | {"bodyFormat": "json", "bodySchemaFile": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bodySchema": DDL}, "'bodySchema' needs the option 'bodyFormat'"),
        ({"schemaRegistry": "http://x"}, "'schemaRegistry' needs the option 'bodyFormat'"),
        ({"bodyFormat": "xml"}, "'json' or 'avro' or 'protobuf' or 'text'"),
        ({"bodyFormat": "json", "badBodies": "deadLetter"}, "settles no message"),
        ({"bodyFormat": "json", "badBodies": "ignore"}, "'fail' or 'null' or 'column' or 'drop'"),
        ({"bodyFormat": "json", "bodySchema": DDL, "bodySchemaFile": "x"}, "one schema is enough"),
        ({"bodyFormat": "text", "bodySchema": DDL}, "does not fit the format 'text'"),
        ({"bodyFormat": "json", "bodyMessage": "x"}, "is for the format 'protobuf'"),
        ({"bodyFormat": "json", "bodySampleSize": "200000"}, "at most 100000"),
        ({"bodyFormat": "avro"}, "'bodySchema' is missing"),
        ({"bodyFormat": "protobuf"}, "protoc --include_imports"),
        ({"bodyFormat": "protobuf", "bodySchema": "x"}, "'bodySchemaFile' names"),
        ({"bodyFormat": "protobuf", "bodySchemaFile": "x"}, "'bodyMessage' is missing"),
        (
            {"bodyFormat": "avro", "bodySchema": "x", "schemaSubject": "s"},
            "needs the option 'schemaRegistry'",
        ),
        ({"bodyFormat": "avro", "schemaRegistry": "ftp://x", "schemaSubject": "s"}, "it is a URL"),
        (
            {"bodyFormat": "avro", "schemaRegistry": "http://u:hidden@x", "schemaSubject": "s"},
            "credentials in its URL",
        ),
        (
            {"bodyFormat": "avro", "schemaRegistry": "http://x", "bodySchema": "x", "schemaSubject": "s"},
            "together with 'bodySchema'",
        ),
        (
            {
                "bodyFormat": "avro",
                "schemaRegistry": "http://x",
                "bodySchema": "x",
                "schemaRegistryCredentials": "a:hidden",
                "schemaRegistryCredentialsEnv": "X",
            },
            "one place is enough",
        ),
        ({"bodyFormat": "json", "stream": "events"}, "events have no body"),
        ({"bodyFormat": "json", "includeBody": "false"}, "'includeBody' leaves out"),
    ],
)
def test_options_that_are_wrong(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        SourceOptions.parse(GIVEN | given, streaming=False)
    assert said in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_a_stream_needs_a_schema() -> None:
    with pytest.raises(OptionError, match="A stream does not infer"):
        schema_of_read(GIVEN | {"bodyFormat": "json", "maxMessagesPerTrigger": "5"})
    given = GIVEN | {"bodyFormat": "json"}
    inferred = schema_of_read(given | {"bodySchema": DDL})
    value = inferred["value"]
    value.metadata = {"inferred": True}
    options = SourceOptions.parse(given, streaming=True)
    with pytest.raises(OptionError, match="A stream does not infer"):
        decoder_of(options, StructType([value]), streaming=True)
    with pytest.raises(OptionError, match="A stream does not infer"):
        decoder_of(options, None, streaming=True)
