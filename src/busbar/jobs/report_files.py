"""The file of a report: no report is overwritten unless the user requests it.

The name is chosen before the work begins, so a file that is in the way is reported at once. The file is created when the
report is written. If another process has created it meanwhile, it stays.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

from busbar.jobs.failure_text import JobError, JobFailureKind


class ReportFileError(JobError):
    """The report cannot go where it should. The text states why, and what to do."""

    kind = JobFailureKind.USAGE


def report_path(given: Path | None, name: str, *, overwrite: bool) -> Path:
    """Where a report goes: to the given file, or to the first of name.html, name-2.html … that is free.

    Raises ReportFileError if the given file exists and may not be overwritten, or if its directory is missing.
    """
    if given is None:
        first = Path(f"{name}.html")
        if overwrite or not first.exists():
            return first
        return next(path for number in count(2) if not (path := Path(f"{name}-{number}.html")).exists())
    if given.is_dir():
        raise ReportFileError(f"--report {given} is a directory; a report is a file.")
    if not given.parent.is_dir():
        raise ReportFileError(f"--report {given}: the directory {given.parent} does not exist.")
    if given.exists() and not overwrite:
        raise ReportFileError(
            f"--report {given} exists. Name another file, or overwrite it with --overwrite."
        )
    return given


def write_report(path: Path, html: str, *, overwrite: bool) -> None:
    """Write a report. Raises ReportFileError."""
    try:
        with path.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(html)
    except FileExistsError:
        raise ReportFileError(
            f"{path} was created meanwhile and is not overwritten (--overwrite would)."
        ) from None
    except OSError as error:
        raise ReportFileError(f"--report {path}: {error.strerror}.") from None
