"""Runs a job as a program: signals end it in time (interruption.py), Spark's log goes to a file (spark_log.py), and a
failure is one sentence (failure_text.py).

    with job_run("capture", then="the same command continues there") as run:
        capture(..., on_notice=run.notice)

The block raises JobFailed for errors of the job, with that sentence and its kind. If a signal ended the block, it raises
JobStopped with the exit code; everything is printed then. `--verbose` leaves Spark's log where it is, and prints traces.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from busbar.client.errors import BusbarClientError, NotFound
from busbar.jobs.failure_text import JobError, JobFailureKind, condition_of, kind_of, sentence_of
from busbar.jobs.interruption import Interruption, JobInterrupted
from busbar.jobs.spark_log import STANDARD_ERROR, SparkLog
from busbar.operations.rewriting import EditError


class JobFailed(Exception):
    """The failure of a job in one sentence. `trace` is the file that has the rest."""

    def __init__(
        self, text: str, kind: JobFailureKind = JobFailureKind.OTHER, trace: Path | None = None
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.trace = trace

    def __str__(self) -> str:
        text = f"{str(self.args[0]).rstrip('.')}."
        return text if self.trace is None else f"{text} The trace is in {self.trace}."


class JobStopped(Exception):
    """A signal has ended the job, and that was printed. `code` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class JobRun:
    """A running job."""

    def __init__(self, log: SparkLog, verbose: bool) -> None:
        self.log = log
        self.verbose = verbose

    def notice(self, text: str) -> None:
        """Print what the job does now."""
        sys.stderr.write(f"{text} …\n")
        sys.stderr.flush()


@contextmanager
def job_run(
    name: str,
    *,
    verbose: bool = False,
    then: str = "",
    is_success: bool = False,
    spark: bool = True,
    passed: Sequence[type[Exception]] = (),
) -> Iterator[JobRun]:
    """Run a block as a job. `then` and `is_success` are those of Interruption. Without `spark` there is no log of it. Errors
    of the types `passed` leave the block unchanged, and so does an ImportError."""
    log = SparkLog(name)
    unchanged: tuple[type[Exception], ...] = (ImportError, *passed)
    with Interruption(name, then, is_success=is_success) as interruption:
        try:
            if spark and not verbose and "PYSPARK_GATEWAY_PORT" not in os.environ:
                log.open()
                interruption.descriptor = log.terminal
                interruption.at_end = log.discard
            yield JobRun(log, verbose)
        except JobInterrupted:
            raise JobStopped(interruption.finish()) from None
        except unchanged:
            raise
        except Exception as error:
            if verbose:
                traceback.print_exception(error)
            raise _failure(error, log) from None
        finally:
            interruption.descriptor = STANDARD_ERROR
            log.close()


def _failure(error: Exception, log: SparkLog) -> JobFailed:
    if isinstance(error, EditError):
        return JobFailed(f"--set: {error}", JobFailureKind.USAGE)
    if isinstance(error, NotFound):
        return JobFailed(error.text, JobFailureKind.NOT_FOUND)
    if isinstance(error, BusbarClientError):
        return JobFailed(error.text, JobFailureKind.OTHER if error.retryable else JobFailureKind.REFUSED)
    if isinstance(error, OSError) and error.filename is not None:
        return JobFailed(f"{error.filename}: {error.strerror}")
    text, own = sentence_of(error), condition_of(str(error))
    kind = error.kind if isinstance(error, JobError) and error.kind is not None else kind_of(error)
    if isinstance(error, JobError):
        cause = error.__cause__
        is_plain = cause is None or (condition_of(str(cause)) is not None and "\n" not in str(cause))
    else:
        is_plain = own is not None and "\n" not in str(error)
        if own is None and not type(error).__module__.startswith("pyspark."):
            text = f"unexpected failure: {type(error).__name__}: {text}"
    if is_plain:
        return JobFailed(text, kind)
    log.add(error)
    return JobFailed(text, kind, log.close(keep=True))


EXIT_CODES = {
    JobFailureKind.OTHER: 1,
    JobFailureKind.USAGE: 2,
    JobFailureKind.NOT_FOUND: 3,
    JobFailureKind.REFUSED: 4,
}


def program(name: str, work: Callable[[JobRun], int], *, then: str = "", is_success: bool = False) -> int:
    """Run a job as a program for spark-submit; returns the exit code. `work` prints the result."""
    try:
        with job_run(name, then=then, is_success=is_success) as run:
            return work(run)
    except JobFailed as error:
        sys.stderr.write(f"{name}: {error}\n")
        return EXIT_CODES[error.kind]
    except JobStopped as stopped:
        return stopped.code
