"""Small plots of the last hour as SVG: lines over time, with now at the right. At first they show less than an hour.

The drawing is stretched to the width of its place, so it has no text: the largest value, the names of lines and the times
stand around it. A style sheet of its own gives the colours, by the class of each line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from busbar.console.history import HOUR_SECONDS, TimedValue, thinned
from busbar.console.html import Markup, tag

WIDTH, HEIGHT = 600, 100
POINTS = 180
SPARK_POINTS = 40
LEAST_SECONDS = 120.0
GAP_SECONDS = 90.0
"""A line is interrupted where no sample came for so long."""


@dataclass(frozen=True, slots=True)
class HourLine:
    name: str
    style: str
    """The CSS class."""
    values: Sequence[TimedValue]


def hour_plot(title: str, lines: Sequence[HourLine], unit: str = "", none: str = "no samples yet") -> Markup:
    """A figure with its title, the lines and their latest values; `none` stands in it if there are no values."""
    most = _round_up(max((each.value for line in lines for each in line.values), default=0.0))
    legend = [
        tag(
            "span",
            tag("i", class_=line.style),
            f"{line.name} ",
            tag("b", f"{number_text(line.values[-1].value)}{unit}" if line.values else "–"),
        )
        for line in lines
    ]
    is_empty = not any(line.values for line in lines)
    span = span_of([line.values for line in lines])
    return tag(
        "figure",
        tag("h3", title),
        tag(
            "div",
            tag("span", f"{number_text(most)}{unit}", class_="most"),
            _drawing(lines, most, span, POINTS, title),
            tag("span", none, class_="none") if is_empty else None,
            class_="area",
        ),
        tag("div", tag("span", _ago(span)), tag("span", "now"), class_="axis", aria_hidden="true"),
        tag("figcaption", legend),
        class_="plot",
    )


def sparkline(values: Sequence[TimedValue], style: str, described: str) -> Markup | str:
    """A line without anything around it, for a cell of a table. It is empty if there was nothing in the hour."""
    most = max((each.value for each in values), default=0.0)
    if not most:
        return ""
    line = HourLine("", style, values)
    drawing = _drawing([line], most, span_of([values]), SPARK_POINTS, described)
    return tag("span", drawing, class_="spark")


def span_of(series: Sequence[Sequence[TimedValue]]) -> float:
    """The seconds that a plot shows: those since the first sample, and at least some minutes."""
    return min(HOUR_SECONDS, max((values[0].age for values in series if values), default=0.0) + LEAST_SECONDS)


def _ago(span: float) -> str:
    return "an hour ago" if span >= HOUR_SECONDS else f"{span / 60:.0f} minutes ago"


def number_text(value: float) -> str:
    """A number for people: whole if it is large, with a digit behind the point if it is small."""
    if value >= 10_000_000:
        return f"{value / 1_000_000:,.0f} M"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _drawing(lines: Sequence[HourLine], most: float, span: float, points: int, described: str) -> Markup:
    paths = []
    for line in lines:
        for run in (thinned(each, points) for each in _runs(line.values)):
            path = " ".join(_point(each, most, span) for each in run)
            begin, end = _x(run[0], span), _x(run[-1], span)
            paths.append(
                tag("path", d=f"M{begin} {HEIGHT} L{path} L{end} {HEIGHT} Z", class_=f"fill {line.style}")
            )
            paths.append(tag("path", d=f"M{path}", class_=f"line {line.style}"))
    return tag(
        "svg",
        paths,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=described,
    )


def _runs(values: Sequence[TimedValue]) -> list[list[TimedValue]]:
    """The values between gaps. A value alone becomes a short line."""
    found: list[list[TimedValue]] = []
    for each in values:
        if found and found[-1][-1].age - each.age <= GAP_SECONDS:
            found[-1].append(each)
        else:
            found.append([TimedValue(each.age + 5.0, each.value), each])
    return found


def _point(each: TimedValue, most: float, span: float) -> str:
    return f"{_x(each, span)} {round(HEIGHT - HEIGHT * each.value / most, 1) if most else HEIGHT}"


def _x(each: TimedValue, span: float) -> float:
    return round(WIDTH * (1 - min(each.age, span) / span), 1)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 and so on, so that the scale does not move with every sample."""
    step = 1.0
    while True:
        for factor in (1, 2, 5):
            if value <= step * factor:
                return step * factor
        step *= 10
