"""What the fence and the journal cost a commit in PostgreSQL, and what a synchronous standby does.

    python -m bench.postgresql_parts [--seconds 40] [--directory DIR]

Rounds of two stores alternate on the same disk, and the medians of all rounds are compared. All are ratios:

    fence and journal    CPU time of node and server, to that of a statement without both, for 100 messages in a commit
    standby              messages a second with a synchronous standby on this machine, to those without, for 1,000

A store without fence and journal can be used for nothing else: another owner could write too, and no outcome could be found
out. On one machine, the standby takes processor time from the server. The exit code is 1 if a ratio is over its budget.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from bench.postgresql import Measured, run_round, server_cpu
from bench.store_commit import Queue
from busbar.store.postgresql import group_statement
from busbar.store.postgresql.address import parse_address
from busbar.store.postgresql.store import PostgresqlStore
from harness.postgresql import PostgresqlServer, remove_shared, template

SIZE = 1024
ROUNDS = 7
COST_BUDGET = 1.05
STANDBY_BUDGET = 0.7
BARE = (
    "WITH fence AS MATERIALIZED (SELECT 1 WHERE $1::bigint IS NOT NULL),"
    " log AS (SELECT $2::bigint, $3::boolean, $4::bytea)"
)


@cache
def without_head(statement: str) -> str:
    assert group_statement._HEAD in statement
    return statement.replace(group_statement._HEAD, BARE)


class BareStore(PostgresqlStore):
    """A store whose commits have neither fence nor journal."""

    def claim(self) -> int:
        epoch = super().claim()
        fetch = self._connection.fetch_value

        def fetch_value(statement: str, values: Sequence[object], size: int = 0) -> Any:
            return fetch(without_head(statement), values, size)

        self._connection.fetch_value = fetch_value  # type: ignore[method-assign]
        return epoch


def alternate(queues: Sequence[Queue], servers: Sequence[PostgresqlServer], seconds: float) -> list[Measured]:
    """Measure the stores in turn, each with the processor time of its server."""
    measured = [Measured() for _ in queues]
    for queue in queues:
        for _ in range(10):
            queue.cycle()
    for _ in range(ROUNDS):
        for queue, into, server in zip(queues, measured, servers, strict=True):
            pid = server.pid
            run_round(queue, into, seconds / (len(queues) * ROUNDS), lambda pid=pid: server_cpu(pid))  # type: ignore[misc]
    for queue in queues:
        queue.store.close()
    return measured


def fence_and_journal(server: PostgresqlServer, seconds: float) -> bool:
    body = os.urandom(SIZE)
    whole = Queue(PostgresqlStore(parse_address(server.url("whole"), "bench")), 100, body)
    bare = Queue(BareStore(parse_address(server.url("bare"), "bench")), 100, body)
    with_both, without = alternate([whole, bare], [server, server], seconds)
    ratio = with_both.median("node + server") / without.median("node + server")
    print(f"fence and journal: {ratio:.2f} × (budget {COST_BUDGET})", flush=True)
    return ratio <= COST_BUDGET


def standby(server: PostgresqlServer, other: PostgresqlServer, seconds: float) -> bool:
    """Two servers, of which `server` gets a synchronous standby."""
    body = os.urandom(SIZE)
    second = server.standby("second")
    try:
        second.start()
        store = PostgresqlStore(parse_address(server.url("followed"), "bench"))
        queue = Queue(store, 1_000, body)
        store._connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'second'")
        store._connection.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 20
        ready = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        while not store._connection.fetch(ready)[0][0]:
            if time.monotonic() > deadline:
                raise SystemExit("the standby does not follow")
            time.sleep(0.05)
        alone = Queue(PostgresqlStore(parse_address(other.url("alone"), "bench")), 1_000, body)
        followed, single = alternate([queue, alone], [server, other], seconds)
        ratio = single.median("throughput") / followed.median("throughput")  # of times: the inverse of rates
        print(
            f"synchronous standby: {ratio:.2f} × the messages a second (at least {STANDBY_BUDGET})",
            flush=True,
        )
        return ratio >= STANDBY_BUDGET
    finally:
        second.remove()


def measure(seconds: float, directory: Path | None) -> bool:
    """Whether all ratios are within their budgets."""
    settings = {"shared_buffers": "128MB", "max_wal_size": "2GB"}
    with tempfile.TemporaryDirectory(dir=directory) as name:
        os.chmod(name, 0o755)
        servers = [PostgresqlServer(template(), settings, Path(name)) for _ in range(2)]
        try:
            for server in servers:
                server.start()
            fits = fence_and_journal(servers[0], seconds / 2)
            return standby(servers[0], servers[1], seconds / 2) and fits
        finally:
            for server in servers:
                server.remove()
            remove_shared()


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--seconds", type=float, default=40.0, help="about how long the whole run takes")
    arguments.add_argument("--directory", type=Path, default=None, help="where to write (a real disk)")
    given = arguments.parse_args()
    with ThreadPoolExecutor(1) as thread:
        return 0 if thread.submit(measure, given.seconds, given.directory).result() else 1


if __name__ == "__main__":
    sys.exit(main())
