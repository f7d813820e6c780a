"""Errors of the format as Spark's processes report them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from busbar.spark.errors import HIDE_TRACE, OptionError, SourceError, errors_in_short
from pyspark_busbar import DefaultSource

SOURCES = Path(__file__).resolve().parents[3] / "src"
PROCESS_OF_SPARK = """
import os, sys
from importlib.machinery import ModuleSpec
from busbar.spark.errors import HIDE_TRACE, SourceError, errors_in_short

sys.modules["__main__"].__spec__ = ModuleSpec("pyspark.daemon", None)
for error in (ValueError("of a user"), SourceError("BUSBAR_REFUSED", "no")):
    try:
        with errors_in_short():
            raise error
    except Exception:
        print(HIDE_TRACE in os.environ)
"""


def test_a_program_that_uses_the_format_itself_keeps_its_traces() -> None:
    with pytest.raises(OptionError, match="'entity' is missing"), errors_in_short():
        DefaultSource({"connectionStringEnv": "X"}).streamReader(DefaultSource({}).schema())
    assert HIDE_TRACE not in os.environ


def test_a_process_of_spark_leaves_out_the_traces_of_our_errors_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROCESS_OF_SPARK],
        env=os.environ | {"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "True"]


def test_a_source_error_passes_between_processes() -> None:
    error = pickle.loads(pickle.dumps(SourceError("BUSBAR_REFUSED", "no")))
    assert (str(error), error.condition) == ("[BUSBAR_REFUSED] no", "BUSBAR_REFUSED")
