"""The recipes of docs/spark-recipes.md and samples/spark/sessions.py, killed between result and settlement, and started
again: no message is lost, and none counts twice. Sessions are followed in order.

test_pages.py runs the page as it stands. Here one program runs all of them (recipes_program.py), so that Java is started
twice and not eight times.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from busbar.client import OutgoingMessage, encode
from busbar.client.blocking import connect
from busbar.client.blocking_administration import BlockingAdministrationClient
from harness.page_blocks import blocks_of
from harness.serving import Busbar
from tests.spark.conftest import PATIENCE, QUICK_JAVA, SOURCES, Namespace
from tests.spark.letters import take

ROOT = SOURCES.parent
LOCK_SECONDS = 20
"""A batch of refunds must not take longer, on a machine that is busy."""
TOTALS = "SELECT country, amount FROM totals ORDER BY country"
REFUNDS = "SELECT count(*), sum(amount) FROM refunds"
SESSIONS = [f"order {number}" for number in range(8)]
FIRST_STEPS = [f"step {number}" for number in range(20)]
LAST_STEPS = ["ship", "afterthought"]

pytestmark = [
    pytest.mark.timeout(900),  # two Sparks are started, on a machine that may be busy
    pytest.mark.server(
        {
            "takings": {"EnablePartitioning": True},
            "deliveries": {"RequiresSession": True},
            "delivered": {},
            "refunds": {"LockDuration": f"PT{LOCK_SECONDS}S"},
            "workflows": {"RequiresSession": True, "EnablePartitioning": True},
        }
    ),
]


@dataclass(frozen=True)
class Recovered:
    """What there was when the program was killed, and what it printed when it was started again."""

    place: Path
    totals: list[tuple[object, ...]]
    refunds: list[tuple[object, ...]]
    waiting: dict[str, int]
    printed: str


@pytest.fixture(scope="module")
def recovered(server: Busbar, tmp_path_factory: pytest.TempPathFactory) -> Recovered:
    place = tmp_path_factory.mktemp("recipes")
    for block in blocks_of(ROOT / "docs" / "spark-recipes.md", ("sh", "python")):
        if block.name:
            (place / block.name).write_text(block.text)
    send_messages(server, place)
    send_steps(server, FIRST_STEPS)
    kill_between_result_and_settlement(server, place)
    expired = time.time() + LOCK_SECONDS
    totals, refunds = rows_of(place / "takings.db", TOTALS), rows_of(place / "refunds.db", REFUNDS)
    left = waiting(server)
    send_messages(server, place)  # more, behind the batches that were killed
    send_steps(server, LAST_STEPS)
    return Recovered(place, totals, refunds, left, run_to_the_end(server, place, expired))


def environment(server: Busbar) -> dict[str, str]:
    return os.environ | {
        "BUSBAR_CONNECTION_STRING": server.connection_string,
        "PYTHONPATH": f"{SOURCES}:{ROOT}",
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    }


def send_messages(server: Busbar, place: Path) -> None:
    """As the page shows it."""
    subprocess.run([sys.executable, "send_messages.py"], cwd=place, env=environment(server), check=True)


def send_steps(server: Busbar, steps: list[str]) -> None:
    """The steps of all sessions, interleaved."""
    messages = [
        encode(OutgoingMessage(body=step.encode(), message_id=f"{session} {step}", session_id=session))
        for step in steps
        for session in SESSIONS
    ]
    with connect(server.connection_string) as factory, factory.sender("workflows") as sender:
        sender.send(messages)


def start(server: Busbar, place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.recipes_program", *arguments],
        cwd=place,
        env=environment(server),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # it is killed with all that it has started
    )


def kill_between_result_and_settlement(server: Busbar, place: Path) -> None:
    doomed = start(server, place, "--stop")
    assert doomed.stdout is not None
    there: list[str] = []
    try:
        while len(there) < 4:
            line = doomed.stdout.readline()
            assert line, f"only {there}"
            there += [line.strip()] if line.startswith("result of ") else []
    finally:
        os.killpg(doomed.pid, signal.SIGKILL)
        doomed.communicate()
    assert there == [f"result of {name}" for name in ("write", "add", "send", "complete")]


def run_to_the_end(server: Busbar, place: Path, expired: float) -> str:
    resumed = start(server, place, str(expired))
    try:
        printed, _ = resumed.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(resumed.pid, signal.SIGKILL)
        raise
    assert resumed.returncode == 0, printed
    return printed


def waiting(server: Busbar) -> dict[str, int]:
    """How many messages the queues of the recipes have, locked ones among them."""
    with BlockingAdministrationClient.from_connection_string(server.connection_string) as client:
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
    namespace: Namespace, recovered: Recovered
) -> None:
    # The results are there, of the refunds those of the first call, and no message is settled.
    assert recovered.totals == [("DE", 4950), ("FR", 4950)]
    ((count, total),) = recovered.refunds
    assert isinstance(count, int) and 0 < count <= 50 and total == sum(range(count))
    assert recovered.waiting == {"takings": 200, "deliveries": 60, "delivered": 20, "refunds": 51}

    assert rows_of(recovered.place / "takings.db", TOTALS) == [("DE", 9900), ("FR", 9900)]
    assert rows_of(recovered.place / "refunds.db", REFUNDS) == [(100, 2450)]
    assert waiting(namespace.server) == {"takings": 0, "deliveries": 0, "delivered": 40, "refunds": 0}
    bad = take(namespace, "refunds", 2, "deadletter")
    assert [message.body for message in bad] == [b"not a refund"] * 2
    delivered = [(message.session_id, message.body.decode()) for message in take(namespace, "delivered", 40)]
    once = "reserve charge ship"
    assert sorted(delivered) == sorted(
        (f"order-{number}", steps) for number in range(20) for steps in (once, f"{once} {once}")
    )


@pytest.mark.req("D5")
def test_sessions_are_followed_in_order_through_a_crash(recovered: Recovered) -> None:
    """The second batch was written and not committed when the sample was killed: it is repeated."""
    batches = [line for line in recovered.printed.splitlines() if line.startswith("batch ")]
    assert batches and "batch 0 " not in recovered.printed, "it did not go on where it was"

    rows = ds.dataset(recovered.place / "output" / "steps", partitioning="hive").to_table().to_pylist()
    by_session: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["session_id"], row["number"])):
        by_session[row["session_id"]].append(row)
    assert sorted(by_session) == SESSIONS
    expected = [*FIRST_STEPS, *LAST_STEPS]
    for of_session in by_session.values():
        assert [row["step"] for row in of_session] == expected
        assert [row["number"] for row in of_session] == list(range(1, len(expected) + 1))
        assert [row["previous"] for row in of_session] == [None, *expected[:-1]]
        numbers = [row["sequence_number"] for row in of_session]
        assert numbers == sorted(set(numbers))
        assert of_session[-1]["remark"] == "after the last step"
        assert not any(row["remark"] for row in of_session[:-1])
