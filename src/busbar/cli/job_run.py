"""Runs a job of busbar.jobs as a command: failures are one line with an exit code, and signals end it in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli import values
from busbar.cli.failure import CommandFailure, CommandStopped, ExitCode, without_spark

if TYPE_CHECKING:
    from busbar.jobs.job_run import JobRun

Verbose = Annotated[bool, typer.Option("--verbose", help="Print Spark's log, and the traces of failures.")]
Wait = Annotated[
    str, typer.Option("--wait", metavar="DURATION", help="How long a broker may be unreachable.")
]


@contextmanager
def running_job(
    name: str, *, verbose: bool = False, then: str = "", is_success: bool = False, spark: bool = True
) -> Iterator[JobRun]:
    """Run a block as a job (busbar.jobs.job_run). Raises CommandFailure, or CommandStopped after a signal."""
    from busbar.jobs.job_run import EXIT_CODES, JobFailed, JobStopped, job_run

    try:
        with job_run(
            name,
            verbose=verbose,
            then=then,
            is_success=is_success,
            spark=spark,
            passed=(CommandFailure, CommandStopped, typer.Exit, typer.Abort),
        ) as run:
            yield run
    except ImportError as error:
        raise without_spark(error) from None
    except JobFailed as error:
        raise CommandFailure(str(error), ExitCode(EXIT_CODES[error.kind])) from None
    except JobStopped as stopped:
        raise CommandStopped(stopped.code) from None


def seconds_of(option: str, text: str) -> float:
    """A duration as commands take it, in seconds. Raises CommandFailure."""
    try:
        return float(values.seconds(text))
    except ValueError as error:
        raise CommandFailure(f"{option}: {error}.", ExitCode.USAGE) from None
