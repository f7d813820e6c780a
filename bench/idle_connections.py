"""What an idle connection costs: 2,000 of them (plain TCP, $cbs done, one receiving link), in KB of the server's memory."""

from __future__ import annotations

import asyncio
import resource
import sys
import time

import uvloop

from harness.amqp_driver import LoadConnection, connect
from harness.measured import MeasuredServer, measured_server

CONNECTIONS = 2_000
BUDGET_KB = 60.0


async def idle_connection(port: int) -> LoadConnection:
    connection = await connect(port, token_for="q")
    await connection.receiver("q", credit=10)
    return connection


async def measure(server: MeasuredServer) -> float:
    port = server.busbar.port
    warm = [await idle_connection(port) for _ in range(50)]
    await asyncio.sleep(0.2)
    before = server.busbar.resident_bytes()
    began = time.monotonic()
    connections: list[LoadConnection] = []
    while len(connections) < CONNECTIONS:
        connections += await asyncio.gather(*(idle_connection(port) for _ in range(50)))
    seconds = time.monotonic() - began
    await asyncio.sleep(0.5)
    still_open = server.descriptors()
    if still_open < CONNECTIONS or any(connection.lost.done() for connection in connections):
        raise SystemExit(f"the server has only {still_open} descriptors open: connections were dropped")
    each = (server.busbar.resident_bytes() - before) / 1024 / CONNECTIONS
    idle = server.cpu_seconds()
    await asyncio.sleep(2)
    busy = (server.cpu_seconds() - idle) / 2
    print(
        f"{CONNECTIONS:,} connections made in {seconds:.1f} s: {each:.1f} KB each, {100 * busy:.1f} % of a core while idle"
    )
    for connection in (*warm, *connections):
        connection.abort()
    await asyncio.sleep(0.2)
    return each


def main() -> int:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the server inherits it
    with measured_server({"q": {}}) as server:
        each = uvloop.run(measure(server))
    if each > BUDGET_KB:
        print(f"over the budget: {BUDGET_KB:.0f} KB or less")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
