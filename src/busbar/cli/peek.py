"""`busbar peek`: messages as they are, without locking or changing them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.entity_commands import checked
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.options import Output, command
from busbar.cli.output import OutputFormat, print_json, print_table

if TYPE_CHECKING:
    from busbar.jobs.browsing import BrowsedMessage

Entity = Annotated[str, typer.Argument(metavar="ENTITY", show_default=False)]
LONGEST_BODY = 60
"""Characters of a body in a table."""


def add_peek_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar peek orders",
            "busbar peek 'orders/$DeadLetterQueue' --max 100",
            "busbar peek 'orders/$Transfer/$DeadLetterQueue' -o json",
        ),
    )(peek)


def peek(
    *,
    entity: Entity,
    maximum: Annotated[int, typer.Option("--max", min=1, metavar="N", help="At most N messages.")] = 10,
    start: Annotated[
        int,
        typer.Option(
            "--from", min=1, metavar="N", help="From this sequence number on.", show_default="the first"
        ),
    ] = 1,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Show messages without receiving them, also those that are locked, deferred or scheduled.

    ENTITY is a queue or TOPIC/subscriptions/NAME, or one of these with /$DeadLetterQueue. With /$Transfer/$DeadLetterQueue,
    also of a topic, it is what could not be moved to another entity.
    """
    from busbar.client.errors import BusbarClientError, CannotConnect, NotFound
    from busbar.jobs.browsing import browse

    path, target = checked(entity, "entity"), find_target(where)
    found: list[BrowsedMessage] = []

    def look(message: BrowsedMessage) -> bool:
        found.append(message)
        return len(found) < maximum

    trust = target.authorities[0] if target.authorities else None
    try:
        browse(path, connection=target.connection_string, look=look, start=start, wait=0, trust=trust)
    except CannotConnect as error:
        raise CommandFailure(f"{error.text}; {target.remedy}.") from None
    except NotFound as error:
        raise CommandFailure(error.text, ExitCode.NOT_FOUND) from None
    except BusbarClientError as error:
        raise CommandFailure(error.text, ExitCode.OTHER if error.retryable else ExitCode.REFUSED) from None
    if output is OutputFormat.JSON:
        print_json([_json(message) for message in found])
        return
    columns = [
        "Sequence number",
        "Enqueued",
        "State",
        "Deliveries",
        "Message id",
        "Session id",
        "Reason",
        "Body",
    ]
    rows = [_row(message) for message in found]
    shown = [place for place in range(len(columns)) if place < 4 or any(row[place] for row in rows)]
    print_table(
        [columns[place] for place in shown],
        [[row[place] for place in shown] for row in rows],
        f"there is no message in '{entity}'",
    )


def _row(browsed: BrowsedMessage) -> list[str]:
    message = browsed.message
    body = _body(browsed)
    text = body.decode("utf-8", "backslashreplace")
    return [
        str(browsed.sequence_number),
        _time(browsed.enqueued),
        browsed.state,
        str(browsed.delivery_count),
        _text(message.message_id) or "",
        _text(message.group_id) or "",
        browsed.reason,
        text if len(text) <= LONGEST_BODY else f"{text[:LONGEST_BODY]}…",
    ]


def _json(browsed: BrowsedMessage) -> dict[str, object]:
    message = browsed.message
    body = _body(browsed)
    return {
        "sequenceNumber": browsed.sequence_number,
        "enqueuedTimeUtc": _time(browsed.enqueued),
        "state": browsed.state,
        "deliveryCount": browsed.delivery_count,
        "messageId": _text(message.message_id),
        "sessionId": _text(message.group_id),
        "subject": _text(message.subject),
        "contentType": _text(message.content_type),
        "properties": {name: _plain(value) for name, value in message.application_properties.items()},
        "body": body.decode("utf-8", "backslashreplace"),
        "bodyBase64": base64.b64encode(body).decode("ascii"),
    }


def _body(browsed: BrowsedMessage) -> bytes:
    """The data of a message, or its value as text."""
    message = browsed.message
    if message.data is not None:
        return message.data
    if isinstance(message.value, bytes):
        return message.value
    return b"" if message.value is None else str(message.value).encode("utf-8", "backslashreplace")


def _plain(value: object) -> object:
    return value if isinstance(value, str | bool | int | float) or value is None else str(value)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if ms else ""
