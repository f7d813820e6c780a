"""`busbar nodes`: the processes of a namespace."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.options import Output, command
from busbar.cli.output import OutputFormat, print_json, print_table

_COLUMNS = (
    "Name",
    "State",
    "Address",
    "Process",
    "Version",
    "Since",
    "Connections",
    "Catalogue",
    "Reaches",
    "Stores",
)


def add_nodes_command(app: typer.Typer) -> None:
    command(app, examples=("busbar nodes", "busbar nodes -o json"))(nodes)


def nodes(*, output: Output = OutputFormat.TABLE, where: ConnectionOptions) -> None:
    """List the processes: since when they run, how many clients each has, and which stores it owns.

    `Catalogue` is the number of the last change of entities that the process has, `Reaches` the number of other processes
    whose stores it can use. The state is up, starting, or silent if the process does not answer.
    """
    from busbar.cli.management_client import ManagementClient
    from busbar.cli.stores import ask

    with ManagementClient(find_target(where)) as client:
        found: list[dict[str, Any]] = ask(client, "GET", "nodes", "the list of processes")
    if output is OutputFormat.JSON:
        print_json(found)
        return
    print_table(_COLUMNS, [_row(view) for view in found], "There are no processes.")


def _row(view: dict[str, Any]) -> tuple[str, ...]:
    if view["state"] != "up":
        return view["name"], view["state"], *[""] * (len(_COLUMNS) - 2)
    since = datetime.fromtimestamp(view["since"] / 1000, UTC).strftime("%m-%d %H:%M:%SZ")
    return (
        view["name"],
        view["state"],
        view["address"] or view["machine"],
        str(view["process"]),
        view["version"],
        since,
        str(view["connections"]),
        str(view["catalogueVersion"]),
        str(len(view["channels"])),
        ", ".join(view["stores"]),
    )
