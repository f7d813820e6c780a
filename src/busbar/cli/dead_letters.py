"""`busbar dead-letters`: groups by reason and source, single messages, resubmission of copies, deletion."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli import values
from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.entity_commands import checked, confirm
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.groups import GROUPS
from busbar.cli.message_view import BodyOption, MessageOutput, print_messages
from busbar.cli.message_view import Output as MessageOutputOption
from busbar.cli.messaging import messaging
from busbar.cli.options import Output, Yes, command, group
from busbar.cli.output import OutputFormat, print_details, print_json, print_table
from busbar.cli.replay import progress, refusal
from busbar.model.duration import read_duration, write_duration

if TYPE_CHECKING:
    from busbar.operations.triage import DeadLetterSelection, TriageReport

Entity = Annotated[str, typer.Argument(metavar="ENTITY", show_default=False)]
Numbers = Annotated[
    list[int] | None,
    typer.Option(
        "--number", min=1, metavar="N", help="The one with this sequence number; may be given again."
    ),
]
Reasons = Annotated[
    list[str] | None,
    typer.Option("--reason", metavar="TEXT", help="Those with this reason; may be given again."),
]
Everything = Annotated[bool, typer.Option("--all", help="All of them.")]
To = Annotated[
    str, typer.Option("--to", metavar="TARGET", help="A queue or topic.", show_default="the queue itself")
]
Edits = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field of the copy: subject, session_id, properties.NAME, ...; an empty VALUE removes it.",
    ),
]
NewBody = Annotated[Path | None, typer.Option("--body-file", metavar="FILE", help="The body of the copy.")]
TimeToLive = Annotated[
    str | None,
    typer.Option(
        "--time-to-live",
        metavar="DURATION",
        help="How long the copy lives; unlimited: as long as its target allows.",
        show_default="that of the dead letter",
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        metavar="TIME",
        help="The copy is active from then on: 2026-01-31T12:00:00Z, or +60 for seconds from now.",
    ),
]
MessageId = Annotated[str | None, typer.Option("--message-id", metavar="TEXT", help="The id of one copy.")]
KeepId = Annotated[bool, typer.Option("--keep-id", help="Copies keep the id of their message.")]

dead_letter_commands = group("dead-letters", GROUPS["dead-letters"])


@command(
    dead_letter_commands,
    name="list",
    examples=(
        "busbar dead-letters orders",
        "busbar dead-letters news/subscriptions/eu -o json",
        "busbar dead-letters 'orders/$Transfer/$DeadLetterQueue'",
    ),
)
def _list(*, entity: Entity, output: Output = OutputFormat.TABLE, where: ConnectionOptions) -> None:
    """Show how many dead letters there are of each reason and source. The word `list` may be left out."""
    from busbar.operations.triage import groups
    from busbar.operations.views import time_text

    with messaging(where) as factory:
        found = groups(factory, checked(entity, "entity"))
    if output is OutputFormat.JSON:
        print_json(
            [
                {
                    "reason": each.reason or None,
                    "source": each.source,
                    "count": each.count,
                    "oldestUtc": time_text(each.oldest),
                    "newestUtc": time_text(each.newest),
                    "description": each.description or None,
                }
                for each in found
            ]
        )
        return
    rows = [
        (f"{each.count:,}", each.reason or "none", each.source, time_text(each.newest), each.description)
        for each in found
    ]
    columns = ("Dead letters", "Reason", "Source", "Newest", "Description of the newest")
    print_table(columns, rows, f"there is no dead letter of '{entity}'")


@command(
    dead_letter_commands,
    examples=(
        "busbar dead-letters show orders 42",
        "busbar dead-letters show orders 42 --body hex",
        "busbar dead-letters show orders 42 -o json",
    ),
)
def show(
    *,
    entity: Entity,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, show_default=False)],
    body: Annotated[BodyOption, typer.Option("--body", help="How its body is shown.")] = BodyOption.AUTO,
    output: MessageOutputOption = MessageOutput.TABLE,
    where: ConnectionOptions,
) -> None:
    """Show one dead letter in full, by its sequence number (`busbar peek ENTITY --dead-letter` lists them)."""
    from busbar.operations.browsing import find
    from busbar.operations.triage import dead_letters_of
    from busbar.operations.views import view_of

    with messaging(where) as factory:
        found = find(factory, str(dead_letters_of(checked(entity, "entity"))), number)
    if found is None:
        raise CommandFailure(
            f"'{entity}' has no dead letter with the sequence number {number}.", ExitCode.NOT_FOUND
        )
    print_messages([view_of(found)], output, body, "")


@command(
    dead_letter_commands,
    examples=(
        "busbar dead-letters resubmit orders --reason MaxDeliveryCountExceeded",
        "busbar dead-letters resubmit orders --number 42 --set subject=mended --body-file new.json",
        "busbar dead-letters resubmit orders --number 42 --set session_id=7 --set properties.tries=2",
        "busbar dead-letters resubmit orders --reason TTLExpiredException --time-to-live 1d",
        "busbar dead-letters resubmit news/subscriptions/eu --all --to repair",
    ),
)
def resubmit(
    *,
    entity: Entity,
    number: Numbers = None,
    reason: Reasons = None,
    everything: Everything = False,
    to: To = "",
    edits: Edits = None,
    body_file: NewBody = None,
    time_to_live: TimeToLive = None,
    schedule: Schedule = None,
    message_id: MessageId = None,
    keep_id: KeepId = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Send copies of dead letters to their queue, or to another entity. Each is deleted when the target has its copy.

    A copy has a new id, and its own one in the property original-message-id. `busbar redrive` moves many of them faster.
    """
    from busbar.operations.triage import resubmit as run

    if keep_id and message_id is not None:
        raise CommandFailure("--keep-id and --message-id: give one of them.", ExitCode.USAGE)
    selection = _selection(number, reason, everything)
    changes = _changes(edits or [], body_file) | _times(time_to_live, schedule)
    with messaging(where, changes=True) as factory, progress("resubmitted") as shown:
        report = run(
            factory,
            checked(entity, "entity"),
            selection,
            target=checked(to, "entity") if to else "",
            changes=changes,
            message_id=message_id,
            keep_id=keep_id,
            on_progress=shown.count,
        )
    _print(report, "Resubmitted", output)


@command(
    dead_letter_commands,
    examples=(
        "busbar dead-letters delete orders --number 42",
        "busbar dead-letters delete orders --reason TTLExpiredException --yes",
    ),
)
def delete(
    *,
    entity: Entity,
    number: Numbers = None,
    reason: Reasons = None,
    everything: Everything = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Delete dead letters. `busbar purge ENTITY --dead-letter` deletes all of them faster."""
    from busbar.operations.triage import delete as run

    selection = _selection(number, reason, everything)
    with messaging(where, changes=True) as factory:
        confirm(f"Delete dead letters of '{entity}'?", yes)
        with progress("deleted") as shown:
            report = run(factory, checked(entity, "entity"), selection, on_progress=shown.count)
    _print(report, "Deleted", output)


def _selection(numbers: list[int] | None, reasons: list[str] | None, everything: bool) -> DeadLetterSelection:
    from busbar.operations.triage import DeadLetterSelection

    if everything and (numbers or reasons):
        raise CommandFailure("--all and --number or --reason: give one of them.", ExitCode.USAGE)
    if not (everything or numbers or reasons):
        raise CommandFailure("which dead letters? Give --number, --reason or --all.", ExitCode.USAGE)
    return DeadLetterSelection(frozenset(numbers or ()), frozenset(reasons or ()), everything)


def _changes(edits: list[str], body_file: Path | None) -> dict[str, object]:
    """The changes of copies, as operations/rewriting.py takes them. Raises CommandFailure."""
    from busbar.operations.composing import changes_of
    from busbar.operations.paths import OperationRefused

    try:
        changes = changes_of(edits)
    except OperationRefused as error:
        raise CommandFailure(f"--set: {error}.", ExitCode.USAGE) from None
    if body_file is not None:
        try:
            changes["body"] = body_file.read_bytes()
        except OSError as error:
            raise CommandFailure(f"{body_file}: {error.strerror}.", ExitCode.USAGE) from None
    return changes


def _times(time_to_live: str | None, schedule: str | None) -> dict[str, object]:
    """How long copies live, and from when on they are active. Raises CommandFailure."""
    from busbar.message.compose import LONGEST_TTL
    from busbar.operations.composing import time_of
    from busbar.operations.paths import OperationRefused
    from busbar.operations.rewriting import SCHEDULED, TIME_TO_LIVE

    found: dict[str, object] = {}
    if time_to_live is not None:
        try:
            lives = read_duration(
                values.duration(f"{time_to_live}s" if time_to_live.isdigit() else time_to_live)
            )
        except ValueError as error:
            raise CommandFailure(f"--time-to-live: {error}.", ExitCode.USAGE) from None
        if lives > LONGEST_TTL:
            most = values.short_duration(write_duration(LONGEST_TTL // 60_000 * 60_000))
            raise CommandFailure(
                f"--time-to-live: '{time_to_live}' is too long; a copy lives at most {most}, or unlimited.",
                ExitCode.USAGE,
            )
        found[TIME_TO_LIVE] = lives or None
    if schedule is not None:
        try:
            found[SCHEDULED] = time_of(schedule, datetime.now(UTC))
        except OperationRefused as error:
            raise CommandFailure(f"--schedule: {error}.", ExitCode.USAGE) from None
    return found


def _print(report: TriageReport, done: str, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(
            {
                "found": report.found,
                done.lower(): report.done,
                "refused": report.refused,
                "left": report.left,
                "examples": report.examples,
            }
        )
    else:
        about = {"Selected": f"{report.found:,}", done: f"{report.done:,}"}
        if report.left:
            about["Left"] = f"{report.left:,}: others have them locked, or took them"
        print_details([about])
    if report.refused:
        raise refusal(report.refused, "stay in the dead-letter queue", report.examples)
    if not report.found:
        raise CommandFailure("no dead letter is selected by that.", ExitCode.NOT_FOUND)
