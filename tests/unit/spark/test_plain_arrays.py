"""Arrays without pandas, which takes longer to import than everything else that a Python process of Spark needs."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa

from busbar.spark.plain_arrays import integer_array, text_array


def test_values_come_back() -> None:
    assert text_array(["one", "", "zwölf"]).to_pylist() == ["one", "", "zwölf"]
    assert text_array([]).to_pylist() == []
    assert integer_array([1, -2], pa.int32()).to_pylist() == [1, -2]
    assert integer_array([1 << 40], pa.int64()).to_pylist() == [1 << 40]


def test_what_a_python_process_of_spark_loads_does_not_import_pandas() -> None:
    code = """
import sys
from pathlib import Path
import busbar.spark.source
from busbar.jobs.parquet_files import write_task
from busbar.spark.decode import message_batch
batch = message_batch("orders", 0, b"")
assert list(write_task(iter([batch]), "unused", "messages")) == []
assert "pandas" not in sys.modules, "pandas"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
