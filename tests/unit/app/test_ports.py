"""The ports of `busbar serve`: which must be had, which are a convenience, and that all understand the same."""

from __future__ import annotations

import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from busbar.app.endpoint_file import read_endpoint
from harness.serving import Busbar, ServerDied


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_all_ports_understand_the_same(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data").start()
    try:
        trust = ssl.create_default_context(cafile=str(server.data / "tls" / "ca.pem"))
        endpoint = read_endpoint(server.data)
        assert endpoint is not None
        found = {endpoint.port, endpoint.http_port, endpoint.tls_port}
        assert len(found) == 3 and server.port in found
        for port in found:
            assert urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200
            assert (
                urllib.request.urlopen(f"https://127.0.0.1:{port}/health", timeout=5, context=trust).status
                == 200
            )
            with socket.create_connection(("127.0.0.1", port), 5) as amqp:
                amqp.sendall(b"AMQP\x03\x01\x00\x00")
                assert amqp.recv(8) == b"AMQP\x03\x01\x00\x00"
    finally:
        server.stop()


@pytest.mark.parametrize("option", ["--http-port", "--tls-port"])
def test_a_port_that_was_named_must_be_had(tmp_path: Path, taken: int, option: str) -> None:
    with pytest.raises(ServerDied, match=rf"Cannot listen on 127\.0\.0\.1:{taken}.*{option}"):
        Busbar(tmp_path / "data", arguments=(option, str(taken))).start()


def test_a_certificate_that_cannot_be_used_is_said_plainly(tmp_path: Path) -> None:
    for arguments, text in (
        (("--tls-cert", "nowhere.pem", "--tls-key", "nowhere.key"), "nowhere.pem"),
        (("--tls-cert", "nowhere.pem"), "belong together"),
    ):
        with pytest.raises(ServerDied) as died:
            Busbar(tmp_path / "data", arguments=arguments).start()
        assert "exit code 2" in str(died.value) and text in str(died.value)
        assert "Traceback" not in str(died.value)
