"""`kill -9` amid creations and deletions of partitioned queues, whose definitions and fragments are in four stores.

Afterwards what was answered holds, and each queue is there with all its fragments, or not there at all.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from busbar.cli.failure import CommandFailure
from harness.serving import Busbar, config_text
from harness.waiting import eventually
from tests.durability.test_store_outage import Operator

ROUNDS = 100 if os.environ.get("BUSBAR_DEEP") == "1" else 4


class Worker:
    """Creates and deletes queues, one at a time."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.unknown = ""
        """The queue whose change was not answered."""
        self.answered = 0

    def run(self, operator: Operator, chance: random.Random) -> None:
        try:
            while True:
                name = f"q{chance.randrange(12)}"
                self.unknown = name
                if name in self.there:
                    operator.delete(name)
                    self.there.discard(name)
                else:
                    operator.create(name)
                    self.there.add(name)
                self.unknown = ""
                self.answered += 1
        except CommandFailure:
            return  # killed


@pytest.mark.req("P26")
def test_a_partitioned_queue_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    server = Busbar(tmp_path / "data", config_text({}))
    worker = Worker()
    for _ in range(ROUNDS):
        server.start()
        thread = threading.Thread(target=worker.run, args=(Operator(server), chance))
        before = worker.answered
        thread.start()
        eventually(lambda before=before: worker.answered > before + 5, "queues are created", seconds=60)  # type: ignore[misc]
        time.sleep(chance.uniform(0.0, 0.4))
        server.kill()
        thread.join(20)
        server.start()
        operator = Operator(server)
        for name in sorted(worker.there | {worker.unknown} - {""}):
            try:
                fragments = operator.ask("GET", f"fragments/{name}")
            except CommandFailure as failure:
                assert name == worker.unknown and "could not be found" in failure.text, failure.text
                worker.there.discard(name)
                continue
            assert [fragment["state"] for fragment in fragments] == ["open"] * 16, name
            worker.there.add(name)
        assert all(store["state"] == "open" for store in operator.ask("GET", "stores"))
        server.kill()
    assert worker.answered > 5 * ROUNDS, "there was nothing to interrupt"
    print(f"{worker.answered} changes were answered over {ROUNDS} kills")
