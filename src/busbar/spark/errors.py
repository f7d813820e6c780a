"""Errors in Spark's own terms: a condition in brackets, and a text that states what would be right."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import PySparkRuntimeError, PySparkValueError

HIDE_TRACE: Final = "SPARK_HIDE_TRACEBACK"
"""The variable for which a process of Spark looks when it reports an error."""


class OptionError(PySparkValueError):
    """An option of the `busbar` format is missing, or its value breaks a rule."""

    def __init__(self, option: str, text: str) -> None:
        super().__init__(f"[BUSBAR_OPTION] The option {option!r} {text}")


class SourceError(PySparkRuntimeError):
    """Reading cannot continue. `condition` is one of those that docs/spark.md lists."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(f"[{condition}] {text}")
        self.condition = condition

    def __reduce__(self) -> tuple[type[SourceError], tuple[str, str]]:
        text = str(self).removeprefix(f"[{self.condition}] ")
        return (SourceError, (self.condition, text))


class SinkError(PySparkRuntimeError):
    """Writing cannot continue. `condition` is one of those that docs/spark-sink.md lists."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(f"[{condition}] {text}")
        self.condition = condition

    def __reduce__(self) -> tuple[type[SinkError], tuple[str, str]]:
        text = str(self).removeprefix(f"[{self.condition}] ")
        return (SinkError, (self.condition, text))


@contextmanager
def errors_in_short() -> Iterator[None]:
    """Run what Spark calls, a block or a function: an error of Busbar that leaves it is reported without its trace, so that
    its sentence comes first. Other errors keep theirs.

    A process of Spark that reports an error ends. So the variable has no effect on what comes later.
    """
    try:
        yield
    except (OptionError, SourceError, SinkError):
        if _is_process_of_spark():
            os.environ[HIDE_TRACE] = "1"
        raise


def _is_process_of_spark() -> bool:
    """Whether Spark started this process to plan, read or write, and no program of a user did."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.partition(".")[0] == "pyspark"
