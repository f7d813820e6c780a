"""Reads the metrics, labels and values that an expression of PromQL names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

METRIC = re.compile(r"\b(busbar_[a-z_]+)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r'([a-z_]+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
FIELD = re.compile(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}")
"""A label in the text of a legend or an alert."""


@dataclass
class Named:
    """What an expression names."""

    metrics: list[str] = field(default_factory=list)
    matchers: list[tuple[str, str, str, str]] = field(default_factory=list)
    """Metric, label, operator, value."""
    labels: set[str] = field(default_factory=set)
    """Labels of groupings, which each metric of the expression has."""


def names_in(expression: str) -> Named:
    found = Named()
    for match in METRIC.finditer(expression):
        found.metrics.append(match[1])
        given = match[2] or ""
        rest = MATCHER.sub("", given).strip(", ")
        assert not rest, f"matchers that cannot be read: {rest!r} in {expression}"
        found.matchers += [(match[1], label, how, value) for label, how, value in MATCHER.findall(given)]
    for match in GROUPING.finditer(expression):
        found.labels |= {label.strip() for label in match[1].split(",") if label.strip()}
    return found
