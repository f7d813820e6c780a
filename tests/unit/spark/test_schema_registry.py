"""Schemas of a registry, over HTTP: what is read, what is kept, and what fails the read instead of a body."""

from __future__ import annotations

import base64
import io
import json
import pickle
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer

from busbar.app.certificates import own_files
from busbar.spark import schema_registry
from busbar.spark.body_options import BodyOptions, parse_body
from busbar.spark.body_schema import BodyDecoder, decoder_of_bodies
from busbar.spark.errors import OptionError, SourceError
from busbar.spark.options import known_options
from busbar.spark.schema_registry import AZURE, RegistryOptions, SchemaRegistry, UnknownSchema
from busbar.spark.wire_format import confluent_id_of, framed, message_path_of
from harness.schema_registry import SchemaRegistryServer, basic, serving_schemas
from tests.unit.spark.protobuf_files import LINE, ORDER, classes_of

FIRST: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "item", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "old", "type": "int"},
    ],
}
SECOND: dict[str, Any] = FIRST | {
    "fields": [
        {"name": "item", "type": "string"},
        {"name": "count", "type": "long"},
        {"name": "colour", "type": "string", "default": "red"},
    ]
}


def avro(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(schema), value)
    return stream.getvalue()


@pytest.fixture
def registry() -> Iterator[SchemaRegistryServer]:
    with serving_schemas() as serving:
        yield serving


def body_options(**given: str) -> BodyOptions:
    found = parse_body(known_options(given))
    assert found is not None
    return found


def decoder_for(registry: SchemaRegistryServer, **given: str) -> BodyDecoder:
    found = decoder_of_bodies(body_options(schemaRegistry=registry.url, **given))
    assert found is not None
    return found


def test_bodies_are_read_by_the_schema_that_they_name(registry: SchemaRegistryServer) -> None:
    first = registry.register("orders-value", json.dumps(FIRST))
    second = registry.register("orders-value", json.dumps(SECOND))
    bodies = decoder_for(registry, bodyFormat="avro", schemaSubject="orders-value")
    assert bodies.type.simpleString() == "struct<item:string,count:bigint,colour:string>"
    old = framed(first, avro(FIRST, {"item": "pen", "count": 2, "old": 9}))
    new = framed(second, avro(SECOND, {"item": "ink", "count": 2**40, "colour": "blue"}))
    bodies = pickle.loads(pickle.dumps(bodies))
    for _ in range(3):
        assert bodies.decode(old) == {"item": "pen", "count": 2, "colour": "red"}, (
            "a default, and a field less"
        )
        assert bodies.decode(new) == {"item": "ink", "count": 2**40, "colour": "blue"}
    assert registry.requests.count(f"/schemas/ids/{first}") == 1, "schemas are kept"
    pinned = decoder_for(registry, bodyFormat="avro", schemaSubject="orders-value", schemaVersion="1")
    assert pinned.type.simpleString() == "struct<item:string,count:int,old:int>"
    with pytest.raises(Exception, match="long is not int"):
        pinned.decode(new)
    own = decoder_for(registry, bodyFormat="avro", bodySchema=json.dumps(SECOND))
    assert own.decode(old) == {"item": "pen", "count": 2, "colour": "red"}


def test_a_field_with_another_name(registry: SchemaRegistryServer) -> None:
    made = registry.register("s", json.dumps(FIRST))
    reader = FIRST | {"fields": [{"name": "article", "type": "string", "aliases": ["item"]}]}
    bodies = decoder_for(registry, bodyFormat="avro", bodySchema=json.dumps(reader))
    assert bodies.decode(framed(made, avro(FIRST, {"item": "pen", "count": 2, "old": 9}))) == {
        "article": "pen"
    }


def test_bodies_that_name_no_schema(registry: SchemaRegistryServer) -> None:
    registry.register("s", json.dumps(FIRST))
    json_id = registry.register("j", "{}", "JSON")
    bodies = decoder_for(registry, bodyFormat="avro", schemaSubject="s")
    good = avro(FIRST, {"item": "pen", "count": 2, "old": 9})
    for body in (b"", b"\0\0\0", b"\1" + good, good):
        with pytest.raises(ValueError, match="does not begin with the id"):
            bodies.decode(body)
    with pytest.raises(ValueError, match="one of JSON"):
        bodies.decode(framed(json_id, good))
    for _ in range(2):
        with pytest.raises(UnknownSchema, match="no schema with the id 77"):
            bodies.decode(framed(77, good))
    assert registry.requests.count("/schemas/ids/77") == 1, "not for each body"


def test_a_schema_that_was_unknown_is_asked_for_again(
    registry: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_registry, "UNKNOWN_SECONDS", 0.0)
    reader = SchemaRegistry(RegistryOptions(registry.url))
    with pytest.raises(UnknownSchema):
        reader.by_id("1")
    registry.register("s", json.dumps(FIRST))
    assert json.loads(reader.by_id("1").text) == FIRST


def test_references(registry: SchemaRegistryServer) -> None:
    part = {"type": "record", "name": "shop.Part", "fields": [{"name": "id", "type": "int"}]}
    line = {"type": "record", "name": "shop.Line", "fields": [{"name": "part", "type": "shop.Part"}]}
    order = {
        "type": "record",
        "name": "shop.Order",
        "fields": [{"name": "lines", "type": {"type": "array", "items": "shop.Line"}}],
    }
    registry.register("part", json.dumps(part))
    registry.register(
        "line", json.dumps(line), references=[{"name": "shop.Part", "subject": "part", "version": 1}]
    )
    made = registry.register(
        "order", json.dumps(order), references=[{"name": "shop.Line", "subject": "line", "version": 1}]
    )
    bodies = pickle.loads(pickle.dumps(decoder_for(registry, bodyFormat="avro", schemaSubject="order")))
    assert bodies.type.simpleString() == "struct<lines:array<struct<part:struct<id:int>>>>"
    assert bodies.decode(framed(made, b"\x02\x0e\x00")) == {"lines": [{"part": {"id": 7}}]}


def test_protobuf_of_a_registry(registry: SchemaRegistryServer) -> None:
    registry.register("line", base64.b64encode(LINE.SerializeToString()).decode(), "PROTOBUF")
    text = base64.b64encode(ORDER.SerializeToString()).decode()
    line = {"name": "line.proto", "subject": "line", "version": 1}
    made = registry.register("order", text, "PROTOBUF", [line])
    bodies = pickle.loads(pickle.dumps(decoder_for(registry, bodyFormat="protobuf", schemaSubject="order")))
    classes = classes_of(LINE, ORDER)
    order = classes["shop.Order"](item="pen").SerializeToString()
    assert bodies.decode(framed(made, order, (0,)))["item"] == "pen"
    assert bodies.decode(framed(made, b"\x02\x00" + order))["item"] == "pen", (
        "the long form of the first message"
    )
    other = classes["shop.Other"](name="pen").SerializeToString()
    with pytest.raises(ValueError, match=r"is a shop\.Other, not a shop\.Order"):
        bodies.decode(framed(made, other, (1,)))
    with pytest.raises(ValueError, match="no message at"):
        bodies.decode(framed(made, other, (2, 1)))
    named = decoder_for(registry, bodyFormat="protobuf", schemaSubject="order", bodyMessage="shop.Other")
    assert named.decode(framed(made, other, (1,))) == {"name": "pen"}


def test_json_of_a_registry(registry: SchemaRegistryServer) -> None:
    schema = {"type": "object", "properties": {"item": {"type": "string"}, "count": {"type": "integer"}}}
    made = registry.register("order", json.dumps(schema), "JSON")
    bodies = decoder_for(registry, bodyFormat="json", schemaSubject="order")
    assert bodies.decode(framed(made, b'{"item": "pen", "count": 2}')) == {"item": "pen", "count": 2}
    with pytest.raises(ValueError, match="does not begin"):
        bodies.decode(b'{"item": "pen"}')


def test_azure_names_schemas_in_content_types(registry: SchemaRegistryServer) -> None:
    first = registry.register_azure("group", "shop.Order", json.dumps(FIRST))
    registry.register_azure("group", "shop.Order", json.dumps(SECOND))
    bodies = decoder_for(
        registry, bodyFormat="avro", schemaRegistryType=AZURE, schemaSubject="group/shop.Order"
    )
    body = avro(FIRST, {"item": "pen", "count": 2, "old": 9})
    assert bodies.decode(body, f"avro/binary+{first}") == {"item": "pen", "count": 2, "colour": "red"}
    for content in (None, "avro/binary", "application/json", f"application/json+{first}"):
        with pytest.raises(ValueError, match="content type"):
            bodies.decode(body, content)
    with pytest.raises(UnknownSchema):
        bodies.decode(body, "avro/binary+nothing")
    with pytest.raises(OptionError, match="'group/name'"):
        decoder_for(registry, bodyFormat="avro", schemaRegistryType=AZURE, schemaSubject="Order")
    assert body_options(
        bodyFormat="avro", bodySchema="x", schemaRegistry="https://shop.servicebus.windows.net/"
    ).registry == RegistryOptions("https://shop.servicebus.windows.net", AZURE)


def test_a_registry_that_fails_is_no_bad_body(registry: SchemaRegistryServer) -> None:
    made = registry.register("s", json.dumps(FIRST))
    bodies = decoder_for(registry, bodyFormat="avro", schemaSubject="s", schemaRegistryTimeout="800ms")
    body = framed(made, avro(FIRST, {"item": "pen", "count": 2, "old": 9}))
    registry.fails = 1_000
    with pytest.raises(SourceError, match=r"did not answer for 0\.8 s .*503: The registry is busy"):
        bodies.decode(body)
    registry.fails = 1
    assert bodies.decode(body) == {"item": "pen", "count": 2, "old": 9}, "a failure that passes is waited for"


def test_a_wrong_url_is_no_bad_body(registry: SchemaRegistryServer) -> None:
    wrong = SchemaRegistry(RegistryOptions(f"{registry.url}/wrong", timeout=0.2))
    with pytest.raises(SourceError, match="answered with 404"):
        wrong.by_id("1")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    nobody = SchemaRegistry(RegistryOptions(f"http://127.0.0.1:{port}", timeout=0.2))
    with pytest.raises(SourceError, match=r"BUSBAR_SCHEMA_REGISTRY.*did not answer for 0.2 s.*refused"):
        nobody.by_id("1")


def test_a_registry_that_hangs_is_not_waited_for(registry: SchemaRegistryServer) -> None:
    registry.delay = 2.0
    began = time.monotonic()
    with pytest.raises(SourceError, match="did not answer"):
        SchemaRegistry(RegistryOptions(registry.url, timeout=0.3)).by_id("1")
    assert time.monotonic() - began < registry.delay


def test_subjects_that_are_not_there(registry: SchemaRegistryServer) -> None:
    registry.register("s", json.dumps(FIRST))
    registry.register("j", "{}", "JSON")
    for given in ({"schemaSubject": "t"}, {"schemaSubject": "s", "schemaVersion": "2"}):
        with pytest.raises(OptionError, match="has no version"):
            decoder_for(registry, bodyFormat="avro", **given)
    with pytest.raises(OptionError, match="one of JSON"):
        decoder_for(registry, bodyFormat="avro", schemaSubject="j")


def test_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "credentials"
    place.write_text("user:pass word\n")
    monkeypatch.setenv("REGISTRY", "user:pass word")
    with serving_schemas(basic("user", "pass word")) as registry:
        registry.register("s", json.dumps(FIRST))
        for given in (
            {"schemaRegistryCredentials": "user:pass word"},
            {"schemaRegistryCredentialsEnv": "REGISTRY"},
            {"schemaRegistryCredentialsFile": str(place)},
        ):
            decoder_for(registry, bodyFormat="avro", schemaSubject="s", **given)
        with pytest.raises(SourceError, match=r"refused the credentials \(401\): Unauthorized") as caught:
            decoder_for(
                registry, bodyFormat="avro", schemaSubject="s", schemaRegistryCredentials="user:hidden"
            )
        assert "hidden" not in str(caught.value)
    with serving_schemas("Bearer abc") as registry:
        registry.register("s", json.dumps(FIRST))
        options = body_options(
            bodyFormat="avro",
            schemaSubject="s",
            schemaRegistry=registry.url,
            schemaRegistryCredentials="Bearer abc",
        )
        assert decoder_of_bodies(options) is not None
        assert "abc" not in repr(options)


def test_a_registry_over_tls(tmp_path: Path) -> None:
    files = own_files(tmp_path, [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with serving_schemas(context=context) as registry:
        registry.register("s", json.dumps(FIRST))
        given = {"bodyFormat": "avro", "schemaSubject": "s"}
        decoder_for(registry, schemaRegistryTrustFile=str(files.ca), **given)
        with pytest.raises(SourceError, match="a certificate that is not trusted"):
            decoder_for(registry, **given)
        with pytest.raises(OptionError, match="no file here"):
            decoder_for(registry, schemaRegistryTrustFile=str(tmp_path / "none"), **given)


def test_redirects_do_not_take_credentials_along(registry: SchemaRegistryServer) -> None:
    with serving_schemas() as other:
        registry.redirect = other.url
        reader = SchemaRegistry(RegistryOptions(registry.url, literal="user:hidden", timeout=0.2))
        with pytest.raises(SourceError, match="answered with 302"):
            reader.by_id("1")
        assert other.requests == []


@pytest.mark.parametrize("path", [(0,), (1,), (0, 3, 200)])
def test_frames_of_protobuf(path: tuple[int, ...]) -> None:
    schema_id, rest = confluent_id_of(framed(70_000, b"rest", path))
    assert (schema_id, message_path_of(rest)) == ("70000", (path, b"rest"))


@pytest.mark.parametrize("rest", [b"", b"\x04\x02", b"\xff\xff\xff\xff\xff\xff", b"\x01", b"\x7e"])
def test_paths_that_do_not_end(rest: bytes) -> None:
    with pytest.raises(ValueError, match="the path of the message"):
        message_path_of(rest)
