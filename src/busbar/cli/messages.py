"""`busbar send` and `busbar receive`: single messages over HTTP, to try things out and to look at dead letters.

A received message is completed after it was written to standard output and flushed; one that could not be written is
unlocked. (Browsing without receiving is not part of the HTTP API; `--keep` unlocks what it showed, which counts as a
delivery.)
"""

from __future__ import annotations

import json
import re
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
    from busbar.cli.atom_client import HttpAnswer, ManagementClient

Entity = Annotated[str, typer.Argument(metavar="ENTITY", show_default=False)]
Body = Annotated[str, typer.Argument(metavar="TEXT", show_default=False)]


def add_message_commands(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar send orders 'two coffees'",
            "echo '{\"n\": 1}' | busbar send orders - --content-type application/json",
            "busbar send orders hello --property region=eu --property count=5",
        ),
    )(send)
    command(
        app,
        examples=(
            "busbar receive orders",
            "busbar receive orders --max 10 --timeout 5s -o json",
            "busbar receive 'orders/$DeadLetterQueue' --keep",
        ),
    )(receive)


def send(
    *,
    entity: Entity,
    text: Body,
    message_id: Annotated[str | None, typer.Option("--message-id", metavar="TEXT")] = None,
    subject: Annotated[str | None, typer.Option("--subject", "--label", metavar="TEXT")] = None,
    session_id: Annotated[str | None, typer.Option("--session-id", metavar="TEXT")] = None,
    correlation_id: Annotated[str | None, typer.Option("--correlation-id", metavar="TEXT")] = None,
    content_type: Annotated[
        str, typer.Option("--content-type", metavar="TEXT")
    ] = "text/plain; charset=utf-8",
    time_to_live: Annotated[
        str | None, typer.Option("--time-to-live", metavar="DURATION", help="How long it lives.")
    ] = None,
    item: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="KEY=VALUE", help="An application property; may be given again."),
    ] = None,
    where: ConnectionOptions,
) -> None:
    """Send a message to a queue or topic. A TEXT of - is read from standard input."""
    from busbar.cli.atom_client import ManagementClient

    broker: dict[str, object] = {
        key: value
        for key, value in (
            ("MessageId", message_id),
            ("Label", subject),
            ("SessionId", session_id),
            ("CorrelationId", correlation_id),
        )
        if value is not None
    }
    if time_to_live is not None:
        try:
            broker["TimeToLive"] = values.seconds(time_to_live)
        except ValueError as error:
            raise CommandFailure(f"--time-to-live: {error}.", ExitCode.USAGE) from None
    headers = dict(_header(pair) for pair in item or ())
    headers["Content-Type"] = _header_text(content_type, "--content-type")
    headers["BrokerProperties"] = json.dumps(broker)
    body = sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")
    path = checked(entity, "entity")
    with ManagementClient(find_target(where)) as client:
        client.expect("POST", f"{path}/messages", f"'{entity}'", headers=headers, body=body)


def receive(
    *,
    entity: Entity,
    maximum: Annotated[int, typer.Option("--max", min=1, metavar="N", help="At most N messages.")] = 1,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long to wait for each.")
    ] = "1s",
    keep: Annotated[bool, typer.Option("--keep", help="Put them back instead of completing them.")] = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Receive messages. ENTITY is a queue, TOPIC/subscriptions/NAME, or one of these with /$DeadLetterQueue.

    Without -o json it is the bodies alone: as they are where standard output is no terminal, with a line end after each if
    --max is more than 1. Nothing there is not an error, unless a store is unavailable that may have something.
    """
    from busbar.cli.atom_client import ManagementClient

    try:
        wait = min(values.seconds(timeout), 50)
    except ValueError as error:
        raise CommandFailure(f"--timeout: {error}.", ExitCode.USAGE) from None
    path = checked(entity, "entity")
    what = f"'{entity}'"
    with ManagementClient(find_target(where)) as client:
        # Those that are put back would come again, so all are locked before any is let go.
        locked: list[str] = []
        try:
            with ReceivedView(output, maximum) as shown:
                count = _receive(client, path, what, maximum, wait, keep, shown, locked)
        except BaseException:
            with suppress(CommandFailure):
                _unlock(client, locked, what)
            raise
        _unlock(client, locked, what)
        if count < maximum:
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


def _lock(path: str, answer: HttpAnswer) -> str:
    broker = broker_properties(answer)
    return f"{path}/messages/{broker.get('SequenceNumber')}/{broker.get('LockToken')}"


def _header(pair: str) -> tuple[str, str]:
    from busbar.gateway.http.runtime_headers import is_property_name

    key, equals, value = pair.partition("=")
    if not equals or not is_property_name(key):
        raise CommandFailure(
            f"--property '{pair}' is not KEY=VALUE, or HTTP itself uses a header of that name.",
            ExitCode.USAGE,
        )
    bare = value in ("true", "false") or re.fullmatch(r"-?\d{1,15}(\.\d{1,15})?", value, re.ASCII)
    return key, value if bare else json.dumps(value)


def _header_text(text: str, option: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise CommandFailure(f"{option}: only printable ASCII can be sent over HTTP.", ExitCode.USAGE)
    return text
