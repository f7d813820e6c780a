"""Whose turn it is among the fragments of an entity when a message session is accepted.

Rules:
1. Fragments take turns, as sessions do in each of them: the one behind that which was asked, or has given, is the next.
2. Asking all of sixteen fragments for one session is dear, and needless where many sessions wait. So it is remembered which
   fragments had some when they last spoke, and the next of these is asked first. Every accept in so many as there are
   fragments asks all of them: one that had none is not forgotten, and none is left waiting while others are busy.
"""

from __future__ import annotations

from busbar.model.names import key_of

MAX_ENTITIES = 10_000
"""Whose turns are kept; beyond it all begin anew."""


class SessionRotations:
    """Of all entities."""

    def __init__(self) -> None:
        self._entities: dict[str, FragmentRotation] = {}

    def of(self, path: str, fragments: int) -> FragmentRotation:
        key = key_of(path)
        turns = self._entities.get(key)
        if turns is None or turns.fragments != fragments:
            if len(self._entities) >= MAX_ENTITIES:
                self._entities.clear()
            turns = self._entities[key] = FragmentRotation(fragments)
        return turns


class FragmentRotation:
    """Of one entity; fragments are named by their index."""

    def __init__(self, fragments: int) -> None:
        self.fragments = fragments
        self._next = 0
        self._with_sessions: set[int] = set()
        self._alone = 0
        """So many accepts may ask one fragment alone before the next that asks all."""

    def begin(self) -> tuple[list[int], bool]:
        """The order in which an accept asks, and whether it asks the first alone, which had sessions."""
        order = [(self._next + step) % self.fragments for step in range(self.fragments)]
        alone = bool(self._with_sessions) and (self._alone > 0 or self.fragments == 1)
        if alone:
            self._alone -= 1
            while order[0] not in self._with_sessions:
                order.append(order.pop(0))
        else:
            self._alone = self.fragments - 1
        self._next = order[0] + 1
        return order, alone

    def mark_available(self, index: int) -> None:
        """It has offered a session."""
        self._with_sessions.add(index)

    def mark_empty(self, index: int) -> None:
        """It said so, or does not answer."""
        self._with_sessions.discard(index)

    def mark_accepted(self, index: int, first: int) -> None:
        """It has given a session to an accept that began with the first."""
        if index != first:
            self._next = index + 1
