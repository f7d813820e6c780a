"""What supervisors and load balancers ask: /live and /ready, when the disks of a process hang."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from busbar.catalogue.placement import place
from busbar.gateway.http.probes import DRAINING, Probes
from busbar.model.limits import Limits
from harness.amqp_driver import connect
from harness.serving import Busbar, config_text
from harness.waiting import until

pytestmark = pytest.mark.shim("hanging_disk")
LIMITS = {"store_timeout": 300, "live_timeout": 2_000}
LIVE, READY = (200, {"status": "live"}), (200, {"status": "ready"})

Answer = tuple[int, dict[str, str]]


def probe(server: Busbar, path: str, method: str = "GET") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request(method, f"/{path}")
        answer = connection.getresponse()
        body = answer.read()
        is_document = answer.getheader("Content-Type", "").startswith("application/json")
        return answer.status, json.loads(body) if body and is_document else {}
    finally:
        connection.close()


@pytest.mark.parametrize("brokers", [1, 2])
async def test_ready_ends_when_no_disk_answers_and_live_some_time_later(
    brokers: int, shim: Path, tmp_path: Path
) -> None:
    control = tmp_path / "hanging"
    stores = [f"store-{number}" for number in range(brokers)]
    names = [f"q{number}" for number in range(99)]
    queues = [next(name for name in names if place(name, 1, stores) == (store,)) for store in stores]
    server = Busbar(
        tmp_path / "data",
        config_text({"live": {}, **{queue: {} for queue in queues}}, LIMITS),
        arguments=("--brokers", str(brokers), "--stores", str(brokers)),
        environment={"LD_PRELOAD": str(shim), "HANG_FILE": str(control)},
    ).start()

    async def shows(path: str, check: Callable[[Answer], bool]) -> None:
        await until(lambda: check(probe(server, path)), lambda: probe(server, path), seconds=30, pause=0.05)

    try:
        assert (probe(server, "live"), probe(server, "READY")) == (LIVE, READY)
        assert probe(server, "ready", "HEAD") == (200, {})
        assert probe(server, "live?api-version=2021-05")[0] == 401, (
            "the queue of this name is managed as others"
        )
        assert probe(server, "live", "DELETE")[0] == 401

        if brokers > 1:  # one of two is no reason to restart a process, or to send clients elsewhere
            control.write_text(f"{stores[0]} sync")
            await send_to(server, queues[:1])
            await shows("health", lambda answer: answer[1]["status"] == "limited")
            assert probe(server, "ready") == READY

        control.write_text("store- sync")
        await send_to(server, queues)
        await shows("ready", lambda answer: answer[0] == 503)
        assert probe(server, "ready")[1] == {
            "status": "not ready",
            "message": "No messaging store is available.",
        }
        if brokers == 1:
            assert probe(server, "live") == LIVE, "a restart now could only do harm"
        await shows("live", lambda answer: answer[0] == 503 and answer[1]["status"] == "not live")

        control.unlink()
        await shows("ready", lambda answer: answer == READY)
        await shows("live", lambda answer: answer == LIVE)
    finally:
        control.unlink(missing_ok=True)
        assert server.stop() == 0, server.error_text


async def send_to(server: Busbar, queues: list[str]) -> None:
    """Send to these queues, without waiting for answers: their stores have something to sync."""
    connection = await connect(server.port)
    for queue in queues:
        (await connection.sender(queue)).start(1)


@dataclass
class Process:
    """A process, as the probes see it."""

    reason: str = ""
    seconds: float = 0.0

    def reason_not_to_serve(self) -> str:
        return self.reason

    def hanging_for(self) -> float:
        return self.seconds


@pytest.mark.parametrize(
    ("process", "is_live", "is_ready"),
    [
        (Process(), True, True),
        (Process("No store."), True, False),
        (Process("No store.", 59), True, False),
        (Process("No store.", 61), False, False),
        (Process("", 61), True, True),  # stores of other processes are open
    ],
)
def test_what_supervisors_should_do(process: Process, is_live: bool, is_ready: bool) -> None:
    probes = Probes(process, Limits())
    assert (probes.answer("live").status == 200, probes.answer("ready").status == 200) == (is_live, is_ready)


def test_a_process_that_stops_is_not_ready_and_still_lives() -> None:
    probes = Probes(Process(), Limits())
    probes.is_draining = True
    assert (probes.answer("ready").status, probes.answer("live").status) == (503, 200)
    assert DRAINING in (probes.answer("ready").text or "")
