"""Finds the connection string.

It is a secret, and options are copied: into plans, event logs and the processes of a cluster. So options preferably name a
place, and every process reads the string there:

- `connectionStringEnv`: the name of an environment variable, in the driver and in its workers;
- `connectionStringFile`: a file that every node has; its first line counts;
- `connectionString`: the string itself. It reaches the workers inside the serialized reader. Sessions that session.py opens
  redact it wherever Spark prints options; it is written into no offset.

Exactly one of them is given. If the system does not trust the broker's certificate, `trustFile` names a file, on every node,
with the certificate authorities to trust instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from busbar.spark.errors import OptionError

LITERAL = "connectionString"
VARIABLE = "connectionStringEnv"
FILE = "connectionStringFile"
PLACES = (LITERAL, VARIABLE, FILE)
TRUST = "trustFile"
OPTIONS = (*PLACES, TRUST)


@dataclass(frozen=True, slots=True)
class Secret:
    """A connection string, or its place, and the authorities to trust. Printing one shows only the places."""

    variable: str = ""
    file: str = ""
    literal: str = field(default="", repr=False)
    trust: str = ""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Secret:
        """`options` has lower-case names. Raises OptionError unless there is exactly one."""
        given = [name for name in PLACES if options.get(name.lower())]
        if not given:
            raise OptionError(
                VARIABLE,
                f"is missing: name an environment variable, or a file with {FILE!r}, that holds the connection string.",
            )
        if len(given) > 1:
            raise OptionError(given[0], f"cannot be given together with {given[1]!r}: one place is enough.")
        return cls(
            variable=options.get(VARIABLE.lower(), ""),
            file=options.get(FILE.lower(), ""),
            literal=options.get(LITERAL.lower(), ""),
            trust=options.get(TRUST.lower(), ""),
        )

    def options(self) -> dict[str, str]:
        """The options of a reader or a writer for this place."""
        pairs = ((LITERAL, self.literal), (VARIABLE, self.variable), (FILE, self.file), (TRUST, self.trust))
        return {name: value for name, value in pairs if value}

    def reveal(self) -> str:
        """The connection string. Raises OptionError if it is not in the place that the option names."""
        if self.literal:
            return self.literal
        if self.variable:
            return read_variable(VARIABLE, self.variable)
        return read_first_line(FILE, self.file)

    def authorities(self) -> Path | None:
        """The certificate authorities to trust; None for the system's. Raises OptionError if they cannot be read."""
        if not self.trust:
            return None
        found = Path(self.trust)
        if not found.is_file():
            raise OptionError(TRUST, f"names {self.trust!r}, which is no file on {os.uname().nodename}.")
        return found


def read_variable(option: str, name: str) -> str:
    """The value of the environment variable that an option names. Raises OptionError if it is not set."""
    value = os.environ.get(name, "").strip()
    if not value:
        raise OptionError(
            option,
            f"names the environment variable {name!r}, which is not set in process {os.getpid()} on "
            f"{os.uname().nodename}. It must be set for the driver and for every worker.",
        )
    return value


def read_first_line(option: str, path: str) -> str:
    """The first line of the file that an option names. Raises OptionError if there is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n", 1)
    except OSError as error:
        raise OptionError(
            option, f"names {path!r}, which {os.uname().nodename} cannot read: {error.strerror}."
        ) from None
    if not lines[0].strip():
        raise OptionError(option, f"names {path!r}, whose first line is empty.")
    return lines[0].strip()
