"""Files of Protobuf for tests, built without its compiler."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field


def field(name: str, number: int, kind: int, **more: Any) -> Field:
    return Field(name=name, number=number, type=kind, label=more.pop("label", Field.LABEL_OPTIONAL), **more)


def file_of(
    name: str, *messages: descriptor_pb2.DescriptorProto, **more: Any
) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto(
        name=name, package="shop", syntax="proto3", message_type=messages, **more
    )


def message(name: str, *fields: Field, **more: Any) -> descriptor_pb2.DescriptorProto:
    return descriptor_pb2.DescriptorProto(name=name, field=fields, **more)


def set_of(*files: descriptor_pb2.FileDescriptorProto) -> bytes:
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


def classes_of(*files: descriptor_pb2.FileDescriptorProto) -> dict[str, Any]:
    """The classes of messages, by full name, as a writer has them."""
    pool = descriptor_pool.DescriptorPool()
    for name in ("timestamp", "duration", "wrappers"):
        module = __import__(f"google.protobuf.{name}_pb2", fromlist=["DESCRIPTOR"])
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    found: dict[str, Any] = {}
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
        for each in file.message_type:
            full = f"{file.package}.{each.name}"
            found[full] = message_factory.GetMessageClass(pool.FindMessageTypeByName(full))
    return found


LINE = file_of(
    "line.proto", message("Line", field("id", 1, Field.TYPE_UINT64), field("note", 2, Field.TYPE_STRING))
)
ORDER = file_of(
    "order.proto",
    message(
        "Order",
        field("item", 1, Field.TYPE_STRING),
        field("count", 2, Field.TYPE_INT32, proto3_optional=True, oneof_index=0),
        field("large", 3, Field.TYPE_UINT32),
        field("state", 4, Field.TYPE_ENUM, type_name=".shop.State"),
        field("lines", 5, Field.TYPE_MESSAGE, type_name=".shop.Line", label=Field.LABEL_REPEATED),
        field("sizes", 6, Field.TYPE_MESSAGE, type_name=".shop.Order.SizesEntry", label=Field.LABEL_REPEATED),
        field("at", 7, Field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp"),
        field("took", 8, Field.TYPE_MESSAGE, type_name=".google.protobuf.Duration"),
        field("weight", 9, Field.TYPE_MESSAGE, type_name=".google.protobuf.DoubleValue"),
        field("picture", 10, Field.TYPE_BYTES),
        nested_type=[
            message(
                "SizesEntry",
                field("key", 1, Field.TYPE_STRING),
                field("value", 2, Field.TYPE_INT64),
                options=descriptor_pb2.MessageOptions(map_entry=True),
            )
        ],
        oneof_decl=[descriptor_pb2.OneofDescriptorProto(name="_count")],
    ),
    message("Other", field("name", 1, Field.TYPE_STRING)),
    enum_type=[
        descriptor_pb2.EnumDescriptorProto(
            name="State",
            value=[
                descriptor_pb2.EnumValueDescriptorProto(name="NEW", number=0),
                descriptor_pb2.EnumValueDescriptorProto(name="PAID", number=1),
            ],
        )
    ],
    dependency=[
        "line.proto",
        "google/protobuf/timestamp.proto",
        "google/protobuf/duration.proto",
        "google/protobuf/wrappers.proto",
    ],
)
