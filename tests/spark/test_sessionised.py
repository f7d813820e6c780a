"""samples/spark/sessions.py as a user runs it: killed in the middle, started again, every step once and in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from busbar.client import OutgoingMessage, encode
from tests.spark.conftest import QUICK_JAVA, SOURCES, Namespace

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "spark" / "sessions.py"
SESSIONS = [f"order {number}" for number in range(8)]

pytestmark = pytest.mark.server({"workflows": {"RequiresSession": True, "EnablePartitioning": True}})


def send(namespace: Namespace, steps: list[str]) -> None:
    """The steps of all sessions, interleaved."""
    messages = [
        encode(OutgoingMessage(body=step.encode(), message_id=f"{session} {step}", session_id=session))
        for step in steps
        for session in SESSIONS
    ]
    with namespace.factory.sender("workflows") as sender:
        sender.send(messages)


def start(namespace: Namespace, output: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SAMPLE), "workflows", str(output), "--batch", "60", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # it is killed with all that it has started
        env=os.environ
        | {
            "BUSBAR_CONNECTION_STRING": namespace.server.connection_string,
            "PYTHONPATH": str(SOURCES),
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        },
    )


@pytest.mark.req("D5")
@pytest.mark.timeout(400)  # two Sparks are started, on a machine that may be busy
def test_sessions_are_followed_in_order_through_a_crash(namespace: Namespace, tmp_path: Path) -> None:
    first = [f"step {number}" for number in range(20)]
    send(namespace, first)
    output = tmp_path / "output"
    doomed = start(namespace, output)
    assert doomed.stdout is not None
    for line in doomed.stdout:
        if line.startswith("batch 1 "):  # written, not committed yet: it will be repeated
            break
    os.killpg(doomed.pid, signal.SIGKILL)
    doomed.wait()
    doomed.stdout.close()
    send(namespace, ["ship", "afterthought"])

    resumed = start(namespace, output, "--available-now")
    try:
        printed, _ = resumed.communicate(timeout=200)
    except subprocess.TimeoutExpired:
        os.killpg(resumed.pid, signal.SIGKILL)
        raise
    assert resumed.returncode == 0
    assert "batch 0 " not in printed, "it did not go on where it was"

    rows = ds.dataset(output / "steps", partitioning="hive").to_table().to_pylist()
    by_session: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["session_id"], row["number"])):
        by_session[row["session_id"]].append(row)
    assert sorted(by_session) == SESSIONS
    expected = [*first, "ship", "afterthought"]
    for of_session in by_session.values():
        assert [row["step"] for row in of_session] == expected
        assert [row["number"] for row in of_session] == list(range(1, len(expected) + 1))
        assert [row["previous"] for row in of_session] == [None, *expected[:-1]]
        numbers = [row["sequence_number"] for row in of_session]
        assert numbers == sorted(set(numbers))
        assert of_session[-1]["remark"] == "after the last step"
        assert not any(row["remark"] for row in of_session[:-1])
