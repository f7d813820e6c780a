"""`busbar receive`: messages over HTTP, one after the other.

A received message is completed after it was written to standard output and flushed; one that could not be written is
unlocked. (Browsing without receiving is not part of the HTTP API; `--keep` unlocks what it showed, which counts as a
delivery.) With `--follow` the command waits for more messages until Ctrl-C, which is its usual end then.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli import values
from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.entity_commands import checked
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.options import Output, command
from busbar.cli.output import OutputFormat
from busbar.cli.received import ReceivedView, broker_properties

if TYPE_CHECKING:
    from busbar.cli.management_client import ManagementClient
    from busbar.client.http_requests import HttpReply

Entity = Annotated[str, typer.Argument(metavar="ENTITY", show_default=False)]
ENDLESS = 1 << 62
"""As the number of messages: until the command is stopped."""


def add_receive_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar receive orders",
            "busbar receive orders --max 10 --timeout 5s -o json",
            "busbar receive 'orders/$DeadLetterQueue' --keep",
            "busbar receive orders --follow -o json",
        ),
    )(receive)


def receive(
    *,
    entity: Entity,
    maximum: Annotated[
        int | None,
        typer.Option(
            "--max", min=1, metavar="N", help="At most N messages.", show_default="1; all with --follow"
        ),
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long to wait for each.")
    ] = "1s",
    keep: Annotated[bool, typer.Option("--keep", help="Put them back instead of completing them.")] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Wait for more until Ctrl-C; with -o json a message a line."),
    ] = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Receive messages. ENTITY is a queue, TOPIC/subscriptions/NAME, or one of these with /$DeadLetterQueue.

    Without -o json it is the bodies alone: as they are where standard output is no terminal, with a line end after each if
    --max is more than 1. Nothing there is not an error, unless a store is unavailable that may have something.
    """
    from busbar.cli.management_client import ManagementClient

    try:
        wait = min(values.seconds(timeout), 50)
    except ValueError as error:
        raise CommandFailure(f"--timeout: {error}.", ExitCode.USAGE) from None
    if follow and keep:
        raise CommandFailure("--follow and --keep: what is put back would come again.", ExitCode.USAGE)
    path = checked(entity, "entity")
    what = f"'{entity}'"
    most = maximum or (ENDLESS if follow else 1)
    with ManagementClient(find_target(where)) as client:
        # Those that are put back would come again, so all are locked before any is let go.
        locked: list[str] = []
        try:
            with ReceivedView(output, most, lines=follow) as shown:
                count = 0
                while count < most:
                    got = _receive(client, path, what, most - count, wait, keep, shown, locked)
                    count += got
                    if not follow:
                        break
        except BaseException as error:
            with suppress(CommandFailure):
                _unlock(client, locked, what)
            if follow and isinstance(error, KeyboardInterrupt):
                return
            raise
        _unlock(client, locked, what)
        if count < most:
            _say_why(client, entity, count, output)


def _receive(
    client: ManagementClient,
    path: str,
    what: str,
    maximum: int,
    wait: int,
    keep: bool,
    shown: ReceivedView,
    locked: list[str],
) -> int:
    """Show messages, and complete them unless they are to be kept. Returns how many there were; `locked` has those to
    unlock."""
    count = 0
    while count < maximum:
        answer = client.expect("POST", f"{path}/messages/head", what, query=f"&timeout={wait}")
        if answer.status == 204:
            break
        locked.append(_lock(path, answer))
        shown.show(answer)
        count += 1
        if not keep:
            client.expect("DELETE", locked[-1], what)
            locked.pop()
    return count


def _say_why(client: ManagementClient, entity: str, count: int, output: OutputFormat) -> None:
    """Print why there were no more messages. If there was none and a store is unavailable, raise CommandFailure."""
    from busbar.cli.stores import out_of_reach

    missing = out_of_reach(client, entity)
    if missing and not count:
        raise CommandFailure(f"'{entity}' is Limited: {missing}. Nothing else has a message.")
    if missing:
        print(f"'{entity}' is Limited: {missing}. There may be more.", file=sys.stderr)
    elif not count and output is OutputFormat.TABLE:
        print(f"there is no message in '{entity}' now", file=sys.stderr)


def _unlock(client: ManagementClient, locked: list[str], what: str) -> None:
    for lock in locked:
        client.expect("PUT", lock, what)


def _lock(path: str, answer: HttpReply) -> str:
    broker = broker_properties(answer)
    return f"{path}/messages/{broker.get('SequenceNumber')}/{broker.get('LockToken')}"
