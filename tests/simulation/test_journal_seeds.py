"""Lives of all kinds over a real store with a journal, which is moved and recovered at any point (journal_place.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from busbar.store.journal import moving
from busbar.store.journal import store as journal_store
from harness.journal_place import JournalPlace
from harness.memory_store import Disk
from tests.simulation import hosted_world
from tests.simulation.campaign import run_lives
from tests.simulation.worlds import WORLDS

IN_MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True)
def real_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a real store beside each one in memory, with moves of many slices."""
    monkeypatch.setattr(moving, "SLICE", 2)
    monkeypatch.setattr(journal_store, "SLICE", 4)
    monkeypatch.setattr(journal_store, "GENERATIONS", journal_store.MAX_PENDING // 2_000)
    with TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as root:
        places = iter(range(1_000_000))

        def place(new_disk: Callable[[], Disk]) -> JournalPlace:
            number = next(places)
            directory = Path(root) / str(number)
            directory.mkdir()
            return JournalPlace(directory, Random(number), new_disk)

        monkeypatch.setattr(hosted_world, "MemoryPlace", place)
        yield


@pytest.mark.parametrize("world", ["queue", "sessions", "taps", "topic", "express"])
def test_lives(world: str) -> None:
    lives = run_lives(WORLDS[world], 4, 2_000)
    worlds = [life.world for life in lives if isinstance(life.world, hosted_world.HostedWorld)]
    assert [type(each.place) for each in worlds] == [JournalPlace] * len(lives)
