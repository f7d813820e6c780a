"""What the commit loop hands out: jobs for the store, the steps of a turn, and what a failed group leaves."""

from __future__ import annotations

from typing import final

from busbar.broker.slot import Slot
from busbar.fragment.changes import Changes
from busbar.fragment.reads import Read
from busbar.model.effects import Effect
from busbar.store.contract import Store


class GroupFailed(Exception):
    """Raised when a group has failed and must not be committed (rule 5)."""


@final
class Job:
    """What the store has to do next: commit a group, then read."""

    def __init__(self, batches: list[Changes], reads: list[tuple[int, list[Read]]]) -> None:
        """`reads` are by fragment. The store fills in what each asks for."""
        self.batches = batches
        self.reads = reads

    def run(self, store: Store) -> None:
        if self.batches:
            store.commit(self.batches)
        if self.reads:
            store.read_all(self.reads)


@final
class Step:
    """What a step asks of the caller: start the job, then perform the effects."""

    def __init__(self, job: Job | None, effects: list[Effect], has_more: bool) -> None:
        """`has_more`: step again at once. The job came first, so that the store works while commands are applied."""
        self.job = job
        self.effects = effects
        self.has_more = has_more


@final
class RolledBack:
    """What one fragment had not committed when its group failed."""

    def __init__(self, slot: Slot, batches: list[Changes], effects: list[Effect], given: int) -> None:
        """The batches are newest first: the order in which they are undone. The effects are in apply order; none of them was
        performed. As many as `given`, counted from the first, rest on what was given to the store. The store never saw the
        others."""
        self.slot = slot
        self.batches = batches
        self.effects = effects
        self.given = given
