"""A command acts on the namespace that its operator named, and on no other: copied and abandoned data directories."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.serving import Busbar, config_text


def busbar(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command as a script runs it: nobody can answer."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BUSBAR_CONN")}
    return subprocess.run(
        [sys.executable, "-m", "busbar", *arguments],
        env=inherited | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def delete(data: Path, queue: str = "q", **environment: str) -> subprocess.CompletedProcess[str]:
    return busbar("queue", "delete", queue, "--yes", "--data", str(data), **environment)


def has(server: Busbar, queue: str = "q") -> bool:
    return busbar("queue", "show", queue, "--data", str(server.data)).returncode == 0


def test_a_copied_data_directory_does_not_lead_to_the_original(server: Busbar, tmp_path: Path) -> None:
    for name, way in (("copy", shutil.copy2), ("hard-links", os.link)):
        shutil.copytree(server.data, tmp_path / name, copy_function=way)
        done = delete(tmp_path / name)
        assert done.returncode == 1, done.stderr
        assert f"no Busbar is serving the data directory {tmp_path / name}" in done.stderr
    # A server on the copy is found there, and only there.
    other = Busbar(tmp_path / "copy").start()
    try:
        assert delete(other.data).returncode == 0
        assert has(server) and not has(other)
    finally:
        other.stop()
    # Another name of the same directory is no copy.
    (tmp_path / "link").symlink_to(server.data)
    assert delete(tmp_path / "link", "other").returncode == 0
    assert has(server) and not has(server, "other")


def test_what_a_crash_left_leads_nowhere(tmp_path: Path) -> None:
    """Also when the number of its process has gone to another one, and its port to another Busbar with the same key."""
    crashed = Busbar(tmp_path / "crashed", config_text({"q": {}})).start()
    crashed.kill()
    other = Busbar(tmp_path / "other", config_text({"q": {}}))
    other.port = crashed.port
    other.start()
    try:
        file = crashed.data / "endpoint.json"
        assert file.is_file()
        file.write_text(file.read_text().replace('"pid": ', f'"pid": {os.getpid()}, "was": '))
        done = delete(crashed.data)
        assert done.returncode == 1 and "no Busbar is serving" in done.stderr
        assert has(other)
    finally:
        other.stop()
