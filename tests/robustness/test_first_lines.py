"""What `busbar serve` and lists print can be used as it stands: the address, the queue of the hint, a line for each row."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import socket
import ssl
import struct
import subprocess
import sys
import termios
from pathlib import Path

from harness.serving import Busbar, config_text

LONG = "long-" + "x" * 100


def test_the_hint_names_a_queue_that_there_is(tmp_path: Path) -> None:
    queues = {"a-sessions": {"RequiresSession": True}, "mine": {}}
    server = Busbar(tmp_path / "data", config_text(queues)).start()
    server.stop()
    assert 'get_queue_sender("mine")' in server.error_text
    server = Busbar(tmp_path / "none", config_text({})).start()
    server.stop()
    assert "busbar queue create orders --data" in server.error_text


def test_the_address_of_all_interfaces_is_one_that_others_can_use(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            expected = probe.getsockname()[0]
        except OSError:  # a machine without a network
            expected = "localhost"
    server = Busbar(tmp_path / "data", config_text({LONG: {}}), arguments=("--host", "0.0.0.0")).start()
    try:
        found = re.search(r"Endpoint=sb://([^;]*):(\d+)", server.connection_string)
        assert found is not None and found[1] == expected
        trust = ssl.create_default_context(cafile=server.data / "tls" / "ca.pem")
        with socket.create_connection((found[1], int(found[2])), 10) as peer:
            trust.wrap_socket(peer, server_hostname=expected).close()
        assert f"health: http://{expected}:" in server.error_text
        # Commands of this machine find it all the same. A row is a line, whole in a file and cut on a terminal.
        command = [sys.executable, "-m", "busbar", "queue", "list", "--data", str(server.data)]
        narrow = os.environ | {"COLUMNS": "40"}
        listed = subprocess.run(command, env=narrow, capture_output=True, text=True, timeout=60, check=True)
        assert len(listed.stdout.splitlines()) == 3
        assert LONG in listed.stdout
        shown = on_a_terminal(command, 60).splitlines()
        assert len(shown) == 3 and max(map(len, shown)) <= 60
        assert "long-xxx" in shown[-1] and "Active" in shown[-1]
    finally:
        server.stop()


def on_a_terminal(command: list[str], columns: int) -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    environment |= {"NO_COLOR": "1", "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 4096):
            seen += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    assert process.wait(60) == 0
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;]*m", "", seen.decode().replace("\r\n", "\n"))
