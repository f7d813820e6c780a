"""The plots of a report on an entity: throughput, backlog, latency and fragments.

A time of which nothing is known is a gap in a line, never zero.
"""

from __future__ import annotations

from datetime import UTC, datetime

from busbar.jobs import report_svg as svg
from busbar.jobs.insight_figures import Backlog, Bin, EntityFigures
from busbar.jobs.report_html import bound, figure, line_figure

DAY_MS = 86_400_000


def plots_of(figures: EntityFigures) -> str:
    return "".join([_throughput(figures), _backlog(figures), _latency(figures), _fragments(figures)])


def _throughput(figures: EntityFigures) -> str:
    if not figures.slots:
        return ""
    width = figures.slot_seconds
    named = [("came", [None if slot.sent is None else slot.sent / width for slot in figures.slots])]
    if figures.coverage.events is not None:
        done = [None if slot.done is None else slot.done / width for slot in figures.slots]
        named.append(("done", done))
    return line_figure(f"Messages per second, by {_width(width)}", clock(figures), named, "/s")


def _backlog(figures: EntityFigures) -> str:
    captions = {
        Backlog.COUNTED: "Backlog: messages in the queue",
        Backlog.RELATIVE: "Backlog: messages in the queue, above the lowest of the span, which is not known",
    }
    caption = captions.get(figures.backlog)
    if caption is None:
        return ""
    return line_figure(
        caption, clock(figures), [("backlog", [slot.backlog for slot in figures.slots])], "messages"
    )


def _latency(figures: EntityFigures) -> str:
    if figures.latency is None:
        return ""
    named = [
        ("median", [slot.p50 for slot in figures.slots]),
        ("95th percentile", [slot.p95 for slot in figures.slots]),
    ]
    over_time = line_figure(
        "From enqueue to completion, over time of completion", clock(figures), named, "ms"
    )
    bins = figures.latency.histogram
    spread = svg.bars(
        "Spread of latency", [bin_label(each) for each in bins], [each.count for each in bins], "messages"
    )
    return over_time + figure("From enqueue to completion, how many took how long", spread)


def _fragments(figures: EntityFigures) -> str:
    if not figures.partitioned:
        return ""
    values = [float(each.sent) for each in figures.fragments]
    even = sum(values) / max(1, len(values))
    plot = svg.bars(
        "Messages by fragment", [str(each.index) for each in figures.fragments], values, "messages", even
    )
    return figure("Messages by fragment; the line is an even share", plot)


def bin_label(each: Bin) -> str:
    """The label of a bin of the histogram; no two bins have the same."""
    return "more" if each.below is None else f"<{bound(each.below)}"


def clock(figures: EntityFigures) -> list[str]:
    """The labels of time buckets, each different from the others: with the date if they are of several days."""
    times = [slot.time for slot in figures.slots]
    form = "%H:%M:%S" if figures.slot_seconds < 60 else "%H:%M"
    if times and times[0] // DAY_MS != times[-1] // DAY_MS:
        is_of_years = times[-1] - times[0] >= 365 * DAY_MS
        form = f"{'%Y-' if is_of_years else ''}%m-%d" + ("" if figures.slot_seconds >= 86400 else f" {form}")
    return [datetime.fromtimestamp(time / 1000, UTC).strftime(form) for time in times]


def _width(seconds: int) -> str:
    for size, word in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            count = seconds // size
            return word if count == 1 else f"{count} {word}s"
    return "second"
