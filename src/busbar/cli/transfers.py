"""`busbar transfers`: the messages on their way from entities to others, and those that are held."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.options import Output, command
from busbar.cli.output import OutputFormat, print_json, print_table, printable

_SHORT = {"ForwardDeadLetteredMessagesTo": "DeadLetters"}


def add_transfers_command(app: typer.Typer) -> None:
    command(app, examples=("busbar transfers", "busbar transfers -o json"))(transfers)


def transfers(*, output: Output = OutputFormat.TABLE, where: ConnectionOptions) -> None:
    """List what is moved now: from where, to where, why, how much waits, and why something is held.

    A line is a fragment of the source and a fragment of the target. `By` is the reason of the move: ForwardTo, DeadLetters
    (ForwardDeadLetteredMessagesTo), or via (sent via the source). What moves at once is rarely seen here. What could not be
    moved is in a dead-letter queue: see busbar peek and busbar redrive.
    """
    from busbar.cli.management_client import ManagementClient
    from busbar.cli.stores import ask

    with ManagementClient(find_target(where)) as client:
        found: list[dict[str, Any]] = ask(client, "GET", "transfers", "the list of transfers")
    if output is OutputFormat.JSON:
        print_json(found)
        return
    columns = ("Source", "#", "Target", "#", "By", "Waiting", "Oldest", "State", "Since", "Cause")
    print_table(columns, [_row(view) for view in found], "Nothing is being moved.")
    for reason in sorted(
        {(view["source"], view["target"], view["reason"]) for view in found if view["reason"]}
    ):
        print(printable(f"{reason[0]} to {reason[1] or 'an entity that is not known yet'}: {reason[2]}"))


def _row(view: dict[str, Any]) -> tuple[str, ...]:
    return (
        view["source"],
        str(view["index"]),
        view["target"],
        str(view["targetIndex"]),
        _SHORT.get(view["by"], view["by"]),
        str(view["waiting"]),
        _time(view["oldest"]),
        view["state"],
        _time(view["since"]),
        view["cause"],
    )


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%m-%d %H:%M:%SZ") if ms else ""
