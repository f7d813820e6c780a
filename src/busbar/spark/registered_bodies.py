"""What decoders of bodies share if the body may name its schema in a registry."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, Protocol, TypeVar

from pyspark.sql.types import DataType

from busbar.spark.schema_registry import RegisteredSchema, RegistryOptions, registry_of_process


class ColumnSchema(Protocol):
    """A schema that has a column type."""

    @property
    def type(self) -> DataType: ...


S = TypeVar("S", bound=ColumnSchema)
N = TypeVar("N")


class RegisteredBodies(Generic[S, N]):
    """A decoder by the schema of a column. With a registry, each body names the schema of its writer.

    Workers get the schema and the options of the registry. What a decoder needs of a named schema, it keeps in `_named`.
    """

    def __init__(self, schema: S, registry: RegistryOptions | None = None) -> None:
        self.type: DataType = schema.type
        self._schema = schema
        self._registry = registry
        self._named: dict[Hashable, N] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._schema, self._registry)

    def _registered(
        self, registry: RegistryOptions, schema_id: str, kind: str, *, serialized: bool = False
    ) -> RegisteredSchema:
        """The schema that a body names. Raises ValueError if it is of another kind, UnknownSchema, and SourceError."""
        found = registry_of_process(registry).by_id(schema_id, serialized=serialized)
        if found.kind != kind:
            raise ValueError(f"the schema with the id {schema_id} is one of {found.kind}")
        return found
