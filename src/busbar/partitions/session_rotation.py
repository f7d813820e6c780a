"""Decides which fragment of an entity comes first when a message session is accepted.

1. Fragments take turns, as sessions do in each of them. The next one is the one after the fragment that was tried first, or
   that gave a session.
2. To ask all of sixteen fragments for one session is expensive, and not necessary where many sessions wait. So the rotation
   remembers which fragments had sessions in their last answer, and the next of these comes first. One accept in as many as
   there are fragments asks all of them. So a fragment that had no sessions is not forgotten, and its sessions do not wait
   while others are busy.
"""

from __future__ import annotations

from busbar.model.names import key_of

MAX_ENTITIES = 10_000
"""The maximum number of entities that are remembered. Beyond it all rotations are reset."""


class SessionRotations:
    """The rotations of all entities."""

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
    """The rotation of one entity; fragments are named by their index."""

    def __init__(self, fragments: int) -> None:
        self.fragments = fragments
        self._next = 0
        self._with_sessions: set[int] = set()
        self._alone = 0
        """The number of accepts that may ask one fragment only, before the next that asks all."""

    def begin(self) -> tuple[list[int], bool]:
        """The order of fragments for an accept, and whether it asks only the first, which had sessions."""
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
        """Record that a fragment has offered a session."""
        self._with_sessions.add(index)

    def mark_empty(self, index: int) -> None:
        """Record that a fragment has no session, or does not answer."""
        self._with_sessions.discard(index)

    def mark_accepted(self, index: int, first: int) -> None:
        """Record that a fragment gave a session to an accept that began with `first`."""
        if index != first:
            self._next = index + 1
