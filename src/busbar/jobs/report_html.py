"""The parts of a report for people: one HTML file without other files, in light and dark, on a phone and on paper.

All texts are escaped here, because names, keys and reasons come from clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from busbar.jobs.insight_svg import PlotLine

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
        f'<i class="{line.colour.removeprefix("--")}"></i>{escape(line.name)}'
        for line in series
        if len(series) > 1
    )
    return f"<figure><figcaption>{escape(caption)}{legend}</figcaption>{plot}</figure>"


def table(heads: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> str:
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


def duration(ms: float) -> str:
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.3g} s"
    return f"{ms / 60_000:.3g} min" if ms < 7_200_000 else f"{ms / 3_600_000:.3g} h"
