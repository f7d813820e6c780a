"""TLS on every port: the SDK and plain AMQP clients over it, the certificate, and one port that serves everything."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.servicebus import ServiceBusMessage

from busbar.client.errors import BusbarClientError
from busbar.client.factory import MessagingFactory
from harness.serving import PATIENCE, Busbar
from tests.robustness.wire import SASL_HEADER

pytestmark = pytest.mark.server(
    {"sync": {}, "async": {}, "q": {}}, PATIENCE, arguments=("--tls-name", "bus.example")
)


def ca_file(server: Busbar) -> str:
    return str(server.data / "tls" / "ca.pem")


def client_options(server: Busbar, **more: Any) -> dict[str, Any]:
    """Without UseDevelopmentEmulator the SDK speaks TLS, to a port that only this option can name."""
    return {
        "custom_endpoint_address": f"sb://localhost:{server.port}",
        "connection_verify": ca_file(server),
        "retry_total": 0,
        **more,
    }


def cloud_string(server: Busbar) -> str:
    return (
        f"Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={server.key}"
    )


@pytest.mark.req("B1", "U17")
def test_the_sync_sdk_over_tls(server: Busbar) -> None:
    with azure.servicebus.ServiceBusClient.from_connection_string(
        cloud_string(server), **client_options(server)
    ) as client:
        with client.get_queue_sender("sync") as sender:
            sender.send_messages([ServiceBusMessage(f"{n}" * 20_000) for n in range(3)])
        with client.get_queue_receiver("sync") as receiver:
            messages = receiver.receive_messages(max_message_count=3, max_wait_time=5)
            assert str(messages[0]) == "0" * 20_000
            for message in messages:
                receiver.complete_message(message)


@pytest.mark.req("B1", "U17")
async def test_the_async_sdk_over_tls(server: Busbar) -> None:
    async with azure.servicebus.aio.ServiceBusClient.from_connection_string(
        cloud_string(server), **client_options(server)
    ) as client:
        async with client.get_queue_sender("async") as sender:
            await sender.send_messages(ServiceBusMessage("x" * 200_000))
        async with client.get_queue_receiver("async") as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            assert str(message) == "x" * 200_000
            await receiver.complete_message(message)


@pytest.mark.req("U17")
def test_one_port_serves_everything(server: Busbar) -> None:
    """AMQP, HTTP, AMQP in TLS and HTTP in TLS, at the same time on the same port."""
    trust = ssl.create_default_context(cafile=ca_file(server))
    with (
        socket.create_connection(("127.0.0.1", server.port)) as amqp,
        trust.wrap_socket(
            socket.create_connection(("127.0.0.1", server.port)), server_hostname="bus.example"
        ) as amqps,
    ):
        web = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        webs = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=5, context=trust)
        for client in (web, webs, web, webs):  # twice each: the connection is kept alive
            client.request("GET", "/health")
            answer = client.getresponse()
            assert answer.status == 200 and json.loads(answer.read())["status"] == "healthy"
        for one in (amqp, amqps):
            one.settimeout(5)
            for byte in SASL_HEADER:  # cut where no client cuts
                one.sendall(bytes((byte,)))
            assert one.recv(8, socket.MSG_WAITALL if one is amqp else 0)[:8] == SASL_HEADER
        web.close()
        webs.close()


@pytest.mark.req("U17")
def test_every_port_serves_with_and_without_tls(server: Busbar) -> None:
    """The main port, the one for HTTP and the one for TLS: all understand both protocols, in TLS and outside."""
    endpoint = json.loads((server.data / "endpoint.json").read_text())
    ports = [endpoint[name] for name in ("port", "http_port", "tls_port")]
    assert len(set(ports)) == 3 and server.port in ports
    trust = ssl.create_default_context(cafile=ca_file(server))
    for port in ports:
        webs = http.client.HTTPSConnection("localhost", port, timeout=5, context=trust)
        for client in (http.client.HTTPConnection("localhost", port, timeout=5), webs):
            client.request("GET", "/health")
            assert client.getresponse().status == 200
            client.close()
        for secure in (False, True):
            amqp: socket.socket = socket.create_connection(("localhost", port), timeout=5)
            if secure:
                amqp = trust.wrap_socket(amqp, server_hostname="localhost")
            with amqp:
                amqp.sendall(SASL_HEADER)
                assert amqp.recv(8)[:8] == SASL_HEADER


def test_the_certificate_names_the_host(server: Busbar) -> None:
    trust = ssl.create_default_context(cafile=ca_file(server))
    for name in ("localhost", "127.0.0.1", "bus.example"):
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            trust.wrap_socket(plain, server_hostname=name) as secure,
        ):
            assert secure.version() in ("TLSv1.2", "TLSv1.3")
    with (
        socket.create_connection(("127.0.0.1", server.port)) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        trust.wrap_socket(plain, server_hostname="other.example")


async def test_our_client_believes_neither_strangers_nor_other_names(server: Busbar) -> None:
    trust = Path(ca_file(server))
    right = cloud_string(server).replace("localhost", f"localhost:{server.port}")
    factory = await MessagingFactory.connect(right, trust=trust)
    await factory.close()
    with pytest.raises(BusbarClientError, match="is not trusted"):
        await MessagingFactory.connect(right)
    other = right.replace("localhost", "127.1")  # leads to the same socket, and stands in no certificate
    with pytest.raises(BusbarClientError, match="is not trusted"):
        await MessagingFactory.connect(other, trust=trust)


def test_the_certificate_is_kept_and_the_keys_are_private(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data")
    server.start()
    server.stop()
    directory = tmp_path / "data" / "tls"
    kept = {file.name: file.read_bytes() for file in directory.iterdir()}
    assert set(kept) == {"ca.pem", "ca-key.pem", "server.pem", "server-key.pem"}
    assert all(
        (directory / name).stat().st_mode & 0o777 == 0o600 for name in ("ca-key.pem", "server-key.pem")
    )
    server.start()
    server.stop()
    assert kept == {file.name: file.read_bytes() for file in directory.iterdir()}


@pytest.mark.req("U17")
def test_a_certificate_of_the_users_own(server: Busbar, tmp_path: Path) -> None:
    theirs = server.data / "tls"
    arguments = ("--tls-cert", str(theirs / "server.pem"), "--tls-key", str(theirs / "server-key.pem"))
    other = Busbar(tmp_path / "data", arguments=arguments).start()
    try:
        trust = ssl.create_default_context(cafile=ca_file(server))
        client = http.client.HTTPSConnection("localhost", other.port, timeout=5, context=trust)
        client.request("GET", "/health")
        assert client.getresponse().status == 200
        client.close()
    finally:
        other.stop()
    assert not (tmp_path / "data" / "tls").exists()


def trust_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "busbar", "trust", *arguments], capture_output=True, text=True, check=False
    )


def test_what_trust_prints_makes_a_client_trust(server: Busbar) -> None:
    """As a user does it: eval the exports, then a program that knows nothing of Busbar verifies the certificate."""
    printed = trust_command("--data", str(server.data))
    assert printed.returncode == 0
    script = f"{printed.stdout}\n{sys.executable} - <<'PROGRAM'\n" + (
        "import urllib.request\n"
        f"print(urllib.request.urlopen('https://localhost:{server.port}/health').status)\nPROGRAM\n"
    )
    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "200", ran.stderr
    told = json.loads(trust_command("--data", str(server.data), "-o", "json").stdout)
    assert told["ca"] == ca_file(server)
    assert set(told["environment"]) == {"NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}
    assert os.path.isfile(told["environment"]["SSL_CERT_FILE"])


def test_trust_without_an_instance_says_what_to_do(tmp_path: Path) -> None:
    told = trust_command("--data", str(tmp_path))
    assert told.returncode == 1 and "busbar serve" in told.stderr and told.stdout == ""


async def test_many_tls_clients_at_once(server: Busbar) -> None:
    """As many as may shake hands at once: beyond that a slow machine's clients may be taken for a flood."""
    trust = ssl.create_default_context(cafile=ca_file(server))

    async def visit() -> bytes:
        reader, writer = await asyncio.open_connection("localhost", server.port, ssl=trust)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    answers = await asyncio.gather(*(visit() for _ in range(180)))
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
