"""`busbar peek`: messages as they are, without locking or changing them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.entity_commands import checked
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.message_view import Body, MessageOutput, Output, print_messages
from busbar.cli.messaging import messaging
from busbar.cli.options import command

if TYPE_CHECKING:
    from busbar.operations.browsing import MessageKind

Entity = Annotated[str, typer.Argument(metavar="ENTITY", show_default=False)]
Active = Annotated[bool, typer.Option("--active", help="Only those that are active.")]
Deferred = Annotated[bool, typer.Option("--deferred", help="Only those that are deferred.")]
Scheduled = Annotated[bool, typer.Option("--scheduled", help="Only those that are scheduled.")]
DeadLetter = Annotated[bool, typer.Option("--dead-letter", help="Those in the dead-letter queue.")]
TransferDeadLetter = Annotated[
    bool, typer.Option("--transfer-dead-letter", help="Those that could not be moved to another entity.")
]
SessionId = Annotated[
    str | None, typer.Option("--session-id", metavar="TEXT", help="Those of one message session.")
]


def add_peek_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar peek orders",
            "busbar peek orders --dead-letter --max 100",
            "busbar peek orders --session-id 7 --body json",
            "busbar peek 'orders/$Transfer/$DeadLetterQueue' -o jsonl",
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
    active: Active = False,
    deferred: Deferred = False,
    scheduled: Scheduled = False,
    dead_letter: DeadLetter = False,
    transfer_dead_letter: TransferDeadLetter = False,
    session_id: SessionId = None,
    body: Body = None,
    output: Output = MessageOutput.TABLE,
    where: ConnectionOptions,
) -> None:
    """Show messages without receiving them, also those that are locked, deferred or scheduled.

    ENTITY is a queue or TOPIC/subscriptions/NAME, or one of these with /$DeadLetterQueue. With /$Transfer/$DeadLetterQueue,
    also of a topic, it is what could not be moved to another entity.
    """
    from busbar.operations.browsing import browse
    from busbar.operations.views import view_of

    kind = chosen_kind(active, deferred, scheduled, dead_letter, transfer_dead_letter)
    path = checked(entity, "entity")
    with messaging(where) as factory:
        found = browse(factory, path, kind=kind, start=start, session_id=session_id)
        shown = (view_of(message) for message in islice(found, maximum))
        print_messages(shown, output, body, f"there is no message in '{entity}'")


def chosen_kind(
    active: bool, deferred: bool, scheduled: bool, dead_letter: bool, transfer_dead_letter: bool
) -> MessageKind:
    """The kind of messages that one option names; without any, all of the entity. Raises CommandFailure for several."""
    from busbar.operations.browsing import MessageKind

    given = {
        MessageKind.ACTIVE: active,
        MessageKind.DEFERRED: deferred,
        MessageKind.SCHEDULED: scheduled,
        MessageKind.DEAD_LETTER: dead_letter,
        MessageKind.TRANSFER_DEAD_LETTER: transfer_dead_letter,
    }
    named = [kind for kind, is_given in given.items() if is_given]
    if len(named) > 1:
        options = " and ".join(f"--{kind.value}" for kind in named)
        raise CommandFailure(f"{options}: give one of them.", ExitCode.USAGE)
    return named[0] if named else MessageKind.ALL
