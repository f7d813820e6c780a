"""Waits for a broker before a job begins, and reports at once what it waits for and for how long.

A job that cannot reach its broker does nothing else: it creates no directory, and starts no Spark.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from busbar.client import BusbarClientError, CannotConnect
from busbar.client.blocking import connect
from busbar.client.connection_string import parse_connection_string
from busbar.client.retry import NO_RETRY

if TYPE_CHECKING:
    from pathlib import Path

    from busbar.client.blocking import BlockingFactory

ATTEMPT_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 1.0
"""If the first attempt takes longer, the wait is reported."""
PAUSE_SECONDS: Final = 0.5
WATCH_SECONDS: Final = 5.0

Notice = Callable[[str], None]


def no_notice(_text: str) -> None:
    """Report nothing."""


def reach(connection: str, wait: float, on_notice: Notice = no_notice, trust: Path | None = None) -> None:
    """Return when the broker of a connection string answers. Raises its error if it has not for `wait` seconds, and at once
    if waiting cannot help; ValueError if the text is no connection string."""
    where = parse_connection_string(connection).authority
    began = time.monotonic()
    is_reported = threading.Event()

    def report() -> None:
        if not is_reported.is_set():
            is_reported.set()
            on_notice(f"waiting for the broker at {where}, for up to {duration_text(wait)}")

    slow = threading.Timer(SILENT_SECONDS, report)
    slow.daemon = True
    slow.start()
    try:
        while True:
            try:
                connect(
                    connection,
                    retry=NO_RETRY,
                    operation_timeout=min(ATTEMPT_SECONDS, max(wait, 1)),
                    trust=trust,
                ).close()
            except BusbarClientError as error:
                if not error.retryable:
                    raise
                if time.monotonic() - began + PAUSE_SECONDS > wait:
                    raise CannotConnect(
                        f"{error.text} The job has waited {duration_text(wait)} for it."
                    ) from None
                report()
                time.sleep(PAUSE_SECONDS)
                continue
            break
    finally:
        slow.cancel()
    if is_reported.is_set():
        on_notice(f"the broker at {where} answers after {time.monotonic() - began:.0f} s")


class BrokerWatch:
    """Reports that the broker of a running job does not answer, and that it does again."""

    def __init__(self, connection: str, wait: float, on_notice: Notice, trust: Path | None = None) -> None:
        self._connection = connection
        self._wait = wait
        self._on_notice = on_notice
        self._trust = trust
        self._where = parse_connection_string(connection).authority
        self._factory: BlockingFactory | None = None
        self._next = time.monotonic() + WATCH_SECONDS
        self._down = 0.0

    def check(self, entity: str) -> None:
        """Request something small, unless that was done a moment ago."""
        now = time.monotonic()
        if now < self._next:
            return
        try:
            if self._factory is None:
                self._factory = connect(
                    self._connection, retry=NO_RETRY, operation_timeout=WATCH_SECONDS, trust=self._trust
                )
            self._factory.taps(entity).ends()
        except BusbarClientError as error:
            if error.retryable and not self._down:
                self._down = now
                self._on_notice(
                    f"waiting for the broker at {self._where}, for up to {duration_text(self._wait)}"
                )
        else:
            if self._down:
                self._on_notice(f"the broker at {self._where} answers after {now - self._down:.0f} s")
            self._down = 0.0
        self._next = time.monotonic() + (1.0 if self._down else WATCH_SECONDS)


def duration_text(seconds: float) -> str:
    """A duration as people write it on the command line."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"
