"""Has targets of moves forget the marks of source fragments that do not exist any more.

A mark is the number of the last record of a source that a target took (fragment/taking.py). It must outlive every record
that may be offered again, also if the source's store is unavailable for months. So a mark goes only when the catalogue does
not have its source any more. It must also have been unused for an hour, which the target checks.

Rules:
1. This is done at the start and once a day, in small steps.
2. Targets are the entities that others forward to, and those to which something was forwarded since the start.
3. A fragment is gone if its id was given and no entity has it. Ids are never given again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from busbar.catalogue.change import CatalogueChange
from busbar.catalogue.index import EntityIndex, targets_of
from busbar.catalogue.planning import IdCounters
from busbar.catalogue.store_set import StoreSet
from busbar.model.commands import ForgetMarks
from busbar.model.names import key_of

SECONDS = 86_400.0
IDS_AT_ONCE = 10_000


class MarkCleaner:
    def __init__(self, entries: EntityIndex, stores: StoreSet, ids: IdCounters) -> None:
        self._entries = entries
        self._stores = stores
        self._ids = ids
        self._former: set[str] = set()
        """Keys of targets of entities that were changed or deleted."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def changed(self, change: CatalogueChange) -> None:
        """Note the targets of changed entities: they may have marks of them. The change is in force."""
        for view in change.before:
            self._former.update(key_of(target) for target in targets_of(view))

    async def _run(self) -> None:
        while True:
            for command in self.commands():
                self._stores.routes.submit([command])
                await asyncio.sleep(0)
            await asyncio.sleep(SECONDS)

    def commands(self) -> Iterator[ForgetMarks]:
        targets = self._entries.target_keys() | self._former
        fragments = [
            fragment
            for key in targets
            if (view := self._entries.get(key)) is not None
            for fragment in view.fragments
        ]
        if not fragments:
            return
        there = {fragment for view in self._entries for fragment in view.fragments}
        gone = [fragment for fragment in range(1, self._ids.fragment + 1) if fragment not in there]
        for first in range(0, len(gone), IDS_AT_ONCE):
            for fragment in fragments:
                yield ForgetMarks(fragment, gone[first : first + IDS_AT_ONCE])
