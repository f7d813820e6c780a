"""`busbar purge`: all messages of an entity, or those of some kinds."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.entity_commands import checked
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.messaging import messaging
from busbar.cli.options import Output, Yes, command
from busbar.cli.output import OutputFormat, print_details, print_json, printable
from busbar.cli.peek import Active, DeadLetter, Deferred, Entity, Scheduled, SessionId, TransferDeadLetter

if TYPE_CHECKING:
    from busbar.operations.browsing import MessageKind
    from busbar.operations.purging import PurgeReport

Everything = Annotated[bool, typer.Option("--all", help="Those of all kinds.")]
LINE_SECONDS = 2.0
"""Between lines that report progress where standard error is no terminal."""


def add_purge_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar purge orders",
            "busbar purge orders --dead-letter --yes",
            "busbar purge news/subscriptions/eu --all --yes",
            "busbar purge orders --session-id 7",
        ),
    )(purge)


def purge(
    *,
    entity: Entity,
    active: Active = False,
    deferred: Deferred = False,
    scheduled: Scheduled = False,
    dead_letter: DeadLetter = False,
    transfer_dead_letter: TransferDeadLetter = False,
    everything: Everything = False,
    session_id: SessionId = None,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Delete the messages of a queue or subscription; options choose kinds. It asks for the name of the entity first.

    Without an option these are the active, deferred and scheduled messages. Dead letters are deleted only if they are named,
    here or in ENTITY. Messages that a receiver has locked stay, and so do those that come meanwhile.
    """
    from busbar.operations.purging import purge as run

    kinds = _kinds(
        checked(entity, "entity"),
        (active, deferred, scheduled, dead_letter, transfer_dead_letter),
        everything,
    )
    what = ", ".join(kind.value for kind in kinds)
    with messaging(where, changes=True) as factory:
        confirm_by_name(f"This deletes messages of '{entity}' ({what}).", entity, yes)
        began = time.monotonic()
        shown = _Progress()
        try:
            report = run(factory, entity, kinds, session_id=session_id, on_progress=shown.count)
        finally:
            shown.close()
    _print(report, time.monotonic() - began, output)


def _kinds(entity: str, given: tuple[bool, bool, bool, bool, bool], everything: bool) -> list[MessageKind]:
    from busbar.operations.browsing import MessageKind
    from busbar.operations.paths import MAIN, MessagePath

    choices = (
        MessageKind.ACTIVE,
        MessageKind.DEFERRED,
        MessageKind.SCHEDULED,
        MessageKind.DEAD_LETTER,
        MessageKind.TRANSFER_DEAD_LETTER,
    )
    place = MessagePath.parse(entity)
    named = [kind for kind, is_given in zip(choices, given, strict=True) if is_given]
    if everything and named:
        raise CommandFailure("--all and another kind: give one of them.", ExitCode.USAGE)
    if named:
        return named
    if place.sub_queue != MAIN:
        return [MessageKind.ACTIVE, MessageKind.DEFERRED]
    usual = choices if everything else choices[:3]
    return [kind for kind in usual if kind is not MessageKind.SCHEDULED or not place.topic]


def confirm_by_name(warning: str, name: str, yes: bool) -> None:
    """Have a person type the name of what is about to be emptied. Raises CommandFailure."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandFailure(f"{warning} Nobody can answer here: say it with --yes.", ExitCode.USAGE)
    print(f"{printable(warning)}\nType its name to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != name:
        raise CommandFailure("that is another name; nothing was deleted.")


class _Progress:
    """Prints how many messages are deleted: on a terminal in one line, else in lines with some time between them."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._last = time.monotonic()

    def count(self, kind: MessageKind, count: int) -> None:
        now = time.monotonic()
        if self._is_terminal:
            print(f"\r{count:,} {kind.value} messages deleted", end="", file=sys.stderr, flush=True)
        elif now - self._last >= LINE_SECONDS:
            self._last = now
            print(f"{count:,} {kind.value} messages deleted …", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._is_terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def _print(report: PurgeReport, seconds: float, output: OutputFormat) -> None:
    deleted = {kind.value: count for kind, count in report.deleted.items()}
    if output is OutputFormat.JSON:
        print_json({"deleted": deleted, "left": report.left, "seconds": round(seconds, 3)})
        return
    about = {name.capitalize(): f"{count:,}" for name, count in deleted.items()}
    about["Deleted"] = f"{report.total:,} in {seconds:.1f} s"
    if report.left:
        about["Left"] = f"{report.left:,}: other receivers have them or their sessions"
    print_details([about])
