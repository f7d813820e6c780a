"""What fragments have done since their process began: counters that only grow.

Rules
- The machine adds once for each batch, where it has the numbers anyway. Nothing is added for a single message but a dead
  letter and a duplicate.
- A process keeps the figures of a fragment as long as the fragment exists. So a counter does not go back when a store is
  opened again, or leaves for another process and returns.
- What was counted stays counted if the commit fails: clients repeat such an operation, and it is counted again.
- Reasons of dead letters are a bounded set, since applications choose theirs freely.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from mypy_extensions import i64

from busbar.model.commands import RELEASE
from busbar.model.figures import DEAD_LETTER_REASONS, OTHER

NO_SETTLEMENTS: Final = [0] * (RELEASE + 1)


@final
class FragmentWork:
    def __init__(self, reasons: dict[str, int]) -> None:
        """`reasons` counts the dead letters of all fragments of the process."""
        self.messages_in: i64 = 0
        self.bytes_in: i64 = 0
        self.messages_out: i64 = 0
        self.bytes_out: i64 = 0
        self.settled: list[int] = list(NO_SETTLEMENTS)  # by outcome: COMPLETE, ABANDON and so on
        self.locks_lost: i64 = 0
        self.duplicates: i64 = 0
        self.dead_letters: i64 = 0
        self._reasons = reasons

    def came(self, messages: i64, bytes: i64) -> None:
        """Count messages that were taken, with their bytes."""
        self.messages_in += messages
        self.bytes_in += bytes

    def went(self, messages: i64, bytes: i64) -> None:
        """Count messages that a consumer got, with their bytes."""
        self.messages_out += messages
        self.bytes_out += bytes

    def dead_letter(self, reason: str) -> None:
        self.dead_letters += 1
        known = reason if reason in self._reasons else OTHER
        self._reasons[known] += 1

    def values(self) -> list[int]:
        """In the order of model.figures.FragmentCounters."""
        return [
            self.messages_in,
            self.bytes_in,
            self.messages_out,
            self.bytes_out,
            *self.settled,
            self.locks_lost,
            self.duplicates,
            self.dead_letters,
        ]


def own_figures() -> FragmentWork:
    """Figures of a fragment that no process keeps."""
    return FragmentWork(dict.fromkeys(DEAD_LETTER_REASONS, 0))


@final
class FiguresOfFragments:
    """The figures of all fragments that this process has had."""

    def __init__(self) -> None:
        self.dead_letters: dict[str, int] = dict.fromkeys(DEAD_LETTER_REASONS, 0)
        self._by_fragment: dict[int, FragmentWork] = {}

    def of(self, fragment: int) -> FragmentWork:
        found = self._by_fragment.get(fragment)
        if found is None:
            found = FragmentWork(self.dead_letters)
            self._by_fragment[fragment] = found
        return found

    def forget(self, fragments: Iterable[int]) -> None:
        """Drop the figures of fragments that were deleted."""
        for fragment in fragments:
            self._by_fragment.pop(fragment, None)

    def used(self) -> dict[int, list[int]]:
        """The values of each fragment that has done anything."""
        found: dict[int, list[int]] = {}
        for fragment, figures in self._by_fragment.items():
            values = figures.values()
            if any(values):
                found[fragment] = values
        return found
