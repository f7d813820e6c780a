"""`busbar replay`: messages of an archive or a dead-letter queue into an entity. What it does is in busbar.jobs.replay."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target, say_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.job_run import Verbose, Wait, running_job, seconds_of
from busbar.cli.options import Output, command
from busbar.cli.output import OutputFormat, print_details, print_json, print_table

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from busbar.jobs.replay import ReplayReport


class Order(StrEnum):
    KEY = "key"
    ALL = "all"
    NONE = "none"


class Ids(StrEnum):
    SOURCE = "source"
    MESSAGE = "message"


Condition = Annotated[
    str, typer.Option("--where", metavar="SQL", help="Only those for which it is true (Spark SQL).")
]
Since = Annotated[
    str, typer.Option("--from", metavar="TIME", help="Only those enqueued then or later.", show_default=False)
]
Until = Annotated[
    str, typer.Option("--to", metavar="TIME", help="Only those enqueued before.", show_default=False)
]
Edits = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=SQL", help="Change a field; may be given again."),
]
Rate = Annotated[float, typer.Option("--rate", min=0, metavar="N", help="At most N messages a second.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count, show some, and send nothing.")]
Sample = Annotated[
    int, typer.Option("--sample", min=0, metavar="N", help="With --dry-run: how many to show.")
]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="A Spark cluster.", show_default="this machine")
]
ConnectionFile = Annotated[
    Path | None,
    typer.Option("--connection-file", metavar="FILE", help="Has the connection string, on every node."),
]

LEAST_BAR, MOST_BAR = 5, 40
BESIDE_BAR = 34
"""Columns of a terminal for the text and the time beside a bar."""

Source = Annotated[str, typer.Argument(metavar="SOURCE", show_default=False)]
Target = Annotated[str, typer.Argument(metavar="TARGET", show_default=False)]
OrderOption = Annotated[
    Order, typer.Option("--order", help="Kept in each session and key, among all, or not at all.")
]
IdsOption = Annotated[
    Ids, typer.Option("--ids", help="Message ids: made from the source, or the messages' own.")
]
Run = Annotated[
    str, typer.Option("--run", metavar="NAME", help="Do once more what was done under another name.")
]
Forget = Annotated[bool, typer.Option("--forget", help="Done for good: let the broker forget what was sent.")]


def add_replay_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar replay /data/orders orders-again --dry-run",
            "busbar replay /data/orders orders-again --from 2026-01-31T12:00Z --to 2026-02-01",
            "busbar replay /data/orders orders --where \"subject = 'refund' and date = '2026-01-31'\"",
            "busbar replay 'orders/$DeadLetterQueue' repair --set \"properties.attempt=2\" --rate 100",
        ),
    )(replay)


def replay(
    *,
    source: Source,
    target: Target,
    condition: Condition = "",
    since: Since = "",
    until: Until = "",
    edits: Edits = None,
    order: OrderOption = Order.KEY,
    ids: IdsOption = Ids.SOURCE,
    rate: Rate = 0,
    dry_run: DryRun = False,
    sample: Sample = 5,
    name: Run = "",
    forget: Forget = False,
    master: Master = None,
    connection_file: ConnectionFile = None,
    wait: Wait = "5m",
    verbose: Verbose = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Send the messages of SOURCE to TARGET, each once, also if the command is repeated.

    SOURCE is an archive that `busbar capture` wrote, or a dead-letter queue (QUEUE/$DeadLetterQueue, or
    TOPIC/Subscriptions/NAME/$DeadLetterQueue); it stays as it is. TARGET is a queue or a topic. A TIME is 2026-01-31 or
    2026-01-31T12:00:00Z.
    """
    patience = seconds_of("--wait", wait)
    with running_job("replay", verbose=verbose, then="the same command sends the rest, and nothing twice"):
        from busbar.jobs.replay import replay as run

        secret = connection_for(where, master, connection_file, changes=not dry_run)
        with progress("sent", bar=not verbose) as show:
            report = run(
                source,
                target,
                connection=secret,
                where=condition,
                since=since,
                until=until,
                edits=edits or (),
                order=order.value,
                ids=ids.value,
                rate=rate,
                run=name,
                dry_run=dry_run,
                sample=sample,
                forget=forget,
                wait=patience,
                master=master,
                on_progress=lambda step: show.count(step.sent, step.total),
                on_notice=show.notice,
            )
    if output is OutputFormat.JSON:
        print_json(camel(asdict(report)))
    else:
        _print_report(report)
    if report.refused:
        raise refusal(report.refused, "were not sent", report.examples)


def _print_report(report: ReplayReport) -> None:
    about = {"Source": report.source, "Target": report.target, "Found": f"{report.found:,}"}
    if report.found:
        about["Enqueued"] = f"{report.first} to {report.last}"
    for number, line in enumerate(report.there):
        about["There is" + " " * number] = line
    if report.read:
        about["Archive"] = report.read
    if not report.dry_run:
        about["Sent"] = f"{report.sent:,} in {report.seconds:.1f} s{_which(report)}"
    print_details([about])
    print_sample(report.sample)


def _which(report: ReplayReport) -> str:
    """Whether the target has got the messages now, or had them before."""
    if report.added is None or not report.sent:
        return ""
    if report.added == report.sent:
        return ", all of them now"
    if report.known == report.sent:
        return "; the target had all of them before, and has no new ones"
    text = f", {report.added:,} of them now; the target had {report.known:,} before"
    if report.unsure:
        text += f", and got {report.unsure:,} before or now (they were sent again after a failure)"
    return text


# ---- what the commands of jobs share -----------------------------------------------------------------


def connection_for(
    where: ConnectionOptions, master: str | None, file: Path | None, *, changes: bool = False
) -> Any:
    """Where a job and its workers find the connection string (never in an argument of theirs), and which authority they
    trust. If the command `changes` something, it names the namespace."""
    from busbar.jobs.launch import shared_connection
    from busbar.spark.secrets import Secret

    if file is not None:
        if changes:
            print(f"namespace: that of the connection string in {file}", file=sys.stderr, flush=True)
        return Secret(file=str(file), trust=str(where.ca.absolute()) if where.ca else "")
    target = find_target(where)
    if changes:
        say_target(target)
    trust = str(target.authorities[0].absolute()) if target.tls and target.authorities else ""
    return shared_connection(target.connection_string, master, trust)


class JobProgress:
    """Prints what a job does now, a line each."""

    def count(self, done: int, total: int) -> None:
        """How much of its work the job has done."""

    def notice(self, text: str) -> None:
        print(f"{text} …", file=sys.stderr, flush=True)


class JobBar(JobProgress):
    """Shows a bar on a terminal, with what the job does now and for how long."""

    def __init__(self, bar: Bar, done: str) -> None:
        self._bar = bar
        self._done = done
        self._task = bar.add_task("", total=None)

    def count(self, done: int, total: int) -> None:
        self._bar.update(
            self._task, completed=done, total=total, description=f"{done:,} of {total:,} {self._done}"
        )

    def notice(self, text: str) -> None:
        self._bar.reset(self._task, description=text, total=None)


@contextmanager
def progress(done: str, *, bar: bool = True) -> Iterator[JobProgress]:
    """Show what a job does: a bar on a terminal, unless other lines would cut through it; else lines."""
    if not bar or not sys.stderr.isatty():
        yield JobProgress()
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from busbar.jobs.progress import console_of

    console = console_of(sys.stderr)
    width = max(LEAST_BAR, min(MOST_BAR, console.width - BESIDE_BAR))
    columns = (BarColumn(width), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as shown:
        yield JobBar(shown, done)


def print_sample(sample: list[dict[str, Any]]) -> None:
    if not sample:
        return
    print()
    columns = [name for name in sample[0] if any(row.get(name) not in (None, "") for row in sample)]
    print_table(columns, [[_sample_text(row.get(name)) for name in columns] for row in sample], "")


def _sample_text(value: object) -> str:
    if isinstance(value, dict):  # what edits make of a message; null takes a value away
        return ", ".join(f"{name}={'null' if item is None else item}" for name, item in value.items())
    return "" if value is None else str(value)


def refusal(count: int, what: str, examples: list[str]) -> CommandFailure:
    shown = "".join(f"\n  {example}" for example in examples)
    return CommandFailure(
        f"{count} messages {what}, because of what they are or of where they are:{shown}", ExitCode.REFUSED
    )


def camel(value: Any) -> Any:
    """Keys as commands print them in JSON. Names of entities, properties and reasons stay as they are."""
    if isinstance(value, dict):
        named = {"entities", "reasons", "edits"}
        return {_camel_key(key): item if key in named else camel(item) for key, item in value.items()}
    return [camel(item) for item in value] if isinstance(value, list | tuple) else value


def _camel_key(key: str) -> str:
    first, *others = key.split("_")
    return first + "".join(word.capitalize() for word in others)
