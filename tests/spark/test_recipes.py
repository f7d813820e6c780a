"""The recipes of docs/spark-recipes.md, killed between result and settlement: no message is lost, and none counts twice.

test_pages.py runs the page as it stands. Here the same programs are killed, and started again in the session of the tests.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from busbar.client.blocking_administration import BlockingAdministrationClient
from tests.spark.conftest import QUICK_JAVA, SOURCES, Namespace
from tests.spark.letters import take
from tests.spark.page_program import blocks_of

ROOT = SOURCES.parent
RECIPES = ("takings.py", "deliveries.py", "refunds.py")
LOCK_SECONDS = 5
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"

pytestmark = [
    pytest.mark.timeout(400),
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


def execute(path: Path) -> None:
    exec(compile(path.read_text(), path.name, "exec"), {"__name__": "__main__"})


def killed_between_result_and_settlement(namespace: Namespace, place: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.killed_recipes", *RECIPES],
        cwd=place,
        env=os.environ
        | {
            "BUSBAR_CONNECTION_STRING": namespace.server.connection_string,
            "PYTHONPATH": f"{SOURCES}:{ROOT}",
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    there: set[str] = set()
    try:
        while len(there) < len(RECIPES):
            line = process.stdout.readline()
            assert line, f"only {there}"
            there.add(line.strip())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert there == {"result of add", "result of send", "result of complete"}


def waiting(namespace: Namespace) -> dict[str, int]:
    """How many messages each queue has, locked ones among them."""
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
def test_a_recipe_that_is_killed_loses_nothing_and_counts_nothing_twice(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUSBAR_CONNECTION_STRING", namespace.server.connection_string)
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(ROOT / "docs" / "spark-recipes.md"):
        if block.name:
            (tmp_path / block.name).write_text(block.text)
    sending = tmp_path / "send_messages.py"
    execute(sending)
    killed_between_result_and_settlement(namespace, tmp_path)
    killed = time.monotonic()

    # All results are there, and no message is settled.
    totals = "SELECT country, amount FROM totals ORDER BY country"
    assert rows_of(tmp_path / "takings.db", totals) == [("DE", 4950), ("FR", 4950)]
    assert rows_of(tmp_path / "refunds.db", "SELECT count(*), sum(amount) FROM refunds") == [(50, 1225)]
    assert waiting(namespace) == {"takings": 200, "deliveries": 60, "delivered": 20, "refunds": 51}

    execute(sending)  # the next ones, behind those of the killed batches
    spark = namespace.spark
    try:
        for name in ("takings.py", "deliveries.py"):
            execute(tmp_path / name)
    finally:
        spark.conf.unset(STATE_STORE)
    time.sleep(max(0.0, killed + LOCK_SECONDS + 1 - time.monotonic()))
    execute(tmp_path / "refunds.py")

    assert rows_of(tmp_path / "takings.db", totals) == [("DE", 9900), ("FR", 9900)]
    assert rows_of(tmp_path / "refunds.db", "SELECT count(*), sum(amount) FROM refunds") == [(100, 2450)]
    assert waiting(namespace) == {"takings": 0, "deliveries": 0, "delivered": 40, "refunds": 0}
    bad = take(namespace, "refunds", 2, "deadletter")
    assert [message.body for message in bad] == [b"not a refund"] * 2
    steps = [(message.session_id, message.body.decode()) for message in take(namespace, "delivered", 40)]
    once, twice = "reserve charge ship", "reserve charge ship reserve charge ship"
    assert sorted(steps) == sorted((f"order-{n}", text) for n in range(20) for text in (once, twice))
