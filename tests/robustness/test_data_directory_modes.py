"""`busbar serve` on data directories whose modes let others get at keys: refused, with the command that mends it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from harness.serving import Busbar, ServerDied


def with_umask(data: Path, mask: str) -> Busbar:
    return Busbar(data, prefix=("sh", "-c", f'umask {mask}; exec "$@"', "sh"))


def refusal(data: Path) -> str:
    server = Busbar(data)
    try:
        with pytest.raises(ServerDied) as raised:
            server.start()
    finally:
        server.stop()
    assert "exit code 1" in str(raised.value)
    return str(raised.value)


def private_modes(data: Path) -> dict[str, int]:
    return {str(file.relative_to(data)): file.stat().st_mode & 0o777 for file in data.rglob("*")}


def test_the_laxest_umask_opens_nothing(tmp_path: Path) -> None:
    """In a directory that the user made: only what is public may be read by others, and nothing written."""
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    server = with_umask(data, "000").start()
    try:
        modes = private_modes(data)
    finally:
        server.stop()
    assert {name for name, mode in modes.items() if mode & 0o077} == {"tls/ca.pem", "tls/server.pem"}
    assert not any(mode & 0o022 for mode in modes.values())
    assert {"endpoint.json", "tls/ca-key.pem", "tls/server-key.pem", "store-0.db"} <= set(modes)


def test_it_is_refused_until_the_command_that_it_prints_was_called(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    Busbar(data).start().stop()
    for victim, mode in (
        *((".", 0o777), ("tls", 0o777)),
        *(("tls/ca-key.pem", 0o644), ("store-1.db", 0o660)),
    ):
        (data / victim).chmod(mode)
        told = refusal(data)
        assert str(data / victim) in told and f"{mode:04o}" in told
        command = re.search(r"chmod (-R )?go\S+ '[^']+'", told)
        assert command is not None, told
        subprocess.run(shlex.split(command[0]), check=True)
    Busbar(data).start().stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_root_is_told_whose_directory_it_serves(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    os.chown(data, 54321, -1)
    server = Busbar(data).start()
    server.stop()
    assert f"warning: the data directory {data} belongs to the user 54321" in server.error_text
