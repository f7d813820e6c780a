"""The parts of a report for people: one HTML file without other files, in light and dark, on a phone and on paper.

All texts are escaped here, because names, keys and reasons come from clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from busbar.jobs.report_svg import PlotLine, lines

LINE_COLOURS = ("--first", "--second")

STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--paper:#fbfbf9;--soft:#5d6673;--faint:#d9dcd8;--card:#fff;
--first:#0b6e8f;--second:#d1622b;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8ea;--paper:#14181d;--soft:#9aa4b0;--faint:#333b44;--card:#1b2128;
--first:#4fb3d1;--second:#f0935f;--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem;max-width:72rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.25rem;margin:2.2rem 0 .6rem;border-bottom:2px solid var(--faint)}
h3{font-size:1rem;margin:1.2rem 0 .4rem}p{margin:.4rem 0}.soft{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(11rem,46%),1fr));gap:.6rem}
.tile,figure{background:var(--card);border:1px solid var(--faint);border-radius:.5rem;padding:.6rem .8rem;margin:0}
.tile b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums}.tile span{color:var(--soft);font-size:.85rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(26rem,100%),1fr));gap:.8rem;margin:.8rem 0}
figcaption{font-size:.9rem;margin-bottom:.3rem}svg{width:100%;height:auto;display:block}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
.key{white-space:nowrap}
i.first,i.second{display:inline-block;width:.8em;height:.8em;border-radius:.2em;margin:0 .25em 0 .6em}
i.first{background:var(--first)}i.second{background:var(--second)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--faint);vertical-align:top}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}td.number{white-space:nowrap}
td.name{overflow-wrap:anywhere;min-width:7rem}
td.bar{width:35%;min-width:5rem}
td.bar i{display:block;height:.7em;margin-top:.45em;background:var(--first);border-radius:.2em}
tr.sum td{font-weight:600}
ul{padding-left:1.2rem;margin:.3rem 0}li.grave::marker{content:"! ";font-weight:800;color:var(--bad)}
details{margin:.6rem 0}summary{cursor:pointer}
@media (max-width:40rem){body{padding:.8rem}
.wide thead{display:none}.wide tr{display:block;padding:.4rem 0;border-bottom:1px solid var(--faint)}
.wide td,.wide td.number{display:flex;justify-content:space-between;gap:1rem;text-align:right;white-space:normal;border:0;
padding:.1rem 0}
.wide td::before{content:attr(data-head);color:var(--soft);text-align:left;flex:none;max-width:60%}
.wide td:first-child{display:block;text-align:left;font-weight:600}.wide td:first-child::before{content:none}
.wide td:empty,.wide td.bar{display:none}}
@media print{.plots,.tiles{break-inside:avoid}}
"""
"""Words are broken only where one alone is wider than its place. Names of clients may be of any length, so a column of names
breaks them. On a narrow screen each row of a wide table becomes a list: the name of a column beside each value."""


def page(title: str, heading: str, below: str, sections: Iterable[str]) -> str:
    """A whole page; `sections` are HTML."""
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(heading)}</h1>",
            f'<p class="soft">{escape(below)}</p>',
            *sections,
            "</body></html>\n",
        ]
    )


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """Values in large letters, each with what it is."""
    cells = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for value, what in values
    )
    return f'<div class="tiles">{cells}</div>'


def figure(caption: str, plot: str, series: Sequence[PlotLine] = ()) -> str:
    legend = "".join(
        f' <span class="key"><i class="{line.colour.removeprefix("--")}"></i>{escape(line.name)}</span>'
        for line in series
        if len(series) > 1
    )
    return f"<figure><figcaption>{escape(caption)}{legend}</figcaption>{plot}</figure>"


def line_figure(
    caption: str, labels: Sequence[str], named: Sequence[tuple[str, Sequence[float | None]]], unit: str
) -> str:
    """One or two lines over time, with their names if there are two."""
    series = [
        PlotLine(name, colour, values)
        for (name, values), colour in zip(named, LINE_COLOURS[: len(named)], strict=True)
    ]
    return figure(caption, lines(caption, labels, series, unit), series)


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """A column of a table. `is_name`: names that clients chose, which may be longer than any screen."""

    head: str
    is_number: bool = False
    is_name: bool = False

    @property
    def kind(self) -> str:
        return ' class="number"' if self.is_number else ' class="name"' if self.is_name else ""


def numbers(head: str) -> ReportColumn:
    return ReportColumn(head, is_number=True)


def table(
    columns: Sequence[ReportColumn],
    rows: Iterable[Sequence[str]],
    *,
    is_wide: bool = False,
    bars: Sequence[float] | None = None,
    total: Sequence[str] | None = None,
) -> str:
    """A table with escaped cells. A wide one becomes a list on a narrow screen.

    `bars` has the length of the bar behind each row, as a part of the full width (0 to 1). `total` is the last row.
    """
    heads = "".join(f"<th{each.kind}>{escape(each.head)}</th>" for each in columns)
    lengths = None if bars is None else [f"{min(1.0, max(0.0, part)):.1%}" for part in bars]
    body = "".join(
        f"<tr>{_cells(columns, row, is_wide)}{'' if lengths is None else _bar(lengths[at])}</tr>"
        for at, row in enumerate(rows)
    )
    if total is not None:
        body += f'<tr class="sum">{_cells(columns, total, is_wide)}</tr>'
    wide = ' class="wide"' if is_wide else ""
    empty = "" if bars is None else "<th></th>"
    return f'<div class="scroll"><table{wide}><thead><tr>{heads}{empty}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(columns: Sequence[ReportColumn], row: Sequence[str], is_wide: bool) -> str:
    heads = [f' data-head="{escape(each.head, quote=True)}"' if is_wide else "" for each in columns]
    return "".join(
        f"<td{each.kind}{head}>{escape(cell)}</td>"
        for each, head, cell in zip(columns, heads, row, strict=True)
    )


def _bar(length: str) -> str:
    return f'<td class="bar"><i style="width:{length}"></i></td>'


def duration(ms: float) -> str:
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.3g} s"
    return f"{ms / 60_000:.3g} min" if ms < 7_200_000 else f"{ms / 3_600_000:.3g} h"


def bound(ms: int) -> str:
    """A bound of a histogram (insight_figures.BOUNDS) in its own unit."""
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms")):
        if ms >= size and ms % size == 0:
            return f"{ms // size} {unit}"
    return f"{ms} ms"
