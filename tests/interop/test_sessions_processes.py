"""Message sessions over several processes, and the samples as a user runs them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.load import connect, session_payload
from tests.serving import Busbar

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).resolve().parents[2]
SESSIONS, MESSAGES = 6, 4


@pytest.mark.req("S10", "S1")
def test_sessions_are_shared_out_among_processes(session_broker: Busbar, session_queue: str) -> None:
    """Interleaved streams, two workers in two processes: each session whole, in order, by one at a time."""

    async def send() -> None:
        connection = await connect(session_broker.port)
        payload = session_payload(lambda n: f"s{n % SESSIONS}", b"")
        sender = await connection.sender(session_queue, lambda n: payload(n) + text_section(n // SESSIONS))
        await sender.send(SESSIONS * MESSAGES)
        assert not sender.refused
        await connection.close()

    asyncio.run(send())
    command = [
        sys.executable,
        "-m",
        "tests.interop.session_worker",
        session_broker.connection_string,
        session_queue,
    ]
    workers = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    seen: dict[str, list[str]] = {}
    shares = []
    for worker in workers:
        output, errors = worker.communicate(timeout=50)
        assert worker.returncode == 0, errors
        lines = [json.loads(line) for line in output.splitlines()]
        shares.append(len(lines))
        for session, texts in lines:
            seen.setdefault(session, []).extend(texts)
    assert seen == {f"s{n}": [str(m) for m in range(MESSAGES)] for n in range(SESSIONS)}
    assert all(shares), "both had something to do"


def text_section(number: int) -> bytes:
    """A data section after the empty one: the SDK shows them as one body."""
    text = str(number).encode()
    return b"\x00\x53\x75\xa0" + bytes([len(text)]) + text


def run_sample(name: str, connection: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "samples" / "sessions" / name), connection],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def sample_server(tmp_path_factory: pytest.TempPathFactory) -> Busbar:
    """As `make run` starts it."""
    config = (ROOT / "src" / "busbar" / "app" / "sample" / "Config.json").read_text("utf-8")
    server = Busbar(tmp_path_factory.mktemp("sample") / "data", config)
    return server


@pytest.mark.req("S18", "S1", "S12")
def test_the_workflow_survives_its_worker(sample_server: Busbar) -> None:
    sample_server.start()
    try:
        lines = run_sample("workflow.py", sample_server.connection_string)
    finally:
        sample_server.stop()
    steps = [line.strip() for line in lines if ":" in line and "worker" not in line]
    for order in ("order-1", "order-2", "order-3"):
        done = [line for line in steps if line.startswith(order) and "before" not in line]
        assert done == [f"{order}: {step}" for step in ("reserve", "charge", "ship")], lines
        assert f"  {order} is finished" in lines
    assert "  the worker crashes" in lines
    assert sum("was done before" in line for line in lines) == 1, "the step that was not completed came again"


@pytest.mark.req("S18", "S14")
def test_requests_and_responses(sample_server: Busbar) -> None:
    sample_server.start()
    try:
        lines = run_sample("request_response.py", sample_server.connection_string)
    finally:
        sample_server.stop()
    assert sorted(lines) == [
        f"requester-{who}: {number}+11 is {number + 11}" for who in (1, 2) for number in range(3)
    ]
