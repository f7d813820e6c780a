"""Reads the text format of metrics (Prometheus 0.0.4) that a Busbar answers with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LINE = re.compile(r"(?P<family>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MetricSample:
    family: str
    labels: Mapping[str, str]
    value: float


def read_metrics(text: str) -> list[MetricSample]:
    """The samples. Comments, and lines that are no samples, are passed over."""
    found = []
    # Names of entities may contain separators of lines that only `splitlines` has.
    for line in text.split("\n"):
        match = None if line.startswith("#") else _LINE.fullmatch(line)
        if match is None:
            continue
        labels = {name: _plain(value) for name, value in _LABEL.findall(match["labels"] or "")}
        found.append(MetricSample(match["family"], labels, float(match["value"])))
    return found


def _plain(value: str) -> str:
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], value)
