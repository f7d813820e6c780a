"""`busbar tail`: new messages as they come, without consuming them."""

from __future__ import annotations

import secrets
import shutil
import signal
import sys
import threading
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.entity_commands import checked
from busbar.cli.message_view import Body, BodyOption, MessageOutput, Output, print_message, short_body
from busbar.cli.messaging import messaging
from busbar.cli.options import command
from busbar.cli.output import json_line, printable

if TYPE_CHECKING:
    from busbar.operations.views import MessageView

Entity = Annotated[str, typer.Argument(metavar="ENTITY", show_default=False)]


def add_tail_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar tail orders",
            "busbar tail 'orders/$DeadLetterQueue' --body json",
            "busbar tail news/subscriptions/eu --all -o json | jq .subject",
        ),
    )(tail)


def tail(
    *,
    entity: Entity,
    maximum: Annotated[
        int | None,
        typer.Option("--max", min=1, metavar="N", help="End after N messages.", show_default="never"),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Miss none: with a tap for the time of the command, also those that receivers complete at once.",
        ),
    ] = False,
    body: Body = None,
    output: Output = MessageOutput.TABLE,
    where: ConnectionOptions,
) -> None:
    """Show new messages as they come, without receiving them, until Ctrl-C.

    It looks several times in a second. A message that a receiver completes before the next look is shown only with --all,
    which needs the right Manage. ENTITY is a queue, TOPIC/subscriptions/NAME, or one of these with /$DeadLetterQueue.
    """
    from busbar.operations.following import follow
    from busbar.operations.views import view_of

    path = checked(entity, "entity")
    tap = f"tail-{secrets.token_hex(4)}" if every else ""
    with messaging(where, changes=every) as factory:
        found = follow(factory, path, tap=tap)
        if tap and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the tap is deleted
        try:
            for message in islice(found, maximum):
                _print(view_of(message), output, body)
        except KeyboardInterrupt:
            pass  # the usual end
        finally:
            found.close()  # it deletes its tap


def _print(message: MessageView, output: MessageOutput, body: BodyOption | None) -> None:
    from busbar.operations.views import as_json

    if output is not MessageOutput.TABLE:
        print(json_line(as_json(message)), flush=True)
    elif body is not None:
        print_message(message, body)
        print(flush=True)
    else:
        print(_line(message), flush=True)


def _line(message: MessageView) -> str:
    """A message in a line, which is cut on a terminal."""
    from busbar.operations.views import time_text

    parts = [
        time_text(message.enqueued),
        str(message.sequence_number),
        message.message_id or "",
        message.session_id or "",
        message.subject or "",
        message.dead_letter_reason or "",
        message.problem or short_body(message),
    ]
    text = printable("  ".join(part for part in parts if part).replace("\n", "\\n"))
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        return text if len(text) <= width else f"{text[: width - 1]}…"
    return text
