"""What commands print: tables for people in 80 columns, JSON for programs. Standard output has the result alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


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
    """Without characters that act on a terminal, and those that no file takes: JSON has escapes for them."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], nothing: str) -> None:
    """A row for each; `nothing` goes to standard error if there is none."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        # Folded, not cut: what is printed can be copied.
        table.add_column(column, justify="right" if column in NUMERIC else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    if table.row_count == 0:
        print(nothing, file=sys.stderr)
        return
    _print(table)


def print_details(sections: Iterable[Mapping[str, str]]) -> None:
    """Names and values, an empty line between sections."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for number, section in enumerate(sections):
        if number and section:
            table.add_row("", "")
        for name, value in section.items():
            table.add_row(_cell(name), _cell(value))
    _print(table)


def _cell(text: str) -> Text:
    """Text as it is: what a user named is not our markup, and cannot move the cursor."""
    from rich.text import Text

    return Text(printable(text))


def _print(table: Table) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(table)
    # A column that is flush left pads to the table's width: nobody wants these spaces in a file.
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def printable(text: str) -> str:
    """Without characters that act on a terminal."""
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
