"""The log of a process: lines of text or of JSON on standard error, and a level that can be changed while it runs.

Rules
1. A line has the time, the level, the part of Busbar, and the message. It also has the address of the client, the entity and
   the tracking id, where they are known: these are the `extra` of a record.
2. A record is one line, whatever clients have named: in text, what is not printable is escaped. An exception that was logged
   follows its line in text, and is a field of it in JSON.
3. Broker processes inherit level and form through the environment, also those that are started later.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from busbar.app.config import ConfigError
from busbar.model.errors import ArgumentError

LEVEL_VARIABLE: Final = "BUSBAR_LOG"
FORMAT_VARIABLE: Final = "BUSBAR_LOG_FORMAT"
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
FORMATS: Final = ("text", "json")
FIELDS: Final = ("address", "entity", "tracking_id")
"""What a record may have beside its message."""


def start_logging(process: str = "", chosen_format: str = "") -> None:
    """Write the log of this process to standard error. `process` is its name among several. Without a chosen format, that of
    the environment is used. Raises ConfigError."""
    form = chosen_format or os.environ.get(FORMAT_VARIABLE, "text")
    if form.lower() not in FORMATS:
        raise ConfigError(f"The format of the log is {form!r}; it must be one of {', '.join(FORMATS)}.")
    level = os.environ.get(LEVEL_VARIABLE, "WARNING")
    if level.upper() not in LEVELS:
        raise ConfigError(f"{LEVEL_VARIABLE} is {level!r}; it must be one of {', '.join(LEVELS)}.")
    os.environ[FORMAT_VARIABLE] = form.lower()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process) if form.lower() == "json" else TextLines(process))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def log_level() -> str:
    """The level of this process, in lower case."""
    return logging.getLevelName(logging.getLogger().level).lower()


def set_log_level(level: str) -> None:
    """Change the level of this process, and of processes that it will start. Raises ArgumentError."""
    if level.upper() not in LEVELS:
        known = ", ".join(LEVELS).lower()
        raise ArgumentError(f"'{level}' is not a level of the log; there are {known}.")
    os.environ[LEVEL_VARIABLE] = level.upper()
    logging.getLogger().setLevel(level.upper())


def change_log_level(level: str, tell: Callable[[str], None] | None = None) -> str:
    """Change the level of this process and of those that `tell` reaches, if one is named; returns the level."""
    if level:
        set_log_level(level)
        if tell is not None:
            tell(level)
    return log_level()


class TextLines(logging.Formatter):
    """Makes lines of text: TIME LEVEL PART (PROCESS): MESSAGE [address=... entity=...]."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = f" ({process})" if process else ""

    def formatMessage(self, record: logging.LogRecord) -> str:
        found = fields_of(record)
        fields = " ".join(f"{name}={value}" for name, value in found.items())
        line = f"{record.message} [{fields}]" if fields else record.message
        return f"{_time(record)} {record.levelname} {record.name}{self._process}: {_printable(line)}"


class JsonLines(logging.Formatter):
    """Makes an object of JSON a line."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            line["process"] = self._process
        line.update(fields_of(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def fields_of(record: logging.LogRecord) -> dict[str, str]:
    """What a record has beside its message."""
    found = {name: getattr(record, name, None) for name in FIELDS}
    return {name: str(value) for name, value in found.items() if value}


def _time(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def _printable(text: str) -> str:
    """The text with escapes in place of what could end a line or control a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
