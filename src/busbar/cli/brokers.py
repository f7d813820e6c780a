"""`busbar brokers restart`: the broker processes of a namespace, started again one after the other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.failure import CommandFailure
from busbar.cli.groups import GROUPS
from busbar.cli.options import command, group

if TYPE_CHECKING:
    from busbar.cli.management_client import ManagementClient

POLL_SECONDS = 0.2
brokers_commands = group("brokers", GROUPS["brokers"])


@command(brokers_commands, examples=("busbar brokers restart",))
def restart(
    *,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for all of them.")
    ] = 300.0,
    where: ConnectionOptions,
) -> None:
    """Restart the brokers of `--brokers N`, one after the other. Clients notice pauses.

    Each hands its stores over to the others before it ends.
    """
    from busbar.cli.management_client import ManagementClient
    from busbar.cli.stores import ask

    deadline = time.monotonic() + timeout
    with ManagementClient(find_target(where)) as client:
        before = _since(client)
        left: list[str] = ask(client, "POST", "brokers/restart", "the brokers")
    while left:
        if time.monotonic() > deadline:
            raise CommandFailure(
                f"{', '.join(left)}: not restarted within {timeout:g} s; `busbar nodes` shows their state."
            )
        time.sleep(POLL_SECONDS)
        with ManagementClient(find_target(where)) as client:  # each time another one: its broker may end
            now = _since(client)
        for name in [name for name in left if now.get(name, 0) > before.get(name, 0)]:
            print(f"{name} was restarted.")
            left.remove(name)


def _since(client: ManagementClient) -> dict[str, int]:
    """When each broker was started, in ms; 0 if it is not up."""
    from busbar.cli.stores import ask

    views: list[dict[str, Any]] = ask(client, "GET", "nodes", "the list of processes")
    return {view["name"]: view["since"] if view["state"] == "up" else 0 for view in views}
