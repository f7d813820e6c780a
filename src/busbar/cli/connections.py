"""`busbar connections [list|close]`: the clients of a namespace, what they do, and which of them holds most."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.groups import GROUPS
from busbar.cli.options import Output, Skip, Yes, command, group
from busbar.cli.output import OutputFormat, print_json, print_table
from busbar.model.connection_views import SORTS

View = dict[str, Any]
_COLUMNS = ("Id", "Address", "Rate", "Unsettled", "Credit", "Links", "Entity", "Client", "Key", "Since")
_LINKS = ("Id", "Role", "Entity", "Rate", "Messages", "Unsettled", "Credit", "Link")

connections_commands = group("connections", GROUPS["connections"])


@command(
    connections_commands,
    name="list",
    examples=(
        "busbar connections",
        "busbar connections --entity orders --sort unsettled",
        "busbar connections --links -o json",
    ),
)
def _list(
    *,
    entity: Annotated[
        str, typer.Option("--entity", metavar="PATH", help="Only those with links to it.", show_default=False)
    ] = "",
    sort: Annotated[
        str, typer.Option("--sort", metavar="|".join(SORTS), help="The largest first; since: the oldest.")
    ] = "rate",
    links: Annotated[bool, typer.Option("--links", help="A line for each link.")] = False,
    skip: Skip = 0,
    top: Annotated[int, typer.Option("--top", min=1, metavar="N", help="At most N.")] = 100,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """List the AMQP connections of clients, those with the most deliveries a second first.

    `Unsettled` are messages that the client has got and not settled, `Credit` those that its receivers still ask for. With
    --entity the figures are those of the links to that entity. HTTP clients are not listed.
    """
    from busbar.cli.management_client import ManagementClient
    from busbar.cli.stores import ask

    query = "&" + urlencode({"entity": entity, "sort": sort, "skip": skip, "top": top})
    with ManagementClient(find_target(where)) as client:
        report: View = ask(client, "GET", "connections", "the list of connections", query)
    found: list[View] = report["connections"]
    if output is OutputFormat.JSON:
        print_json(found)
    elif links:
        rows = [_link_row(view, link) for view in found for link in view["links"]]
        print_table(_LINKS, rows, "There are no links.")
    else:
        print_table(_COLUMNS, [_row(view) for view in found], "There are no connections.")
    _say_what_is_missing(report, skip)


@command(connections_commands, examples=("busbar connections close 5f2c09ab-17 --yes",))
def close(
    *,
    id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    yes: Yes = False,
    where: ConnectionOptions,
) -> None:
    """Close a connection. Its client gets amqp:connection:forced; most clients connect again.

    What it had not settled is delivered again when its locks have expired. Asks first; in a script it needs --yes.
    """
    import sys

    from busbar.cli.entity_commands import checked, confirm
    from busbar.cli.management_client import ManagementClient

    with ManagementClient(find_target(where)) as client:
        client.say_target()
        confirm(f"Close the connection {id}?", yes, "nothing was closed.")
        client.expect("DELETE", f"$busbar/connections/{checked(id, 'connection')}", f"connection '{id}'")
    print(f"connection {id} closed", file=sys.stderr)


def _row(view: View) -> tuple[str, ...]:
    entities = sorted({link["entity"] for link in view["links"] if link["role"] in ("sender", "receiver")})
    return (
        view["id"],
        view["address"],
        f"{view['rate']:g}/s" + (" slow" if view["slow"] else ""),
        str(view["unsettled"]),
        str(view["credit"]),
        str(view["linkCount"]),
        ", ".join(entities),
        view["product"] or view["container"],
        ", ".join(view["keyNames"]),
        datetime.fromtimestamp(view["since"] / 1000, UTC).strftime("%m-%d %H:%M:%SZ"),
    )


def _link_row(view: View, link: View) -> tuple[str, ...]:
    return (
        view["id"],
        link["role"],
        link["entity"],
        f"{link['rate']:g}/s",
        str(link["messages"]),
        str(link["unsettled"]),
        str(link["credit"]),
        link["name"],
    )


def _say_what_is_missing(report: View, skip: int) -> None:
    import sys

    shown = len(report["connections"])
    if skip + shown < report["total"]:
        print(f"{shown} of {report['total']} connections; --skip and --top show others.", file=sys.stderr)
    if report["silent"]:
        print(f"{report['silent']} brokers do not answer; their connections are missing.", file=sys.stderr)
