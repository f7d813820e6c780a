"""How a command fails: one line for the person on standard error, and an exit code for the script."""

from __future__ import annotations

import shlex
import sys
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    OTHER = 1
    """No process answers, or the broker failed."""
    USAGE = 2
    """The command itself is wrong."""
    NOT_FOUND = 3
    """What it names is not there."""
    REFUSED = 4
    """The broker does not allow it: the key, a value, a limit, a name that is taken."""
    WOULD_CHANGE = 5
    """A dry run that would have changed something."""
    UNREAD = 141
    """The reader of standard output went away, as `head` does: the code of a program that SIGPIPE ends."""


class CommandFailure(Exception):
    """An error with a text: what was wrong and what to do."""

    def __init__(self, text: str, code: ExitCode = ExitCode.OTHER) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class CommandStopped(Exception):
    """A signal has ended the command, and that was printed. `code` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def without_spark(error: ImportError) -> CommandFailure:
    """The failure of a pipeline command where Spark is not installed. It names the one command that installs it."""
    return CommandFailure(
        f"this command needs Spark ({error.name} is missing). This installs it: {how_to_install_spark()}"
    )


def how_to_install_spark() -> str:
    """The command that installs Spark. In a clone the Makefile has the matching versions; a wheel has an extra."""
    clone = Path(__file__).resolve().parents[3]
    if (clone / "Makefile").is_file() and (clone / "constraints.txt").is_file():
        return "make spark" if Path.cwd() == clone else f"make -C {shlex.quote(str(clone))} spark"
    return f"{shlex.quote(sys.executable)} -m pip install 'busbar-mq[spark]'"
