"""The page of a benchmark: rates and latencies over time, percentiles, and the advice."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from busbar.jobs import insight_svg as svg
from busbar.jobs.bench import ScenarioResult
from busbar.jobs.bench_figures import PERCENTILES, RunFigures
from busbar.jobs.report_html import duration, figure, page, table, tiles

_COLOURS = ("--first", "--second")


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
    head = "<th>scenario</th>" + "".join(f'<th class="number">{name}</th>' for name in heads) + "<th></th>"
    rows = "".join(
        f"<tr><td>{escape(result.workload.scenario.value)}</td>"
        + "".join(f'<td class="number">{escape(cell)}</td>' for cell in _compared(result))
        + f'<td class="bar"><i style="width:{(result.ratio or 0) / most:.1%}"></i></td></tr>'
        for result in results
    )
    return (
        "<section><h2>Naive and preset settings</h2>"
        '<p class="soft">The ratio is that of the rates; for low latency, that of the medians.</p>'
        f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div></section>'
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
    if len(result.runs) == 1:
        run = result.last
        series = [
            svg.PlotLine("sent", _COLOURS[0], [slot.sent for slot in run.slots]),
            svg.PlotLine("received", _COLOURS[1], [slot.received for slot in run.slots]),
        ]
        caption = "Messages per second"
    else:
        series = [
            svg.PlotLine(run.name, colour, [slot.received for slot in run.slots])
            for run, colour in zip(result.runs, _COLOURS, strict=True)
        ]
        caption = "Messages received per second"
    return figure(caption, svg.lines(caption, _labels(result.last), series, "/s"), series)


def _latencies(result: ScenarioResult) -> str:
    if len(result.runs) == 1:
        run = result.last
        series = [
            svg.PlotLine("median", _COLOURS[0], [slot.p50 for slot in run.slots]),
            svg.PlotLine("99th percentile", _COLOURS[1], [slot.p99 for slot in run.slots]),
        ]
        caption = "From send to receive, over time"
    else:
        series = [
            svg.PlotLine(run.name, colour, [slot.p99 for slot in run.slots])
            for run, colour in zip(result.runs, _COLOURS, strict=True)
        ]
        caption = "From send to receive, 99th percentile over time"
    return figure(caption, svg.lines(caption, _labels(result.last), series, "ms"), series)


def _percentiles(runs: Sequence[RunFigures]) -> str:
    keys = [f"p{percent:g}" for percent in PERCENTILES]
    heads = [("settings", False), *((f"{percent:g} %", True) for percent in PERCENTILES), ("most", True)]
    rows = [[run.name, *(_latency(run, key) for key in (*keys, "most"))] for run in runs]
    return f"<h3>From send to receive</h3>{table(heads, rows)}"


def _advice(result: ScenarioResult) -> str:
    advice = result.advice
    heads = [("setting", False), ("advised", False), ("in the run", False), ("because", False)]
    rows = [[each.name, each.value, each.now or "", each.why] for each in advice.settings]
    changes = ", ".join(f"{each.name}: {each.value}" for each in advice.changes)
    findings = "".join(f"<li>{escape(text)}</li>" for text in advice.findings)
    return (
        f"<h3>Advice: {escape(advice.scenario)}</h3><p>{escape(advice.because[:1].upper() + advice.because[1:])}. "
        f"{escape(f'To change: {changes}.' if changes else 'There is nothing to change.')}</p>"
        f"{f'<ul>{findings}</ul>' if findings else ''}{table(heads, rows)}"
    )


def _latency(run: RunFigures, key: str) -> str:
    value = run.latency.get(key)
    return "–" if value is None else f"{value:.1f} ms" if value < 100 else duration(value)
