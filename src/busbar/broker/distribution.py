"""Stand-in."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.model.entities import RuleDescription
from busbar.model.message import Copy


class Subscriber:
    def __init__(self, rules: Sequence[tuple[str, RuleDescription]], dead_letters_errors: bool) -> None:
        self.rules = rules


class Distribution:
    def __init__(self, index: int, subscribers: Sequence[tuple[int, Subscriber]]) -> None:
        self.fragments = [fragment for fragment, _ in subscribers]

    def copies(self, content: bytes, n: int, now: int, ttl: int) -> list[Copy]:
        return [Copy(fragment, content) for fragment in self.fragments]
