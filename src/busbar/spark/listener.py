"""Advances taps to what queries have really committed.

Spark reports a committed batch to a source only when it requests the next one. So after the last batch of a stopped query,
its tap would lag by that batch, and its messages would be kept until the query starts again. Spark reports every committed
batch to the listener at once, and the listener advances the tap. If that fails, nothing is wrong: the listener logs it, and
the next start of the query advances the tap.

    busbar.spark.attach(spark, connectionStringEnv="BUSBAR_CONNECTION_STRING")

One listener serves all queries of the session that read from that namespace. It also logs when a tap comes close to its
limit of age, behind which messages are lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from busbar.client import BusbarClientError
from busbar.spark.connection import client_of_process, log
from busbar.spark.errors import SourceError
from busbar.spark.lag import SourceProgress, source_progress
from busbar.spark.offsets import Offset, is_initial, parse_all
from busbar.spark.secrets import Secret

WAIT_SECONDS = 10.0
NEAR_LIMIT = 0.1
"""The part of a tap's limit of age that is left when the listener warns."""


def attach(spark: SparkSession, **secret: str) -> TapListener:
    """Install the listener; `secret` is one of the options of secrets.py. The result can be passed to detach."""
    listener = TapListener(Secret.from_options({name.lower(): value for name, value in secret.items()}))
    spark.streams.addListener(listener)
    return listener


def detach(spark: SparkSession, listener: TapListener) -> None:
    spark.streams.removeListener(listener)


def committed_offsets(checkpoint: Path) -> list[Offset]:
    """The ends of the last committed batch, of the sources of this format."""
    commits = _batches(checkpoint / "commits")
    if not commits:
        return []
    # A version line, the metadata of the batch, then a line for each source ("-": it had nothing yet).
    lines = (checkpoint / "offsets" / str(commits[-1])).read_text(encoding="utf-8").split("\n")[2:]
    return [offset for line in lines for offset in parse_offsets(line)]


def advance(secret: Secret, offset: Offset) -> None:
    taps = client_of_process(secret, WAIT_SECONDS).taps(offset.entity, sub_queue=offset.sub_queue)
    if taps.show(offset.tap).incarnation != offset.incarnation:
        return  # the source of the query will report what happened to its entity
    taps.advance(offset.tap, offset.owner, offset.positions, stream=offset.stream)


class TapListener(StreamingQueryListener):
    """Advances taps. `attach` creates it."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._warned: set[tuple[str, str]] = set()  # entity and tap

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for each in event.progress.sources:
            for offset in parse_offsets(each.endOffset):
                try:
                    advance(self._secret, offset)
                except (BusbarClientError, SourceError, ValueError) as error:
                    log.warning("The tap %r could not be advanced: %s", offset.tap, error)
        for source in source_progress(event.progress):
            self._warn_of_loss(source)

    def _warn_of_loss(self, source: SourceProgress) -> None:
        """Log once when a tap comes close to its limit of age, until it has moved away from it."""
        key = (source.entity, source.tap)
        left, lag = source.lag.retention_left_seconds, source.lag.behind_seconds
        if left is None or left > NEAR_LIMIT * (left + lag):
            self._warned.discard(key)
        elif key not in self._warned:
            self._warned.add(key)
            log.warning(
                "The tap %r of %r is %.0f s behind, and loses messages in %.0f s.",
                source.tap,
                source.entity,
                lag,
                left,
            )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def parse_offsets(text: str | None) -> list[Offset]:
    """The offsets of a source of the busbar format, one for each entity; none for other sources."""
    try:
        document: Any = json.loads(text or "null")
    except ValueError:
        return []
    if not isinstance(document, Mapping) or "busbar" not in document or is_initial(document):
        return []
    try:
        return parse_all(document)
    except SourceError:
        return []


def _batches(directory: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(directory) if name.isdigit())
    except FileNotFoundError:
        return []
