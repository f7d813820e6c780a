"""The page of a benchmark: rates and latencies over time, percentiles, and the advice."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from busbar.jobs.bench import ScenarioResult
from busbar.jobs.bench_figures import PERCENTILES, RunFigures
from busbar.jobs.report_html import ReportColumn, duration, line_figure, numbers, page, table, tiles

CaptionedLines = tuple[str, Sequence[tuple[str, Sequence[float | None]]]]
"""A caption, and lines by name."""


def render_bench(results: Sequence[ScenarioResult], made: str) -> str:
    """The page; `made` is its time, as text."""
    names = ", ".join(result.workload.scenario.value for result in results)
    sections = [_overview(results)] if len(results) > 1 else []
    return page(
        f"Busbar bench: {names}",
        "Busbar bench",
        f"made {made} · senders and receivers ran in one process",
        [*sections, *(_scenario(result) for result in results)],
    )


def _overview(results: Sequence[ScenarioResult]) -> str:
    most = max((result.ratio or 0.0 for result in results), default=0.0) or 1.0
    heads = ("naive", "preset", "p99 naive", "p99 preset", "ratio")
    shown = table(
        [ReportColumn("scenario"), *map(numbers, heads)],
        [[result.workload.scenario.value, *_compared(result)] for result in results],
        is_wide=True,
        bars=[(result.ratio or 0.0) / most for result in results],
    )
    return (
        "<section><h2>Naive and preset settings</h2>"
        '<p class="soft">The ratio is that of the rates; for low latency, that of the medians.</p>'
        f"{shown}</section>"
    )


def _compared(result: ScenarioResult) -> list[str]:
    naive, last = result.runs[0], result.last
    return [
        f"{naive.receive_rate:,.0f}/s",
        f"{last.receive_rate:,.0f}/s",
        _latency(naive, "p99"),
        _latency(last, "p99"),
        "–" if result.ratio is None else f"{result.ratio:.2f} ×",
    ]


def _scenario(result: ScenarioResult) -> str:
    workload, last = result.workload, result.last
    clients = f"{workload.senders} senders, {workload.receivers} receivers"
    if workload.subscriptions:
        clients += f", {workload.subscriptions} subscriptions"
    elif workload.queues > 1:
        clients += f", {workload.queues} queues"
    speed = f", {workload.rate:,.0f} messages/s" if workload.rate else ", as fast as they can"
    return "".join(
        [
            f"<section><h2>{escape(workload.scenario.value)}</h2>",
            f'<p class="soft">{escape(clients + speed)}, {workload.body_bytes:,} bytes a message</p>',
            tiles(
                [
                    (f"{last.send_rate:,.0f}/s", "sent"),
                    (f"{last.receive_rate:,.0f}/s", "received"),
                    (_latency(last, "p50"), "median, send to receive"),
                    (_latency(last, "p99"), "99th percentile"),
                ]
            ),
            f'<div class="plots">{_rates(result)}{_latencies(result)}</div>',
            _percentiles(result.runs),
            _advice(result),
            "</section>",
        ]
    )


def _labels(run: RunFigures) -> list[str]:
    return [f"{slot.second:g} s" for slot in run.slots]


def _rates(result: ScenarioResult) -> str:
    slots = result.last.slots
    single = [("sent", [slot.sent for slot in slots]), ("received", [slot.received for slot in slots])]
    compared = [(run.name, [slot.received for slot in run.slots]) for run in result.runs]
    return _over_time(
        result, ("Messages per second", single), ("Messages received per second", compared), "/s"
    )


def _latencies(result: ScenarioResult) -> str:
    slots = result.last.slots
    single = [("median", [slot.p50 for slot in slots]), ("99th percentile", [slot.p99 for slot in slots])]
    compared = [(run.name, [slot.p99 for slot in run.slots]) for run in result.runs]
    caption = "From send to receive"
    return _over_time(
        result,
        (f"{caption}, over time", single),
        (f"{caption}, 99th percentile over time", compared),
        "ms",
    )


def _over_time(result: ScenarioResult, single: CaptionedLines, compared: CaptionedLines, unit: str) -> str:
    """Two lines of the only run, or one of each of two runs."""
    caption, named = single if len(result.runs) == 1 else compared
    return line_figure(caption, _labels(result.last), named, unit)


def _percentiles(runs: Sequence[RunFigures]) -> str:
    keys = [f"p{percent:g}" for percent in PERCENTILES]
    heads = [
        ReportColumn("settings"),
        *(numbers(f"{percent:g} %") for percent in PERCENTILES),
        numbers("most"),
    ]
    rows = [[run.name, *(_latency(run, key) for key in (*keys, "most"))] for run in runs]
    return f"<h3>From send to receive</h3>{table(heads, rows, is_wide=True)}"


def _advice(result: ScenarioResult) -> str:
    advice = result.advice
    heads = [*map(ReportColumn, ("setting", "advised", "in the run", "because"))]
    rows = [[each.name, each.value, each.now or "", each.why] for each in advice.settings]
    changes = ", ".join(f"{each.name}: {each.value}" for each in advice.changes)
    findings = "".join(f"<li>{escape(text)}</li>" for text in advice.findings)
    return (
        f"<h3>Advice: {escape(advice.scenario)}</h3><p>{escape(advice.because[:1].upper() + advice.because[1:])}. "
        f"{escape(f'To change: {changes}.' if changes else 'There is nothing to change.')}</p>"
        f"{f'<ul>{findings}</ul>' if findings else ''}{table(heads, rows, is_wide=True)}"
    )


def _latency(run: RunFigures, key: str) -> str:
    value = run.latency.get(key)
    return "–" if value is None else f"{value:.1f} ms" if value < 100 else duration(value)
