"""`busbar capture`: messages to Parquet files. What it does is in busbar.jobs.capture."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.job_run import Verbose, Wait, running_job, seconds_of
from busbar.cli.options import command
from busbar.cli.replay import ConnectionFile, Master, connection_for

THEN = "the same command continues there"
Entities = Annotated[list[str], typer.Argument(metavar="ENTITY...", show_default=False)]
Archive = Annotated[
    str,
    typer.Option(
        "--output", metavar="ARCHIVE", help="A directory, or a URL (s3, gs, abfss, hdfs).", show_default=False
    ),
]
EventArchive = Annotated[
    str | None,
    typer.Option("--events", metavar="ARCHIVE", help="A second archive, for what happens to messages."),
]
ArchiveFormat = Annotated[
    Literal["parquet", "delta"] | None,
    typer.Option("--format", help="The format of a new archive: Parquet files, or a Delta table."),
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
            "busbar capture orders --output /data/orders --interval 1m",
            "busbar capture orders --output /data/orders --events /data/orders-events",
            "busbar capture orders --output s3://bucket/orders --format delta",
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
    table_format: ArchiveFormat = None,
    available_now: AvailableNow = False,
    interval: Interval = "10s",
    master: Master = None,
    connection_file: ConnectionFile = None,
    option: SourceOption = None,
    wait: Wait = "5m",
    verbose: Verbose = False,
    where: ConnectionOptions,
) -> None:
    """Capture every message of queues and subscriptions, once, in Parquet files by entity, date and hour.

    Receivers are not disturbed. The same command goes on where the last one stopped. SIGTERM or Ctrl-C end it within two
    seconds.
    ENTITY is a queue, TOPIC/Subscriptions/NAME, or one of these with /$DeadLetterQueue.
    """
    pairs = dict(_pair(text) for text in option or ())
    pairs.setdefault("waitForBroker", f"{seconds_of('--wait', wait):g}s")
    with running_job("capture", verbose=verbose, then=THEN, is_success=not available_now) as job:
        from busbar.jobs.capture import CaptureDisplay, Summary, run_capture
        from busbar.jobs.capture import capture as capture_messages
        from busbar.jobs.intervals import interval_ms

        interval_ms("--interval", interval)
        secret = connection_for(where, master, connection_file, changes=True)

        def work(display: CaptureDisplay) -> Summary:
            return capture_messages(
                entities,
                output,
                connection=secret,
                events=events,
                table_format=table_format,
                available_now=available_now,
                interval=interval,
                master=master,
                options=pairs,
                on_progress=display.show,
                on_notice=display.notice,
            )

        run_capture(job, work)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise CommandFailure(f"--option '{text}' is not KEY=VALUE.", ExitCode.USAGE)
    return key, value
