"""Who wants to hear of changes of the catalogue."""

from __future__ import annotations

import logging
from collections.abc import Callable

from busbar.model.api import EntityChangeSink, EntityView

_log = logging.getLogger(__name__)


class Watchers:
    def __init__(self) -> None:
        self._sinks: list[EntityChangeSink] = []

    def add(self, changed: EntityChangeSink) -> Callable[[], None]:
        """The answer ends it."""
        self._sinks.append(changed)

        def stop() -> None:
            if changed in self._sinks:
                self._sinks.remove(changed)

        return stop

    def tell(self, path: str, view: EntityView | None) -> None:
        """What one of them raises hurts no other."""
        for changed in tuple(self._sinks):
            try:
                changed(path, view)
            except Exception:
                _log.exception("a change of '%s' could not be told to one who watches", path)
