"""`busbar namespace show|keys|log-level`: the namespace itself. Keys are printed on demand, by `keys` alone."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from busbar.cli.auth_rule import add_auth_rule_commands
from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.groups import GROUPS
from busbar.cli.options import Output, command, group
from busbar.cli.output import OutputFormat, label, print_details, print_json

namespace_commands = group("namespace", GROUPS["namespace"])
add_auth_rule_commands(namespace_commands, "namespace")

_ELEMENTS = (
    "Name",
    "MessagingSKU",
    "MessagingUnits",
    "NamespaceType",
    "Alias",
    "CreatedTime",
    "ModifiedTime",
)
_KEYS = {"MessagingSKU": "messagingSku"}


@command(namespace_commands, examples=("busbar namespace show", "busbar namespace show -o json"))
def show(*, output: Output = OutputFormat.TABLE, where: ConnectionOptions) -> None:
    """Show the namespace: its name, tier and address, and how many entities it has."""
    from busbar.cli.management_client import ManagementClient
    from busbar.client.administration_xml import text_of

    target = find_target(where)
    with ManagementClient(target) as client:
        described = client.get("$namespaceinfo", "the namespace").description
        counts = {
            noun: sum(1 for _ in client.list(f"$Resources/{plural}", f"the list of {noun}"))
            for noun, plural in (("queues", "Queues"), ("topics", "Topics"))
        }
    found: dict[str, object] = {}
    for element in _ELEMENTS:
        text = text_of(described, element)
        number = element == "MessagingUnits" and text is not None and text.isdigit()
        found[_KEYS.get(element, element[0].lower() + element[1:])] = int(text or 0) if number else text
    found |= {"endpoint": f"sb://{target.authority}/", "managementAddress": target.url}
    found |= {"queueCount": counts["queues"], "topicCount": counts["topics"]}
    if output is OutputFormat.JSON:
        print_json(found)
    else:
        print_details([{label(key): str(value) for key, value in found.items() if value is not None}])


@command(
    namespace_commands,
    examples=("busbar namespace keys", "busbar namespace keys -o json | jq -r .primaryConnectionString"),
)
def keys(*, output: Output = OutputFormat.TABLE, where: ConnectionOptions) -> None:
    """Print the key with which commands reach the namespace, and its connection string. Both are secrets."""
    target = find_target(where)
    if not target.key:
        raise CommandFailure("the connection string has a signature, not a key.", ExitCode.USAGE)
    found = {
        "keyName": target.key_name,
        "primaryKey": target.key,
        "primaryConnectionString": target.connection_string,
    }
    if output is OutputFormat.JSON:
        print_json(found)
    else:
        for name, value in found.items():
            print(f"{name:25}{value}")


@command(
    namespace_commands,
    name="log-level",
    examples=("busbar namespace log-level", "busbar namespace log-level debug"),
)
def log_level(
    *,
    level: Annotated[str, typer.Argument(metavar="debug|info|warning|error", show_default="as it is")] = "",
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Show the level of the server's log, or change it at once, in all its processes. A restart ends the change."""
    from busbar.cli.management_client import ManagementClient
    from busbar.cli.stores import ask

    path = f"log-level/{quote(level, safe='')}" if level else "log-level"
    with ManagementClient(find_target(where)) as client:
        found = ask(client, "POST" if level else "GET", path, "the level of the log")
    if output is OutputFormat.JSON:
        print_json(found)
    else:
        print(found["level"])
