"""`busbar history`: what happened to a message, by whom and when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.entity_commands import checked
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.options import Output, command
from busbar.cli.output import OutputFormat, print_json, print_table

if TYPE_CHECKING:
    from busbar.cli.management_client import ManagementClient

View = dict[str, Any]
_COLUMNS = ("Time", "Entity", "Sequence number", "What", "Reason", "By")


def add_history_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar history --on --entity orders",
            "busbar history 4711",
            "busbar history 4711 --entity orders -o json",
            "busbar history --off",
        ),
    )(history)


def history(
    *,
    message_id: Annotated[str | None, typer.Argument(metavar="[MESSAGE_ID]", show_default=False)] = None,
    entity: Annotated[
        str | None,
        typer.Option("--entity", metavar="ENTITY", help="Of this queue, topic or subscription alone."),
    ] = None,
    on: Annotated[bool, typer.Option("--on", help="Record from now on, for ENTITY or for all.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Stop recording, for ENTITY or for all.")] = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Show what happened to a message, by whom and when: sent, copied, delivered, dead-lettered and so on.

    Brokers record this only if it was switched on with --on, and only in memory: the last steps, until they end. Without
    MESSAGE_ID the command shows which entities record. A topic stands for its subscriptions, too.
    """
    from busbar.cli.management_client import ManagementClient

    if (on and off) or (message_id is not None and (on or off)):
        raise CommandFailure("give a MESSAGE_ID, --on or --off, one of them.", ExitCode.USAGE)
    path = None if entity is None else checked(entity, "entity")
    with ManagementClient(find_target(where)) as client:
        if message_id is None:
            _show_recording(set_recording(client, path, on, off), output)
            return
        steps = steps_of(client, message_id, path)
        if not steps and output is OutputFormat.TABLE:
            recording = set_recording(client, None, False, False) if path is None else {}
            raise CommandFailure(_nothing(message_id, recording), ExitCode.NOT_FOUND)
    if output is OutputFormat.JSON:
        print_json(steps)
        return
    print_table(_COLUMNS, [row(step) for step in steps], "")


def steps_of(client: ManagementClient, message_id: str, entity: str | None) -> list[View]:
    """The steps of a message, in the order of time."""
    from busbar.cli.stores import ask

    place = "history" if entity is None else f"history/{entity}"
    query = f"&messageId={quote(message_id, safe='')}"
    found: list[View] = ask(client, "GET", place, f"the history of message '{message_id}'", query)
    return found


def row(step: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        datetime.fromtimestamp(step["time"] / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z",
        step["entity"],
        str(step["sequenceNumber"] or ""),
        step["what"],
        step["reason"],
        by_whom(step),
    )


def by_whom(step: Mapping[str, Any]) -> str:
    """The client of a step, for people."""
    if not step["byClient"]:
        return ""
    client = step["client"]
    if client is None:
        return "a client that is not remembered"
    link = f", link {client['link']}" if client["link"] else ""
    return f"{client['container'] or 'a client'} at {client['address'] or 'an unknown address'}{link}"


def set_recording(client: ManagementClient, entity: str | None, on: bool, off: bool) -> View:
    """Switch the recording of history on or off, if one of them is asked for; returns which entities record."""
    from busbar.cli.stores import ask

    if not on and not off:
        view: View = ask(client, "GET", "recording", "the recording of history")
        return view
    change = f"recording/{'on' if on else 'off'}{'' if entity is None else f'/{entity}'}"
    changed: View = ask(
        client, "POST", change, "the recording of history" if entity is None else f"'{entity}'"
    )
    return changed


def _show_recording(recording: Mapping[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(dict(recording))
        return
    rows = [("all entities",)] if recording["everything"] else [(path,) for path in recording["entities"]]
    print_table(
        ("Records its history",), rows, "No entity records its history; `busbar history --on` starts it."
    )


def _nothing(message_id: str, recording: Mapping[str, Any]) -> str:
    said = f"nothing is recorded of message '{message_id}'"
    if recording and not recording["everything"] and not recording["entities"]:
        return f"{said}: no entity records its history. `busbar history --on` starts it."
    return f"{said}, or it is forgotten: brokers keep the last steps, until they end."
