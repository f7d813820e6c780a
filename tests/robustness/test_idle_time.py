"""AutoDeleteOnIdle, when time itself misbehaves: the wall clock is set, or the whole process is stopped for a while."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.faults.shims import build_shim
from harness.serving import Busbar, config_text
from tests.interop.administration import BareHttp, entry
from tests.robustness.wire import DETACH, RECEIVER, logged_in

VERSION = "api-version=2021-05"
LIMITS = {"min_auto_delete_on_idle": 300}
STEP = 1_800
STEPS = 6


class Serving:
    def __init__(self, server: Busbar, clock: Path) -> None:
        self.server = server
        self._clock = clock
        self._http = BareHttp(server)

    def put(self, queue: str, idle: str) -> None:
        body = entry(f"QueueDescription <AutoDeleteOnIdle>{idle}</AutoDeleteOnIdle>")
        assert self.ask("PUT", f"{queue}?{VERSION}", body) == 201

    def is_there(self, queue: str) -> bool:
        return self.ask("GET", f"{queue}?{VERSION}") == 200

    def ask(self, method: str, target: str, body: str = "") -> int:
        token = self._http.token(life=STEPS * STEP)
        return self._http.request(method, f"/{target}", body, token=token)[0]

    def set_clock(self, seconds: int) -> None:
        beside = self._clock.with_suffix(".new")
        beside.write_text(str(seconds))
        beside.rename(self._clock)

    def stop_for(self, seconds: float) -> None:
        """No process of it does anything, as when its machine sleeps."""
        processes = self.server.processes()
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        time.sleep(seconds)
        for process in processes:
            os.kill(process, signal.SIGCONT)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("idle")
    clock = path / "ahead"
    shim = {"LD_PRELOAD": str(build_shim("set_clock", path)), "SET_CLOCK_FILE": str(clock)}
    server = Busbar(path / "data", config_text({}, LIMITS), environment=shim).start()
    yield Serving(server, clock)
    assert server.stop() == 0
    assert "Traceback" not in server.error_text


def test_a_step_of_the_wall_clock_deletes_nothing(served: Serving) -> None:
    served.put("used", f"PT{STEP // 2}S")
    served.put("brief", "PT1S")
    assert served.ask("POST", "used/messages", "kept") == 201
    served.set_clock(STEP)
    deadline = time.monotonic() + 20
    while served.is_there("brief"):  # so idle entities have been looked for
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert served.is_there("used")
    assert served.ask("DELETE", "used/messages/head?timeout=5") == 200
    served.set_clock(0)


def test_an_entity_with_a_link_outlives_steps_of_the_wall_clock(served: Serving) -> None:
    served.put("waited-for", f"PT{STEP // 2}S")
    with logged_in(served.server.port) as wire:
        wire.attach(0, RECEIVER, "waited-for")
        for step in range(1, STEPS):
            served.set_clock(step * STEP)
            time.sleep(0.2)
            assert served.is_there("waited-for")
    served.set_clock(0)


def test_an_entity_with_a_link_outlives_its_idle_time_and_a_stop_of_the_process(served: Serving) -> None:
    for name in ("awaited", "forgotten"):
        served.put(name, "PT0.5S")
    with logged_in(served.server.port) as wire:
        wire.attach(0, RECEIVER, "awaited")
        deadline = time.monotonic() + 20
        while served.is_there("forgotten"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for _ in range(3):
            served.stop_for(0.8)
            time.sleep(0.2)
            assert served.is_there("awaited")
        wire.say(DETACH, [0, True])
        wire.until(DETACH)
        while served.is_there("awaited"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
