"""A command acts on the namespace that its operator named, and on no other: copied and abandoned data directories."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness.serving import Busbar, config_text


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


def test_what_is_typed_wins_over_the_environment(server: Busbar, tmp_path: Path) -> None:
    other = Busbar(tmp_path / "other", config_text({"q": {}})).start()
    try:
        away = {"BUSBAR_CONNECTION_STRING": other.connection_string}
        made = busbar("queue", "create", "mine", "--data", str(server.data), **away)
        assert made.returncode == 0, made.stderr
        where = f"namespace: sb://127.0.0.1:{server.port}/ (by the data directory {server.data})\n"
        assert made.stderr == where, "a command that changes something says where"
        assert has(server, "mine") and not has(other, "mine")
        # A directory that nobody serves is no reason to look elsewhere.
        assert delete(tmp_path / "nothing", "mine", **away).returncode == 1
        # Without either it is the variable, and the command says so.
        made = busbar("queue", "create", "theirs", **away)
        assert made.stderr == f"namespace: sb://127.0.0.1:{other.port}/ (by BUSBAR_CONNECTION_STRING)\n"
        assert has(other, "theirs") and not has(server, "theirs")
        shown = busbar("queue", "show", "theirs", **away)
        assert (shown.returncode, shown.stderr) == (0, ""), "one that changes nothing is silent"
    finally:
        other.stop()
