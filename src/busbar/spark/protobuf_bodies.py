"""Protobuf bodies: the column type of a message, and the decoding of a body.

    int32, sint32, sfixed32            INT              string                     STRING
    uint32, fixed32, int64, ...        BIGINT           bytes                      BINARY
    uint64, fixed64                    DECIMAL(20, 0)   enum                       STRING, the name of the value
    float, double, bool                as they are      repeated, map              ARRAY, MAP
    google.protobuf.Timestamp          TIMESTAMP        google.protobuf.Duration   INTERVAL DAY TO SECOND
    google.protobuf.Int32Value, ...    the type inside  another message            STRUCT

A field that the body lacks is null if Protobuf records its presence (messages, `optional`, oneof). Otherwise it has its
default. Fields that the message lacks are left out. A message that contains itself has no column type and is refused.

The encoding has fields by number and no mark of the message. So bytes of another format may well decode to a message
without fields. Only with a registry a body names its message.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from busbar.spark.errors import OptionError
from busbar.spark.registered_bodies import RegisteredBodies
from busbar.spark.wire_format import confluent_id_of, message_path_of

Value = Callable[[Any], Any]
"""Turns a value of Protobuf into one that pyarrow can convert."""

_SCALARS: Final[dict[int, Callable[[], DataType]]] = {
    FieldDescriptor.TYPE_INT32: IntegerType,
    FieldDescriptor.TYPE_SINT32: IntegerType,
    FieldDescriptor.TYPE_SFIXED32: IntegerType,
    FieldDescriptor.TYPE_UINT32: LongType,
    FieldDescriptor.TYPE_FIXED32: LongType,
    FieldDescriptor.TYPE_INT64: LongType,
    FieldDescriptor.TYPE_SINT64: LongType,
    FieldDescriptor.TYPE_SFIXED64: LongType,
    FieldDescriptor.TYPE_UINT64: lambda: DecimalType(20, 0),
    FieldDescriptor.TYPE_FIXED64: lambda: DecimalType(20, 0),
    FieldDescriptor.TYPE_FLOAT: FloatType,
    FieldDescriptor.TYPE_DOUBLE: DoubleType,
    FieldDescriptor.TYPE_BOOL: BooleanType,
    FieldDescriptor.TYPE_STRING: StringType,
    FieldDescriptor.TYPE_BYTES: BinaryType,
    FieldDescriptor.TYPE_ENUM: StringType,
}
_LARGE: Final = (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64)
_WRAPPERS: Final = frozenset(
    message.full_name for message in wrappers_pb2.DESCRIPTOR.message_types_by_name.values()
)
_WELL_KNOWN: Final = (timestamp_pb2.DESCRIPTOR, duration_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ProtobufSchema:
    """A message of a set of files, ready to decode with. It is sent to workers as the files."""

    def __init__(self, files: bytes, message: str) -> None:
        self.files = files
        self.name = message
        descriptor = _find(_pool_of(files), message)
        self._class = message_factory.GetMessageClass(descriptor)
        self._fields = _FieldPlan(descriptor, ())
        self.type: DataType = self._fields.type

    def __reduce__(self) -> tuple[type[ProtobufSchema], tuple[bytes, str]]:
        return ProtobufSchema, (self.files, self.name)

    def decode(self, body: bytes) -> object:
        """Decode a body. Raises ValueError if it is no such message."""
        message = self._class()
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            raise ValueError(f"is no {self.name}: {error}") from None
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise ValueError(f"is a {self.name} without its required {missing}")
        return self._fields.values(message)

    def encode(self, value: dict[str, Any]) -> bytes:
        """Encode a value. Raises ValueError or TypeError if it is not of the message."""
        message = self._class()
        fill(message, value)
        if not message.IsInitialized():
            raise ValueError(f"lacks the required {', '.join(message.FindInitializationErrors())}")
        return bytes(message.SerializeToString())


def _pool_of(files: bytes) -> descriptor_pool.DescriptorPool:
    """The files of a descriptor set. Those of Google that it lacks are added."""
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(files)
    except DecodeError:
        found = descriptor_pb2.FileDescriptorSet()
    by_name = {file.name: file for file in found.file}
    if not by_name:
        raise OptionError("bodySchemaFile", "names what is no descriptor set.")
    for each in _WELL_KNOWN:
        by_name.setdefault(each.name, _proto(each))
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(name: str, path: tuple[str, ...]) -> None:
        file = by_name.get(name)
        if file is None or name in path:
            needed = f"{path[-1]!r} needs " if path else ""
            raise OptionError(
                "bodySchemaFile", f"lacks a file: {needed}{name!r}. 'protoc --include_imports' writes all."
            )
        if name not in added:
            for other in file.dependency:
                add(other, (*path, name))
            added.add(name)
            pool.AddSerializedFile(file.SerializeToString())

    try:
        for name in by_name:
            add(name, ())
    except TypeError as error:  # the library's error for a wrong file
        raise OptionError("bodySchemaFile", f"has a file that is wrong: {error}.") from None
    return pool


def _proto(file: FileDescriptor) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)


def _find(pool: descriptor_pool.DescriptorPool, message: str) -> Descriptor:
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError:
        raise OptionError("bodyMessage", f"is {message!r}, which the descriptor set does not have.") from None


class _FieldPlan:
    """The column type of a message, and the conversion of each field."""

    def __init__(self, message: Descriptor, path: tuple[str, ...]) -> None:
        if message.full_name in path:
            raise OptionError(
                "bodyMessage", f"leads to {message.full_name!r}, which contains itself: no column can."
            )
        if not message.fields:
            raise OptionError(
                "bodyMessage", f"leads to {message.full_name!r}, which has no fields: no column can."
            )
        inside = (*path, message.full_name)
        self._fields: list[tuple[str, bool, Value]] = []
        columns: list[StructField] = []
        for field in message.fields:
            kind, value = _of_field(field, inside)
            columns.append(StructField(field.name, kind, field.has_presence and not field.is_required))
            self._fields.append((field.name, field.has_presence, value))
        self.type = StructType(columns)

    def values(self, message: Message) -> dict[str, Any]:
        return {
            name: value(getattr(message, name)) if not presence or message.HasField(name) else None
            for name, presence, value in self._fields
        }


def _of_field(field: FieldDescriptor, path: tuple[str, ...]) -> tuple[DataType, Value]:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, of_key = _of_one(message.fields_by_name["key"], path)
        item, of_item = _of_one(message.fields_by_name["value"], path)
        return MapType(key, item, False), lambda found: [
            (of_key(name), of_item(found[name])) for name in found
        ]
    item, of_item = _of_one(field, path)
    if field.is_repeated:
        return ArrayType(item, False), lambda found: [of_item(each) for each in found]
    return item, of_item


def _of_one(field: FieldDescriptor, path: tuple[str, ...]) -> tuple[DataType, Value]:
    message = field.message_type
    if message is None:
        return _SCALARS[field.type](), _scalar(field)
    if message.full_name == "google.protobuf.Timestamp":
        return (
            TimestampType(),
            lambda found: _EPOCH + timedelta(seconds=found.seconds, microseconds=found.nanos // 1000),
        )
    if message.full_name == "google.protobuf.Duration":
        return DayTimeIntervalType(), lambda found: timedelta(
            seconds=found.seconds, microseconds=int(found.nanos / 1000)
        )
    if message.full_name in _WRAPPERS:
        kind, value = _of_one(message.fields_by_name["value"], path)
        return kind, lambda found: value(found.value)
    plan = _FieldPlan(message, path)
    return plan.type, plan.values


def _scalar(field: FieldDescriptor) -> Value:
    if field.type in _LARGE:
        return Decimal
    if field.enum_type is not None:
        names = {each.number: each.name for each in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    return lambda value: value


# ---- encoding ------------------------------------------------------------------------------------------


def fill(message: Any, value: dict[str, Any]) -> None:
    """Set the fields of a message to values of its column type; null leaves a field out."""
    fields = message.DESCRIPTOR.fields_by_name
    for name, each in value.items():
        field = fields.get(name)
        if field is None:
            raise ValueError(f"has a field {name!r}, which {message.DESCRIPTOR.full_name} lacks")
        if each is None:
            continue
        target = getattr(message, name)
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            _fill_map(target, inner.fields_by_name["value"], each)
        elif field.is_repeated and inner is not None:
            for item in each:
                _fill_message(target.add(), item)
        elif field.is_repeated:
            target.extend([_encoded(field, item) for item in each])
        elif inner is not None:
            _fill_message(target, each)
        else:
            setattr(message, name, _encoded(field, each))


def _fill_map(target: Any, field: FieldDescriptor, value: dict[Any, Any]) -> None:
    for key, each in value.items():
        if field.message_type is not None:
            _fill_message(target[key], each)
        else:
            target[key] = _encoded(field, each)


def _fill_message(target: Any, value: Any) -> None:
    name = target.DESCRIPTOR.full_name
    target.SetInParent()
    if name == "google.protobuf.Timestamp":
        target.FromDatetime(value)
    elif name == "google.protobuf.Duration":
        target.FromTimedelta(value)
    elif name in _WRAPPERS:
        target.value = _encoded(target.DESCRIPTOR.fields_by_name["value"], value)
    else:
        fill(target, value)


def _encoded(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value)
    if field.enum_type is not None and isinstance(value, str):
        known = field.enum_type.values_by_name.get(value)
        if known is None:
            raise ValueError(f"has {value!r}, which {field.enum_type.full_name} lacks")
        return known.number
    return value


# ---- with a registry -----------------------------------------------------------------------------------


class ProtobufBodies(RegisteredBodies[ProtobufSchema, str]):
    """Decodes bodies as a message, and those of a registry if they are that message."""

    def decode(self, body: bytes, content_type: str | None = None) -> object:
        """Decode a body. Raises ValueError or LookupError if it does not fit, SourceError if the registry fails."""
        if self._registry is None:
            return self._schema.decode(body)
        schema_id, rest = confluent_id_of(body)
        path, payload = message_path_of(rest)
        name = self._named.get((schema_id, path))
        if name is None:
            found = self._registered(self._registry, schema_id, "PROTOBUF", serialized=True)
            name = name_at(file_of(found.text), path)
            self._named[schema_id, path] = name
        if name != self._schema.name:
            raise ValueError(f"is a {name}, not a {self._schema.name}")
        return self._schema.decode(payload)


def file_of(text: str, name: str = "") -> descriptor_pb2.FileDescriptorProto:
    """The file that a registry returns, in base64. Raises ValueError."""
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        raise ValueError("the registry's schema is no descriptor in base64") from None
    if name:
        file.name = name
    return file


def set_of(text: str, references: Sequence[tuple[str, str]]) -> bytes:
    """The descriptor set of a schema of a registry, and of those that it refers to by the names of their files."""
    files = [file_of(other, name) for name, other in references]
    made = descriptor_pb2.FileDescriptorSet(file=[*files, file_of(text, "schema.proto")])
    return bytes(made.SerializeToString())


def name_at(file: descriptor_pb2.FileDescriptorProto, path: tuple[int, ...]) -> str:
    """The full name of the message at a path. Raises ValueError."""
    names = [file.package] if file.package else []
    messages: Sequence[descriptor_pb2.DescriptorProto] = file.message_type
    for step in path:
        if not 0 <= step < len(messages):
            raise ValueError(f"the schema has no message at {list(path)}")
        names.append(messages[step].name)
        messages = messages[step].nested_type
    return ".".join(names)
