"""Decides whether a broker process is cut off from all that could take it for ended. Pure: the clock comes in.

It is cut off if its node has not reached the catalogue for a part of the lease, and it has had no controller for a while.
The others wait for longer than that before they free the sessions of its clients (dead_nodes.py).
"""

from __future__ import annotations

from collections.abc import Callable

from busbar.cluster.dead_nodes import ISOLATED

WITHOUT_CONTROLLER = 1 / 6
"""Of a lease."""


class Isolation:
    def __init__(self, lease: float, clock: Callable[[], float]) -> None:
        """`clock` gives seconds, and goes on while the process is suspended."""
        self._lease = lease
        self._clock = clock
        self._catalogue = self._controller = clock()
        self._is_cut_off = False

    def catalogue_seen(self, ago: float) -> None:
        """Note that the node last reached the catalogue so many seconds ago."""
        self._catalogue = self._clock() - ago

    def controller_seen(self) -> None:
        self._controller = self._clock()

    def begins(self) -> bool:
        """Whether the process is cut off now, and was not at the last look."""
        now, before = self._clock(), self._is_cut_off
        self._is_cut_off = (
            now - self._catalogue >= ISOLATED * self._lease
            and now - self._controller >= WITHOUT_CONTROLLER * self._lease
        )
        return self._is_cut_off and not before
