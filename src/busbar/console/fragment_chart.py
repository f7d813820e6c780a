"""Shows the fragments of a queue as bars, so that their distribution is visible at a glance.

The height of a bar is the number of messages of its fragment, relative to the fullest one. A fragment in an unavailable
store has a bar of another style. A table below has the same numbers, for screen readers.
"""

from __future__ import annotations

from collections.abc import Sequence

from busbar.console.html import Markup, tag
from busbar.console.layout import count, table
from busbar.console.namespace import FragmentSummary

HEIGHT = 100.0
PARTS = (("messages", "messages"), ("scheduled", "scheduled"), ("dead", "dead letters"))
"""The CSS class of each part, from the bottom up, and its label."""
NUMBERS = frozenset(("Messages", "Dead letters", "Scheduled", "Size"))


def fragment_picture(fragments: Sequence[FragmentSummary]) -> Markup:
    most = max((_held(fragment) for fragment in fragments), default=0)
    bars = [_bar(fragment, max(1, most)) for fragment in fragments]
    legend = [tag("span", tag("i", class_=style), name) for style, name in PARTS]
    reasons = sorted({fragment.reason for fragment in fragments if fragment.reason})
    return tag(
        "section",
        tag("h2", "Fragments"),
        tag("figure", tag("ol", bars, class_="fragments"), tag("figcaption", legend)),
        [tag("p", reason, class_="notice bad") for reason in reasons],
        tag("details", tag("summary", "In numbers"), _numbers(fragments), id="numbers"),
    )


def _bar(fragment: FragmentSummary, most: int) -> Markup:
    parts, top = [], HEIGHT
    for (style, _), number in zip(
        PARTS, (fragment.messages, fragment.scheduled, fragment.dead_letters), strict=True
    ):
        height = HEIGHT * number / most
        top -= height
        parts.append(tag("rect", x=0, y=round(top, 2), width=10, height=round(height, 2), class_=style))
    if not fragment.open:
        parts = [tag("rect", x=0, y=0, width=10, height=HEIGHT, class_="unavailable")]
    said = _describe(fragment)
    picture = tag(
        "svg", parts, viewBox=f"0 0 10 {HEIGHT:.0f}", preserveAspectRatio="none", role="img", aria_label=said
    )
    return tag(
        "li",
        tag("span", count(_held(fragment)) if fragment.open else "unavailable", class_="held"),
        picture,
        tag("span", str(fragment.index), class_="index"),
        tag("span", fragment.store, class_="store"),
        title=said,
        data_held=_held(fragment),
    )


def _numbers(fragments: Sequence[FragmentSummary]) -> Markup:
    columns = ("Fragment", "Store", "State", "Messages", "Dead letters", "Scheduled", "Size")
    rows = [
        (
            str(fragment.index),
            fragment.store,
            "open" if fragment.open else "unavailable",
            *(
                (
                    count(fragment.messages),
                    count(fragment.dead_letters),
                    count(fragment.scheduled),
                    fragment.size,
                )
                if fragment.open
                else ("", "", "", "")
            ),
        )
        for fragment in fragments
    ]
    return table(columns, rows, NUMBERS)


def _describe(fragment: FragmentSummary) -> str:
    if not fragment.open:
        return f"Fragment {fragment.index} in {fragment.store} is unavailable"
    return (
        f"Fragment {fragment.index} in {fragment.store}: {count(fragment.messages)} messages, "
        f"{count(fragment.scheduled)} scheduled, {count(fragment.dead_letters)} dead letters"
    )


def _held(fragment: FragmentSummary) -> int:
    return fragment.messages + fragment.scheduled + fragment.dead_letters
