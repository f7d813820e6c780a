"""Counts what the gateway has refused, by the condition of the error."""

from __future__ import annotations

from busbar.model.errors import CONDITIONS
from busbar.model.figures import OTHER


class Refusals:
    """The conditions are a bounded set, whatever a peer or another process names."""

    def __init__(self) -> None:
        self.by_condition = dict.fromkeys((*CONDITIONS, OTHER), 0)

    def add(self, condition: str, count: int = 1) -> None:
        self.by_condition[condition if condition in self.by_condition else OTHER] += count
