"""What the README promises a newcomer: `make run`, then the sample, its listing and one line of curl and of `busbar`."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.serving import Busbar

ROOT = Path(__file__).resolve().parents[2]
SAMPLE_NAMESPACE = ROOT / "src" / "busbar" / "app" / "sample" / "Config.json"

# As `make run` starts it, but on a free port.
pytestmark = pytest.mark.server(config=SAMPLE_NAMESPACE.read_text(), arguments=("--dev",), checked=True)


def run(*command: str, server: Busbar, **environment: str) -> str:
    """What a command prints, which must succeed and complain of nothing."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        env=os.environ | {"BUSBAR_CONNECTION_STRING": server.connection_string} | environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def readme(server: Busbar, language: str) -> str:
    """The listing of that language, at the port of the server under test."""
    listings = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(listings) == 1
    return str(listings[0]).replace("localhost:5672", f"localhost:{server.port}")


def test_the_sample(server: Busbar) -> None:
    printed = run(sys.executable, "samples/first_message.py", server.connection_string, server=server)
    assert re.fullmatch(r"\d+ two coffees, one croissant\n", printed)


def test_the_sample_of_forwarding(server: Busbar) -> None:
    for arguments in (("archive",), ("incoming", "--forward-to", "archive")):
        run(
            sys.executable,
            "-m",
            "busbar",
            "queue",
            "create",
            *arguments,
            "--data",
            str(server.data),
            server=server,
        )
    printed = run(sys.executable, "samples/forwarding.py", server.connection_string, server=server)
    assert printed == "".join(f"order {number}: number {number + 1} in incoming\n" for number in range(3))


def test_the_sample_knows_where_make_run_serves(server: Busbar) -> None:
    """Without an argument it goes to the port, and uses the key, that `make run` has."""
    sample = runpy.run_path(str(ROOT / "samples" / "first_message.py"))
    assert (
        sample["CONNECTION"].replace("localhost:5672", f"127.0.0.1:{server.port}") == server.connection_string
    )


def test_the_listing_of_the_readme(server: Busbar) -> None:
    printed = run(sys.executable, "-c", readme(server, "python"), server=server)
    assert re.fullmatch(r"\d+ two coffees, one croissant\n", printed)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the listing uses curl, which is not here")
def test_the_commands_of_the_readme(server: Busbar, tmp_path: Path) -> None:
    """Each as it stands there, with the `busbar` and the address of this test."""
    (tmp_path / "busbar").write_text(f'#!/bin/sh\nexec {sys.executable} -m busbar "$@"\n')
    (tmp_path / "busbar").chmod(0o755)
    script = "set -e\n" + readme(server, "sh").replace(".venv/bin/busbar", "busbar")
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    printed = run("bash", "-c", script, server=server, **path)
    assert "invoices" in printed
    assert "hello from curl" in printed
