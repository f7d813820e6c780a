"""The first `make run`: the broker serves at once, and its compiled rooms are built beside it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.installed import ROOT
from tools.build_rooms import can_compile

pytestmark = pytest.mark.skipif(not can_compile(), reason="there is no C compiler")

# What stands in for the server: it prints which file a compiled module comes from, then serves until it is stopped.
SERVER = """
import signal, sys, threading
import busbar.pages.columns
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
print("serving", busbar.pages.columns.__file__, flush=True)
stop.wait()
print("stopped", flush=True)
"""
PATIENCE = 300.0


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The sources with what was built from them, and one room that was edited since."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    # Wheels are built in build/lib meanwhile.
    ignored = {
        "src": ("__pycache__", "*.egg-info"),
        "tools": ("__pycache__",),
        "build": ("lib", "lib.*", "results"),
    }
    for name, patterns in ignored.items():
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns(*patterns))
    edited = tmp_path / "src/busbar/pages/columns.py"
    edited.write_text(f"{edited.read_text()}\nEDITED = True\n")
    return tmp_path


def first_start(clone: Path, **environment: str) -> subprocess.Popen[str]:
    """Run the server as `make run` does."""
    return subprocess.Popen(
        [sys.executable, "tools/first_start.py", sys.executable, "-c", SERVER],
        cwd=clone,
        env={
            **{name: value for name, value in os.environ.items() if name != "BUSBAR_INTERPRETED"},
            "PYTHONPATH": str(clone / "src"),
            **environment,
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """The next line of its output that has this text; the test fails if the output ends before."""
    assert process.stdout is not None
    passed = []
    for line in process.stdout:
        if text in line:
            return line
        passed.append(line)
    raise AssertionError(f"no {text!r} in {passed}")


def compilers(clone: Path) -> list[str]:
    """The processes that build in this clone."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            directory, command = os.readlink(entry / "cwd"), (entry / "cmdline").read_text()
        except OSError:
            continue
        if directory == str(clone) and ("setup.py" in command or "build_rooms" in command):
            found.append(command)
    return found


def test_it_serves_interpreted_first_and_compiled_next(clone: Path) -> None:
    first = first_start(clone)
    assert line_with(first, "serving").strip().endswith("columns.py")
    line_with(first, "The compiled rooms are built")
    first.terminate()
    line_with(first, "stopped")
    assert first.wait(timeout=PATIENCE) == 0

    second = first_start(clone)
    assert line_with(second, "serving").strip().endswith(".so")
    second.terminate()
    assert second.wait(timeout=PATIENCE) == 0


def test_the_build_ends_with_the_server(clone: Path) -> None:
    server = first_start(clone)
    line_with(server, "serving")
    deadline = time.monotonic() + PATIENCE
    while not compilers(clone) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert compilers(clone)
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=PATIENCE) == 0
    while compilers(clone) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert compilers(clone) == []


def test_a_build_that_fails_is_told(clone: Path) -> None:
    (clone / "src/busbar/fragment/window.py").write_text("def (:")
    server = first_start(clone)
    line_with(server, "serving")
    assert "build/rooms.log has the reason" in line_with(server, "could not be built")
    assert "fragment/window.py" in (clone / "build/rooms.log").read_text()
    server.terminate()
    assert server.wait(timeout=PATIENCE) == 0
