"""The watchers of the catalogue: what is called for every change that is in force."""

from __future__ import annotations

import logging
from collections.abc import Callable

from busbar.model.api import EntityChangeSink, EntityView

_log = logging.getLogger(__name__)


class Watchers:
    def __init__(self) -> None:
        self._sinks: list[EntityChangeSink] = []

    def add(self, changed: EntityChangeSink) -> Callable[[], None]:
        """Call `changed` from now on. The result ends that."""
        self._sinks.append(changed)

        def stop() -> None:
            if changed in self._sinks:
                self._sinks.remove(changed)

        return stop

    def tell(self, path: str, view: EntityView | None) -> None:
        """Call all watchers. An error of one is logged, and the others are called all the same."""
        for changed in tuple(self._sinks):
            try:
                changed(path, view)
            except Exception:
                _log.exception("a change of '%s' could not be told to one who watches", path)
