"""What processes of Spark print goes to a file, while the job itself prints to standard error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, subprocess, sys
from busbar.jobs.job_run import JobFailed, JobStopped, job_run
from busbar.jobs.failure_text import JobError

try:
    with job_run("test", verbose=sys.argv[1] == "verbose") as run:
        run.notice("working")
        subprocess.run(["sh", "-c", "echo WARN of Java >&2"])
        if sys.argv[1] == "sentence":
            raise JobError("It cannot be done")
        if sys.argv[1] != "success":
            raise RuntimeError("Caused by: java.io.IOException: no space\\n\\tat Some.java")
except JobFailed as error:
    print(error)
print("after", file=sys.stderr)
os.system("echo direct >&2")
"""


def run(how: str, directory: Path) -> tuple[str, list[str], list[Path]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        capture_output=True,
        text=True,
        timeout=60,
        env={"TMPDIR": str(directory), "PYTHONPATH": ":".join(sys.path)},
        check=True,
    )
    return done.stdout.strip(), done.stderr.splitlines(), sorted(directory.iterdir())


def test_a_job_that_succeeds_leaves_no_file(tmp_path: Path) -> None:
    assert run("success", tmp_path) == ("", ["working …", "after", "direct"], [])


def test_a_sentence_needs_no_file(tmp_path: Path) -> None:
    assert run("sentence", tmp_path) == ("It cannot be done.", ["working …", "after", "direct"], [])


def test_a_failure_names_the_file_with_its_trace(tmp_path: Path) -> None:
    printed, errors, (file,) = run("failure", tmp_path)
    assert printed == f"unexpected failure: RuntimeError: no space. The trace is in {file}."
    assert errors == ["working …", "after", "direct"]
    kept = file.read_text()
    assert kept.startswith("WARN of Java\nTraceback") and "Some.java" in kept
    assert file.stat().st_mode & 0o077 == 0


def test_a_verbose_job_prints_everything(tmp_path: Path) -> None:
    printed, errors, files = run("verbose", tmp_path)
    assert printed == "unexpected failure: RuntimeError: no space." and files == []
    assert errors[:2] == ["working …", "WARN of Java"] and "\tat Some.java" in errors
