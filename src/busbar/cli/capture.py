"""`busbar capture`: messages to Parquet files. What it does is in busbar.jobs.capture."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.failure import CommandFailure, ExitCode, without_spark
from busbar.cli.options import command
from busbar.cli.replay import ConnectionFile, Master, connection_for

if TYPE_CHECKING:
    from busbar.jobs.capture import Summary
    from busbar.jobs.progress import BatchProgress

Entities = Annotated[list[str], typer.Argument(metavar="ENTITY...", show_default=False)]
Archive = Annotated[Path, typer.Option("--output", metavar="DIR", help="The archive.", show_default=False)]
EventArchive = Annotated[
    Path | None,
    typer.Option("--events", metavar="DIR", help="A second archive, for what happens to messages."),
]
AvailableNow = Annotated[bool, typer.Option("--available-now", help="Capture what is there now, and end.")]
Interval = Annotated[str, typer.Option("--interval", metavar="DURATION", help="How often files are written.")]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="An option of the Spark source; may be repeated."),
]


def add_capture_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar capture orders --output /data/orders",
            "busbar capture orders invoices --output /data/all --available-now",
            "busbar capture orders --output /data/orders --events /data/orders-events",
            "busbar capture events/Subscriptions/audit --output /data/audit",
            "busbar capture orders --output /data/orders --master spark://spark:7077 "
            "--connection-file /etc/busbar",
        ),
    )(capture)


def capture(
    *,
    entities: Entities,
    output: Archive,
    events: EventArchive = None,
    available_now: AvailableNow = False,
    interval: Interval = "10 seconds",
    master: Master = None,
    connection_file: ConnectionFile = None,
    option: SourceOption = None,
    where: ConnectionOptions,
) -> None:
    """Capture every message of queues and subscriptions, once, in Parquet files by entity, date and hour.

    Receivers are not disturbed. The same command goes on where the last one stopped. SIGTERM or Ctrl-C finish the batch.
    ENTITY is a queue, TOPIC/Subscriptions/NAME, or one of these with /$DeadLetterQueue.
    """
    try:
        from busbar.jobs.capture import capture as run_capture
        from busbar.jobs.capture import run_until_stopped
    except ImportError as error:
        raise without_spark(error) from None
    pairs = dict(_pair(text) for text in option or ())
    secret = connection_for(where, master, connection_file, changes=True)

    def work(stop: threading.Event, show: Callable[[BatchProgress], None]) -> Summary:
        return run_capture(
            entities,
            output,
            connection=secret,
            events=events,
            available_now=available_now,
            interval=interval,
            master=master,
            options=pairs,
            on_progress=show,
            stop=stop,
        )

    for name, rows in _explained(lambda: run_until_stopped(work)).rows.items():
        print(f"{name}: {rows:,} captured")


def _explained(run: Callable[[], Summary]) -> Summary:
    """Failures of the job as those of a command."""
    from pyspark.errors import PySparkException

    from busbar.client import BusbarClientError
    from busbar.jobs.capture import CaptureFailed
    from busbar.jobs.manifest import ArchiveError

    try:
        return run()
    except (ArchiveError, BusbarClientError, CaptureFailed, PySparkException) as error:
        text = str(error)
    code = ExitCode.OTHER
    for condition, meaning in _CODES.items():
        if f"[{condition}]" in text:
            code = meaning
    raise CommandFailure(text, code)


_CODES = {
    "BUSBAR_OPTION": ExitCode.USAGE,
    "BUSBAR_NOT_FOUND": ExitCode.NOT_FOUND,
    "BUSBAR_UNAUTHORIZED": ExitCode.REFUSED,
    "BUSBAR_TAP_OWNED": ExitCode.REFUSED,
    "BUSBAR_REFUSED": ExitCode.REFUSED,
}


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise CommandFailure(f"--option '{text}' is not KEY=VALUE.", ExitCode.USAGE)
    return key, value
