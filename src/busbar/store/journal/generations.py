"""The generations of what is pending: commits go to the young one, deletes also take messages out of the aging one.

`rotate` makes the young generation the aging one, and begins the move of the one that was aging. So a message has the time
between two rotations, at least, to be completed before SQLite gets it.
"""

from __future__ import annotations

from collections.abc import Sequence

from busbar.fragment.changes import Changes, Head
from busbar.store.journal.moving import GenerationMove
from busbar.store.journal.pending import FragmentNet, Pending


class Generations:
    def __init__(self) -> None:
        self.young = Pending()
        self.move: GenerationMove | None = None
        """The move that is under way."""
        self._aging: Pending | None = None
        self._aging_sequence = 0

    def is_empty(self) -> bool:
        return self.young.is_empty() and self._aging is None and self.move is None

    def bytes(self) -> int:
        return sum(generation.bytes() for generation in self._all())

    def contains(self, fragment: int, lane: int, n: int) -> bool:
        """Whether a message is pending in a lane."""
        return any(generation.contains(fragment, lane, n) for generation in self._all())

    def has(self, fragment: int) -> bool:
        """Whether something of a fragment is pending."""
        return any(generation.net(fragment) is not None for generation in self._all())

    def nets(self, fragment: int) -> list[FragmentNet] | None:
        """All that is pending of a fragment, the youngest net first; None if one of them cannot be read."""
        found = []
        for generation in self._all():
            if generation.has_sealed(fragment):
                return None
            net = generation.net(fragment)
            if net is not None:
                found.append(net)
        return found

    def heads(self) -> dict[int, Head]:
        """The pending counters, by fragment."""
        heads: dict[int, Head] = {}
        for generation in reversed(self._all()):
            heads.update(generation.heads())
        return heads

    def add(self, batches: Sequence[Changes], last: dict[int, int]) -> None:
        """Add a group commit. `last` has the highest number of each fragment before it."""
        self.young.add(batches, last)

    def rotate(self, sequence: int) -> None:
        """Begin another generation after the record with this sequence. No move may be under way."""
        assert self.move is None
        if self._aging is not None:
            self.move = GenerationMove(self._aging, self._aging_sequence)
            self._aging = None
        self.young.detach()
        if not self.young.is_empty():
            self._aging, self._aging_sequence = self.young, sequence
        self.young = Pending(self._aging)

    def _all(self) -> list[Pending]:
        """The generations, the youngest first."""
        moving = None if self.move is None else self.move.generation
        return [each for each in (self.young, self._aging, moving) if each is not None]
