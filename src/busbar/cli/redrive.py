"""`busbar redrive`: dead letters back to their queue, or to another entity. What it does is in busbar.jobs.redrive."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target, say_target
from busbar.cli.entity_commands import checked
from busbar.cli.job_run import Verbose, Wait, running_job, seconds_of
from busbar.cli.options import Output, command
from busbar.cli.output import OutputFormat, print_details, print_json, print_table
from busbar.cli.replay import (
    Condition,
    ConnectionFile,
    DryRun,
    Edits,
    Master,
    Rate,
    Sample,
    camel,
    connection_for,
    print_sample,
    progress,
    refusal,
)

if TYPE_CHECKING:
    from busbar.jobs.redrive import RedriveReport

Entity = Annotated[str, typer.Argument(metavar="ENTITY", show_default=False)]
To = Annotated[
    str, typer.Option("--to", metavar="TARGET", help="A queue or topic.", show_default="the queue itself")
]
Reasons = Annotated[
    list[str] | None,
    typer.Option("--reason", metavar="TEXT", help="Only those with it; may be given again."),
]
Most = Annotated[
    int | None, typer.Option("--max", min=1, metavar="N", help="The N oldest.", show_default="all")
]
LockWait = Annotated[
    str, typer.Option("--lock-wait", metavar="DURATION", help="For those that others have locked.")
]


def add_redrive_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar redrive orders --dry-run",
            "busbar redrive orders --reason MaxDeliveryCountExceeded --max 100",
            "busbar redrive orders --to repair --where \"subject = 'refund'\" --rate 50",
            "busbar redrive events/Subscriptions/audit --to events",
            "busbar redrive 'orders/$Transfer/$DeadLetterQueue' --to receipts",
        ),
    )(redrive)


def redrive(
    *,
    entity: Entity,
    to: To = "",
    reason: Reasons = None,
    condition: Condition = "",
    edits: Edits = None,
    most: Most = None,
    rate: Rate = 0,
    lock_wait: LockWait = "65s",
    dry_run: DryRun = False,
    sample: Sample = 5,
    master: Master = None,
    connection_file: ConnectionFile = None,
    wait: Wait = "1m",
    verbose: Verbose = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Move the dead letters of a queue back to it, or to another entity. Each is deleted when the target has it.

    ENTITY can be TOPIC/Subscriptions/NAME; then --to is needed, because nothing can be sent to one subscription alone. If it
    is the topic, all its subscriptions get the messages. With /$Transfer/$DeadLetterQueue it is what could not be moved to
    another entity; it needs --to as well.
    A command that was interrupted is repeated without a second copy. --where and --set start Spark; nothing else needs it.
    """
    lock_seconds, patience = seconds_of("--lock-wait", lock_wait), seconds_of("--wait", wait)
    uses_spark = bool(connection_file is not None or condition or edits)
    with running_job("redrive", verbose=verbose, then="the same command moves the rest", spark=uses_spark):
        from busbar.jobs.redrive import redrive as run

        if uses_spark:
            connection = connection_for(where, master, connection_file, changes=not dry_run)
            trust = where.ca
        else:
            connection, trust = _own_connection(where, changes=not dry_run)
        with progress("moved", bar=not verbose) as show:
            report = run(
                checked(entity, "entity"),
                connection=connection,
                target=checked(to, "entity") if to else "",
                reasons=reason or (),
                where=condition,
                edits=edits or (),
                most=most,
                rate=rate,
                wait=patience,
                lock_wait=lock_seconds,
                dry_run=dry_run,
                sample=sample,
                trust=trust,
                master=master,
                on_progress=lambda step: show.count(step.moved, step.total),
                on_notice=show.notice,
            )
    _print_report(report, output)
    if report.refused:
        raise refusal(report.refused, "stay in the dead-letter queue", report.examples)


def _own_connection(where: ConnectionOptions, *, changes: bool) -> tuple[str, Path | None]:
    """The connection string and the certificate authority for a run in this process, which starts no Spark."""
    target = find_target(where)
    if changes:
        say_target(target)
    return target.connection_string, target.authorities[0] if target.authorities else None


def _print_report(report: RedriveReport, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(camel(asdict(report)))
        return
    about = {
        "Entity": report.entity,
        "Target": report.target,
        "Dead letters": f"{report.there:,}",
        "Selected": f"{report.found:,}",
    }
    if not report.dry_run:
        about["Moved"] = f"{report.moved:,} in {report.seconds:.1f} s"
        if report.left:
            about["Left"] = f"{report.left:,}: others have them locked, or took them"
    print_details([about])
    if report.dry_run and report.reasons:
        print()
        rows = [(reason or "none", str(count)) for reason, count in report.reasons.items()]
        print_table(("Reason", "Dead letters"), rows, "")
    print_sample(report.sample)
