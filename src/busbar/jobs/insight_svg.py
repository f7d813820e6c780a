"""Plots as SVG inside a page: no script, no font, no other file.

They are drawn for the width of a phone and grow with the page. Colours are those of the page (--ink, --faint, --first,
--second), so light and dark use the same plot. Every mark has its value as a title.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 420
HEIGHT = 190
LEFT = 46
RIGHT = 10
TOP = 16
BOTTOM = 24


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
    parts = [*_grid(ceiling, unit), *_time_axis(labels, step)]
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
    parts = _grid(ceiling, unit)
    skip = math.ceil(len(labels) * 24 / (WIDTH - LEFT - RIGHT))
    for at, (label, value) in enumerate(zip(labels, values, strict=True)):
        x, y = LEFT + at * step, _y(value, ceiling)
        parts.append(
            f'<rect x="{x + step * 0.12:.1f}" y="{y:.1f}" width="{step * 0.76:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
            f'rx="1.5" fill="var(--first)"><title>{escape(label)}: {_number(value)} {escape(unit)}</title></rect>'
        )
        if at % max(1, skip) == 0:
            parts.append(_text(x + step / 2, HEIGHT - 8, label, "middle"))
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


def _time_axis(labels: Sequence[str], step: float) -> list[str]:
    """The first label, the last, and those that fit between."""
    count = len(labels)
    if count == 0:
        return []
    longest = max(map(len, labels)) * 6.5 + 12
    every = max(1, math.ceil(longest / step)) if count > 1 else 1
    parts = []
    for at in range(0, count, every):
        x = LEFT + at * step
        anchor = (
            "middle" if LEFT + longest / 2 < x < WIDTH - RIGHT - longest / 2 else "start" if at == 0 else ""
        )
        if anchor:
            parts.append(_text(x, HEIGHT - 8, labels[at], anchor))
    return parts


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
    if value and abs(value) < 10:
        return f"{value:.2g}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1000 if letter == 'k' else size):.3g}{letter}"
    return f"{value:.0f}"
