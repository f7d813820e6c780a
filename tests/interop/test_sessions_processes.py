"""Message sessions over several processes, and the samples as a user runs them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.amqp_driver import connect, session_payload
from harness.serving import Busbar
from tests.interop.session_queues import QUEUES, SessionQueues

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).resolve().parents[2]
SESSIONS, MESSAGES = 6, 4


@pytest.mark.req("S10", "S1")
def test_sessions_are_shared_out_among_processes(session_broker: Busbar, session_pool: SessionQueues) -> None:
    """Interleaved streams, two workers in two processes: each session whole, in order, by one at a time. On a regular and a
    partitioned queue at the same time."""
    queues = [session_pool.take(place) for place in QUEUES]

    async def send(queue: str) -> None:
        connection = await connect(session_broker.port)
        payload = session_payload(lambda n: f"s{n % SESSIONS}", b"")
        sender = await connection.sender(queue, lambda n: payload(n) + text_section(n // SESSIONS))
        await sender.send(SESSIONS * MESSAGES)
        assert not sender.refused
        await connection.close()

    for queue in queues:
        asyncio.run(send(queue))
    workers = [(queue, start_worker(session_broker, queue)) for queue in queues for _ in range(2)]
    seen: dict[str, dict[str, list[str]]] = {queue: {} for queue in queues}
    for queue, worker in workers:
        output, errors = worker.communicate(timeout=50)
        assert worker.returncode == 0, errors
        lines = [json.loads(line) for line in output.splitlines()]
        assert lines, "all had something to do"
        for session, texts in lines:
            seen[queue].setdefault(session, []).extend(texts)
    whole = {f"s{n}": [str(m) for m in range(MESSAGES)] for n in range(SESSIONS)}
    assert seen == dict.fromkeys(queues, whole)


def start_worker(server: Busbar, queue: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.interop.session_worker", server.connection_string, queue],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def text_section(number: int) -> bytes:
    """A data section after the empty one: the SDK shows them as one body."""
    text = str(number).encode()
    return b"\x00\x53\x75\xa0" + bytes([len(text)]) + text


SAMPLES = ("workflow", "request_response")


@pytest.fixture(scope="module")
def sample_lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the samples print against a server as `make run` starts it. They run at the same time, to save some."""
    config = (ROOT / "src" / "busbar" / "app" / "sample" / "Config.json").read_text("utf-8")
    server = Busbar(tmp_path_factory.mktemp("sample") / "data", config).start()
    try:
        running = {
            name: subprocess.Popen(
                [sys.executable, str(ROOT / "samples" / "sessions" / f"{name}.py"), server.connection_string],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for name in SAMPLES
        }
        said = {name: process.communicate(timeout=50)[0] for name, process in running.items()}
        for name, process in running.items():
            assert process.returncode == 0, said[name]
    finally:
        server.stop()
    return {name: text.splitlines() for name, text in said.items()}


@pytest.mark.req("S1", "S12")
def test_the_workflow_survives_its_worker(sample_lines: dict[str, list[str]]) -> None:
    lines = sample_lines["workflow"]
    steps = [line.strip() for line in lines if ":" in line and "worker" not in line]
    for order in ("order-1", "order-2", "order-3"):
        done = [line for line in steps if line.startswith(order) and "before" not in line]
        assert done == [f"{order}: {step}" for step in ("reserve", "charge", "ship")], lines
        assert f"  {order} is finished" in lines
    assert "  the worker crashes" in lines
    assert sum("was done before" in line for line in lines) == 1, "the step that was not completed came again"


@pytest.mark.req("S14")
def test_requests_and_responses(sample_lines: dict[str, list[str]]) -> None:
    assert sorted(sample_lines["request_response"]) == [
        f"requester-{who}: {number}+11 is {number + 11}" for who in (1, 2) for number in range(3)
    ]
