"""What many nodes and stores carry, computed from what one message costs on this machine.

    python -m bench.growth [--messages 10000] [--rounds 3]

It measures a cycle (send in batches of 100, receive, complete) of messages of 1 KiB on a partitioned queue. Its stores are
in PostgreSQL. One process and two brokers alternate for some rounds, and the medians count. With two brokers half of the
messages cross. The least and the most of the rounds are shown, too. The cost of a crossing varies most on a busy machine,
since it is a difference. Then one store is measured alone, in groups of 1,000. harness/growth.py has the arithmetic, and
docs/growth.md what follows from it. There is no budget.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import uvloop

from bench.postgresql import server_cpu
from bench.store_commit import Queue
from busbar.store.postgresql.address import parse_address
from busbar.store.postgresql.connection import DatabaseConnection
from busbar.store.postgresql.store import PostgresqlStore
from harness.amqp_driver import connect
from harness.growth import Figures, capacity, need
from harness.measured import processor_time, rooms_are_compiled
from harness.postgresql import PostgresqlServer, remove_shared, template
from harness.serving import Busbar, config_text

BODY = b"x" * 1024
BATCH, IN_FLIGHT, CLIENTS = 100, 2_000, 4
GROUP, COMMITS = 1_000, 20
RATES = (10_000, 100_000, 1_000_000)
CLUSTERS = ((1, 1), (3, 4), (6, 8), (12, 16), (24, 32), (48, 64))


@dataclass(frozen=True, slots=True)
class Cycle:
    """Of one message."""

    busbar_us: float
    server_us: float
    wal_bytes: float
    rate: float


@contextmanager
def database() -> Iterator[PostgresqlServer]:
    server = PostgresqlServer(template(), {"shared_buffers": "128MB", "max_wal_size": "2GB"})
    try:
        yield server.start()
    finally:
        server.remove()


def wal_position(server: PostgresqlServer) -> int:
    """The bytes of WAL that the server has written."""
    connection = DatabaseConnection(parse_address(server.url("any"), "any"))
    connection.open()
    try:
        return int(connection.fetch("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])
    finally:
        connection.drop()


async def load(server: Busbar, messages: int) -> None:
    """Send everything, then receive and complete everything."""
    connections = [await connect(server.port) for _ in range(2 * CLIENTS)]
    share = IN_FLIGHT // CLIENTS
    senders = [
        await one.sender("orders", in_flight=share, batch=BATCH, body=BODY) for one in connections[:CLIENTS]
    ]
    await asyncio.gather(*[sender.send(messages // CLIENTS) for sender in senders])
    receivers = [await one.receiver("orders", credit=share) for one in connections[CLIENTS:]]
    while sum(receiver.confirmed for receiver in receivers) < messages:
        await asyncio.sleep(0.005)
    if any(sender.refused for sender in senders) or any(receiver.denied for receiver in receivers):
        raise SystemExit("operations failed")
    for connection in connections:
        await connection.close()


def measure_cycle(brokers: int, messages: int) -> Cycle:
    with database() as server, tempfile.TemporaryDirectory(prefix="busbar-bench-") as directory:
        stores = [part for n in range(2) for part in ("--stores", server.url(f"store_{n}"))]
        busbar = Busbar(
            Path(directory) / "data",
            config_text({"orders": {"EnablePartitioning": True}}),
            arguments=("--brokers", str(brokers), *stores),
        ).start()
        try:
            uvloop.run(load(busbar, 4 * IN_FLIGHT))  # a warm-up
            processes = busbar.processes()
            wal, servers = wal_position(server), server_cpu(server.pid)
            cpu, began = sum(map(processor_time, processes)), time.monotonic()
            uvloop.run(load(busbar, messages))
            took = time.monotonic() - began
            spent = sum(map(processor_time, processes)) - cpu
            return Cycle(
                1e6 * spent / messages,
                1e6 * (server_cpu(server.pid) - servers) / messages,
                (wal_position(server) - wal) / messages,
                messages / took,
            )
        finally:
            busbar.stop()


def measure_store() -> float:
    """Messages a second of one store: each put in one commit and deleted in a later one."""
    with database() as server:
        store = PostgresqlStore(parse_address(server.url("alone"), "alone"))
        queue = Queue(store, GROUP, os.urandom(len(BODY)))
        for _ in range(5):
            queue.cycle()
        began = time.perf_counter()
        for _ in range(COMMITS):
            queue.cycle()
        took = time.perf_counter() - began
        store.release()
        store.close()
        return COMMITS * GROUP / took


def show_spread(what: str, values: list[float]) -> float:
    """Print a figure of all rounds, and return its median."""
    print(f"{what:<36}{median(values):>10,.1f}{min(values):>10,.1f}{max(values):>10,.1f}")
    return median(values)


def show(figures: Figures) -> None:
    print(f"a store: {figures.store_rate:,.0f} messages a second in groups of {GROUP:,}\n")
    print("| messages a second | nodes | stores | cores of servers | WAL a second | channels |")
    print("|---|---|---|---|---|---|")
    for rate in RATES:
        found = need(figures, rate)
        print(
            f"| {rate:,} | {found.nodes} | {found.stores} | {found.server_cores} | {found.wal_megabytes:,.0f} MB "
            f"| {found.channels:,} |"
        )
    print("\n| nodes | stores | messages a second |")
    print("|---|---|---|")
    for nodes, stores in CLUSTERS:
        print(f"| {nodes} | {stores} | {capacity(figures, nodes, stores):,} |")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--messages", type=int, default=10_000, help="in each cycle")
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    if not rooms_are_compiled():
        print("the compiled rooms are not built: the interpreted ones are measured")
    try:
        rounds = [
            (measure_cycle(1, given.messages), measure_cycle(2, given.messages)) for _ in range(given.rounds)
        ]
        with ThreadPoolExecutor(1) as thread:
            store_rate = thread.submit(measure_store).result()
    finally:
        remove_shared()
    alone, two = [one for one, _ in rounds], [two for _, two in rounds]
    # Of two brokers with a store each, half of the messages come to the one that does not have their fragment.
    hops = [max(0.0, 2 * (second.busbar_us - first.busbar_us)) for first, second in rounds]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'':36}{'median':>10}{'least':>10}{'most':>10}")
    show_spread("messages a second, one process", [one.rate for one in alone])
    show_spread("messages a second, two brokers", [one.rate for one in two])
    node = show_spread("CPU-µs of a node", [one.busbar_us for one in alone])
    hop = show_spread("CPU-µs more of a message that crosses", hops)
    server = show_spread("CPU-µs of the database server", [one.server_us for one in alone])
    wal = show_spread("bytes of WAL", [one.wal_bytes for one in alone])
    show(Figures(node, hop, server, wal, store_rate))
    for what, cost in (("least", min(hops)), ("most", max(hops))):
        nodes = need(Figures(node, cost, server, wal, store_rate), RATES[-1]).nodes
        print(f"with the {what} that a crossing cost in a round, {RATES[-1]:,} a second take {nodes} nodes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
