"""Whose turn it is among the fragments of an entity when a message session is accepted.

The one behind the fragment that gave the last session is the first: so fragments take turns, as sessions do in each of
them, and none is left waiting while others are busy.
"""

from __future__ import annotations

from busbar.model.names import key_of


class SessionTurns:
    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def first(self, path: str, fragments: int) -> int:
        """The index of the fragment to begin with."""
        return self._next.get(key_of(path), 0) % fragments

    def gave(self, path: str, index: int) -> None:
        """That fragment has given a session."""
        self._next[key_of(path)] = index + 1
