"""The recipes of docs/spark-recipes.md, killed between result and settlement, and started again: no message is lost, and
none counts twice.

test_pages.py runs the page as it stands. Here one program runs all recipes (recipes_program.py), so that Java is started
twice and not six times.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from busbar.client.blocking_administration import BlockingAdministrationClient
from tests.spark.conftest import QUICK_JAVA, SOURCES, Namespace
from tests.spark.letters import take
from tests.spark.page_program import blocks_of

ROOT = SOURCES.parent
LOCK_SECONDS = 5
TOTALS = "SELECT country, amount FROM totals ORDER BY country"
REFUNDS = "SELECT count(*), sum(amount) FROM refunds"

pytestmark = [
    pytest.mark.timeout(400),  # two Sparks are started, on a machine that may be busy
    pytest.mark.server(
        {
            "takings": {"EnablePartitioning": True},
            "deliveries": {"RequiresSession": True},
            "delivered": {},
            # The others may take longer than ten locks.
            "refunds": {"LockDuration": f"PT{LOCK_SECONDS}S", "MaxDeliveryCount": 1000},
        }
    ),
]


def start(namespace: Namespace, place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.recipes_program", *arguments],
        cwd=place,
        env=os.environ
        | {
            "BUSBAR_CONNECTION_STRING": namespace.server.connection_string,
            "PYTHONPATH": f"{SOURCES}:{ROOT}",
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # it is killed with all that it has started
    )


def kill_between_result_and_settlement(namespace: Namespace, place: Path) -> None:
    doomed = start(namespace, place, "--stop")
    assert doomed.stdout is not None
    there: set[str] = set()
    try:
        while len(there) < 3:
            line = doomed.stdout.readline()
            assert line, f"only {there}"
            there |= {line.strip()} if line.startswith("result of ") else set()
    finally:
        os.killpg(doomed.pid, signal.SIGKILL)
        doomed.communicate()
    assert there == {f"result of {name}" for name in ("add", "send", "complete")}


def run_to_the_end(namespace: Namespace, place: Path) -> None:
    resumed = start(namespace, place)
    try:
        printed, _ = resumed.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(resumed.pid, signal.SIGKILL)
        raise
    assert resumed.returncode == 0, printed


def waiting(namespace: Namespace) -> dict[str, int]:
    """How many messages the queues of the recipes have, locked ones among them."""
    with BlockingAdministrationClient.from_connection_string(namespace.server.connection_string) as client:
        return {
            queue: client.get_queue_runtime_properties(queue).active_message_count
            for queue in ("takings", "deliveries", "delivered", "refunds")
        }


def rows_of(database: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


@pytest.mark.req("D1", "D2", "D5")
def test_what_is_killed_before_it_settles_loses_nothing_and_counts_nothing_twice(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUSBAR_CONNECTION_STRING", namespace.server.connection_string)
    for block in blocks_of(ROOT / "docs" / "spark-recipes.md"):
        if block.name:
            (tmp_path / block.name).write_text(block.text)
    sending = compile((tmp_path / "send_messages.py").read_text(), "send_messages.py", "exec")
    exec(sending, {})
    kill_between_result_and_settlement(namespace, tmp_path)

    # The results are there, of the refunds those of the first call, and no message is settled.
    assert rows_of(tmp_path / "takings.db", TOTALS) == [("DE", 4950), ("FR", 4950)]
    ((count, total),) = rows_of(tmp_path / "refunds.db", REFUNDS)
    assert isinstance(count, int) and 0 < count <= 50 and total == sum(range(count))
    assert waiting(namespace) == {"takings": 200, "deliveries": 60, "delivered": 20, "refunds": 51}

    exec(sending, {})  # more, behind the batches that were killed
    run_to_the_end(namespace, tmp_path)
    assert rows_of(tmp_path / "takings.db", TOTALS) == [("DE", 9900), ("FR", 9900)]
    assert rows_of(tmp_path / "refunds.db", REFUNDS) == [(100, 2450)]
    assert waiting(namespace) == {"takings": 0, "deliveries": 0, "delivered": 40, "refunds": 0}
    bad = take(namespace, "refunds", 2, "deadletter")
    assert [message.body for message in bad] == [b"not a refund"] * 2
    delivered = [(message.session_id, message.body.decode()) for message in take(namespace, "delivered", 40)]
    once = "reserve charge ship"
    assert sorted(delivered) == sorted(
        (f"order-{number}", steps) for number in range(20) for steps in (once, f"{once} {once}")
    )
