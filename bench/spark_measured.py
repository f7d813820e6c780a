"""What the benchmarks with Spark share: a measured server, a session on two cores, rates, and required ratios."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from busbar.spark.session import local_session
from harness.measured import MeasuredServer, measured_server, rooms_are_compiled

Measure = Callable[[SparkSession, MeasuredServer, Path], bool]
"""Measures with a session, a server and a directory that is deleted afterwards; returns whether all requirements held."""
Ratio = tuple[str, float, float]
"""What is compared, the ratio, and the required minimum."""


def run(queues: Mapping[str, Mapping[str, object]], measure: Measure) -> int:
    """The exit code of a benchmark."""
    with (
        tempfile.TemporaryDirectory(prefix="busbar-bench-") as directory,
        measured_server({name: dict(settings) for name, settings in queues.items()}) as server,
    ):
        spark = local_session("bench", cores=2, config={"spark.driver.memory": "2g"})
        try:
            kept = measure(spark, server, Path(directory))
        finally:
            spark.stop()
    if not rooms_are_compiled():
        print(
            "\nthe compiled rooms are not built: the interpreted ones were measured, and no ratio is asked of them"
        )
        return 0
    if not kept:
        print("\nover the budget")
    return 0 if kept else 1


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def shown(rates: Mapping[str, list[float]]) -> dict[str, float]:
    """Print the medians of rates, and return them."""
    medians = {name: median(found) for name, found in rates.items()}
    for name, rate in medians.items():
        print(f"  {name:<24}{rate:>12,.0f} messages/s")
    return medians


def hold(ratios: Iterable[Ratio]) -> bool:
    """Print ratios, and return whether each reaches its minimum."""
    kept = True
    for name, ratio, least in ratios:
        kept = kept and ratio >= least
        print(f"  {name:<32}{ratio:>8.2f}  (at least {least:g})")
    return kept
