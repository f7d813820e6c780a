"""The report for people: one HTML file without other files, in light and dark, on a phone and on paper.

Names, keys and reasons come from messages. They are text of clients and are always escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--paper:#fbfbf9;--soft:#5d6673;--faint:#d9dcd8;--card:#fff;
--first:#0b6e8f;--second:#d1622b;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8ea;--paper:#14181d;--soft:#9aa4b0;--faint:#333b44;--card:#1b2128;
--first:#4fb3d1;--second:#f0935f;--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem;max-width:72rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.25rem;margin:2.2rem 0 .6rem;border-bottom:2px solid var(--faint)}
h3{font-size:1rem;margin:1.2rem 0 .4rem}p{margin:.4rem 0}.soft{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.6rem}
.tile,figure{background:var(--card);border:1px solid var(--faint);border-radius:.5rem;padding:.6rem .8rem;margin:0}
.tile b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums}.tile span{color:var(--soft);font-size:.85rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(20rem,100%),1fr));gap:.8rem;margin:.8rem 0}
figcaption{font-size:.9rem;margin-bottom:.3rem}svg{width:100%;height:auto;display:block}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
i.first,i.second{display:inline-block;width:.8em;height:.8em;border-radius:.2em;margin:0 .25em 0 .6em}
i.first{background:var(--first)}i.second{background:var(--second)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--faint);vertical-align:top}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.bar{width:35%;min-width:6rem}
td.bar i{display:block;height:.7em;margin-top:.45em;background:var(--first);border-radius:.2em}
ul{padding-left:1.2rem;margin:.3rem 0}li.grave::marker{content:"\\26A0\\00A0";color:var(--bad)}
details{margin:.6rem 0}summary{cursor:pointer}
@media print{.plots,.tiles{break-inside:avoid}}
"""


def render(report: Report) -> str:
    names = ", ".join(each.figures.entity for each in report.entities) or "nothing"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>Busbar insight: {escape(names)}</title><style>{STYLE}</style></head><body>",
        "<h1>Busbar insight</h1>",
        f'<p class="soft">{escape(names)} · made {escape(_moment(report.made_time))} · all times UTC</p>',
        *(_entity(each) for each in report.entities),
        "</body></html>\n",
    ]
    if not report.entities:
        parts.insert(-1, "<p>There is nothing to report: no entity was found.</p>")
    return "".join(parts)


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
    tiles = [
        (f"{figures.sent.count:,}", "messages came"),
        (f"{figures.done.count:,}", "were done with"),
        (_rate(figures.sent.busy_rate), "came in the busiest minute"),
        (_rate(figures.done.busy_rate), "were done in the busiest minute"),
        (_duration(latency.p50) if latency else "–", "median, enqueue to completion"),
        (_duration(latency.p99) if latency else "–", "99th percentile"),
        (f"{figures.dead_letters.count:,}", "dead letters"),
        (f"{figures.duplicates.count:,}", "duplicates dropped"),
    ]
    cells = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for value, what in tiles
    )
    return f'<div class="tiles">{cells}</div>'


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
    return _figure(f"Messages per second, by {_width(width)}", plot, series)


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
        [f"<{_duration(each.below)}" for each in bins],
        [each.count for each in bins],
        "messages",
    )
    return _figure("From enqueue to completion, over time of completion", over_time, series) + _figure(
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
    return _figure("Messages by fragment; the line is an even share", plot)


def _figure(caption: str, plot: str, series: Sequence[svg.PlotLine] = ()) -> str:
    legend = "".join(
        f'<i class="{line.colour.removeprefix("--")}"></i>{escape(line.name)}'
        for line in series
        if len(series) > 1
    )
    return f"<figure><figcaption>{escape(caption)}{legend}</figcaption>{plot}</figure>"


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
    row = [_duration(value) for _, value in columns]
    return f"<h3>From enqueue to completion, {latency.count:,} messages</h3>{_table(heads, [row])}"


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
    return f"<h3>What became of messages</h3>{_table([('outcome', False), ('events', True)], rows)}"


def _settings(report: EntityReport) -> str:
    advice = report.advice
    heads = [("setting", False), ("advised", False), ("now", False), ("because", False)]
    rows = [[each.name, each.value, each.now or "", each.why] for each in advice.settings]
    return (
        f"<h3>Advice: {escape(advice.scenario)}</h3><p>{escape(advice.because[:1].upper() + advice.because[1:])}.</p>"
        f"{_table(heads, rows)}"
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
        f"{whole}</summary>{remarks}{_table(heads, rows)}</details>"
    )


def _table(heads: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> str:
    """A table with escaped cells; heads state whether a column has numbers."""
    kinds = [' class="number"' if numeric else "" for _, numeric in heads]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for (name, _), kind in zip(heads, kinds, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _clock(figures: EntityFigures) -> list[str]:
    form = (
        "%H:%M:%S" if figures.slot_seconds < 60 else "%H:%M" if figures.slot_seconds < 3600 else "%m-%d %H:%M"
    )
    return [datetime.fromtimestamp(slot.time / 1000, UTC).strftime(form) for slot in figures.slots]


def _moment(time: int) -> str:
    return iso(time)[:19].replace("T", " ")


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.2g}/s"


def _duration(ms: float) -> str:
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.3g} s"
    return f"{ms / 60_000:.3g} min" if ms < 7_200_000 else f"{ms / 3_600_000:.3g} h"


def _width(seconds: int) -> str:
    for size, word in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            count = seconds // size
            return word if count == 1 else f"{count} {word}s"
    return "second"
