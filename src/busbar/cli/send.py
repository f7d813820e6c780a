"""`busbar send`: messages from an argument, a file or standard input, over AMQP."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from busbar.cli import values
from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.entity_commands import checked
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.messaging import messaging
from busbar.cli.options import command

if TYPE_CHECKING:
    from busbar.client import OutgoingMessage
    from busbar.client.blocking import BlockingFactory

Entity = Annotated[str, typer.Argument(metavar="ENTITY", show_default=False)]
Text = Annotated[str | None, typer.Argument(metavar="[TEXT]", show_default=False)]
File = Annotated[Path | None, typer.Option("--file", metavar="FILE", help="The body is in FILE.")]
Lines = Annotated[bool, typer.Option("--lines", help="Each line is a message, unless it is empty.")]
TimeToLive = Annotated[
    str | None, typer.Option("--time-to-live", metavar="DURATION", help="How long it lives.")
]
Schedule = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        metavar="TIME",
        help="Active from then on: 2026-01-31T12:00:00Z, or +60 for seconds from now. Prints sequence numbers.",
    ),
]
Property = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        metavar="KEY=VALUE",
        help="An application property; may be given again. Numbers, true and false are no texts, unless in quotes.",
    ),
]
PLAIN_TEXT = "text/plain; charset=utf-8"
READ_BYTES = 64 * 1024
"""Of standard input at a time. Lines that came together are sent together."""


def add_send_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar send orders 'two coffees'",
            "busbar send orders --file order.json --content-type application/json",
            "busbar send orders hello --property region=eu --property count=5",
            "tail -f events.log | busbar send events - --lines --session-id log",
        ),
    )(send)


def send(
    *,
    entity: Entity,
    text: Text = None,
    file: File = None,
    lines: Lines = False,
    message_id: Annotated[str | None, typer.Option("--message-id", metavar="TEXT")] = None,
    subject: Annotated[str | None, typer.Option("--subject", "--label", metavar="TEXT")] = None,
    session_id: Annotated[str | None, typer.Option("--session-id", metavar="TEXT")] = None,
    partition_key: Annotated[str | None, typer.Option("--partition-key", metavar="TEXT")] = None,
    correlation_id: Annotated[str | None, typer.Option("--correlation-id", metavar="TEXT")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="TEXT")] = None,
    reply_to: Annotated[str | None, typer.Option("--reply-to", metavar="TEXT")] = None,
    reply_to_session_id: Annotated[str | None, typer.Option("--reply-to-session-id", metavar="TEXT")] = None,
    content_type: Annotated[str, typer.Option("--content-type", metavar="TEXT")] = PLAIN_TEXT,
    time_to_live: TimeToLive = None,
    schedule: Schedule = None,
    item: Property = None,
    where: ConnectionOptions,
) -> None:
    """Send a message to a queue or topic. A TEXT of - is read from standard input, and so is a missing one."""
    from busbar.client import OutgoingMessage

    path = checked(entity, "entity")
    if lines and message_id is not None:
        raise CommandFailure("--lines and --message-id: the messages would all have one id.", ExitCode.USAGE)
    properties, time, lives = _parsed(item or (), schedule, time_to_live)
    form = OutgoingMessage(
        message_id=message_id,
        session_id=session_id,
        partition_key=partition_key,
        correlation_id=correlation_id,
        subject=subject,
        content_type=content_type,
        to=to,
        reply_to=reply_to,
        reply_to_session_id=reply_to_session_id,
        time_to_live=lives,
        application_properties=properties or None,
    )
    with body_source(text, file) as source, messaging(where, changes=True) as factory:
        bodies = _lines(source) if lines else iter([[source.read()]])
        batches = ([replace(form, body=body) for body in batch] for batch in bodies)
        _send(factory, path, batches, time, counts=lines)


def _parsed(
    items: Sequence[str], schedule: str | None, time_to_live: str | None
) -> tuple[dict[str, object], datetime | None, int]:
    """Application properties, the scheduled time, and the time to live in ms. Raises CommandFailure."""
    from busbar.operations.composing import properties_of, time_of
    from busbar.operations.paths import OperationRefused

    try:
        properties = properties_of(items)
        time = None if schedule is None else time_of(schedule, datetime.now(UTC))
        return properties, time, 0 if time_to_live is None else 1000 * values.seconds(time_to_live)
    except OperationRefused as error:
        raise CommandFailure(f"{error}.", ExitCode.USAGE) from None
    except ValueError as error:
        raise CommandFailure(f"--time-to-live: {error}.", ExitCode.USAGE) from None


def _send(
    factory: BlockingFactory,
    path: str,
    batches: Iterator[list[OutgoingMessage]],
    time: datetime | None,
    *,
    counts: bool,
) -> None:
    from busbar.client import BusbarClientError

    sent = 0
    with factory.message_sender(path) as sender:
        for batch in batches:
            try:
                if time is None:
                    sender.send_messages(batch)
                else:
                    for number in sender.schedule_messages(batch, time):
                        print(number, flush=True)
            except BusbarClientError as error:
                if not sent:
                    raise
                code = ExitCode.OTHER if error.retryable else ExitCode.REFUSED
                raise CommandFailure(f"{sent:,} messages were sent. Then: {error.text}", code) from None
            sent += len(batch)
    if counts:
        print(f"{sent:,} message{'' if sent == 1 else 's'} sent", file=sys.stderr)


@contextmanager
def body_source(text: str | None, file: Path | None) -> Iterator[BinaryIO]:
    """Where a body comes from: the argument, a file, or standard input. Raises CommandFailure."""
    from io import BytesIO

    if text is not None and file is not None:
        raise CommandFailure("a TEXT and --file: give one of them.", ExitCode.USAGE)
    if file is not None:
        try:
            opened = file.open("rb")
        except OSError as error:
            raise CommandFailure(f"{file}: {error.strerror}.", ExitCode.USAGE) from None
        with opened:
            yield opened
    elif text is None and (sys.stdin is None or sys.stdin.isatty()):
        raise CommandFailure(
            "what is to be sent? Give a TEXT, --file, or - for standard input.", ExitCode.USAGE
        )
    elif text is None or text == "-":
        yield sys.stdin.buffer
    else:
        yield BytesIO(text.encode("utf-8", "surrogateescape"))


def _lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """Lines that are not empty, without their ends, as many at a time as have come."""
    rest = b""
    read = getattr(source, "read1", source.read)
    while piece := read(READ_BYTES):
        *complete, rest = (rest + piece).split(b"\n")
        found = [line.rstrip(b"\r") for line in complete if line.rstrip(b"\r")]
        if found:
            yield found
    if rest:
        yield [rest]
