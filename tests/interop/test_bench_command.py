"""`busbar bench` at a real broker: it measures, compares, advises from what it measured, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from busbar.client import BlockingAdministrationClient
from busbar.client.advice import Load, Scenario
from busbar.client.presets import preset
from busbar.jobs import bench
from busbar.jobs.bench import compare
from busbar.jobs.bench_run import BenchTarget
from harness.serving import Busbar

pytestmark = pytest.mark.server({"yours": {}})


def busbar(server: Busbar, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "busbar", "bench", *arguments]
    environment = os.environ | {"BUSBAR_CONNECTION_STRING": server.connection_string}
    return subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def names(server: Busbar) -> set[str]:
    with BlockingAdministrationClient.from_connection_string(server.connection_string) as admin:
        queues = {queue.name for queue in admin.list_queues()}
        return queues | {topic.name for topic in admin.list_topics()}


@pytest.mark.req("B14")
def test_advice_from_what_was_measured(server: Busbar, tmp_path: Path) -> None:
    result = busbar(
        server, "--scenario", "high-throughput", "--naive", "--duration", "2s", "-o", "json", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    (measured,) = json.loads(result.stdout)
    (run,) = measured["runs"]
    rate = run["receivedPerSecond"]
    assert rate > 0 and run["latencyMs"]["p50"] <= run["latencyMs"]["p99"] <= run["latencyMs"]["most"]
    assert len(run["slots"]) == 20 and any(slot["p99"] for slot in run["slots"])
    changes = {change["name"]: change for change in measured["advice"]["changes"]}
    advised = int(changes["prefetch"]["value"])
    assert advised == pytest.approx(min(5_000, 20 * rate), rel=0.01), "20 × the rate of all receivers"
    assert changes["prefetch"]["now"] == "0" and "in this run" in changes["prefetch"]["why"]
    assert changes["operations"]["now"] == "one at a time"
    assert "namespace: sb://" in result.stderr and "naive settings …" in result.stderr
    assert list(tmp_path.iterdir()) == [], "no page was asked for"
    assert names(server) == {"yours"}


@pytest.mark.req("B14")
@pytest.mark.parametrize(
    ("arguments", "prefetch", "batching"),
    [
        (("--scenario", "many-receivers"), "10", "20 ms"),
        (("--scenario", "low-latency", "--receivers", "3"), "0", "off"),
    ],
)
def test_small_and_no_prefetching(
    server: Busbar, tmp_path: Path, arguments: tuple[str, ...], prefetch: str, batching: str
) -> None:
    result = busbar(server, *arguments, "--duration", "1s", "-o", "json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (measured,) = json.loads(result.stdout)
    settings = measured["runs"][0]["settings"]
    assert (settings["prefetch"], settings["client batching"]) == (prefetch, batching)
    assert measured["advice"]["changes"] == [] and measured["runs"][0]["received"] > 0


def test_a_table_and_a_page(server: Busbar, tmp_path: Path) -> None:
    result = busbar(
        server,
        "--scenario",
        "low-latency",
        "--duration",
        "1s",
        "--size",
        "100",
        "--batching",
        "30",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert "low-latency" in result.stdout and "p99" in result.stdout and "chosen" in result.stdout
    assert "client batching: off instead of 30 ms" in result.stdout
    page = (tmp_path / "bench.html").read_text()
    assert page.count("<svg") == 2 and "100 bytes a message" in page


def test_a_terminal_gets_a_progress_bar(server: Busbar, tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "busbar",
        "bench",
        "--scenario",
        "low-latency",
        "--naive",
        "--duration",
        "1s",
    ]
    environment = os.environ | {"BUSBAR_CONNECTION_STRING": server.connection_string, "TERM": "xterm"}
    process = subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=end, text=True
    )
    os.close(end)
    shown = b""
    try:
        while part := os.read(terminal, 4096):
            shown += part
    except OSError:
        pass  # the other end is closed
    out, _ = process.communicate(timeout=60)
    os.close(terminal)
    assert process.returncode == 0 and "low-latency" in out
    text = shown.decode()
    assert "low-latency queue, naive settings" in text and "━" in text
    assert "━" not in out


@pytest.mark.req("B11")
def test_all_scenarios_are_measured_with_their_presets(
    server: Busbar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "PROBE_SECONDS", 0.4)
    phases: list[str] = []
    results = asyncio.run(
        compare(
            BenchTarget(server.connection_string), seconds=0.6, on_phase=lambda text, _: phases.append(text)
        )
    )
    assert [result.workload.scenario for result in results] == list(Scenario)
    for result in results:
        scenario = result.workload.scenario
        naive, tuned = result.runs
        assert naive.received > 0 and tuned.received > 0, scenario
        assert not naive.failures and not tuned.failures, scenario
        assert naive.settings["operations"] == "one at a time"
        documented = preset(scenario, result.workload.load(None, None))
        assert tuned.settings["EnablePartitioning"] == "true"
        assert (
            tuned.settings["EnableBatchedOperations"] == "true"
        ) is documented.entity.enable_batched_operations
        assert f"{scenario.value}, preset settings" in phases
    batching = {result.workload.scenario: result.last.settings["client batching"] for result in results}
    assert batching[Scenario.HIGH_THROUGHPUT] == "100 ms" and batching[Scenario.SEVERAL_HIGH] == "50 ms"
    assert batching[Scenario.LOW_LATENCY] == "off" and batching[Scenario.MANY_SENDERS] == "20 ms"
    prefetch = {result.workload.scenario: int(result.last.settings["prefetch"]) for result in results}
    assert prefetch[Scenario.MANY_RECEIVERS] == 10
    # 50 messages a second are sent; a busy machine has sent fewer when the rate is measured.
    assert 20 * 10 <= prefetch[Scenario.LOW_LATENCY] <= 20 * 65
    assert names(server) == {"yours"}


@pytest.mark.req("B11")
def test_presets_are_settings_of_entities_that_the_broker_has(server: Busbar) -> None:
    with BlockingAdministrationClient.from_connection_string(server.connection_string) as admin:
        for scenario in Scenario:
            options: Any = preset(scenario, Load(receive_rate=10)).entity.options()
            create = admin.create_topic if scenario.is_topic else admin.create_queue
            made = create(scenario.key, **options)
            assert made.enable_partitioning
            assert made.enable_batched_operations is (scenario is not Scenario.LOW_LATENCY)
            (admin.delete_topic if scenario.is_topic else admin.delete_queue)(scenario.key)


def test_what_cannot_be_run(server: Busbar, tmp_path: Path) -> None:
    for arguments, code, words in (
        (("--scenario", "fast"), 2, "high-throughput, several-high, low-latency"),
        (("--naive",), 2, "which scenario?"),
        (("--scenario", "low-latency", "--duration", "soon"), 2, "--duration"),
    ):
        result = busbar(server, *arguments, cwd=tmp_path)
        assert (result.returncode, words in result.stderr) == (code, True), result.stderr
        assert "Traceback" not in result.stderr
    nowhere = server.connection_string.replace(str(server.port), "1")
    result = busbar(server, "--connection-string", nowhere, "--scenario", "low-latency", cwd=tmp_path)
    assert result.returncode == 1 and "cannot be reached" in result.stderr


def test_an_interrupted_run_deletes_its_entities(server: Busbar, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "busbar",
        "bench",
        "--scenario",
        "few-subscriptions",
        "--duration",
        "60s",
    ]
    environment = os.environ | {"BUSBAR_CONNECTION_STRING": server.connection_string}
    process = subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while names(server) == {"yours"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0 and "Traceback" not in errors, errors
    assert names(server) == {"yours"}
