"""Busbar in Spark: source, sink, and what they share. It reaches a broker through `busbar.client` only.

`spark.read.format("busbar")` needs no import: pyspark_busbar registers the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from busbar.spark.lag import source_progress
    from busbar.spark.listener import attach, detach
    from busbar.spark.session import local_session, open_session, register_format
    from busbar.spark.sink_metrics import sink_progress

__all__ = [
    "attach",
    "detach",
    "local_session",
    "open_session",
    "register_format",
    "sink_progress",
    "source_progress",
]


def __getattr__(name: str) -> object:
    """Load what only drivers need when it is used: workers import parts of this package for every task."""
    if name in ("attach", "detach"):
        from busbar.spark import listener

        return getattr(listener, name)
    if name in ("local_session", "open_session", "register_format"):
        from busbar.spark import session

        return getattr(session, name)
    if name == "source_progress":
        from busbar.spark import lag

        return lag.source_progress
    if name == "sink_progress":
        from busbar.spark import sink_metrics

        return sink_metrics.sink_progress
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
