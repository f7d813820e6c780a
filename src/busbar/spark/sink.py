"""Writing the `busbar` format."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    raise PySparkNotImplementedError("[BUSBAR_SINK] Writing the busbar format is not there yet.")


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    raise PySparkNotImplementedError("[BUSBAR_SINK] Writing the busbar format is not there yet.")
