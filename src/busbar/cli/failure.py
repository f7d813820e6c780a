"""How a command fails: one line for the person on standard error, and an exit code for the script."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    OTHER = 1
    """Nobody answers, or the broker failed."""
    USAGE = 2
    """The command itself is wrong."""
    NOT_FOUND = 3
    """What it names is not there."""
    REFUSED = 4
    """The broker does not allow it: the key, a value, a limit, a name that is taken."""


class CommandFailure(Exception):
    """The text says what was wrong and what to do."""

    def __init__(self, text: str, code: ExitCode = ExitCode.OTHER) -> None:
        super().__init__(text)
        self.text = text
        self.code = code
