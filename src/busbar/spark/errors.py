"""Errors in Spark's own terms: a condition in brackets, and a text that states what would be right."""

from __future__ import annotations

from pyspark.errors import PySparkRuntimeError, PySparkValueError


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
