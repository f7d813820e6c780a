"""What commands print: tables for people, JSON for programs. Standard output has the result alone.

A row of a table is one line. Where standard output is no terminal, it is as long as it has to be. On a terminal a text that
does not fit is cut, and ends in an ellipsis.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


UNBOUNDED = 1 << 16
"""Columns of a file; a table is no wider than what is in it."""


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


NUMERIC = frozenset(
    ("Messages", "Dead letters", "Scheduled", "Size", "Subscriptions", "Sequence number", "Deliveries")
)
"""Columns that are set flush right."""


def print_json(value: object) -> None:
    print(json_text(value))


def json_text(value: object) -> str:
    """A value as JSON text. Characters that act on a terminal, and those that no file takes, are escaped."""
    return _escaped_json(json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: object) -> str:
    """A value as JSON text in one line, with the same escapes."""
    return _escaped_json(json.dumps(value, ensure_ascii=False))


def _escaped_json(text: str) -> str:
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], nothing: str) -> None:
    """Print a line for each row. If there is none, `nothing` is printed to standard error."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        # Of columns that may wrap the widest is made narrower first; their cells do not wrap. Numbers are never cut.
        numeric = column in NUMERIC
        table.add_column(_cell(column), justify="right" if numeric else "left", no_wrap=numeric)
    for row in rows:
        table.add_row(*[_cell(text.replace("\n", "\\n")) for text in row])
    if table.row_count == 0:
        print(nothing, file=sys.stderr)
        return
    _print(table)


def print_details(sections: Iterable[Mapping[str, str]]) -> None:
    """Print names and values, with an empty line between sections."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for number, section in enumerate(sections):
        if number and section:
            table.add_row("", "")
        for name, value in section.items():
            table.add_row(_cell(name), _cell(value, "fold"))
    _print(table)


def _cell(text: str, overflow: Literal["fold", "ellipsis"] = "ellipsis") -> Text:
    """Text as it is: what a user named is not our markup, and cannot move the cursor."""
    from rich.text import Text

    return Text(printable(text), overflow=overflow, no_wrap=overflow == "ellipsis")


def _print(table: Table) -> None:
    from rich.console import Console

    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=UNBOUNDED)
    with console.capture() as capture:
        console.print(table)
    # A column that is flush left pads to the table's width. These spaces do not belong in a file.
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def printable(text: str) -> str:
    """The text without characters that act on a terminal."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def size_text(count: int) -> str:
    """Bytes for people: 0 B, 1.5 MiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def label(key: str) -> str:
    """The key of JSON as words: lockDuration is "Lock duration"."""
    words = "".join(f" {char.lower()}" if char.isupper() else char for char in key)
    return words[0].upper() + words[1:]
