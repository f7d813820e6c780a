"""The report for people: one HTML file without other files, in light and dark, on a phone and on paper.

Names, keys and reasons come from messages. They are text of clients and are always escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

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
from busbar.jobs.insight_plots import plots_of
from busbar.jobs.report_html import ReportColumn, duration, numbers, page, table, tiles

UNKNOWN = "–"
"""What is shown for a figure that is not known."""


def render(report: Report) -> str:
    names = ", ".join(each.figures.entity for each in report.entities) or "nothing"
    sections = [_overview(report)] if len(report.entities) > 1 else []
    sections += [_entity(each) for each in report.entities]
    return page(
        f"Busbar insight: {names}",
        "Busbar insight",
        f"{names} · made {_moment(report.made_time)} · all times UTC",
        sections or ["<p>There is nothing to report: no entity was found.</p>"],
    )


def _overview(report: Report) -> str:
    """All entities in one table, with their sums. A sum of which a part is not known is not known."""
    every = [each.figures for each in report.entities]
    columns = [
        ReportColumn("entity", is_name=True),
        *map(numbers, ("came", "a second", "done", "median", "99 %", "waiting", "dead letters", "warnings")),
    ]
    rows = [
        [
            figures.entity,
            f"{figures.sent.count:,}",
            _rate(figures.sent.busy_rate),
            _count(figures.finished),
            *_latency_cells(figures),
            _count(figures.waiting),
            f"{figures.dead_letters.count:,}",
            f"{sum(finding.grave for finding in each.advice.findings)}",
        ]
        for each, figures in zip(report.entities, every, strict=True)
    ]
    done, waiting = _sum([each.finished for each in every]), _sum([each.waiting for each in every])
    total = [
        f"all {len(every)}",
        f"{sum(each.sent.count for each in every):,}",
        "",
        _count(done),
        "",
        "",
        _count(waiting),
        f"{sum(each.dead_letters.count for each in every):,}",
        f"{sum(finding.grave for each in report.entities for finding in each.advice.findings)}",
    ]
    return f"<section><h2>All entities</h2>{table(columns, rows, is_wide=True, total=total)}</section>"


def _latency_cells(figures: EntityFigures) -> list[str]:
    latency = figures.latency
    return [UNKNOWN, UNKNOWN] if latency is None else [duration(latency.p50), duration(latency.p99)]


def _sum(values: Sequence[int | None]) -> int | None:
    found = [value for value in values if value is not None]
    return sum(found) if len(found) == len(values) else None


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _entity(report: EntityReport) -> str:
    figures = report.figures
    return "".join(
        [
            f"<section><h2>{escape(figures.entity)}</h2>",
            _span(figures.sent),
            _tiles(figures),
            _findings(report),
            f'<div class="plots">{plots_of(figures)}</div>',
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
            (_count(figures.finished), "were done with"),
            (_count(figures.waiting), "are waiting"),
            (_rate(figures.sent.busy_rate), "came in the busiest minute"),
            (_rate(figures.done.busy_rate), "were done in the busiest minute"),
            (duration(latency.p50) if latency else UNKNOWN, "median, enqueue to completion"),
            (duration(latency.p99) if latency else UNKNOWN, "99th percentile"),
            (f"{figures.dead_letters.count:,}", "dead letters"),
            (
                UNKNOWN if figures.coverage.events is None else f"{figures.duplicates.count:,}",
                "duplicates dropped",
            ),
        ]
    )


def _findings(report: EntityReport) -> str:
    items = "".join(
        f"<li{' class=grave' if each.grave else ''}>{escape(each.text)}</li>"
        for each in report.advice.findings
    )
    return f"<h3>What stands out</h3><ul>{items or '<li>Nothing.</li>'}</ul>"


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
    heads = [numbers(name) for name, _ in columns]
    row = [duration(value) for _, value in columns]
    return f"<h3>From enqueue to completion, {latency.count:,} messages</h3>{table(heads, [row])}"


def _ranking(title: str, what: str, ranking: Ranking) -> str:
    if not ranking.top:
        return ""
    shown = table(
        [ReportColumn(what, is_name=True), numbers("messages"), numbers("share")],
        [[each.name or "(none given)", f"{each.count:,}", f"{each.share:.1%}"] for each in ranking.top],
        bars=[each.share for each in ranking.top],
    )
    more = f" of {ranking.distinct:,}" if ranking.distinct > len(ranking.top) else ""
    return f'<h3>{escape(title)} <span class="soft">({len(ranking.top)}{more})</span></h3>{shown}'


def _outcomes(figures: EntityFigures) -> str:
    if not figures.outcomes:
        return ""
    rows = [
        [name, f"{count:,}"] for name, count in sorted(figures.outcomes.items(), key=lambda pair: -pair[1])
    ]
    if figures.redelivered:
        rows.append(["completed after failed deliveries", f"{figures.redelivered:,}"])
    return f"<h3>What became of messages</h3>{table([ReportColumn('outcome'), numbers('events')], rows)}"


def _settings(report: EntityReport) -> str:
    advice = report.advice
    heads = [*map(ReportColumn, ("setting", "advised", "now", "because"))]
    rows = [[each.name, each.value, each.now or "", each.why] for each in advice.settings]
    return (
        f"<h3>Advice: {escape(advice.scenario)}</h3><p>{escape(advice.because[:1].upper() + advice.because[1:])}.</p>"
        f"{table(heads, rows, is_wide=True)}"
    )


def _coverage(coverage: Coverage) -> str:
    events = "no events" if coverage.events is None else f"{coverage.events:,} events"
    began = f", recording since {_moment(coverage.began_time)}" if coverage.began_time else ""
    heads = [ReportColumn("fragment"), *map(numbers, ("messages", "lost up to", "events", "lost up to"))]
    rows = [
        [
            str(each.index),
            _range(each.after, each.upto),
            str(each.lost or ""),
            _range(each.event_after, each.event_upto),
            str(each.event_lost or ""),
        ]
        for each in coverage.fragments
    ]
    remarks = "".join(f"<p>{escape(each)}</p>" for each in coverage.remarks)
    return (
        f"<details><summary>What this rests on: {coverage.messages:,} messages, {events}, {escape(coverage.source)}{began}. "
        f"{_gaps(coverage)}</summary>{remarks}{table(heads, rows)}</details>"
    )


def _gaps(coverage: Coverage) -> str:
    """What the basis lacks, in a sentence."""
    lost = any(each.lost or each.event_lost for each in coverage.fragments)
    missing = [
        "something before the span was lost" if lost else "",
        f"{len(coverage.unavailable)} fragments could not be reached" if coverage.unavailable else "",
        f"{coverage.missing:,} numbers have no message" if coverage.missing else "",
    ]
    found = " and ".join(each for each in missing if each)
    return f"{found[:1].upper()}{found[1:]}." if found else "Nothing within the span is missing."


def _range(after: int | None, upto: int | None) -> str:
    """The positions that were read, from the first to the last."""
    if after is None or upto is None:
        return ""
    return f"{after + 1}–{upto}" if upto > after else "none"


def _moment(time: int) -> str:
    return iso(time)[:19].replace("T", " ")


def _rate(rate: float | None) -> str:
    return UNKNOWN if rate is None else f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.2g}/s"
