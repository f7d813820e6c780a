"""`busbar bench`: measures the documented scenarios. What it does is in busbar.jobs.bench."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli import values
from busbar.cli.endpoint import ConnectionOptions, ManagementEndpoint, find_target, say_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.options import Output, command
from busbar.cli.output import OutputFormat, print_details, print_json, print_table

if TYPE_CHECKING:
    from busbar.jobs.bench import OnPhase, ScenarioResult
    from busbar.jobs.bench_figures import RunFigures

SECONDS = 10
COMPARED_SECONDS = 5
SCENARIOS = (
    "high-throughput, several-high, low-latency, many-senders, many-receivers, few-subscriptions, "
    "many-subscriptions"
)

ScenarioName = Annotated[
    str | None,
    typer.Option("--scenario", metavar="NAME", help=f"{SCENARIOS}.", show_default="all, compared"),
]
Length = Annotated[
    str | None,
    typer.Option(
        "--duration",
        metavar="DURATION",
        help="How long each run is measured.",
        show_default="10s; 5s if compared",
    ),
]
Naive = Annotated[bool, typer.Option("--naive", help="Use naive settings instead of the preset.")]
Senders = Annotated[int | None, typer.Option("--senders", min=1, max=1000, metavar="N")]
Receivers = Annotated[int | None, typer.Option("--receivers", min=1, max=1000, metavar="N")]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate", min=0, metavar="N", help="Messages per second of all senders; 0: as fast as they can."
    ),
]
Size = Annotated[
    int | None, typer.Option("--size", min=8, max=200_000, metavar="BYTES", help="Of a message.")
]
Prefetch = Annotated[
    int | None, typer.Option("--prefetch", min=0, metavar="N", help="Instead of the preset's.")
]
Batching = Annotated[
    int | None,
    typer.Option(
        "--batching", min=0, metavar="MS", help="Client-side batching, instead of the preset's; 0: off."
    ),
]
Partitioned = Annotated[
    bool | None,
    typer.Option("--partitioned/--regular", help="The entity, instead of the preset's.", show_default=False),
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Where the HTML goes.",
        show_default="bench.html, or the next free name; with json: nowhere",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a report that is there.")]


def add_bench_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar bench --scenario high-throughput",
            "busbar bench --scenario low-latency --naive --duration 30s --report before.html",
            "busbar bench --scenario many-receivers --receivers 100 --prefetch 500",
            "busbar bench",
        ),
    )(bench)


def bench(
    *,
    scenario: ScenarioName = None,
    duration: Length = None,
    naive: Naive = False,
    senders: Senders = None,
    receivers: Receivers = None,
    rate: Rate = None,
    size: Size = None,
    prefetch: Prefetch = None,
    batching: Batching = None,
    partitioned: Partitioned = None,
    report: ReportFile = None,
    overwrite: Overwrite = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Measure a scenario, with advice on settings from what was measured. Without one, compare all with naive settings.

    Entities named busbar-bench-… are created and deleted again. Senders and receivers run in this process. Latency is from
    the call that sends a message to the moment when a receiver has it.
    """
    from busbar.jobs.bench import Overrides, bench_scenario, compare, workload_named
    from busbar.jobs.bench_html import render_bench
    from busbar.jobs.bench_run import BenchTarget
    from busbar.jobs.bench_workloads import changed

    only_one = (senders, receivers, rate, size, prefetch, batching, partitioned)
    if scenario is None and (naive or any(option is not None for option in only_one)):
        raise CommandFailure("which scenario? Settings and numbers are for --scenario NAME.", ExitCode.USAGE)
    seconds = _seconds(duration, COMPARED_SECONDS if scenario is None else SECONDS)
    if output is OutputFormat.TABLE or report is not None:
        report = _report_path(report, overwrite)
    target = find_target(where)
    aim = BenchTarget(target.connection_string, target.authorities[0] if target.authorities else None)
    with _progress() as on_phase:
        if scenario is None:
            say_target(target)
            results = _run(compare(aim, seconds=seconds, on_phase=on_phase), target)
        else:
            try:
                workload = changed(workload_named(scenario), senders, receivers, rate, size)
            except ValueError as error:
                raise CommandFailure(f"--scenario: {error}.", ExitCode.USAGE) from None
            say_target(target)
            overrides = Overrides(prefetch, None if batching is None else batching / 1000, partitioned)
            measured = bench_scenario(
                aim, workload, seconds=seconds, is_naive=naive, overrides=overrides, on_phase=on_phase
            )
            results = [_run(measured, target)]
    if report is not None:
        _write(report, render_bench(results, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"), overwrite)
    if output is OutputFormat.JSON:
        print_json([result.to_json() for result in results])
        return
    _print(results)
    if report is not None:
        print(f"\n{report} has the plots.")


def _seconds(text: str | None, default: int) -> int:
    try:
        return default if text is None else values.seconds(text)
    except ValueError as error:
        raise CommandFailure(f"--duration: {error}.", ExitCode.USAGE) from None


def _run(measured: Coroutine[Any, Any, Any], target: ManagementEndpoint) -> Any:
    """Run to the end; an interruption still deletes the entities."""
    import uvloop

    from busbar.client.errors import BusbarClientError, CannotConnect

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(measured)
    except ValueError as error:
        raise CommandFailure(f"{error}.", ExitCode.USAGE) from None
    except CannotConnect as error:
        raise CommandFailure(f"{error.text}; {target.remedy}.") from None
    except BusbarClientError as error:
        raise CommandFailure(error.text, ExitCode.OTHER if error.retryable else ExitCode.REFUSED) from None


@contextmanager
def _progress() -> Iterator[OnPhase]:
    """A progress bar on a terminal, otherwise a line for each run; on standard error."""
    if not sys.stderr.isatty():
        last = ""

        def show_line(text: str, share: float) -> None:
            nonlocal last
            if text != last:
                last = text
                print(f"{text} …", file=sys.stderr, flush=True)

        yield show_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr, highlight=False),
        transient=True,
    ) as progress:
        task = progress.add_task("", total=1.0)

        def show_bar(text: str, share: float) -> None:
            progress.update(task, description=text, completed=share)

        yield show_bar


def _report_path(given: Path | None, overwrite: bool) -> Path:
    from busbar.jobs.report_files import ReportFileError, report_path

    try:
        return report_path(given, "bench", overwrite=overwrite)
    except ReportFileError as error:
        raise CommandFailure(str(error), ExitCode.USAGE) from None


def _write(report: Path, html: str, overwrite: bool) -> None:
    from busbar.jobs.report_files import ReportFileError, write_report

    try:
        write_report(report, html, overwrite=overwrite)
    except ReportFileError as error:
        raise CommandFailure(str(error), ExitCode.USAGE) from None


def _print(results: list[ScenarioResult]) -> None:
    columns = ("Scenario", "Settings", "Sent/s", "Received/s", "Ratio", "p50", "p95", "p99", "Most")
    rows = [_row(result, run, with_ratio=run is result.last) for result in results for run in result.runs]
    print_table(columns, rows, "nothing was measured")
    print()
    print_details(_details(result) for result in results)


def _row(result: ScenarioResult, run: RunFigures, *, with_ratio: bool) -> list[str]:
    ratio = result.ratio if with_ratio else None
    latency = [
        f"{run.latency[key]:,.1f} ms" if key in run.latency else "–" for key in ("p50", "p95", "p99", "most")
    ]
    return [
        result.workload.scenario.key,
        run.name,
        f"{run.send_rate:,.0f}",
        f"{run.receive_rate:,.0f}",
        "" if ratio is None else f"{ratio:.2f}",
        *latency,
    ]


def _details(result: ScenarioResult) -> dict[str, str]:
    advice = result.advice
    rows = {"Measured": advice.because, "Scenario": advice.scenario}
    for number, change in enumerate(advice.changes):
        rows["Change" + " " * number] = (
            f"{change.name}: {change.value} instead of {change.now} ({change.why})"
        )
    if not advice.changes:
        rows["Change"] = "nothing: the settings are those of the scenario"
    for number, text in enumerate(advice.findings):
        rows["Note" + " " * number] = text
    return rows
