"""The recipes of docs/spark-recipes.md and samples/spark/sessions.py, killed between result and settlement, and started
again: no message is lost, and none counts twice.

test_pages.py runs the page as it stands, and the sample without arguments. Here one program runs all of them
(recipes_program.py), so that Java is started twice and not eight times.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from busbar.client import OutgoingMessage, encode
from busbar.client.blocking_administration import BlockingAdministrationClient
from tests.spark.conftest import QUICK_JAVA, SOURCES, Namespace
from tests.spark.letters import take
from tests.spark.page_program import blocks_of
from tests.spark.recipes_program import OUTPUT

ROOT = SOURCES.parent
LOCK_SECONDS = 5
SESSIONS = [f"order {number}" for number in range(8)]
FIRST = [f"step {number}" for number in range(20)]
LAST = ["ship", "afterthought"]
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
            "workflows": {"RequiresSession": True, "EnablePartitioning": True},
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
        while len(there) < 4:
            line = doomed.stdout.readline()
            assert line, f"only {there}"
            there |= {line.strip()} if line.startswith("result of ") else set()
    finally:
        os.killpg(doomed.pid, signal.SIGKILL)
        doomed.communicate()
    assert there == {f"result of {name}" for name in ("add", "send", "complete", "write")}


def run_to_the_end(namespace: Namespace, place: Path) -> str:
    resumed = start(namespace, place)
    try:
        printed, _ = resumed.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(resumed.pid, signal.SIGKILL)
        raise
    assert resumed.returncode == 0, printed
    return printed


def send_steps(namespace: Namespace, steps: list[str]) -> None:
    """The steps of all sessions, interleaved."""
    messages = [
        encode(OutgoingMessage(body=step.encode(), message_id=f"{session} {step}", session_id=session))
        for step in steps
        for session in SESSIONS
    ]
    with namespace.factory.sender("workflows") as sender:
        sender.send(messages)


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
    send_steps(namespace, FIRST)
    kill_between_result_and_settlement(namespace, tmp_path)

    # All results are there, and no message is settled.
    assert rows_of(tmp_path / "takings.db", TOTALS) == [("DE", 4950), ("FR", 4950)]
    assert rows_of(tmp_path / "refunds.db", REFUNDS) == [(50, 1225)]
    assert waiting(namespace) == {"takings": 200, "deliveries": 60, "delivered": 20, "refunds": 51}

    exec(sending, {})  # more, behind the batches that were killed
    send_steps(namespace, LAST)
    printed = run_to_the_end(namespace, tmp_path)
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
    assert "batch 1 is written" in printed and "batch 0 " not in printed, "it did not go on where it was"
    check_sessions(tmp_path / OUTPUT)


def check_sessions(output: Path) -> None:
    """Every step of the sample's sessions is there once, in order, with the state of its session."""
    rows = ds.dataset(output / "steps", partitioning="hive").to_table().to_pylist()
    by_session: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["session_id"], row["number"])):
        by_session[row["session_id"]].append(row)
    assert sorted(by_session) == SESSIONS
    expected = [*FIRST, *LAST]
    for of_session in by_session.values():
        assert [row["step"] for row in of_session] == expected
        assert [row["number"] for row in of_session] == list(range(1, len(expected) + 1))
        assert [row["previous"] for row in of_session] == [None, *expected[:-1]]
        numbers = [row["sequence_number"] for row in of_session]
        assert numbers == sorted(set(numbers))
        assert of_session[-1]["remark"] == "after the last step"
        assert not any(row["remark"] for row in of_session[:-1])
