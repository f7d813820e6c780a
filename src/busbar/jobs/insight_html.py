"""The report for people: one HTML file without other files, in light and dark, on a phone and on paper.

Names, keys and reasons come from messages. They are text of clients and are always escaped.
"""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape

from busbar.jobs import insight_svg as svg
from busbar.jobs.insight_figures import (
    Coverage,
    EntityFigures,
    EntityReport,
    Flow,
    Latency,
    Ranking,
    Report,
    iso,
)
from busbar.jobs.report_html import duration, figure, page, table, tiles


def render(report: Report) -> str:
    names = ", ".join(each.figures.entity for each in report.entities) or "nothing"
    sections = [_entity(each) for each in report.entities]
    return page(
        f"Busbar insight: {names}",
        "Busbar insight",
        f"{names} · made {_moment(report.made_time)} · all times UTC",
        sections or ["<p>There is nothing to report: no entity was found.</p>"],
    )


def _entity(report: EntityReport) -> str:
    figures = report.figures
    return "".join(
        [
            f"<section><h2>{escape(figures.entity)}</h2>",
            _span(figures.sent),
            _tiles(figures),
            _findings(report),
            f'<div class="plots">{_throughput(figures)}{_latency_plots(figures)}{_fragments(figures)}</div>',
            _percentiles(figures.latency) if figures.latency else "",
            _ranking("Hot keys", "key", figures.keys),
            _ranking("Hot sessions", "session", figures.sessions),
            _ranking("Dead-letter reasons", "reason", figures.dead_letters),
            _ranking("Duplicates dropped", "message id", figures.duplicates),
            _outcomes(figures),
            _settings(report),
            _coverage(figures.coverage),
            "</section>",
        ]
    )


def _span(sent: Flow) -> str:
    if sent.first_time is None or sent.last_time is None:
        return '<p class="soft">No message came in the span that was looked at.</p>'
    return f'<p class="soft">{_moment(sent.first_time)} to {_moment(sent.last_time)}</p>'


def _tiles(figures: EntityFigures) -> str:
    latency = figures.latency
    return tiles(
        [
            (f"{figures.sent.count:,}", "messages came"),
            (f"{figures.done.count:,}", "were done with"),
            (_rate(figures.sent.busy_rate), "came in the busiest minute"),
            (_rate(figures.done.busy_rate), "were done in the busiest minute"),
            (duration(latency.p50) if latency else "–", "median, enqueue to completion"),
            (duration(latency.p99) if latency else "–", "99th percentile"),
            (f"{figures.dead_letters.count:,}", "dead letters"),
            (f"{figures.duplicates.count:,}", "duplicates dropped"),
        ]
    )


def _findings(report: EntityReport) -> str:
    items = "".join(
        f"<li{' class=grave' if each.grave else ''}>{escape(each.text)}</li>"
        for each in report.advice.findings
    )
    return f"<h3>What stands out</h3><ul>{items or '<li>Nothing.</li>'}</ul>"


def _throughput(figures: EntityFigures) -> str:
    if not figures.slots:
        return ""
    width = figures.slot_seconds
    series = [svg.PlotLine("came", "--first", [slot.sent / width for slot in figures.slots])]
    if figures.coverage.events is not None:
        series.append(svg.PlotLine("done", "--second", [slot.done / width for slot in figures.slots]))
    plot = svg.lines("Throughput over time", _clock(figures), series, "/s")
    return figure(f"Messages per second, by {_width(width)}", plot, series)


def _latency_plots(figures: EntityFigures) -> str:
    if figures.latency is None:
        return ""
    series = [
        svg.PlotLine("median", "--first", [slot.p50 for slot in figures.slots]),
        svg.PlotLine("95th percentile", "--second", [slot.p95 for slot in figures.slots]),
    ]
    over_time = svg.lines("Latency over time", _clock(figures), series, "ms")
    bins = figures.latency.histogram
    spread = svg.bars(
        "Spread of latency",
        [f"<{duration(each.below)}" for each in bins],
        [each.count for each in bins],
        "messages",
    )
    return figure("From enqueue to completion, over time of completion", over_time, series) + figure(
        "From enqueue to completion, how many took how long", spread
    )


def _fragments(figures: EntityFigures) -> str:
    if not figures.partitioned:
        return ""
    values = [float(each.sent) for each in figures.fragments]
    even = sum(values) / len(values)
    plot = svg.bars(
        "Messages by fragment", [str(each.index) for each in figures.fragments], values, "messages", even
    )
    return figure("Messages by fragment; the line is an even share", plot)


def _percentiles(latency: Latency) -> str:
    columns = (
        ("mean", latency.mean),
        ("50 %", latency.p50),
        ("90 %", latency.p90),
        ("95 %", latency.p95),
        ("99 %", latency.p99),
        ("99.9 %", latency.p999),
        ("most", latency.most),
    )
    heads = [(name, True) for name, _ in columns]
    row = [duration(value) for _, value in columns]
    return f"<h3>From enqueue to completion, {latency.count:,} messages</h3>{table(heads, [row])}"


def _ranking(title: str, what: str, ranking: Ranking) -> str:
    if not ranking.top:
        return ""
    most = ranking.top[0].count
    rows = "".join(
        f'<tr><td>{escape(each.name) or "<em>none given</em>"}</td><td class="number">{each.count:,}</td>'
        f'<td class="number">{each.share:.1%}</td><td class="bar"><i style="width:{each.count / most:.1%}"></i></td></tr>'
        for each in ranking.top
    )
    head = f'<tr><th>{escape(what)}</th><th class="number">messages</th><th class="number">share</th><th></th></tr>'
    more = f" of {ranking.distinct:,}" if ranking.distinct > len(ranking.top) else ""
    return (
        f'<h3>{escape(title)} <span class="soft">({len(ranking.top)}{more})</span></h3>'
        f'<div class="scroll"><table>{head}{rows}</table></div>'
    )


def _outcomes(figures: EntityFigures) -> str:
    if not figures.outcomes:
        return ""
    rows = [
        [name, f"{count:,}"] for name, count in sorted(figures.outcomes.items(), key=lambda pair: -pair[1])
    ]
    if figures.redelivered:
        rows.append(["completed after failed deliveries", f"{figures.redelivered:,}"])
    return f"<h3>What became of messages</h3>{table([('outcome', False), ('events', True)], rows)}"


def _settings(report: EntityReport) -> str:
    advice = report.advice
    heads = [("setting", False), ("advised", False), ("now", False), ("because", False)]
    rows = [[each.name, each.value, each.now or "", each.why] for each in advice.settings]
    return (
        f"<h3>Advice: {escape(advice.scenario)}</h3><p>{escape(advice.because[:1].upper() + advice.because[1:])}.</p>"
        f"{table(heads, rows)}"
    )


def _coverage(coverage: Coverage) -> str:
    events = "no events" if coverage.events is None else f"{coverage.events:,} events"
    began = f", recording since {_moment(coverage.began_time)}" if coverage.began_time else ""
    whole = (
        "Nothing within the span is missing." if coverage.complete else "Something before the span was lost."
    )
    heads = [
        (name, True)
        for name in (
            "fragment",
            "messages behind",
            "up to",
            "lost up to",
            "events behind",
            "up to",
            "lost up to",
        )
    ]
    rows = [
        [
            "" if value is None else str(value)
            for value in (
                each.index,
                each.after,
                each.upto,
                each.lost or None,
                each.event_after,
                each.event_upto,
                each.event_lost or None,
            )
        ]
        for each in coverage.fragments
    ]
    remarks = "".join(f"<p>{escape(each)}</p>" for each in coverage.remarks)
    return (
        f"<details><summary>What this rests on: {coverage.messages:,} messages, {events}, {escape(coverage.source)}{began}. "
        f"{whole}</summary>{remarks}{table(heads, rows)}</details>"
    )


def _clock(figures: EntityFigures) -> list[str]:
    form = (
        "%H:%M:%S" if figures.slot_seconds < 60 else "%H:%M" if figures.slot_seconds < 3600 else "%m-%d %H:%M"
    )
    return [datetime.fromtimestamp(slot.time / 1000, UTC).strftime(form) for slot in figures.slots]


def _moment(time: int) -> str:
    return iso(time)[:19].replace("T", " ")


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.2g}/s"


def _width(seconds: int) -> str:
    for size, word in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            count = seconds // size
            return word if count == 1 else f"{count} {word}s"
    return "second"
