"""Registers the format `busbar` with Spark, which looks for packages of this kind of name by itself.

What it does stands in busbar.spark: source.py and sink.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The format `busbar`. Imports wait until they are needed: Spark loads this module whenever it looks for any format."""

    @classmethod
    def name(cls) -> str:
        return "busbar"

    def schema(self) -> StructType:
        from busbar.spark.errors import errors_in_short
        from busbar.spark.read_schema import schema_of_read

        with errors_in_short():
            return schema_of_read(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from busbar.spark.batch_reader import batch_reader
        from busbar.spark.errors import errors_in_short
        from busbar.spark.options import SourceOptions

        with errors_in_short():
            return batch_reader(SourceOptions.parse(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from busbar.spark.errors import errors_in_short
        from busbar.spark.options import SourceOptions
        from busbar.spark.source import StreamReader

        with errors_in_short():
            return StreamReader(SourceOptions.parse(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from busbar.spark.errors import errors_in_short
        from busbar.spark.sink import batch_writer

        with errors_in_short():
            return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from busbar.spark.errors import errors_in_short
        from busbar.spark.sink import stream_writer

        with errors_in_short():
            return stream_writer(dict(self.options), schema, overwrite)
