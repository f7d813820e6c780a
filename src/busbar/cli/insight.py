"""`busbar insight`: a report on entities or archives. What it does is in busbar.jobs.insight."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.job_run import Verbose, Wait, running_job, seconds_of
from busbar.cli.options import Output, command
from busbar.cli.output import OutputFormat, print_details, print_json
from busbar.cli.replay import Condition, Master, Since, Until, connection_for
from busbar.model.names import parent_and_name, without_dead_letters

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from busbar.jobs.insight import EntitySettings
    from busbar.jobs.insight_figures import EntityReport, Report


class Goal(StrEnum):
    THROUGHPUT = "throughput"
    LATENCY = "latency"


Entities = Annotated[list[str] | None, typer.Argument(metavar="ENTITY", show_default=False)]
Archives = Annotated[
    list[str] | None,
    typer.Option("--archive", metavar="ARCHIVE", help="Captured messages, or events; may be given again."),
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Where the HTML goes.",
        show_default="insight.html, or the next free name; with json: nowhere",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a report that is there.")]
Tap = Annotated[str, typer.Option("--tap", metavar="NAME", help="Made if it is not there.")]
Watch = Annotated[
    str | None,
    typer.Option("--watch", metavar="DURATION", help="Look at what happens from now on, for so long."),
]
Advance = Annotated[bool, typer.Option("--advance", help="The next report begins where this one ends.")]
Senders = Annotated[int | None, typer.Option("--senders", min=0, metavar="N", help="For the advice.")]
Receivers = Annotated[int | None, typer.Option("--receivers", min=0, metavar="N", help="For the advice.")]
Subscriptions = Annotated[
    int | None, typer.Option("--subscriptions", min=0, metavar="N", help="Of the topic, for the advice.")
]
GoalOption = Annotated[Goal | None, typer.Option("--goal", help="For the advice.")]


def add_insight_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar insight orders",
            "busbar insight orders invoices --watch 5m --report week.html",
            "busbar insight orders --receivers 3 --goal latency -o json",
            "busbar insight --archive /data/orders --archive /data/orders-events --from 2026-01-31T12:00Z",
        ),
    )(insight)


def insight(
    *,
    entities: Entities = None,
    archive: Archives = None,
    report: ReportFile = None,
    tap: Tap = "insight",
    watch: Watch = None,
    advance: Advance = False,
    condition: Condition = "",
    since: Since = "",
    until: Until = "",
    senders: Senders = None,
    receivers: Receivers = None,
    subscriptions: Subscriptions = None,
    goal: GoalOption = None,
    overwrite: Overwrite = False,
    master: Master = None,
    wait: Wait = "1m",
    verbose: Verbose = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Report on throughput, latency, skew, hot keys, dead letters and duplicates, with advice on settings.

    What a tap with events has recorded is looked at. The first call makes it; `--watch 1m` needs none. ENTITY is a queue,
    TOPIC/Subscriptions/NAME, or one of these with /$DeadLetterQueue. --from, --to and --where select messages, with all
    their events. A TIME is 2026-01-31 or 2026-01-31T12:00:00Z.
    """
    _check(entities, archive, is_live=watch is not None or advance)
    seconds = None if watch is None else seconds_of("--watch", watch)
    patience = seconds_of("--wait", wait)
    with running_job("insight", verbose=verbose) as job:
        from busbar.jobs.insight import Clients, render
        from busbar.jobs.insight import insight as run_insight
        from busbar.jobs.report_files import report_path, write_report

        path: Path | None = None
        if output is OutputFormat.TABLE or report is not None:
            path = report_path(report, "insight", overwrite=overwrite)
        secret = None if archive else connection_for(where, master, None)
        made = run_insight(
            entities or (),
            connection=secret,
            archives=archive or (),
            tap=tap,
            watch=seconds,
            advance=advance,
            where=condition,
            since=since,
            until=until,
            clients=Clients(senders, receivers, subscriptions, goal.value if goal else ""),
            settings=None if archive else lambda: _settings(entities or [], where),
            master=master,
            wait=patience,
            on_progress=job.notice,
        )
        if path is not None:
            write_report(path, render(made), overwrite=overwrite)
    _print_report(made, path, output)


def _check(entities: list[str] | None, archives: list[str] | None, *, is_live: bool) -> None:
    if not entities and not archives:
        raise CommandFailure("which entity? Name one, or an archive with --archive.", ExitCode.USAGE)
    if archives and is_live:
        raise CommandFailure("--watch and --advance are for entities, not for archives.", ExitCode.USAGE)


def _print_report(report: Report, path: Path | None, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(report.to_json())
        return
    print_details(_summary(each) for each in report.entities)
    if path is not None:
        print(f"\n{path} has the whole report.")


def _summary(report: EntityReport) -> dict[str, str]:
    figures = report.figures
    latency = figures.latency
    rows = {
        "Entity": figures.entity,
        "Came": f"{figures.sent.count:,}{_at(figures.sent.busy_rate)}",
        "Done": f"{_count(figures.finished)}{_at(figures.done.busy_rate)}",
        "Waiting": _count(figures.waiting),
    }
    if latency is not None:
        rows["Latency"] = (
            f"{latency.p50:,.0f} ms median, {latency.p95:,.0f} ms 95 %, {latency.p99:,.0f} ms 99 %"
        )
    rows["Dead letters"] = f"{figures.dead_letters.count:,}"
    rows["Duplicates"] = f"{figures.duplicates.count:,} dropped"
    rows["Scenario"] = report.advice.scenario
    rows["Prefetch"] = "unknown" if report.advice.prefetch is None else str(report.advice.prefetch)
    for number, finding in enumerate(report.advice.findings):
        rows["Note" + " " * number] = finding.text
    return rows


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _at(rate: float | None) -> str:
    return "" if rate is None else f", {rate:,.3g}/s in the busiest minute"


def _settings(entities: list[str], where: ConnectionOptions) -> dict[str, EntitySettings]:
    """The settings of entities. Without the right to see them the advice has less to go by."""
    from busbar.cli.entity_commands import fetch
    from busbar.cli.entity_kinds import QUEUE, SUBSCRIPTION
    from busbar.cli.management_client import ManagementClient
    from busbar.jobs.insight import EntitySettings

    found = {}
    for entity in entities:
        path = entity.strip("/")
        if without_dead_letters(path)[1]:
            continue
        topic, name = parent_and_name(path)
        try:
            with ManagementClient(find_target(where)) as client:
                description = fetch(client, SUBSCRIPTION if topic else QUEUE, name, topic).description
        except CommandFailure:
            continue
        found[path] = EntitySettings(_lock_seconds(description))
    return found


def _lock_seconds(description: Element) -> float | None:
    from busbar.client.administration_xml import text_of
    from busbar.model.duration import read_duration

    lock = text_of(description, "LockDuration")
    return read_duration(lock) / 1000 if lock else None
