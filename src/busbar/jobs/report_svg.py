"""Plots as SVG inside a page: no script, no font, no other file.

They are drawn for the width of a phone and grow with the page. Colours are those of the page (--ink, --faint, --first,
--second), so light and dark use the same plot. Every mark has its value as a title.

As many labels of an axis are written as there is room for: every one, or every second, third … one. No two of them overlap,
and none leaves the plot. The width of a text is estimated, since the font is that of the reader's machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH = 420
HEIGHT = 196
LEFT = 46
RIGHT = 10
TOP = 16
BOTTOM = 30
LETTER = 6.6
"""The width of a letter of a label, on the safe side."""
GAP = 6
"""Between two labels."""


@dataclass(frozen=True, slots=True)
class PlotLine:
    """Values over the positions of an axis; None leaves a gap."""

    name: str
    colour: str
    values: Sequence[float | None]


def lines(title: str, labels: Sequence[str], series: Sequence[PlotLine], unit: str) -> str:
    """Lines over time. `labels` has one for each position; as many are written as there is room for."""
    count = len(labels)
    most = max((value for line in series for value in line.values if value is not None), default=0.0)
    ceiling = _ceiling(most)
    step = (WIDTH - LEFT - RIGHT) / max(1, count - 1)
    places = [LEFT + at * step for at in range(count)]
    parts = [*_grid(ceiling, unit), *_axis(labels, places)]
    for line in series:
        for run in _runs(line.values):
            points = [(LEFT + at * step, _y(value, ceiling)) for at, value in run]
            if len(points) == 1:
                x, y = points[0]
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="var({line.colour})"/>')
            else:
                path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
                parts.append(
                    f'<polyline points="{path}" fill="none" stroke="var({line.colour})" stroke-width="1.8" '
                    'stroke-linejoin="round"/>'
                )
        parts += [
            f'<rect x="{LEFT + (at - 0.5) * step:.1f}" y="{TOP}" width="{step:.1f}" height="{HEIGHT - TOP - BOTTOM}" '
            f'fill="transparent"><title>{escape(_describe(labels, series, at, unit))}</title></rect>'
            for at in range(count)
            if line is series[-1]
        ]
    return _svg(title, parts)


def bars(
    title: str, labels: Sequence[str], values: Sequence[float], unit: str, even: float | None = None
) -> str:
    """Upright bars. `even` draws a line at the height that all would have if they were equal."""
    ceiling = _ceiling(max([*values, even or 0.0], default=0.0))
    step = (WIDTH - LEFT - RIGHT) / max(1, len(values))
    places = [LEFT + (at + 0.5) * step for at in range(len(labels))]
    parts = [*_grid(ceiling, unit), *_axis(labels, places)]
    for at, (label, value) in enumerate(zip(labels, values, strict=True)):
        x, y = LEFT + at * step, _y(value, ceiling)
        parts.append(
            f'<rect x="{x + step * 0.12:.1f}" y="{y:.1f}" width="{step * 0.76:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
            f'rx="1.5" fill="var(--first)"><title>{escape(label)}: {_number(value)} {escape(unit)}</title></rect>'
        )
    if even is not None:
        y = _y(even, ceiling)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--second)" '
            f'stroke-dasharray="4 3"><title>even: {_number(even)} {escape(unit)}</title></line>'
        )
    return _svg(title, parts)


def _svg(title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
        + "".join(parts)
        + "</svg>"
    )


def _grid(ceiling: float, unit: str) -> list[str]:
    parts = []
    for share in (0, 0.5, 1):
        y = _y(ceiling * share, ceiling)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--faint)"/>'
        )
        parts.append(_text(LEFT - 5, y + 4, _number(ceiling * share), "end"))
    parts.append(_text(LEFT + 2, TOP - 3, unit, "start"))
    return parts


def text_width(words: str) -> float:
    """The estimated width of a label."""
    return len(words) * LETTER


def _axis(labels: Sequence[str], places: Sequence[float]) -> list[str]:
    """The labels below the plot, centred at their places as far as the edges allow."""
    middles = [
        min(max(place, text_width(label) / 2), WIDTH - text_width(label) / 2)
        for label, place in zip(labels, places, strict=True)
    ]
    for every in range(1, len(labels) + 1):
        chosen = range(0, len(labels), every)
        edges = [
            (middles[at] - text_width(labels[at]) / 2, middles[at] + text_width(labels[at]) / 2)
            for at in chosen
        ]
        if all(one[1] + GAP <= next_one[0] for one, next_one in pairwise(edges)):
            return [_text(middles[at], HEIGHT - 8, labels[at], "middle") for at in chosen]
    return []


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _describe(labels: Sequence[str], series: Sequence[PlotLine], at: int, unit: str) -> str:
    values = ((line.name, line.values[at]) for line in series)
    return f"{labels[at]} · " + ", ".join(
        f"{name} {_number(value)} {unit}" for name, value in values if value is not None
    )


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Parts without gaps."""
    runs: list[list[tuple[int, float]]] = []
    fresh = True
    for at, value in enumerate(values):
        if value is None:
            fresh = True
            continue
        if fresh:
            runs.append([])
        runs[-1].append((at, value))
        fresh = False
    return runs


def _y(value: float, ceiling: float) -> float:
    return HEIGHT - BOTTOM - value / ceiling * (HEIGHT - TOP - BOTTOM)


def _ceiling(most: float) -> float:
    """A round number that is not below `most`."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= most * 0.999999)


def _number(value: float) -> str:
    """Three digits: half of a round number keeps its fraction."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1000 if letter == 'k' else size):.3g}{letter}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
