"""What a commit costs in PostgreSQL, beside the embedded store in the same run.

    python -m bench.postgresql [--seconds 60] [--directory DIR]

Rounds of both stores alternate on the same disk, and the medians of all rounds are compared. They run in a thread, as the
stores of a broker do: the event loop of the driver costs more in the main thread. In each commit, messages of 1 KiB are put
and as many are completed. For 1, 10, 100 and 1,000 messages in a commit, as ratios of PostgreSQL to SQLite:

    node            CPU time of this process
    node + server   with that of all processes of the database server
    throughput      messages per second of one store
    p50             the median time of a commit

The last line has the CPU time of node and server while another session holds an old snapshot, to that before. The exit code
is 1 if a ratio is over its budget.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.store_commit import Queue
from busbar.store.contract import Store
from busbar.store.postgresql.address import parse_address
from busbar.store.postgresql.store import PostgresqlStore
from busbar.store.sqlite.store import SqliteStore
from harness.postgresql import PostgresqlServer, remove_shared, template

COUNTS = (1, 10, 100, 1000)
SIZE = 1024
ROUNDS = 5
HELD_COMMITS = 3_000
BUDGET = {(100, "node"): 0.8, (100, "node + server"): 2.2, (100, "throughput"): 0.6, (1, "p50"): 1.8}
"""At most; of the throughput at least. The p50 of one message has 1.5 and a round trip."""
HELD_BUDGET = 1.15
_TICKS = os.sysconf("SC_CLK_TCK")


def server_cpu(pid: int) -> float:
    """The CPU seconds of all processes of the server, of those too that have ended."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    total = 0
    for each in (str(pid), *children):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15] if each == str(pid) else fields[11:13]))
    return total / _TICKS


@dataclass
class Measured:
    """Of each round, per message: seconds of CPU and of time; and the time of each commit."""

    node: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)

    def median(self, name: str) -> float:
        if name == "node + server":
            return statistics.median(map(sum, zip(self.node, self.server, strict=True)))
        return statistics.median({"node": self.node, "throughput": self.wall, "p50": self.commits}[name])


def run_round(queue: Queue, into: Measured, seconds: float, cpu_of_server: Callable[[], float]) -> None:
    began, cpu, server = time.perf_counter(), time.process_time(), cpu_of_server()
    commits = 0
    while commits < 3 or time.perf_counter() - began < seconds:
        at = time.perf_counter()
        queue.cycle()
        into.commits.append(time.perf_counter() - at)
        commits += 1
    messages = commits * queue.count
    into.wall.append((time.perf_counter() - began) / messages)
    into.node.append((time.process_time() - cpu) / messages)
    into.server.append((cpu_of_server() - server) / messages)


def compare(server: PostgresqlServer, directory: Path, count: int, seconds: float) -> bool:
    body = os.urandom(SIZE)
    stores: list[tuple[Store, Callable[[], float]]] = [
        (SqliteStore(directory / f"store-{count}.db"), lambda: 0.0),
        (
            PostgresqlStore(parse_address(server.url(f"bench_{count}"), "bench")),
            lambda: server_cpu(server.pid),
        ),
    ]
    queues = [(Queue(store, count, body), Measured(), cpu) for store, cpu in stores]
    for queue, _, _ in queues:
        for _ in range(10):
            queue.cycle()
    for _ in range(ROUNDS):
        for queue, measured, cpu in queues:
            run_round(queue, measured, seconds / (2 * ROUNDS), cpu)
    for queue, _, _ in queues:
        queue.store.release()
        queue.store.close()
    sqlite, postgresql = queues[0][1], queues[1][1]
    ratios = {
        name: postgresql.median(name) / sqlite.median(name) for name in ("node", "node + server", "p50")
    }
    ratios["throughput"] = sqlite.median("throughput") / postgresql.median("throughput")
    print(
        f"{count:10}{ratios['node']:10.2f} ×{ratios['node + server']:14.2f} ×{ratios['throughput']:11.2f} ×"
        f"{ratios['p50']:8.2f} ×   {postgresql.median('node') * 1e6:8.1f} + "
        f"{statistics.median(postgresql.server) * 1e6:.1f} µs, {postgresql.median('p50') * 1e3:.2f} ms",
        flush=True,
    )
    over = [
        name
        for (at, name), most in BUDGET.items()
        if at == count and (ratios[name] < most if name == "throughput" else ratios[name] > most)
    ]
    for name in over:
        print(f"           over its budget: {name} ({BUDGET[count, name]})")
    return not over


def held_snapshot(server: PostgresqlServer) -> bool:
    """The CPU time of a message behind an old snapshot, to that before."""
    queue = Queue(PostgresqlStore(parse_address(server.url("bench_held"), "bench")), 10, os.urandom(SIZE))
    holder = PostgresqlStore(parse_address(server.url("bench_holder"), "bench"))
    holder.claim()

    def cpu() -> float:
        measured = Measured()
        for _ in range(ROUNDS):
            run_round(queue, measured, 1.0, lambda: server_cpu(server.pid))
        return measured.median("node + server")

    for _ in range(20):
        queue.cycle()
    before = cpu()
    holder._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM journal")
    for _ in range(HELD_COMMITS):
        queue.cycle()
    ratio = cpu() / before
    holder.close()
    queue.store.release()
    queue.store.close()
    print(
        f"behind a held snapshot, after {HELD_COMMITS} commits: {ratio:.2f} × (budget {HELD_BUDGET})",
        flush=True,
    )
    return ratio <= HELD_BUDGET


def measure(seconds: float, directory: Path | None) -> bool:
    """Whether all ratios are within their budgets."""
    fits = True
    with tempfile.TemporaryDirectory(dir=directory) as name:
        os.chmod(name, 0o755)
        server = PostgresqlServer(template(), {"shared_buffers": "128MB"}, Path(name))
        try:
            server.start()
            print(
                "per commit      node   node + server   throughput      p50     PostgreSQL: node + server, p50"
            )
            for count in COUNTS:
                fits &= compare(server, Path(name), count, seconds / (len(COUNTS) + 1))
            fits &= held_snapshot(server)
        finally:
            server.remove()
            remove_shared()
    return fits


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--seconds", type=float, default=60.0, help="about how long the whole run takes")
    arguments.add_argument("--directory", type=Path, default=None, help="where to write (a real disk)")
    given = arguments.parse_args()
    with ThreadPoolExecutor(1) as thread:
        return 0 if thread.submit(measure, given.seconds, given.directory).result() else 1


if __name__ == "__main__":
    sys.exit(main())
