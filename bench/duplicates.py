"""What duplicate detection costs the server for each message sent, compared with a queue without it.

The load is that of bench/cycle.py: durable, 1 KiB bodies, 1,000 messages in flight. Every message has an id of its own. The
budget is half as much again. Also measured: an old duplicate, whose id has to be looked up in the store, and the memory that
ids take.
"""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from bench.cycle import IN_FLIGHT, SECONDS, report
from busbar.fragment.changes import empty_head
from busbar.fragment.machine import Fragment
from busbar.model.commands import Send, Tick
from busbar.model.message import Draft
from busbar.model.settings import FragmentSettings
from busbar.store.sqlite.store import SqliteStore
from harness.cycle import Cost, sending
from harness.measured import MeasuredServer, calibrate, measured_server, rooms_are_compiled

BUDGET = 1.5
UNIQUE = {"RequiresDuplicateDetection": True}
REMEMBERED = 300_000


async def costs(server: MeasuredServer) -> list[Cost]:
    return [
        await sending(server, "plain-one", IN_FLIGHT, SECONDS, what="one per transfer, without"),
        await sending(server, "unique-one", IN_FLIGHT, SECONDS, what="one per transfer, with"),
        await sending(server, "plain-many", IN_FLIGHT, SECONDS, batch=100, what="batches of 100, without"),
        await sending(server, "unique-many", IN_FLIGHT, SECONDS, batch=100, what="batches of 100, with"),
    ]


def lookups() -> None:
    """Measure a fragment by itself: the cost of a duplicate that is only in the store, and of a new start."""
    with TemporaryDirectory(prefix="busbar-bench-") as directory:
        store = SqliteStore(Path(directory) / "store.db")
        store.claim()
        settings = FragmentSettings(60_000, 10, 0, False, 0, True, True, 600_000)
        machine = Fragment(1, settings, empty_head(1), 0, [])
        names = [uuid.uuid4().hex for _ in range(REMEMBERED)]
        now = 1_000_000
        for first in range(0, REMEMBERED, 1_000):
            now += 1_500
            _apply(machine, store, _send(names[first : first + 1_000]), now)
        began = time.perf_counter()
        some = names[: REMEMBERED // 2 : 500]
        for name in some:
            _apply(machine, store, _send([name]), now)
        each = (time.perf_counter() - began) * 1e6 / len(some)
        print(f"{'an old duplicate is looked up in':<34}{each:>10.0f} µs, among {REMEMBERED:,} ids")
        machine = Fragment(1, settings, store.heads()[0], 0, [], None, store.id_segments(1))
        began = time.perf_counter()
        ticks = 0
        while machine.has_work(now):
            _apply(machine, store, Tick(1), now)
            ticks += 1
        took = time.perf_counter() - began
        print(f"{'the filter is made again in':<34}{took:>10.2f} s, in {ticks} ticks")
        store.close()


def _send(names: list[str]) -> Send:
    return Send(1, 1, 1, [Draft(b"x", name, None, None, 0, 0) for name in names], False)


def _apply(machine: Fragment, store: SqliteStore, command: Send | Tick, now: int) -> None:
    reads = machine.needs(command, now)
    if reads:
        store.read(1, reads)
        machine.supply(reads)
    machine.apply(command, now, 1)
    machine.take_effects()
    changes = machine.take_changes()
    if changes is not None:
        store.commit([changes])


def main() -> int:
    compiled = rooms_are_compiled()
    queues = {"plain-one": {}, "unique-one": UNIQUE, "plain-many": {}, "unique-many": UNIQUE}
    unit = calibrate()
    with measured_server(queues, interpreted=not compiled) as server:
        measured = uvloop.run(costs(server))
        memory = server.busbar.resident_bytes() / 1024 / 1024
    report(measured, min(unit, calibrate()))
    ratios = [measured[i + 1].cpu_us / measured[i].cpu_us for i in (0, 2)]
    print(f"{'with : without':<34}{ratios[0]:>10.2f} one by one{ratios[1]:>10.2f} in batches")
    print(f"{'memory at the end':<34}{memory:>10.0f} MB")
    lookups()
    if compiled and min(ratios) > BUDGET:
        print(f"\nover the budget: detection should cost at most {BUDGET} times as much")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
