"""Messages on standard output: rows of a table, one in full, or JSON. What is in a message does not act on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.output import json_line, print_details, print_json, print_table, printable

if TYPE_CHECKING:
    from busbar.operations.views import MessageView

LONGEST_BODY = 60
"""Characters of a body in a table."""
COLUMNS = ("Sequence number", "Enqueued", "State", "Deliveries", "Message id", "Session id", "Reason", "Body")
ALWAYS_SHOWN = 4
"""So many columns are there even if all their cells are empty."""


class MessageOutput(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    """One message a line, as soon as it is there."""


class BodyOption(StrEnum):
    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


Output = Annotated[
    MessageOutput,
    typer.Option("--output", "-o", help="How it is printed; jsonl is a message a line."),
]
Body = Annotated[
    BodyOption | None,
    typer.Option("--body", help="Show each message in full, with its body in this form."),
]


def print_messages(
    messages: Iterable[MessageView], output: MessageOutput, body: BodyOption | None, nothing: str
) -> int:
    """Print messages. Returns how many there were. If there is none, a table prints `nothing` to standard error."""
    from busbar.operations.views import as_json

    count = 0
    if output is MessageOutput.JSONL:
        for message in messages:
            print(json_line(as_json(message)), flush=True)
            count += 1
        return count
    found = list(messages)
    if output is MessageOutput.JSON:
        print_json([as_json(message) for message in found])
    elif body is not None:
        for message in found:
            print_message(message, body, separated=count > 0)
            count += 1
        if not found:
            print(nothing, file=sys.stderr)
    else:
        _print_table(found, nothing)
    return len(found)


def _print_table(messages: list[MessageView], nothing: str) -> None:
    rows = [_row(message) for message in messages]
    shown = [
        place for place in range(len(COLUMNS)) if place < ALWAYS_SHOWN or any(row[place] for row in rows)
    ]
    print_table(
        [COLUMNS[place] for place in shown],
        [[row[place] for place in shown] for row in rows],
        nothing,
    )


def _row(message: MessageView) -> list[str]:
    from busbar.operations.views import time_text

    return [
        str(message.sequence_number),
        time_text(message.enqueued),
        "Locked" if message.locked_until else message.state,
        str(message.delivery_count),
        message.message_id or "",
        message.session_id or "",
        message.dead_letter_reason or "",
        message.problem or short_body(message),
    ]


def short_body(message: MessageView) -> str:
    text = message.body[: 4 * LONGEST_BODY].decode("utf-8", "backslashreplace")
    return text if len(text) <= LONGEST_BODY else f"{text[:LONGEST_BODY]}…"


def print_message(message: MessageView, form: BodyOption, *, separated: bool = False) -> None:
    """Print a message in full: its fields, its properties and annotations, and its body."""
    from busbar.operations.rewriting import DEAD_LETTER_PROPERTIES
    from busbar.operations.views import BodyForm, body_text, fields_of

    fields = {"Sequence number": str(message.sequence_number)} | fields_of(message)
    others = {name: value for name, value in message.properties.items() if name not in DEAD_LETTER_PROPERTIES}
    if separated:
        print()
    print_details(
        [
            {name: value for name, value in fields.items() if value},
            {f"  {name}": _text(value) for name, value in others.items()},
            {f"  {name}": _text(value) for name, value in message.annotations.items()},
        ]
    )
    if message.body:
        print(f"\n{printable(body_text(message.body, BodyForm(form.value)))}")


def _text(value: object) -> str:
    return value if isinstance(value, str) else json_line(value)
