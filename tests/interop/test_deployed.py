"""What the files of deploy/ run, run here: the service manager is notified, and a container logs no key."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.serving import Busbar, config_text
from tests.unit.test_repository_deploy import DEPLOY, image_command, unit_line

pytestmark = pytest.mark.timeout(60)


def test_a_service_manager_is_notified_of_start_and_stop(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        server = Busbar(
            tmp_path / "data",
            config_text({"q": {}}),
            environment={"NOTIFY_SOCKET": str(tmp_path / "notify")},
        ).start()
        assert manager.recv(100) == b"READY=1"
        assert server.stop() == 0
        assert manager.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("arguments", [unit_line()[1:], image_command()], ids=["systemd", "image"])
def test_the_command_lines_serve_and_log_no_key(arguments: list[str], tmp_path: Path) -> None:
    """Through the entry point of the image, with places of this test."""
    replaced = {
        "/var/lib/busbar": tmp_path / "data",
        "/data": tmp_path / "data",
        "/etc/busbar/Config.json": DEPLOY / "Config.json",
    }
    command = [str(replaced.get(argument, argument)) for argument in arguments]
    ports = ["--port", "0", "--http-port", "0", "--tls-port", "0"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "BUSBAR_KEY": "a-key-of-this-test",
        }
        process = subprocess.Popen(
            [str(DEPLOY / "docker" / "entrypoint"), *command, *ports],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert manager.recv(100) == b"READY=1"
        finally:
            process.terminate()
            out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert out == "" and "a-key-of-this-test" not in err
    assert not (tmp_path / "data" / "sas.key").exists(), "the key of the environment is used"
